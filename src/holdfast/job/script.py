"""A script that brings its own training loop, as `torchrun` starts it."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from holdfast.job.part import Spec


class Script(Spec):
    """Run as it is by every worker, which finds what it has to know in its environment."""

    path: str | None = None
    """The file, as `python FILE` would run it."""
    module: str | None = None
    """In its place a module, as `python -m MODULE` would run it."""
    arguments: tuple[str, ...] = ()
    """What follows on its command line."""

    @model_validator(mode="after")
    def _is_one_of_two(self) -> Self:
        if (self.path is None) == (self.module is None):
            raise ValueError("give one of path and module")
        return self
