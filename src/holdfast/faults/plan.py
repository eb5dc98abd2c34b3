"""Fault plan: which faults to inject, where and when. Pure, apart from reading a plan's file.

    seed: 7
    faults:
      - {kind: kill, step: 25, rank: 1}
      - {kind: slow, after_s: 2.5, seconds: 3}
      - {kind: nan}

On the command line the first of these is `kill:step=25,rank=1`. What a fault leaves unspecified is
drawn from the seed and the fault's place in the plan, so a change to one fault changes no other.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import BaseModel, Field, ValidationError, model_validator

from holdfast.errors import JobError
from holdfast.job import mistakes
from holdfast.job.part import Spec
from holdfast.job.source import YamlSource

Kind = Literal[
    "kill", "stop", "exit", "raise", "slow", "nan", "flip", "corrupt-replica",
    "coordinator", "agent", "disk-full", "corrupt-checkpoint",
]  # fmt: skip
HARMLESS: Final[tuple[Kind, ...]] = (
    "kill", "stop", "exit", "raise", "slow", "coordinator", "agent",
)  # fmt: skip
"""Faults from which a run recovers with the same weights and all of its checkpoints."""
SIGNALS: Final = frozenset({"kill", "stop", "coordinator", "agent"})
"""Faults for any run; the others need workers that commit steps."""
IN_GRADIENTS: Final[frozenset[Kind]] = frozenset({"nan", "flip"})
"""Faults in the gradient of a shard, for jobs in which each shard has its own."""
WITHOUT_RANK: Final = frozenset({"coordinator", "agent", "corrupt-checkpoint"})

_Checked = TypeVar("_Checked", bound=BaseModel)
Seconds = Annotated[float, Field(ge=0)]


class Fault(Spec):
    """A planned failure.

    Attributes:
        kind: `kill` (SIGKILL), `stop` (SIGSTOP), `exit`, `raise`, `slow`, `nan` and `flip` (in a
            gradient), `corrupt-replica` and `disk-full` are injected into a worker;
            `coordinator` and `agent` are killed; `corrupt-checkpoint` changes a byte of the newest
            checkpoint.
        rank: The target worker.
        step: The fault is injected once so many steps are committed,
        after_s: or so many seconds after the run started to train.
        seconds: Duration of `slow`, by default 1.
    """

    kind: Kind
    rank: Annotated[int, Field(ge=0)] | None = None
    step: Annotated[int, Field(ge=0, lt=1 << 32)] | None = None
    after_s: Seconds | None = None
    seconds: Seconds | None = None

    @model_validator(mode="after")
    def _keys_go_together(self) -> Self:
        if self.rank is not None and self.kind in WITHOUT_RANK:
            raise ValueError(f"{self.kind} has no target rank; leave out rank")
        if self.step is not None and self.after_s is not None:
            raise ValueError("step and after_s exclude each other; leave out one of them")
        if self.seconds is not None and self.kind != "slow":
            raise ValueError(f"{self.kind} has no duration; leave out seconds")
        return self

    def __str__(self) -> str:
        keys = self.model_dump(exclude={"kind"}, exclude_none=True)
        text = ",".join(f"{key}={value}" for key, value in keys.items())
        return f"{self.kind}:{text}" if text else self.kind

    @property
    def lasts_s(self) -> float:
        """Its duration, seconds, where the kind has one."""
        return 1.0 if self.seconds is None else self.seconds

    @property
    def has_time(self) -> bool:
        """True if it says when it is injected."""
        return self.step is not None or self.after_s is not None


class FaultPlan(Spec):
    """Faults, and the seed for what they leave unspecified."""

    seed: Annotated[int, Field(ge=0)] = 0
    faults: tuple[Fault, ...] = ()

    def check(self, *, workers: int, counts_steps: bool, has_process_groups: bool) -> None:
        """Refuse faults that cannot be injected.

        Args:
            workers: World size of the run.
            counts_steps: True if its steps are known; see `TrainJob.records_progress`.
            has_process_groups: True if its workers communicate through gloo or NCCL.

        Raises:
            JobError: A fault cannot be injected into such a run.
        """
        for fault in self.faults:
            if fault.rank is not None and fault.rank >= workers:
                raise JobError(f"{fault}: rank must be below workers={workers}")
            if not counts_steps and (fault.kind not in SIGNALS or fault.after_s is None):
                kinds = ", ".join(sorted(SIGNALS))
                raise JobError(f"{fault}: a script accepts {kinds}, each with after_s")
            if fault.kind in IN_GRADIENTS and has_process_groups:
                raise JobError(
                    f"{fault}: with sync=ddp or parallel no shard has a gradient of its own"
                )
            if fault.kind == "corrupt-replica" and workers == 1:
                raise JobError(f"{fault}: with workers=1 there is no replica to compare with")

    def drawn(self, workers: int, steps: range) -> list[Fault]:
        """The faults with everything specified, in the order of their steps.

        Args:
            workers: World size of the run.
            steps: Steps that it has still to commit; empty for a script.
        """
        faults = [self._drawn(number, workers, steps) for number in range(len(self.faults))]
        return sorted(faults, key=lambda fault: fault.step or 0)

    def _drawn(self, number: int, workers: int, steps: range) -> Fault:
        fault = self.faults[number]
        chance = random.Random(f"{self.seed} {number}")
        rank = chance.randrange(workers)
        step = chance.choice(steps or [steps.stop])
        update: dict[str, int] = {}
        if fault.rank is None and fault.kind not in WITHOUT_RANK:
            update["rank"] = rank
        if not fault.has_time:
            update["step"] = step
        return fault.model_copy(update=update)


def planned(
    flags: Iterable[str], *, file: Path | None, seed: int | None, num_random: int
) -> FaultPlan:
    """The plan that a command line describes.

    Args:
        flags: Faults such as `kill:step=25,rank=1`.
        file: A plan in YAML, whose faults come first.
        seed: Replaces the plan's seed.
        num_random: Number of random non-destructive faults, which come last.

    Raises:
        JobError: Something of it is wrong, or no fault is planned.
    """
    plan = FaultPlan() if file is None else of_file(file)
    chosen = plan.seed if seed is None else seed
    chance = random.Random(f"{chosen} kinds")
    drawn = [Fault(kind=chance.choice(HARMLESS)) for _ in range(num_random)]
    faults = (*plan.faults, *map(of_flag, flags), *drawn)
    if not faults:
        raise JobError("no fault is planned; add --fault kill, --random 3 or --plan FILE")
    return FaultPlan(seed=chosen, faults=faults)


def of_flag(text: str) -> Fault:
    """The fault that `kind:key=value,…` describes.

    Raises:
        JobError: It describes none.
    """
    where = f"--fault {text}"
    kind, _, rest = text.partition(":")
    values: dict[str, Any] = {"kind": kind}
    for word in rest.split(",") if rest else []:
        key, equals, value = word.partition("=")
        if not equals:
            raise JobError(f"{where}: {word!r} is not key=value, such as step=25 or rank=1")
        if key in values:
            raise JobError(f"{where}: {key!r} is given twice")
        values[key] = value
    return _checked(Fault, values, where)


def of_file(path: Path) -> FaultPlan:
    """The plan in a YAML file.

    Raises:
        JobError: There is no such file, or a key or value in it is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise JobError(f"--plan {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise JobError(f"--plan {path} is not a text in UTF-8") from None
    given = YamlSource(text, f"--plan {path}")
    return _checked(FaultPlan, given.values, f"--plan {path}", given)


def _checked(
    model: type[_Checked], values: Mapping[str, Any], where: str, given: YamlSource | None = None
) -> _Checked:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        mistake: Any = error.errors()[0]
    path = list(mistake["loc"])
    line = given.line(path) if given is not None else None
    at = where if line is None else f"{where}, line {line}"
    raise JobError(f"{at}: {_problem(mistake, path, model)}")


def _problem(mistake: Any, path: Sequence[str | int], model: type[BaseModel]) -> str:
    """One of pydantic's errors: the key, what is wrong with it, what would be right."""
    if mistake["type"] == "value_error":
        return mistakes.problem(mistake, list(path), {})
    key = ".".join(map(str, path))
    if mistake["type"] == "extra_forbidden":
        known = (Fault if len(path) > 1 else model).model_fields
        instead = mistakes.nearest(str(path[-1]), known) or f"use {', '.join(known)}"
        return f"unknown key {key}; {instead}"
    return f"{key}: {mistakes.problem(mistake, list(path), {})}"
