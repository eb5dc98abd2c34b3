"""SystemLog: samples what an agent's host uses, in a thread, for `system.jsonl`."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Self

from holdfast.agent.run_context import RunContext
from holdfast.hardware.host_supply import gpus_here
from holdfast.job.train_job import TrainJob
from holdfast.rundir.system_file import SystemFile

INTERVAL_S: Final = 2.0
"""Interval of the host's samples."""
END_TIMEOUT_S: Final = 1.0
"""Time that the end waits for a sample: a driver may hang."""


class SystemLog:
    """Samples from `__enter__` to `__exit__`.

    Args:
        run: The run of the agent.

    Attributes:
        workers: The rank of each worker by its process. The agent replaces it as they change.
    """

    def __init__(self, run: RunContext) -> None:
        self.workers: Mapping[int, int] = {}
        self._run = run
        self._file = SystemFile(run.directory)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="system-log", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join(END_TIMEOUT_S)

    def _work(self) -> None:
        delay_s = INTERVAL_S / 2
        if self._closing.wait(delay_s):
            return  # a run this short needs no driver, whose library takes time to import
        from holdfast.hardware.system import SystemSampler

        sampler = SystemSampler(self._run.host, _gpus_of(self._run))
        while not self._closing.wait(delay_s):
            delay_s = INTERVAL_S
            with suppress(OSError):  # what cannot be read now is read the next time
                self._file.add([sampler.sample(self.workers)])


def _gpus_of(run: RunContext) -> tuple[str, ...]:
    """The UUIDs of the GPUs that the workers of a run use here, in the order of their slots."""
    if isinstance(run.job, TrainJob) and run.job.device == "cpu":
        return ()
    shared = tuple(dict.fromkeys(name for share in run.shares for name in share.gpus))
    return shared or gpus_here(os.environ)
