"""A job that runs a script with a training loop of its own, as `torchrun` starts it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from holdfast.core.checkpoints.retention import RetentionPolicy
from holdfast.job.part import Port, Spec, Workers
from holdfast.job.run_keys import RunKeys, changed_key
from holdfast.job.settings import CheckpointSettings


class Script(Spec):
    """The program that every worker runs; it reads its rank from torchrun's environment."""

    path: str | None = None
    """The file, as `python FILE` would run it."""
    module: str | None = None
    """In its place a module, as `python -m MODULE` would run it."""
    arguments: tuple[str, ...] = ()
    """Its command-line arguments."""
    process_groups: bool = True
    """True if the workers connect before it begins, so that it can make process groups. Without
    them it finds the addresses of the others in HOLDFAST_PEERS."""

    @model_validator(mode="after")
    def _is_one_of_two(self) -> Self:
        if (self.path is None) == (self.module is None):
            raise ValueError("give one of path and module")
        return self


class ScriptJob(RunKeys):
    """Job of `holdfast run`: a script, restarted on all workers when one of them fails.

    The script saves and loads its own checkpoints, and says how far it is by `holdfast.report`.
    """

    workers: Workers = 1
    script: Script
    on_failure: Literal["restart", "stop"] = "restart"
    """What happens when a worker fails. `restart`: all workers restart. `stop`: the run ends."""
    port: Port = 0
    """Port of the store through which process groups meet, on rank 0's host; 0 takes a free one."""

    checkpoint: ClassVar[CheckpointSettings] = CheckpointSettings(every_steps=0)
    retention: ClassVar[RetentionPolicy] = checkpoint.retention
    backup: ClassVar[None] = None
    threads_per_worker: ClassVar[int] = 1
    restarts_all: ClassVar[bool] = True
    keeps_workers: ClassVar[bool] = False
    movable_shards: ClassVar[int] = 0
    records_progress: ClassVar[bool] = False
    tokens_per_sample: ClassVar[None] = None
    has_process_groups: ClassVar[bool] = True
    allows_unlike_hosts: ClassVar[bool] = True

    @property
    def code_reference(self) -> str:
        """Place of the script, as that of a task: `path/to/file.py:` or `package.module:`."""
        return f"{self.script.path or self.script.module}:"

    @property
    def code_file(self) -> Path | None:
        """File with the script; None for a module."""
        return None if self.script.path is None else Path(self.script.path)

    @property
    def library_variables(self) -> dict[str, str]:
        """Counterpart of `TrainJob.library_variables`."""
        return self.env

    def changed_since(self, before: Mapping[str, Any]) -> str | None:
        """First key that gives other weights; see `run_keys.changed_key`."""
        return changed_key(before, self.weights_config())

    def weights_config(self) -> dict[str, Any]:
        """The keys that a resumed run may not change, as plain data."""
        return {"name": self.name, "script": self.script.model_dump(exclude={"arguments"})}
