"""Result: what one benchmark has measured, and its file `NAME.json`.

Each row is what one system did under one set of settings. A value of a row is a word or number that
says what was measured, a measured number, or the spread of several measurements; see
`results.figures`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from holdfast.errors import JobError
from holdfast_bench.results.conditions import Conditions

FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measurements of the module of a benchmark; see `Result`."""

    rows: Sequence[Mapping[str, Any]]
    rounds: int | None = None
    absent: Mapping[str, str] = field(default_factory=dict)


class Result(BaseModel):
    """Measurements of one benchmark.

    Attributes:
        format: Version of this file's schema.
        benchmark: Its name, as in `holdfast bench NAME`.
        options: How it was called, word by word.
        conditions: Where and when it ran.
        rounds: How often everything was measured; None if that has no meaning.
        absent: Systems that could not be measured, and why, by name.
        rows: What was measured.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = FORMAT
    benchmark: str
    options: tuple[str, ...]
    conditions: Conditions
    rounds: int | None = None
    absent: dict[str, str] = {}
    rows: tuple[dict[str, Any], ...]

    def save(self, folder: Path) -> Path:
        """Write `NAME.json`, whole or not at all; returns its path.

        Raises:
            JobError: It cannot be written.
        """
        path = folder / f"{self.benchmark}.json"
        draft = path.with_suffix(".tmp")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            draft.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")
            draft.replace(path)
        except OSError as error:
            raise JobError(f"{error.filename or path}: {error.strerror}") from None
        return path

    @classmethod
    def load(cls, path: Path) -> Result:
        """Read a result.

        Raises:
            JobError: There is none, or it does not match the schema.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise JobError(f"{path}: {error.strerror}; measure it with holdfast bench") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise JobError(
                f"{path} is no result of holdfast bench: {where}: {first['msg']}"
            ) from None
