"""HostFiles: what hosts that have joined get of the run's directory."""

from __future__ import annotations

import base64
import hashlib
from functools import cached_property
from pathlib import Path

from holdfast.job.load import JOB_FILE
from holdfast.observe.run_dir import ARCHIVE
from holdfast.wire.rpc import JobMessage


class HostFiles:
    """The files of one run, for other hosts.

    Args:
        run_dir: The run's directory.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    @cached_property
    def job(self) -> JobMessage:
        """What the hosts must run.

        Raises:
            OSError: It cannot be read.
        """
        code = (self._run_dir / ARCHIVE).read_bytes()
        return JobMessage(
            run=self._run_dir.resolve().name,
            job=(self._run_dir / JOB_FILE).read_text(encoding="utf-8"),
            code=base64.b64encode(code).decode(),
            code_sha256=hashlib.sha256(code).hexdigest(),
        )
