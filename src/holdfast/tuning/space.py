"""Space: the keys of a job that a search varies, and their values.

a..b, a..b:log      a number between these; an integer if both ends are
a,b,c               one of these, each a YAML value
{range: [a, b]}, {log: [a, b]}, {choice: [a, b, c]}     the same in a file, where `when: {key:
                    value}` limits a key to trials in which another one has this value
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final

import yaml

from holdfast.errors import JobError
from holdfast.job import load
from holdfast.job.source import YamlSource
from holdfast.job.train_job import TrainRequest

_RANGE: Final = re.compile(r"([-+.\deE]+)\.\.([-+.\deE]+?)(:log)?")
_HINT: Final = "write a..b, a..b:log, or choices such as a,b,c"
_MAX_GRID: Final = 100_000

_LR: Final = {"adamw": (1e-5, 1e-1), "sgd": (1e-3, 1.0)}
_HALF_TO_DOUBLE: Final = (0.5, 1, 2)

Values = Mapping[str, Any]
"""Values of a trial by dotted key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Numbers between two ends, which belong to it.

    Attributes:
        key: The dotted key.
        low, high: The ends; integers if the values are.
        log: True if the logarithm is even.
        when: Values of other keys with which this one is set.
    """

    key: str
    low: float
    high: float
    log: bool = False
    when: Values = field(default_factory=dict)

    @property
    def is_integer(self) -> bool:
        """True if its values are integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def ends(self) -> Sequence[Any]:
        """The values that are checked for all others."""
        return self.low, self.high

    @property
    def grid(self) -> Sequence[Any]:
        """All values, of integers.

        Raises:
            JobError: There are too many.
        """
        if not self.is_integer or self.log:
            raise JobError(f"space {self.key}: a grid needs choices or integers; write a,b,c")
        return range(int(self.low), int(self.high) + 1)

    def at(self, share: float) -> float:
        """The value at a share of the way from the low end to the high one."""
        low, high = self.low, self.high
        if self.is_integer and not self.log:
            return min(int(low + share * (high - low + 1)), int(high))
        if self.log:
            value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            value = low + share * (high - low)
        value = min(max(value, low), high)
        return round(value) if self.is_integer else value

    def holds(self, value: Any) -> bool:
        """True if a value is one of its values."""
        return isinstance(value, int | float) and self.low <= value <= self.high

    def plain(self) -> dict[str, Any]:
        """Its entry in a file."""
        return {"log" if self.log else "range": [self.low, self.high], **_plain_when(self.when)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of several values.

    Attributes:
        key: The dotted key.
        options: The values.
        when: See `Range`.
    """

    key: str
    options: tuple[Any, ...]
    when: Values = field(default_factory=dict)

    @property
    def ends(self) -> Sequence[Any]:
        """The values, each of which is checked."""
        return self.options

    @property
    def grid(self) -> Sequence[Any]:
        """All values."""
        return self.options

    def at(self, share: float) -> Any:
        """The value at a share of the way from the first to the last."""
        return self.options[min(int(share * len(self.options)), len(self.options) - 1)]

    def holds(self, value: Any) -> bool:
        """True if a value is one of its values."""
        return value in self.options

    def plain(self) -> dict[str, Any]:
        """Its entry in a file."""
        return {"choice": list(self.options), **_plain_when(self.when)}


Dimension = Range | Choice


@dataclass(frozen=True, slots=True)
class Space:
    """The keys that a search varies.

    Attributes:
        dimensions: The keys, each after those on which it depends.
    """

    dimensions: tuple[Dimension, ...]

    def choose(self, pick: Callable[[Dimension], Any]) -> dict[str, Any]:
        """The values of a trial; `pick` is asked for those that are set in it, in their order."""
        values: dict[str, Any] = {}
        for each in self.dimensions:
            if all(values.get(key) == value for key, value in each.when.items()):
                values[each.key] = pick(each)
        return values

    def grid(self) -> list[dict[str, Any]]:
        """All combinations, the last key changing first.

        Raises:
            JobError: A key has no finite number of values, or there are too many of them.
        """
        sizes = [each.grid for each in self.dimensions]
        if math.prod(map(len, sizes)) > _MAX_GRID:
            raise JobError(f"the grid has more than {_MAX_GRID} points; use --sampler random")
        points: dict[str, dict[str, Any]] = {}
        for point in product(*sizes):
            whole = dict(zip((each.key for each in self.dimensions), point, strict=True))
            chosen = self.choose(lambda each, whole=whole: whole[each.key])  # type: ignore[misc]
            points.setdefault(repr(chosen), chosen)
        return list(points.values())

    def plain(self) -> dict[str, Any]:
        """The space as a file has it; `of_values` reads it."""
        return {each.key: each.plain() for each in self.dimensions}

    def check(self, base: Mapping[str, Any], where: str) -> None:
        """Refuse a space with which a trial could not start: all ends and choices are tried.

        Args:
            base: The job's values.
            where: The job's name.

        Raises:
            JobError: A key or value is wrong; the message names both.
        """
        for values in self._extremes():
            words = " ".join(f"{key}={value}" for key, value in values.items())
            try:
                load.check(applied(base, values), f"{where} {words}")
            except JobError as error:
                raise JobError(f"the space holds what no run takes: {error}") from None

    def _extremes(self) -> Iterator[dict[str, Any]]:
        """Values of trials that have, one by one, every end and choice of every key."""
        for each in self.dimensions:
            for end in each.ends:
                fixed = {**self._condition_of(each), each.key: end}
                yield self.choose(lambda d, fixed=fixed: fixed.get(d.key, d.ends[0]))  # type: ignore[misc]

    def _condition_of(self, dimension: Dimension) -> dict[str, Any]:
        """Values of other keys with which a key is set."""
        by_key = {each.key: each for each in self.dimensions}
        found: dict[str, Any] = {}
        for key, value in dimension.when.items():
            found |= {**self._condition_of(by_key[key]), key: value}
        return found


def of_options(words: Iterable[str]) -> Space:
    """The space of the values of `--space`: `key=range` each, or the path of a file.

    Raises:
        JobError: A word is neither.
    """
    values: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        entries = {key: text} if equals else _file(Path(word))
        if twice := values.keys() & entries.keys():
            raise JobError(f"the space has {min(twice)} twice; remove one")
        values |= entries
    return of_values(values)


def of_values(values: Mapping[str, Any]) -> Space:
    """The space of ranges by key, as a file or a Python program has them.

    Raises:
        JobError: One of them is no range.
    """
    dimensions: list[Dimension] = []
    for key, value in values.items():
        dimension = _dimension(key, value)
        for other, wanted in dimension.when.items():
            parent = next((each for each in dimensions if each.key == other), None)
            if not isinstance(parent, Choice) or wanted not in parent.options:
                raise JobError(
                    f"space {key}: when {other}={wanted}, which is no choice above it; list "
                    f"{other} first, with {wanted} among its choices"
                )
        dimensions.append(dimension)
    if not dimensions:
        raise JobError("the space is empty; give --space KEY=RANGE, such as optimizer.lr=1e-4..0.1")
    return Space(tuple(dimensions))


def applied(base: Mapping[str, Any], values: Values) -> dict[str, Any]:
    """The values of a job with those of a trial.

    If a `name` changes, as of an optimizer, the part has its own defaults and the trial's values.
    """
    source = YamlSource("{}", "trial")
    source.values = copy.deepcopy(dict(base))
    for key, value in values.items():
        part, _, last = key.rpartition(".")
        inside = _inner(source.values, part)
        if last == "name" and part and isinstance(inside, dict) and inside.get("name") != value:
            source.assign(part, {}, key)
    for key, value in values.items():
        source.assign(key, value, f"{key}={value}")
    return source.values


def base_of(request: TrainRequest) -> dict[str, Any]:
    """The values that a job gives, without defaults."""
    return request.model_dump(mode="json", exclude_unset=True)


def derived_space(request: TrainRequest) -> Space:
    """The space of a built-in job for which none is given: what its own values are around.

    Raises:
        JobError: The task is the user's own, so nothing is known of its keys.
    """
    if ":" in request.task:
        raise JobError(
            f"no space can be derived for {request.task}, which is your own; give the keys that it "
            "reads, such as --space params.width=32,64"
        )
    return Space(tuple(_derived(request, base_of(request))))


def first_trial(request: TrainRequest, space: Space) -> dict[str, Any]:
    """Values of a trial that is the job as it is; empty if these are not in the space."""
    values = {each.key: _value_of(request, each.key) for each in space.dimensions}
    return values if all(each.holds(values[each.key]) for each in space.dimensions) else {}


def _inner(values: Any, dotted: str) -> Any:
    for key in filter(None, dotted.split(".")):
        values = values.get(key) if isinstance(values, dict) else None
    return values


def _file(path: Path) -> dict[str, Any]:
    try:
        return YamlSource(path.read_text(encoding="utf-8"), str(path)).values
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise JobError(f"space {path}: {reason}; give KEY=RANGE, or a YAML file") from None


def _dimension(key: str, value: Any) -> Dimension:
    when: Values = {}
    if isinstance(value, dict):
        rest = dict(value)
        when = rest.pop("when", {})
        kind, ends = rest.popitem() if len(rest) == 1 else ("", None)
        if kind not in ("range", "log", "choice") or not isinstance(ends, list | tuple):
            raise JobError(f"space {key}: {value!r:.100} has none of range, log and choice")
        if not isinstance(when, dict):
            raise JobError(f"space {key}: when should be a mapping of a key to a value")
        if kind != "choice":
            return _range(key, ends, is_log=kind == "log", when=when)
        value = ends
    if isinstance(value, str):
        if found := _RANGE.fullmatch(value.strip()):
            return _range(key, [_number(each) for each in found.groups()[:2]], bool(found[3]), {})
        try:
            value = yaml.safe_load(f"[{value}]")
        except yaml.YAMLError:
            raise JobError(f"space {key}: {value!r} cannot be read; {_HINT}") from None
    if not isinstance(value, list | tuple) or len(value) < 2:
        raise JobError(f"space {key}: {value!r:.100} is no range; {_HINT}")
    options = tuple(_number(each) for each in value)
    if len({repr(each) for each in options}) < len(options):
        raise JobError(f"space {key}: a choice is given twice; remove one")
    return Choice(key=key, options=options, when=when)


def _range(key: str, ends: Sequence[Any], is_log: bool, when: Values) -> Range:
    numbers = [_number(each) for each in ends]
    if len(numbers) != 2 or not all(
        isinstance(each, int | float) and math.isfinite(each) for each in numbers
    ):
        raise JobError(f"space {key}: {ends!r:.100} are not two numbers; {_HINT}")
    low, high = numbers
    if low >= high:
        raise JobError(f"space {key}: {low}..{high} is empty; the first number is the lower one")
    if is_log and low <= 0:
        raise JobError(f"space {key}: a logarithm needs numbers above 0, not {low}")
    return Range(key=key, low=low, high=high, log=is_log, when=when)


def _number(value: Any) -> Any:
    """A number for text such as 1e-3, which YAML takes for a word."""
    if not isinstance(value, str):
        return value
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def _plain_when(when: Values) -> dict[str, Any]:
    return {"when": dict(when)} if when else {}


def _derived(request: TrainRequest, base: Mapping[str, Any]) -> Iterator[Dimension]:
    low, high = _LR[request.optimizer.name]
    yield Range(key="optimizer.lr", low=low, high=high, log=True)
    yield Range(key="optimizer.weight_decay", low=1e-5, high=0.1, log=True)
    if steps := request.schedule.warmup_steps:
        yield Choice(key="schedule.warmup_steps", options=(0, steps, 2 * steps))
    scaled = ["batch"]
    if request.init_from is None:  # these weights have a shape
        scaled.append("model.width")
    for key in scaled:
        value = _value_of(request, key)
        if value is None:
            continue
        options = _startable(base, key, [int(value * factor) for factor in _HALF_TO_DOUBLE])
        if len(options) > 1:
            yield Choice(key=key, options=options)
    if _value_of(request, "model.dropout") is not None:
        yield Range(key="model.dropout", low=0.0, high=0.3)


def _startable(base: Mapping[str, Any], key: str, options: Sequence[int]) -> tuple[int, ...]:
    """The options with which the job could start."""
    found = []
    for option in options:
        try:
            load.check(applied(base, {key: option}), key)
        except JobError:
            continue
        found.append(option)
    return tuple(found)


def _value_of(request: TrainRequest, dotted: str) -> Any:
    """The value of a key; None if the job does not have it."""
    value: Any = request
    for part in dotted.split("."):
        value = getattr(value, part, None)
    return value
