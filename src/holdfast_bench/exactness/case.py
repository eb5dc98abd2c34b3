"""Case: one training job and the configurations that must not show in its result.

Every field has a plain default, so that a finding shrinks by setting fields back one after the
other, and so that its specification is short: it lists only what is not plain.
"""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from holdfast.errors import JobError

Model = Literal[
    "mlp",
    "wide",
    "batch_norm",
    "cumulative_norm",
    "group_norm",
    "lstm",
    "attention",
    "embedding",
    "spectral_norm",
    "weight_norm",
]
Part = Literal[
    "empty",  # a parameter without elements
    "scalar",  # a parameter without dimensions
    "counter",  # an integer buffer that is written in place
    "rebound",  # a buffer that is bound to a new tensor in every forward pass
    "lazy",  # a buffer that is None at first
    "transient",  # a buffer that is not in the state dict, and is read in the forward pass
    "tied",  # two layers that share one parameter
    "frozen",  # a parameter that is not trained
    "sometimes",  # a parameter that only some shards use
    "never",  # a parameter that nothing uses
    "extra",  # state that `get_extra_state` gives, and that changes at every commit
]
Optimizer = Literal[
    "sgd",
    "momentum",
    "nesterov",
    "adam",
    "amsgrad",
    "adamw",
    "tensor_rate",  # AdamW with a tensor as its learning rate
    "adagrad",
    "adagrad_initial",
    "adadelta",
    "adamax",
    "asgd",
    "nadam",
    "radam",
    "rmsprop",
    "rprop",
    "adafactor",
    "clipping",  # writes to its gradients once they are long
    "counting",  # keeps a counter in its parameter groups
    "nested",  # two others in a list
]
Implementation = Literal["default", "foreach", "fused"]
DType = Literal["float32", "float64", "bfloat16"]
Precision = Literal["fp32", "bf16", "fp16"]
Schedule = Literal["none", "warmup", "cosine"]
Scheduler = Literal["none", "exponential", "step", "restarts", "one_cycle", "plateau", "sequential"]
Data = Literal["plain", "numpy", "generator", "augmented", "stream"]
Order = Literal["own", "sequential", "generator", "weighted", "sampler"]
Weight = Literal["samples", "tokens"]
Evaluate = Literal["never", "epochs", "in_loop"]
FailurePolicy = Literal["replace", "shrink", "restart"]
Exchange = Literal["auto", "alone", "mapped", "staged", "arena"]
Parallel = Literal["none", "zero", "pipeline"]

