"""Whereabouts: where each worker was when one hung, and which of them the others were waiting for.

Workers of holdfast publish which ranks they wait for. Those of a script wait in code of PyTorch, as
their stacks tell.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

SCRIPT: Final = "running the script"

_COLLECTIVE: Final = re.compile(r'/torch/distributed/.*", line \d+ in (?!wrapper)(\w+)')
_BACKWARD: Final = re.compile(r" in _engine_run_backward$")
"""Frames in which a worker waits for the collectives of DistributedDataParallel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Place of one worker in its code.

    Attributes:
        rank: The worker.
        doing: In words, after "rank 2 was".
        waits_for: The ranks that it waited for.
        stack: Its innermost frames, the innermost first, without those of holdfast; empty if it
            could not write them.
    """

    rank: int
    doing: str
    waits_for: tuple[int, ...] = ()
    stack: tuple[str, ...] = ()


def whereabouts(
    observed: Iterable[Mapping[str, Any]], stacks: Mapping[int, tuple[str, ...]]
) -> tuple[Whereabouts, ...]:
    """Places of the workers, by rank.

    Args:
        observed: The events `worker-observed`.
        stacks: Stacks of the workers that failed, by rank; empty for one that could not write it.
    """
    found = [
        Whereabouts(
            rank=event["rank"],
            doing=event["doing"],
            waits_for=tuple(event.get("waits_for", ())),
            stack=tuple(event["frames"]) or stacks.get(event["rank"], ()),
        )
        for event in sorted(observed, key=lambda event: int(event["rank"]))
    ]
    if any(each.doing == SCRIPT for each in found):
        found = _of_script(found, {rank for rank, stack in stacks.items() if not stack})
    return tuple(found)


def missing(found: Sequence[Whereabouts]) -> tuple[int, ...]:
    """The ranks that others waited for, and that did not wait themselves."""
    awaited = {rank for each in found for rank in each.waits_for}
    return tuple(sorted(awaited - {each.rank for each in found if each.waits_for}))


def _of_script(found: Sequence[Whereabouts], silent: Collection[int]) -> list[Whereabouts]:
    """Add what the stacks of a script say: a worker in no collective is missing there, and
    so is one that could not write its stack.
    """
    waits = {each.rank: _wait_of(each.stack) for each in found}
    late = tuple(
        each.rank for each in found if not waits[each.rank] and (each.stack or each.rank in silent)
    )
    return [
        replace(each, doing=waits[each.rank], waits_for=late) if waits[each.rank] else each
        for each in found
    ]


def _wait_of(stack: Sequence[str]) -> str:
    """Operation that a worker waits in, in words; empty if it does not seem to wait for others."""
    names = [match[1] for frame in stack if (match := _COLLECTIVE.search(frame))]
    if names:
        return f"in {names[-1]} of torch.distributed"
    return "in the backward pass" if any(map(_BACKWARD.search, stack)) else ""
