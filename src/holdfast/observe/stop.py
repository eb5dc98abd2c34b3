"""Stop: asks the process of a run on this host to end it, with a checkpoint."""

from __future__ import annotations

import signal
from pathlib import Path

from holdfast.errors import JobError
from holdfast.observe import registry


def request_stop(directory: Path) -> None:
    """Ask a run to end after its current step, with a checkpoint.

    Call it once: a second request ends the run at once, without a checkpoint.

    Args:
        directory: The run's.

    Raises:
        JobError: There is no such run, or it is not running on this host.
    """
    record = registry.find(str(directory))
    process = record.process()
    if process is None:
        raise JobError(
            f"{record.id} is not running on this host: it is {record.state()}; if another host "
            "runs it, use holdfast stop there"
        )
    process.send(signal.SIGTERM)