_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Model, data and training of a drawn job.

    Attributes:
        seed: Of the run.
        model, width, depth, parts: The network; see `models`.
        dropout: Probability, 0 for none.
        dtype: Of parameters and inputs.
        precision, compile, threads: The job's keys.
        optimizer, implementation, groups: The optimizer, its kernels, its parameter groups.
        schedule: The one given to `session.attach`.
        scheduler: One of torch's, kept in the session and stepped at every commit.
        attaches: True if that scheduler is given to `session.attach` instead.
        thaws: True if the last layer is frozen in the first step only.
        critic: True if a second model, with an optimizer of its own, is trained in every other
            step, and judges the first.
        average: True if an average of the weights is kept, and is the network's teacher.
        counts: True if `session.state` changes at every commit, and the loss with it.
        attributes: True if attributes of the network and the optimizer change at every commit, and
            the loss with them.
        surrounds: True if code sets state before the loop over shards, and changes all of it after.
        clip_norm: The job's key.
        data: How samples are made; see `datasets`.
        order: How a DataLoader orders the samples; `own`: there is none.
        drops: True if a collate function drops some samples.
        hooks: True if gradients are changed before the optimizer's step.
        samples, batch, shards, epochs: Sizes of the run.
        length, features: Size of a sample, `[length, features]`.
        variable: True if samples are of unlike length, up to `length`.
        weight: What a shard counts by.
        skips: True if some shards skip the backward pass.
        bad: True if the loss of some steps is no number, so that they are left out.
        logs: True if values are logged.
        evaluate: When the model is evaluated.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    seed: int = 0
    model: Model = "mlp"
    width: int = 5
    depth: int = 1
    parts: tuple[Part, ...] = ()
    dropout: float = 0.0
    dtype: DType = "float32"
    precision: Precision = "fp32"
    compile: bool = False
    threads: int = 1
    optimizer: Optimizer = "sgd"
    implementation: Implementation = "default"
    groups: int = 1
    schedule: Schedule = "none"
    scheduler: Scheduler = "none"
    attaches: bool = False
    thaws: bool = False
    critic: bool = False
    average: bool = False
    counts: bool = False
    attributes: bool = False
    surrounds: bool = False
    clip_norm: float | None = None
    data: Data = "plain"
    order: Order = "own"
    drops: bool = False
    hooks: bool = False
    samples: int = 32
    batch: int = 16
    shards: int = 4
    epochs: int = 2
    length: int = 1
    features: int = 3
    variable: bool = False
    weight: Weight = "samples"
    skips: bool = False
    bad: bool = False
    logs: bool = False
    evaluate: Evaluate = "never"

    @property
    def steps(self) -> int:
        """Steps of the run."""
        return -(-self.samples // self.batch) * self.epochs


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A SIGKILL that a worker sends to itself.

    Attributes:
        rank: Whose.
        step: From which step on calls are counted, or None: from the start of the user's function.
        calls: It comes at this call of a function, Python's or built in.
        life: 0 for the first worker of the rank, 1 for its replacement, …
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    rank: int = 0
    step: int | None = 0
    calls: int = 1
    life: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Settings that must not show in the result.

    Attributes:
        workers, shards_per_worker, exchange, prefetch, loader_workers, checkpoint_every: The job's
            keys.
        parallel: How the model is divided over the workers.
        replans: True if the plan changes in every step.
        policy: What happens after a failure.
        kills: When which worker dies.
        sizes: Workers that the run is given one after the other while it trains.
        stop_at: The step after which the run is stopped, to be resumed; None: it is not.
        resume_workers: The workers of the resumed run.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    workers: int = 1
    shards_per_worker: tuple[int, ...] | None = None
    exchange: Exchange = "auto"
    parallel: Parallel = "none"
    replans: bool = False
    prefetch: int = 2
    loader_workers: int = 0
    checkpoint_every: int = 100
    policy: FailurePolicy = "replace"
    kills: tuple[Kill, ...] = ()
    sizes: tuple[int, ...] = ()
    stop_at: int | None = None
    resume_workers: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job and its configurations; each is compared with one worker and no failure."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    recipe: Recipe
    configurations: tuple[Configuration, ...]


REFERENCE = Configuration()
"""One worker, and nothing happens to it."""

_CASE = TypeAdapter(Case)
_RECIPE = TypeAdapter(Recipe)


def values_of(literal: Any) -> tuple[Any, ...]:
    """The values of one of the types above."""
    return get_args(literal)


def words(part: Recipe | Configuration | Kill) -> str:
    """Deviations from a plain configuration, in words."""
    return ", ".join(f"{name}={_plain(value)}" for name, value in _unlike_default(part).items())


def dump(case: Case) -> str:
    """The case as YAML that `load` reads back as the same case."""
    spec = {
        "recipe": _sparse(case.recipe),
        "configurations": [_sparse(each) for each in case.configurations],
    }
    return yaml.safe_dump(spec, sort_keys=False, default_flow_style=None, width=96)


def load(path: Path) -> Case:
    """The case in a file, YAML or JSON.

    Raises:
        JobError: It cannot be read, or describes no case.
    """
    try:
        return _CASE.validate_python(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise JobError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, ValidationError, UnicodeDecodeError) as error:
        raise JobError(f"{path} describes no case: {' '.join(str(error).split())}") from None


def recipe_of(plain: dict[str, Any]) -> Recipe:
    """The recipe that `asdict` gave."""
    return _RECIPE.validate_python(plain)


def _sparse(part: Recipe | Configuration | Kill) -> dict[str, Any]:
    return {name: _plain(value) for name, value in _unlike_default(part).items()}


def _unlike_default(part: Recipe | Configuration | Kill) -> dict[str, Any]:
    return {
        field.name: getattr(part, field.name)
        for field in fields(part)
        if field.default is MISSING or getattr(part, field.name) != field.default
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Kill):
        return _sparse(value)
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value


def plain(recipe: Recipe) -> dict[str, Any]:
    """The recipe as JSON values, for a job's `params`."""
    return asdict(recipe) | {"parts": list(recipe.parts)}
