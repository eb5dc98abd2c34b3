"""Key reads: which of a job's keys a task reads, so that a run can name those without effect.

Every other key is applied by holdfast itself, whatever the task does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pydantic import PrivateAttr

from holdfast.job.train_job import TrainJob

TASK_KEYS: Final = ("data", "model", "optimizer", "schedule", "epochs")
"""The keys that have an effect only if a task reads them, apart from `params`."""


class ReadJob(TrainJob):
    """A job that notes which of its keys are read."""

    _read: set[str] = PrivateAttr(default_factory=set)

    @classmethod
    def of(cls, job: TrainJob) -> ReadJob:
        """`job`, of which no key is read yet."""
        read = cls.model_construct(**dict(job))
        read.__dict__["params"] = _ReadParams(job.params, read._read)
        return read

    def __getattribute__(self, name: str) -> Any:
        if name in TASK_KEYS:
            self._read.add(name)
        return super().__getattribute__(name)

    def note_read(self, key: str) -> None:
        """Note that `key` has an effect."""
        self._read.add(key)

    def unread(self) -> list[str]:
        """The keys that were given and have not been read; those of `params` one by one."""
        keys = [*TASK_KEYS, "evaluation"]
        defaults = {key: TrainJob.model_fields[key].get_default() for key in keys}
        given = [key for key in keys if self.__dict__[key] != defaults[key]]
        given += [f"params.{name}" for name in dict.keys(self.__dict__["params"])]
        return [key for key in given if key not in self._read]


class _ReadParams(dict[str, Any]):
    """Parameters that note which of them are read; all, by a loop over them."""

    def __init__(self, params: dict[str, Any], read: set[str]) -> None:
        super().__init__(params)
        self._read = read

    def __getitem__(self, name: str) -> Any:
        self._read.add(f"params.{name}")
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._read.add(f"params.{name}")
        return super().get(name, default)

    def __iter__(self) -> Iterator[str]:
        self._read_all()
        return super().__iter__()

    def keys(self) -> Any:
        self._read_all()
        return super().keys()

    def values(self) -> Any:
        self._read_all()
        return super().values()

    def items(self) -> Any:
        self._read_all()
        return super().items()

    def _read_all(self) -> None:
        self._read |= {f"params.{name}" for name in dict.__iter__(self)}
