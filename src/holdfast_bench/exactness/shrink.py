"""Shrink: from a case that fails to a plainer one that still fails. Pure.

Half of what is not plain is dropped at a time, then a quarter, then single features, as in Zeller's
delta debugging (ddmin); numbers that cannot go back to their defaults go part of the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, Final, TypeVar

from holdfast_bench.exactness.case import Case, Configuration, Kill, Recipe
from holdfast_bench.exactness.draw import is_possible

P = TypeVar("P", Recipe, Configuration, Kill)
T = TypeVar("T")

IDENTIFIERS: Final = ("seed", "life", "rank")
"""Fields that are names, not amounts: another value is not plainer."""


def shrink(case: Case, fails: Callable[[Case], bool], tries: int) -> Case:
    """The plainest case found that fails.

    Args:
        case: Fails.
        fails: True if a case does.
        tries: How many cases to look at, at most.
    """
    tried = {case}
    while plainer := next((each for each in candidates(case) if each not in tried), None):
        if len(tried) > tries:
            break
        tried.add(plainer)
        if fails(plainer):
            case = plainer
    return case


def candidates(case: Case) -> Iterator[Case]:
    """Cases that are plainer and can be run; those that drop most come first."""
    return (each for each in _plainer(case) if each != case and is_possible(each))


def _plainer(case: Case) -> Iterator[Case]:
    made = case.configurations
    if len(made) > 1:  # kills make a case slow and may miss
        for each in sorted(made, key=lambda each: len(each.kills)):
            yield replace(case, configurations=(each,))
    for recipe in _with_defaults(case.recipe):
        yield replace(case, recipe=recipe)
    for number, configuration in enumerate(made):
        for plainer in _plainer_configurations(configuration):
            yield replace(case, configurations=(*made[:number], plainer, *made[number + 1 :]))
    for recipe in _part_of_the_way(case.recipe):
        yield replace(case, recipe=recipe)


def _plainer_configurations(made: Configuration) -> Iterator[Configuration]:
    yield from _with_defaults(made)
    if made.workers > 2:
        yield replace(made, workers=made.workers - 1, shards_per_worker=None)
    for number, kill in enumerate(made.kills):
        before = made.kills[:number]
        after = made.kills[number + 1 :]
        yield replace(made, kills=before + after)
        for plainer in (*_with_defaults(kill), *_part_of_the_way(kill)):
            yield replace(made, kills=(*before, plainer, *after))


def _with_defaults(part: P) -> Iterator[P]:
    """With half of its unusual fields at their defaults, with a quarter of them, …, with one."""
    unusual = [
        field
        for field in fields(part)
        if field.name not in IDENTIFIERS and getattr(part, field.name) != field.default
    ]
    for chosen in _chunks(unusual):
        changes: dict[str, Any] = {field.name: field.default for field in chosen}
        yield replace(part, **changes)


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    size = len(items)
    while size:
        for start in range(0, len(items), size):
            yield items[start : start + size]
        size //= 2


def _part_of_the_way(part: P) -> Iterator[P]:
    """With one number nearer to its default, or one element less in a list."""
    for field in fields(part):
        value = getattr(part, field.name)
        default = field.default
        if field.name not in IDENTIFIERS:
            for plainer in _nearer(value, default):
                yield replace(part, **{field.name: plainer})


def _nearer(value: Any, default: Any) -> Iterator[Any]:
    if isinstance(value, tuple) and default == ():
        yield from (value[:n] + value[n + 1 :] for n in range(len(value)))
    elif type(value) is int and type(default) is int and value != default:
        yield (value + default) // 2
