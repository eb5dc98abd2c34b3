"""Token: lets a host join a run, and tells it the coordinator's certificate."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Final, Self

from holdfast.errors import JobError

VERSION: Final = "hf1"
_FORM: Final = re.compile(rf"{VERSION}\.([0-9a-f]+)\.([\w-]{{20,}})\.([0-9a-f]{{64}})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token, written as `hf1.<run>.<secret>.<coordinator>`.

    Attributes:
        run: The id of the run.
        secret: Proves that a host may join.
        coordinator: The SHA-256 of the coordinator's certificate, hexadecimal.
    """

    run: str
    secret: str = field(repr=False)
    coordinator: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises: JobError: The text is no token."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise JobError("this is not a token; copy the file of the run again, without changes")
        return cls(run=match[1], secret=match[2], coordinator=match[3])

    @property
    def text(self) -> str:
        """The token as it is copied."""
        return f"{VERSION}.{self.run}.{self.secret}.{self.coordinator}"

    @property
    def digest(self) -> str:
        """Digest that is kept of the secret: its SHA-256, hexadecimal."""
        return hashlib.sha256(self.secret.encode()).hexdigest()
