"""User values: what user code keeps apart from tensors, as every worker of a run has it."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

from pydantic_core import from_json

from holdfast.arena.json_values import in_place
from holdfast.errors import JobError
from holdfast.worker.user_state.user_state import digest

_AROUND: Final = 10
"""Levels of JSON around the state in a manifest and in a message."""


@dataclass(slots=True, kw_only=True)
class UserValues:
    """Values that user code keeps apart from tensors: live, and as of the newest commit.

    A worker that takes over runs the code of the next step again, so it gets the committed values.

    Attributes:
        state: `session.state`, which user code may change at any time.
        committed_state: `session.state` as of the newest commit.
        captured: Values that user code keeps in PyTorch's own places, as of the newest commit; see
            `worker.user_state.user_state`.
        digest: Tells whether two workers have the same committed values; 56 bits.
        overwritten: Names of the tensors that user code has written to in `session.on_commit`.
    """

    state: dict[str, Any] = field(default_factory=dict)
    committed_state: dict[str, Any] = field(default_factory=dict)
    captured: dict[str, Any] = field(default_factory=dict)
    digest: int = 0
    overwritten: list[str] = field(default_factory=list)

    def commit(self, captured: dict[str, Any]) -> None:
        """Commit `session.state` as it is now, and what was captured with it.

        Raises:
            JobError: `session.state` holds what JSON cannot.
        """
        check_plain(self.state)
        self.committed_state = copy.deepcopy(self.state)
        self.captured = captured
        self.digest = digest(self.committed_state, self.captured)

    def roll_back(self) -> None:
        """Undo what user code has changed in `session.state` since the newest commit."""
        self.state = in_place(self.state, copy.deepcopy(self.committed_state))

    @property
    def committed(self) -> dict[str, Any]:
        """All committed values, by name."""
        return {"session.state": self.committed_state, **self.captured}

    def replaced_by(self, other: Self) -> Self:
        """`other`, with its `state` in the objects of this one: user code may hold them."""
        other.state = in_place(self.state, other.state)
        return other

    def to_json(self) -> dict[str, Any]:
        """The committed values as JSON values."""
        return values_of(self) | {"state": self.committed_state}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        restored = cls(**values)
        restored.state = copy.deepcopy(restored.committed_state)
        return restored


def values_of(instance: Any) -> dict[str, Any]:
    """The fields of a dataclass by name; unlike `dataclasses.asdict` it copies nothing."""
    return {each.name: getattr(instance, each.name) for each in fields(instance)}


def check_plain(state: dict[str, Any]) -> None:
    """Raises: JobError: `state` would not come back from JSON as it is."""
    try:
        text = json.dumps(state, ensure_ascii=False).encode()
        shown = repr(state)
        same = repr(json.loads(text)) == shown
        from_json(_AROUND * b"[" + text + _AROUND * b"]")  # as its reader parses it
    except (TypeError, ValueError, RecursionError) as error:
        same = False
        shown = f"what cannot be written: {error}"
    if not same:
        raise JobError(
            "session.state must hold plain JSON values: numbers, strings, lists (no tuples), and "
            f"dictionaries with strings as keys; it holds {shown:.200}"
        )
