"""Scores: what the workers of a host compute on, for a job that divides its shards by that."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path

from holdfast.agent.run_context import RunContext
from holdfast.errors import HoldfastError
from holdfast.hardware import profile_file
from holdfast.hardware.host import devices_here
from holdfast.hardware.host_supply import gpus_here
from holdfast.hardware.profile import Device, Precision
from holdfast.job.train_job import TrainJob
from holdfast.job.train_keys import SCORED
from holdfast.rundir.json_lines import EventLog
from holdfast.rundir.run_directory import PROFILE


def with_devices(run: RunContext, log: EventLog) -> RunContext:
    """The run with the devices of this host, if the job asks for scores.

    They are those of the run's profile; if it has none of this host, or none that is reliable, they
    are measured. A host that cannot be measured, or is too busy for that, has no scores; see
    `worker.balancing` for what follows.

    Raises:
        JobError: The profile is damaged.
    """
    job = run.job
    if not isinstance(job, TrainJob) or job.balance not in SCORED:
        return run
    # A profile that was given needs no measurement, which takes seconds.
    devices = _given(job.device, job.precision, run.directory)
    source = "given"
    if not devices:
        try:
            devices = devices_here(job.device, job.precision)
            source = "measured"
        except HoldfastError as error:
            log.event("host-not-profiled", reason=str(error), **run.where)
            return run
    devices = _in_order(devices, [name for share in run.shares for name in share.gpus[:1]])
    names = ", ".join(each.name for each in devices)
    if not all(_is_reliable(each, job.precision) for each in devices):
        reason = f"the rounds of {names} in {job.precision} do not agree; the host is busy"
        log.event("host-not-profiled", reason=reason, **run.where)
        return run
    scores = [round(each.score_in(job.precision), 4) for each in devices]
    rates = [each.memory_bytes_per_s for each in devices]
    log.event(
        "host-profiled",
        devices=names,
        scores=scores,
        bytes_per_s=rates,
        source=source,
        **run.where,
    )
    return replace(run, devices=devices)


def _given(device: str, precision: Precision, run_dir: Path) -> tuple[Device, ...]:
    """The devices of this host in the run's profile; none if it has no such file or host."""
    path = run_dir / PROFILE
    if not path.exists():
        return ()
    host = profile_file.read(path).of(socket.gethostname())
    devices = () if host is None else host.used_by(device)
    return devices if all(_is_reliable(each, precision) for each in devices) else ()


def _in_order(devices: Sequence[Device], own: Sequence[str]) -> tuple[Device, ...]:
    """The devices that workers use: those of their own GPUs, by UUID, or by place where a profile
    names none.
    """
    known = dict(zip(gpus_here(os.environ), cycle(devices), strict=False))
    known |= {each.uuid: each for each in devices if each.uuid}
    return tuple(known[uuid] for uuid in own if uuid in known) or tuple(devices)


def _is_reliable(device: Device, precision: Precision) -> bool:
    return precision not in device.unreliable
