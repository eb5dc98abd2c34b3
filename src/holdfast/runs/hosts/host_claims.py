"""Host claims: CPUs, GPUs and memory of this host that the workers of a run claim."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Final, TypeAlias

from holdfast.core.placement.shares import Share, shortages
from holdfast.errors import EngineError, JobError
from holdfast.hardware.host_supply import supply_here
from holdfast.job.script_job import ScriptJob
from holdfast.job.spec import Job
from holdfast.rundir.claims import HeldClaim, describe

LOOK_S: Final = 0.5
"""Interval at which a run that waits compares claims."""
WaitForResources: TypeAlias = Callable[[Callable[[], str], str], str]
"""Repeats an attempt that has lacked something; returns what it lacks in the end, or nothing."""


@contextmanager
def claimed_shares(
    job: Job, run: str, wait: WaitForResources | None, *, is_exclusive: bool
) -> Iterator[tuple[Share, ...]]:
    """Shares of this host for the workers of a run, claimed while the block runs.

    Args:
        job: The job. Without CPUs or GPUs in its `resources`, workers use all of them.
        run: The name of its run directory.
        wait: Waits until what it needs is free; None: it is refused instead.
        is_exclusive: True if what it needs must be free; it is with `resources`.

    Raises:
        JobError: This host never has what the run needs.
        EngineError: It does not have it now.
        Interrupted: The wait was ended.
    """
    needs = job.resources.needs(job.workers_per_host, job.threads_per_worker)
    supply = supply_here(os.environ)
    lacking = shortages(needs, supply, ()) if is_exclusive else []
    if any(each.is_final for each in lacking):
        raise JobError(
            f"this host never has what the run needs: {describe(lacking)}; ask for less by workers "
            "or resources, or run it elsewhere"
        )
    with ExitStack() as held:
        try:
            claim = held.enter_context(closing(HeldClaim(run, needs)))
            if not is_exclusive:
                claim.begin(supply)
        except OSError as error:
            if is_exclusive:
                raise JobError(
                    f"claims of runs cannot be kept in {error.filename}: {error.strerror}; fix "
                    "that, or name another folder by XDG_STATE_HOME"
                ) from None
            yield ()  # no run ends because others do not know of it
            return
        if is_exclusive:
            _begin(claim, wait)
        yield tuple(_visible(claim.shares, job, supply.gpus))


def _begin(claim: HeldClaim, wait: WaitForResources | None) -> None:
    def attempt() -> str:
        return claim.begin_if_free(supply_here(os.environ), in_turn=wait is not None)

    lacking = attempt()
    if lacking and wait is not None:
        lacking = wait(attempt, lacking)
    if lacking:
        raise EngineError(
            f"this host lacks what the run needs: {lacking}; wait for it by --queue (queue=True "
            "in Python), or ask for less by workers or resources"
        )


def _visible(shares: tuple[Share, ...], job: Job, every: Sequence[str]) -> Iterator[Share]:
    """The shares as far as the job asks for it. Scripts choose a GPU by LOCAL_RANK, so they see
    those of all workers. Of instances of GPUs (MIG) CUDA uses the first that it sees, so each
    worker sees one, even if the job asks for none.

    Args:
        shares: Shares that are claimed.
        job: The job.
        every: The names of the GPUs of this host.
    """
    gpus = tuple(gpu for share in shares for gpu in share.gpus)
    is_divided = any(name.startswith("MIG-") for name in gpus or every)
    chooses = isinstance(job, ScriptJob) and job.script.process_groups
    for slot, share in enumerate(shares):
        cpus = share.cpus if job.resources.cpus else ()
        if is_divided:
            names = share.gpus[:1] or (every[slot % len(every)],)
        else:
            names = gpus if chooses else share.gpus
        yield Share(cpus=cpus, gpus=names)
