"""Progress of a backup, as the process that copies reports it: a JSON object a line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a backup is.

    Attributes:
        step: Of the checkpoint that is copied, or was copied last; None before the first one.
        done_bytes: How much of it is copied.
        size_bytes: Its size.
        trouble: Why the newest attempt has failed; empty if it has not.
    """

    step: int | None = None
    done_bytes: int = 0
    size_bytes: int = 0
    trouble: str = ""

    def line(self) -> str:
        """The line for it."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, line: str | bytes) -> Self:
        """The progress in a line."""
        return cls(**json.loads(line))
