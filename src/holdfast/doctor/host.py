"""Host: all checks of one host, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.doctor import limits, memory, network, torch_report, trial, versions
from holdfast.doctor.clock import clock
from holdfast.doctor.disk import disk, home_of
from holdfast.doctor.finding import Finding, Outcome, advice
from holdfast.doctor.needs import HostNeeds, variables
from holdfast.doctor.torch_report import TorchReport
from holdfast.doctor.trial import Trial
from holdfast.job import load
from holdfast.launch.fork_client import ForkServer
from holdfast.launch.spawn import Spawned


def examine(
    needs: HostNeeds, address: str, forks: ForkServer | Spawned | None
) -> Iterator[Finding | TorchReport | Trial]:
    """Check this host; findings are given as they are found, and what they are of among them.

    Args:
        needs: Needs of the job on the host.
        address: Address at which other hosts reach it; empty for that of the default route.
        forks: A fork server for the trial run.

    Raises:
        Interrupted: A signal has ended the trial run.
    """
    yield from versions.versions()
    yield variables(needs.job.env)
    yield limits.descriptors(needs)
    yield limits.tasks(needs)
    yield limits.cores(needs)
    yield clock()
    yield network.loopback()
    yield network.own_name()
    yield network.address(address, needed=needs.job.most_hosts > 1)
    yield from network.ports(needs.ports, address)
    report = torch_report.probe(load.dump(needs.job))
    if isinstance(report, Finding):
        yield report
        size = torch_report.UNKNOWN_BYTES
        kept = torch_report.UNKNOWN_BYTES
    else:
        yield report
        yield from torch_report.findings(report, needs)
        size = report.arena_bytes(needs.workers)
        kept = report.checkpoint_bytes
    yield memory.asked(needs)
    yield memory.arena(size)
    yield memory.dev_shm(needs)
    on_disk = disk(needs.run_dir, kept, needs.job.checkpoint.keep)
    yield from on_disk
    if any(each.outcome is Outcome.FAULT for each in on_disk):
        yield advice("trial run", "not made, for lack of a disk", "repair that, and check again")
    else:
        yield from trial.on_this_host(needs, home_of(needs.run_dir), forks)
