"""`holdfast track`: send what the trackers of a run have not got."""

from __future__ import annotations

import os
import time
from typing import Final

from holdfast.cli.arguments import NewestRun, run_directory
from holdfast.errors import HoldfastError, JobError
from holdfast.job import load
from holdfast.rundir.run_directory import is_held
from holdfast.sinks.trackers.sender import Sender, deliver
from holdfast.sinks.trackers.tracker_sink import senders

PATIENCE_S: Final = 30.0
"""Time in which a tracker that has refused something may acknowledge nothing."""
TIMEOUT_S: Final = 3600.0
"""Time that one may take for anything: the weights may be large."""


def track(run: NewestRun = None) -> None:
    """Send what the trackers of a run that has ended have not got."""
    path = run_directory(run)
    job = load.of_run(path)
    if not job.trackers:
        raise JobError(f"the job of {path} names no trackers; there is nothing to send")
    if is_held(path):
        raise JobError(
            f"{path} is in use: a run feeds its trackers itself; wait until it has ended"
        )
    chosen, artifacts = senders(job, path, os.environ)
    for sender in chosen:
        sender.start()
    unsent = deliver(chosen, _is_late)
    if unsent:
        raise HoldfastError(f"{'; '.join(unsent)}; try again once it can be reached")
    artifacts.remove()
    print(f"{', '.join(each.name for each in chosen)}: all of {path} is sent")


def _is_late(sender: Sender) -> bool:
    limit_s = PATIENCE_S if sender.trouble else TIMEOUT_S
    return time.monotonic() - sender.progress_at > limit_s
