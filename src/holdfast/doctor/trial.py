"""Trial: a run of a few steps through all that a run needs, with the gradients of its workers.

It is a run like any other: fork server, coordinator, agent, workers, shared memory, checkpoint. It
has a tiny model of its own and as many workers as the job, at most one for each core, but two.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from holdfast.doctor.finding import Finding, fault, ok
from holdfast.doctor.needs import HostNeeds
from holdfast.errors import HoldfastError, Interrupted
from holdfast.job import load
from holdfast.job.train_job import TrainJob
from holdfast.launch.fork_client import ForkServer
from holdfast.launch.spawn import Spawned
from holdfast.linux.supply import usable_cores
from holdfast.rundir.run_directory import RunDirectory
from holdfast.runs.controls import Controls
from holdfast.runs.run import LaunchOptions, run

STEPS: Final = 4
SHARD: Final = 8
"""Samples of a worker in a step."""
LEAST_WORKERS: Final = 2
MAX_WORKERS: Final = 8
TIMEOUT_S: Final = 60.0
"""Time that workers of the trial wait for each other."""
LATE_S: Final = 120.0
"""Time that a trial may take."""
_KEPT: Final = ("sync", "device", "network", "numerics", "heartbeat")
"""Keys of the job that the trial has, too."""
_LOG_LINES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Result of a trial.

    Attributes:
        weights: SHA-256 of the weights that it ends with.
        seconds: Duration.
        workers: Number that took part.
    """

    weights: str
    seconds: float
    workers: int


def trial_job(needs: HostNeeds) -> TrainJob:
    """The job of a trial; it ends with the same weights on all hosts, with any number of workers.

    Args:
        needs: Needs of the job that is going to be run.
    """
    workers = min(MAX_WORKERS, max(LEAST_WORKERS, min(needs.job.workers, usable_cores())))
    batch = SHARD * MAX_WORKERS
    values: dict[str, Any] = {
        "name": "doctor",
        "data": {"name": "synthetic-images", "size": STEPS * batch, "channels": 1, "height": 8},
        "model": {"name": "mlp", "hidden": [32]},
        "batch": batch,
        "shards": MAX_WORKERS,
        "workers": workers,
        "timeout_s": TIMEOUT_S,
        "on_failure": "stop",
        "restarts": {"limit": 0},
    }
    kept = needs.job.model_dump(include=set(_KEPT))
    return load.check({**kept, **values}, where="of the doctor")


def run_trial(needs: HostNeeds, path: Path, forks: ForkServer | Spawned | None) -> Trial:
    """Run a trial in a directory.

    Raises:
        HoldfastError: It has failed; the message says why, and ends with what was logged.
    """
    began = time.monotonic()
    job = trial_job(needs)
    controls = Controls()
    late = threading.Timer(LATE_S, partial(setattr, controls, "abort", True))
    late.daemon = True
    late.start()
    try:
        with RunDirectory(path, job, resume=False) as directory:
            result = run(directory, LaunchOptions(forks=forks, controls=controls))
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


def on_this_host(
    needs: HostNeeds, disk: Path, forks: ForkServer | Spawned | None
) -> Iterator[Finding | Trial]:
    """Check that a run of a few steps works on this host; its result if it does.

    Args:
        needs: Needs of the job that is going to be run.
        disk: A folder of the disk to use.
        forks: A fork server for it.

    Raises:
        Interrupted: A signal has ended it.
    """
    with tempfile.TemporaryDirectory(
        prefix=".holdfast-doctor-", dir=disk, ignore_cleanup_errors=True
    ) as folder:
        try:
            done = run_trial(needs, Path(folder) / "trial", forks)
        except Interrupted:
            raise
        except HoldfastError as error:
            yield fault(
                "trial run",
                f"{STEPS} steps of a tiny model failed: {error}",
                "repair what the findings above name, and check again",
            )
            return
    yield done
    yield ok(
        "trial run",
        f"{done.workers} workers summed the gradients of {STEPS} steps and wrote a checkpoint in "
        f"{done.seconds:.1f} s",
    )


def _newest_lines(run_dir: Path) -> str:
    """The end of the log of a run that was written to last."""
    written = [path for path in (run_dir / "logs").glob("*.log") if path.stat().st_size]
    if not written:
        return ""
    newest = max(written, key=lambda path: path.stat().st_mtime)
    lines = newest.read_text(errors="replace").splitlines()[-_LOG_LINES:]
    return f" ({newest.name}: {' | '.join(lines)})"
