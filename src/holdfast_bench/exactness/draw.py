"""Draw: a case from a seed. Pure: the same seed gives the same case.

The weights favour what has been wrong before: sizes that are no multiple of a vector, clipping,
buffers, random numbers inside the model, kills in the first step.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, TypeVar

from holdfast_bench.exactness.case import (
    Case,
    Configuration,
    Data,
    DType,
    Evaluate,
    Exchange,
    FailurePolicy,
    Implementation,
    Kill,
    Model,
    Optimizer,
    Order,
    Parallel,
    Part,
    Recipe,
    Schedule,
    Scheduler,
    values_of,
)

T = TypeVar("T")

FUSED: Final = ("sgd", "momentum", "nesterov", "adam", "amsgrad", "adamw", "tensor_rate", "adagrad")
"""Optimizers with a fused kernel on a CPU."""
GROUPED: Final = tuple(
    name for name in values_of(Optimizer) if name not in ("adafactor", "nested", "tensor_rate")
)
"""Optimizers with kernels that take all parameters together."""
LOADED: Final = ("plain", "augmented")
"""Data that a DataLoader takes."""
WHOLE: Final = ("numpy", "generator")
"""Data that make batches themselves."""
THAWLESS: Final = (("fused", "momentum"), ("fused", "nesterov"))
"""Kernels that fail where a parameter has its first gradient later than others (torch 2.13)."""
MAX_CALLS: Final = 4000
"""Calls after which a kill comes at the latest; a step makes 2,000 to 9,000 with its waiting."""

_MODELS: Final[Mapping[Model, int]] = {
    "mlp": 3,
    "wide": 6,
    "batch_norm": 4,
    "cumulative_norm": 2,
    "group_norm": 1,
    "lstm": 2,
    "attention": 2,
    "embedding": 2,
    "spectral_norm": 1,
    "weight_norm": 1,
}
_DTYPES: Final[Mapping[DType, int]] = {"float32": 8, "float64": 1, "bfloat16": 1}
_DATA: Final[Mapping[Data, int]] = {
    "plain": 3,
    "numpy": 2,
    "generator": 2,
    "augmented": 3,
    "stream": 2,
}
_ORDERS: Final[Mapping[Order, int]] = {
    "own": 3,
    "sequential": 2,
    "generator": 1,
    "weighted": 2,
    "sampler": 2,
}
_SCHEDULES: Final[Mapping[Schedule, int]] = {"none": 3, "warmup": 1, "cosine": 1}
_SCHEDULERS: Final[Mapping[Scheduler, int]] = {
    "none": 8,
    "exponential": 1,
    "step": 1,
    "restarts": 2,
    "one_cycle": 2,
    "plateau": 2,
    "sequential": 2,
}
_EVALUATE: Final[Mapping[Evaluate, int]] = {"never": 5, "epochs": 3, "in_loop": 3}
_POLICIES: Final[Mapping[FailurePolicy, int]] = {"replace": 5, "shrink": 3, "restart": 2}
_WORLDS: Final = {1: 1, 2: 5, 3: 4, 4: 1}
_PARALLEL: Final[Mapping[Parallel, int]] = {"none": 3, "zero": 3, "pipeline": 2}
_CLIP_NORMS: Final = {None: 5, 0.01: 2, 0.3: 2, 100.0: 1}
STOP_PROBABILITY: Final = 0.4
"""Probability of a stop and a resume where there is state next to the model."""
_PART_CHANCE: Final = 0.15
_PART_CHANCES: Final[Mapping[Part, float]] = {"lazy": 0.03, "rebound": 0.25, "never": 0.08}
"""Less for what is refused, since a refused job tests nothing else."""


def draw(seed: int) -> Case:
    """The case of a seed."""
    chance = random.Random(f"exactness {seed}")
    recipe = _recipe(chance, seed)
    made: list[Configuration] = []
    for make, share in _CONFIGURATIONS:
        wanted = STOP_PROBABILITY if make is _stopped and _keeps(recipe) else share
        if chance.random() < wanted:
            made.append(_loaded(chance, recipe, make(chance, recipe)))
    # Of numbers of its own: what else a seed draws stays as it was.
    exchanges = random.Random(f"exchanges {seed}")
    made = [replace(each, exchange=_exchange(exchanges, each)) for each in made]
    divisions = random.Random(f"parallel {seed}")
    made = [_divided(divisions, recipe, each) for each in made]
    return Case(recipe=recipe, configurations=tuple(made))


def _divided(chance: random.Random, recipe: Recipe, made: Configuration) -> Configuration:
    """The configuration, or one whose model is divided over the workers, if it can be."""
    plain = replace(made, exchange="auto", replans=False, parallel=_pick(chance, _PARALLEL))
    is_wanted = made.exchange != "alone" and plain.parallel != "none"
    return plain if is_wanted and _fits(plain, recipe) else made


def _exchange(chance: random.Random, made: Configuration) -> Exchange:
    """The way in which gradients are summed; a lone worker may keep its state on its device."""
    others: list[Exchange] = ["mapped"] if made.workers == 1 else ["mapped", "mapped", "staged"]
    return chance.choice([made.exchange] * len(others) + others)


def is_possible(case: Case) -> bool:
    """True if every configuration can run; what is drawn always can."""
    recipe = case.recipe
    fits = (
        (recipe.implementation != "fused" or recipe.optimizer in FUSED)
        and (recipe.implementation != "foreach" or recipe.optimizer in GROUPED)
        and (recipe.precision == "fp32" or recipe.dtype == "float32")
        and (recipe.precision == "fp32" or recipe.model != "lstm")
        and not (recipe.variable and recipe.length == 1)
        and "none" in (recipe.schedule, recipe.scheduler)
        and not (recipe.average and recipe.compile)
        and not ("sometimes" in recipe.parts and _is_thawless(recipe))
        and not (recipe.thaws and _is_thawless(recipe))
        and not (recipe.attaches and recipe.scheduler in ("none", "plateau"))
        and (recipe.evaluate != "in_loop" or _feeds_all(recipe))
        and (recipe.order == "own" or recipe.data in LOADED)
        and not (recipe.drops and recipe.data in WHOLE)
    )
    return fits and all(_fits(each, recipe) for each in case.configurations)


def _fits(made: Configuration, recipe: Recipe) -> bool:
    shares = made.shards_per_worker
    if shares is None:
        shared_out = made.workers <= recipe.shards
    else:
        shared_out = len(shares) == made.workers and sum(shares) == recipe.shards
    return (
        shared_out
        and (made.exchange != "alone" or made.workers == 1)
        and (made.parallel == "none" or _divides(made, recipe))
        and all(kill.rank < made.workers for kill in made.kills)
        and all(size <= recipe.shards for size in made.sizes)
        and not (made.sizes and made.parallel != "none")
        and all(kill.step is None or kill.step < recipe.steps for kill in made.kills)
        and (made.stop_at is None or made.stop_at < recipe.steps - 1)
        and (made.stop_at is None or made.resume_workers <= recipe.shards)
        and (recipe.evaluate != "in_loop" or shares is None or min(shares) > 0)
        and (recipe.data != "stream" or made.loader_workers == 0)
    )


def _divides(made: Configuration, recipe: Recipe) -> bool:
    """True if the workers of a configuration, and of a resumed run, can divide a model."""
    worlds = [made.workers] + [made.resume_workers] * (made.stop_at is not None)
    is_plain = not (recipe.compile or made.replans or made.shards_per_worker)
    is_plain &= made.exchange == "auto"
    if made.parallel == "pipeline":
        return is_plain and min(worlds) > 1
    return is_plain and all(recipe.shards % workers == 0 for workers in worlds)


def _is_thawless(recipe: Recipe) -> bool:
    return (recipe.implementation, recipe.optimizer) in THAWLESS


def _feeds_all(recipe: Recipe) -> bool:
    """True if every shard of the first step has samples: all workers must evaluate there."""
    return recipe.shards <= recipe.batch <= recipe.samples and not recipe.drops


def _pick(chance: random.Random, weights: Mapping[T, int]) -> T:
    return chance.choices(list(weights), list(weights.values()))[0]


def _recipe(chance: random.Random, seed: int) -> Recipe:
    shards = chance.choice([1, 2, 3, 3, 4, 5, 5, 6, 7, 8, 9, 11, 13])
    batch = chance.randint(max(1, shards - 2), 4 * shards + 5)
    samples = chance.randint(max(2, batch), 4 * batch + 3)
    model = _pick(chance, _MODELS)
    optimizer: Optimizer = chance.choice(values_of(Optimizer))
    sequences = model in ("lstm", "attention", "embedding") or chance.random() < 0.3
    drawn = Recipe(
        seed=seed,
        model=model,
        width=chance.randint(13, 60) if model == "wide" else chance.randint(1, 40),
        depth=chance.choice([1, 1, 2, 3]),
        parts=_parts(chance),
        dropout=chance.choice([0.0, 0.0, 0.1, 0.5]),
        dtype=_pick(chance, _DTYPES),
        compile=chance.random() < 0.01,
        threads=chance.choice([1, 1, 1, 2, 3]),
        optimizer=optimizer,
        groups=chance.choice([1, 1, 2, 3]),
        schedule=_pick(chance, _SCHEDULES),
        scheduler=_pick(chance, _SCHEDULERS),
        attaches=chance.random() < 0.4,
        thaws=chance.random() < 0.1,
        critic=chance.random() < 0.1,
        average=chance.random() < 0.15,
        counts=chance.random() < 0.2,
        attributes=chance.random() < 0.15,
        surrounds=chance.random() < 0.25,
        clip_norm=_pick(chance, _CLIP_NORMS),
        data=_pick(chance, _DATA),
        samples=samples,
        batch=batch,
        shards=shards,
        epochs=chance.choice([1, 2, 3]),
        length=chance.randint(2, 9) if sequences else 1,
        features=chance.choice([1, 2, 3, 5, 7, 8, 13, 17]),
        variable=sequences and chance.random() < 0.5,
        weight=chance.choice(["samples", "samples", "tokens"]),
        skips=chance.random() < 0.15,
        logs=chance.random() < 0.3,
        evaluate=_pick(chance, _EVALUATE),
        order=_pick(chance, _ORDERS),
        drops=chance.random() < 0.2,
        hooks=chance.random() < 0.2,
        bad=chance.random() < 0.2,
    )
    return _repaired(chance, drawn)


def _parts(chance: random.Random) -> tuple[Part, ...]:
    return tuple(
        part for part in values_of(Part) if chance.random() < _PART_CHANCES.get(part, _PART_CHANCE)
    )


def _repaired(chance: random.Random, drawn: Recipe) -> Recipe:
    """Give up what does not go together, and draw what depends on the rest."""
    kernels: list[Implementation] = ["default", "default"]
    if drawn.optimizer in GROUPED:
        kernels.append("foreach")
    if drawn.optimizer in FUSED:
        kernels += ["fused", "fused"]
    drawn = replace(drawn, implementation=chance.choice(kernels))
    if "sometimes" in drawn.parts and _is_thawless(drawn):
        drawn = replace(drawn, implementation="default")
    mixed = drawn.dtype == "float32" and chance.random() < 0.15
    mixed = mixed and drawn.model != "lstm"  # which some CPUs have in fp32 only
    return replace(
        drawn,
        thaws=drawn.thaws and not _is_thawless(drawn),
        precision="fp32" if not mixed else "fp16" if drawn.seed % 2 else "bf16",
        schedule="none" if drawn.scheduler != "none" else drawn.schedule,
        attaches=drawn.attaches and drawn.scheduler not in ("none", "plateau"),
        average=drawn.average and not drawn.compile,
        order=drawn.order if drawn.data in LOADED else "own",
        drops=drawn.drops and drawn.data not in WHOLE,
        evaluate="epochs"
        if drawn.evaluate == "in_loop" and not _feeds_all(drawn)
        else drawn.evaluate,
    )


def _even(chance: random.Random, recipe: Recipe) -> Configuration:
    return Configuration(workers=_world(chance, recipe, least=2))


def _uneven(chance: random.Random, recipe: Recipe) -> Configuration:
    """Shares at random; one of them may be empty, unless all must evaluate."""
    least = 1 if recipe.evaluate == "in_loop" else 0
    workers = chance.choice([2, 3])
    if least * workers > recipe.shards:
        return _even(chance, recipe)
    spare = recipe.shards - least * workers
    cuts = sorted(chance.randint(0, spare) for _ in range(workers - 1))
    shares = tuple(hi - lo + least for lo, hi in itertools.pairwise([0, *cuts, spare]))
    return Configuration(workers=workers, shards_per_worker=shares)


def _alone(chance: random.Random, recipe: Recipe) -> Configuration:
    """One worker that keeps gradients to itself, and may be killed or stopped."""
    made = Configuration(exchange="alone")
    if chance.random() < 0.5:
        kills = (_kill(chance, recipe, 1),)
        made = replace(made, kills=kills, checkpoint_every=chance.choice([1, 2, 3, 100]))
    elif chance.random() < 0.3:
        made = replace(_stopped(chance, recipe), workers=1, exchange="alone")
    return made


def _killed(chance: random.Random, recipe: Recipe) -> Configuration:
    make: Callable[[random.Random, Recipe], Configuration] = chance.choice([_even, _uneven])
    made = make(chance, recipe)
    first = _kill(chance, recipe, made.workers)
    kills = [first]
    if chance.random() < 0.35:
        kills.append(_second(chance, recipe, first, made.workers))
    return replace(
        made,
        policy=_pick(chance, _POLICIES),
        checkpoint_every=chance.choice([1, 2, 3, 100]),
        kills=tuple(kills),
    )


def _kill(chance: random.Random, recipe: Recipe, workers: int) -> Kill:
    step = None if chance.random() < 0.1 else chance.randrange(recipe.steps)
    first = 0.7 if recipe.evaluate == "in_loop" else 0.05 if _keeps(recipe) else 0.2
    if chance.random() < first:
        step = 0  # the first step is special, and so is an evaluation inside the loop
    return Kill(rank=chance.randrange(workers), step=step, calls=_calls(chance))


def _keeps(recipe: Recipe) -> bool:
    """True if there is state next to the model, which is that of the start in the first step."""
    around = recipe.attributes or recipe.surrounds
    nested = "extra" in recipe.parts or recipe.optimizer == "nested"
    kept = recipe.average or recipe.counts or recipe.thaws or nested
    return recipe.scheduler != "none" or kept or around


def _second(chance: random.Random, recipe: Recipe, first: Kill, workers: int) -> Kill:
    """A kill of another worker, or of the replacement while it joins."""
    if chance.random() < 0.4:
        return Kill(rank=first.rank, step=None, calls=_calls(chance), life=1)
    return _kill(chance, recipe, workers)


def _calls(chance: random.Random) -> int:
    """Anywhere in a step, and as often in the first calls, by a uniform logarithm."""
    early = chance.random() < 0.5
    return round(MAX_CALLS ** chance.random()) if early else chance.randint(1, MAX_CALLS)


def _stopped(chance: random.Random, recipe: Recipe) -> Configuration:
    if recipe.steps < 3:
        return _even(chance, recipe)
    return Configuration(
        workers=_world(chance, recipe, least=1),
        stop_at=chance.randrange(recipe.steps - 2),
        resume_workers=_world(chance, recipe, least=1),
    )


def _scaled(chance: random.Random, recipe: Recipe) -> Configuration:
    """Another number of workers, once or more often while it trains; and perhaps a kill."""
    made = _even(chance, recipe)
    count = chance.choice([1, 2, 3, 5])
    made = replace(made, sizes=tuple(_world(chance, recipe, least=1) for _ in range(count)))
    if chance.random() < 0.3:
        kills = (_kill(chance, recipe, made.workers),)
        made = replace(made, kills=kills, policy=_pick(chance, _POLICIES))
    return made


def _loaded(chance: random.Random, recipe: Recipe, made: Configuration) -> Configuration:
    """With samples read ahead more or less, by other processes now and then, and other plans."""
    processes = 1 if chance.random() < 0.07 and recipe.data != "stream" else 0
    return replace(
        made,
        prefetch=chance.choice([0, 1, 2, 5]),
        loader_workers=processes,
        replans=made.shards_per_worker is None and recipe.seed % 2 == 1,
    )


def _world(chance: random.Random, recipe: Recipe, *, least: int) -> int:
    fits = {size: weight for size, weight in _WORLDS.items() if least <= size <= recipe.shards}
    return _pick(chance, fits) if fits else 1


_CONFIGURATIONS: Final = (
    (_alone, 0.7),
    (_even, 0.6),
    (_uneven, 0.6),
    (_killed, 1.0),
    (_killed, 0.4),
    (_stopped, 0.2),
    (_scaled, 0.5),
)
"""What a case is run in, each with this probability: five runs a case with the reference."""
