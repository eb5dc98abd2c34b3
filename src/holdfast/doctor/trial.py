"""Trial: a run of a few steps through all that a run needs, with the gradients of its workers.

It is a run like any other: fork server, coordinator, agent, workers, shared memory, checkpoint. It
has a tiny model of its own and as many workers as the job, at most one for each core, but two.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from holdfast.doctor.finding import Finding, fault, ok
from holdfast.errors import HoldfastError, Interrupted
from holdfast.job import load
from holdfast.job.train_job import TrainJob
from holdfast.launch.fork_client import ForkServer
from holdfast.launch.spawn import Spawned
from holdfast.linux.cores import usable_cores
from holdfast.rundir.run_directory import RunDirectory
from holdfast.runs.controls import Controls
from holdfast.runs.hosts.placement import THIS_HOST, Placement
from holdfast.runs.run import LaunchOptions, run

STEPS: Final = 4
SHARD: Final = 8
"""Samples of a worker in a step."""
LEAST_WORKERS: Final = 2
MAX_WORKERS: Final = 8
TIMEOUT_S: Final = 60.0
"""How long workers of the trial wait for each other."""
LATE_S: Final = 120.0
"""How long a trial may take, with joining."""
_KEPT: Final = ("sync", "device", "network", "numerics", "heartbeat")
"""Keys of the job that the trial has, too."""
_LOG_LINES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a trial came to.

    Attributes:
        weights: SHA-256 of the weights that it ends with.
        seconds: How long it took.
        workers: How many took part.
    """

    weights: str
    seconds: float
    workers: int


def trial_job(job: TrainJob, hosts: int = 1, most_hosts: int = 1) -> TrainJob:
    """The job of a trial.

    Args:
        job: What is going to be run.
        hosts: On how many hosts the trial runs; one worker on each if they are several.
        most_hosts: Trials with the same number end with the same weights.
    """
    workers = hosts
    if hosts == 1:
        workers = min(MAX_WORKERS, max(LEAST_WORKERS, min(job.workers, usable_cores())))
    shards = max(MAX_WORKERS, most_hosts)
    batch = SHARD * shards
    values: dict[str, Any] = {
        "name": "doctor",
        "data": {"name": "synthetic-images", "size": STEPS * batch, "channels": 1, "height": 8},
        "model": {"name": "mlp", "hidden": [32]},
        "batch": batch,
        "shards": shards,
        "workers": workers,
        "hosts": hosts,
        "timeout_s": TIMEOUT_S,
        "on_failure": "stop",
        "restarts": {"limit": 0},
    }
    kept = job.model_dump(include=set(_KEPT))
    return load.check({**kept, **values}, where="of the doctor")


def run_trial(
    job: TrainJob,
    path: Path,
    options: LaunchOptions,
    begun: Callable[[Path], object] = lambda _: None,
    placement: Placement = THIS_HOST,
) -> Trial:
    """Run a trial.

    Args:
        job: Of the trial.
        path: Its run directory.
        options: How to launch it; it has controls of its own.
        begun: Called with the run directory before the run begins.
        placement: The hosts of the run.

    Raises:
        HoldfastError: It has failed; the message says why, and ends with what was logged.
    """
    began, controls = time.monotonic(), Controls()
    late = threading.Timer(LATE_S, partial(setattr, controls, "abort", True))
    late.daemon = True
    late.start()
    try:
        with RunDirectory(path, job, resume=False) as directory:
            begun(path)
            result = run(directory, replace(options, controls=controls), placement=placement)
    except Interrupted:
        if late.is_alive():
            raise
        raise HoldfastError(f"it was ended after {LATE_S:.0f} s{_newest_lines(path)}") from None
    except HoldfastError as error:
        raise HoldfastError(f"{error}{_newest_lines(path)}") from None
    finally:
        late.cancel()
    return Trial(
        weights=str(result["weights_sha256"]),
        seconds=time.monotonic() - began,
        workers=job.workers,
    )


def on_this_host(job: TrainJob, disk: Path, forks: ForkServer | Spawned | None) -> Finding:
    """Whether a run of a few steps works on this host.

    Args:
        job: What is going to be run.
        disk: A folder of the disk to use.
        forks: A fork server for it.

    Raises:
        Interrupted: A signal has ended it.
    """
    with tempfile.TemporaryDirectory(
        prefix=".holdfast-doctor-", dir=disk, ignore_cleanup_errors=True
    ) as folder:
        try:
            options = LaunchOptions(forks=forks)
            done = run_trial(trial_job(job), Path(folder) / "trial", options)
        except Interrupted:
            raise
        except HoldfastError as error:
            return fault(
                "trial run",
                f"{STEPS} steps of a tiny model failed: {error}",
                "repair what the findings above name, and check again",
            )
    return ok(
        "trial run",
        f"{done.workers} workers summed the gradients of {STEPS} steps and wrote a checkpoint in "
        f"{done.seconds:.1f} s",
    )


def over_hosts(
    job: TrainJob,
    count: int,
    alone: Callable[[TrainJob], Trial],
    together: Callable[[TrainJob], Trial],
) -> Finding:
    """Whether a run of a few steps works on several hosts, with the weights of one.

    Args:
        job: What is going to be run.
        count: How many hosts.
        alone: Runs a trial on one host.
        together: Runs one on all of them.

    Raises:
        Interrupted: A signal has ended it.
    """
    try:
        one, several = alone(trial_job(job, 1, count)), together(trial_job(job, count, count))
    except Interrupted:
        raise
    except HoldfastError as error:
        return fault(
            "trial run",
            f"{STEPS} steps over {count} hosts failed: {error}",
            "see the findings above; if there are none, report this with the output of all",
        )
    if not job.merges_shards and one.weights != several.weights:
        return fault(
            "trial run",
            f"the weights of {count} hosts differ from those of one",
            "set numerics=portable, or use hosts of one kind",
        )
    same = "" if job.merges_shards else ", with the weights of one host"
    return ok(
        "trial run",
        f"{count} hosts summed the gradients of {STEPS} steps in {several.seconds:.1f} s{same}",
    )


def _newest_lines(run_dir: Path) -> str:
    """The end of the log of a run that was written to last."""
    written = [path for path in (run_dir / "logs").glob("*.log") if path.stat().st_size]
    if not written:
        return ""
    newest = max(written, key=lambda path: path.stat().st_mtime)
    lines = newest.read_text(errors="replace").splitlines()[-_LOG_LINES:]
    return f" ({newest.name}: {' | '.join(lines)})"
