"""The user's function of a drawn job: what people write, put together from a recipe."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.nn.functional as F
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import EVENTS
from holdfast_bench.exactness import case, optimizers
from holdfast_bench.exactness.case import Kill, Recipe
from holdfast_bench.exactness.datasets import CLASSES, Batch, dataset, ordered, without_some
from holdfast_bench.exactness.kills import Kills
from holdfast_bench.exactness.models import Extra, Network, loss_of

if TYPE_CHECKING:
    from torch import nn

    from holdfast import Session

POLL_S: Final = 0.002
DISTILLATION_WEIGHT: Final = 0.1
"""By which the distance from the average's answers counts in the loss."""
STOP: Final = "stop"
"""A file in the run's directory that says that the run was asked to stop."""
SKIP_THRESHOLD: Final = -1.0
"""Where `skips`, shards whose first value is smaller skip their backward pass: one of six."""
LARGEST: Final = 0.05
"""To which `hooks` clip each value of a gradient."""
BAD_EVERY: Final = 3
"""Steps from one to the next whose loss is no number, where `bad`."""
IN_LOOP_STEP: Final = 0
"""The step in which `evaluate=in_loop` evaluates: one whose shards all have samples."""


def main(session: Session) -> None:
    """Train as the recipe in the job's `params` says, with its kills and its stop."""
    params = session.job.params
    recipe = case.recipe_of(params["recipe"])
    run_dir = Path(params["run_dir"])
    rank = session._member.group.rank
    kills = Kills([Kill(**kill) for kill in params["kills"]], rank, run_dir)
    dtype = getattr(torch, recipe.dtype)
    network: list[Network] = []

    def build() -> nn.Module:
        network.append(Network(recipe))
        network[0].head.requires_grad_(not recipe.thaws)
        return network[0].to(dtype)

    model, optimizer = session.attach(
        build,
        lambda model: optimizers.optimizer(recipe, _trained(recipe, model)),
        schedule=optimizers.attached(recipe),
        name="network" * recipe.critic,
    )
    critic = _critic(session, recipe)
    teacher = _keep(session, recipe, model, optimizer)
    _set_before(session, recipe, network[0], model, optimizer)
    samples = dataset(recipe)
    measured = False

    def answers(model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return _network(model)(batch[0].to(dtype), batch[1]), batch[2]

    def measure(model: nn.Module, batch: Batch) -> dict[str, float]:
        return {"right": _share_right(*answers(model, batch))}

    if recipe.evaluate == "epochs":
        session.evaluate_each_epoch(samples, measure)
        session.evaluate_each_epoch(samples, answers, metrics={"counts": _counts})
    for shard in _shards(session, recipe, samples):
        kills.at_step(shard.step)
        if shard.step == params["stop_at"]:
            _stop(session, run_dir)
        x, lengths, classes = shard.batch
        logits = model(x.to(dtype), lengths)
        if recipe.evaluate == "in_loop" and shard.step == IN_LOOP_STEP and not measured:
            session.evaluate(samples, measure)
            measured = True
        if recipe.skips and float(x[0, 0, 0]) < SKIP_THRESHOLD:
            continue
        if recipe.logs:
            session.log(right=_share_right(logits, classes), rows=float(lengths.sum()))
        weight = float(lengths.sum()) if recipe.weight == "tokens" else None
        scale = _loss_scale(recipe, shard.step, session.state) * _scale(network[0], optimizer)
        loss = scale * loss_of(logits, classes)
        if teacher is not None:
            loss = loss + DISTILLATION_WEIGHT * _distance(teacher, logits, x.to(dtype), lengths)
        loss, trains = _judged(loss, logits.to(dtype), shard.step, model, critic)
        session.backward(loss, weight=weight, trains=trains)
    if recipe.surrounds:
        _change_after(session, model, optimizer)


def _shards(session: Session, recipe: Recipe, samples: Any) -> Iterator[Any]:
    """The shards of this worker, without those all of whose samples were dropped."""
    loaded = ordered(recipe, samples)
    collate = without_some if recipe.drops and recipe.order == "own" else None
    shards = session.shards(loaded, epochs=recipe.epochs, steps=recipe.steps, collate=collate)
    return (shard for shard in shards if shard.batch is not None)


def _trained(recipe: Recipe, model: nn.Module) -> list[nn.Parameter]:
    """Parameters of the optimizer: also those that are frozen at first, if trained later."""
    return [each for each in model.parameters() if each.requires_grad or recipe.thaws]


def _critic(session: Session, recipe: Recipe) -> nn.Module | None:
    if not recipe.critic:
        return None
    dtype = getattr(torch, recipe.dtype)
    critic, _ = session.attach(
        lambda: torch.nn.Linear(CLASSES, 1).to(dtype),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
        name="critic",
    )
    return critic


def _judged(
    loss: torch.Tensor, logits: torch.Tensor, step: int, model: nn.Module, critic: nn.Module | None
) -> tuple[torch.Tensor, nn.Module | None]:
    """The loss of the model that a step trains, and this model: the critic in odd ones, if there is
    one.
    """
    if critic is None:
        return loss, None
    if step % 2:
        return critic(logits.detach()).square().mean(), critic
    return loss + critic(logits).mean(), model


def _network(model: nn.Module) -> nn.Module:
    """The network, of all that is trained."""
    found: nn.Module = getattr(model, "network", model)
    return found


def _counts(logits: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    """Number of times that each answer was given for each class."""
    answers = logits.argmax(1)
    return torch.bincount(CLASSES * classes + answers, minlength=CLASSES**2).view(CLASSES, -1)


def _look(model: nn.Module, recipe: Recipe) -> None:
    """Do as users do on one worker: draw numbers, and compute in training mode."""
    x = torch.randn(3, recipe.length, recipe.features, dtype=getattr(torch, recipe.dtype))
    if not recipe.compile:
        model.train()
        model(x, torch.full((3,), recipe.length))


def _share_right(logits: torch.Tensor, classes: torch.Tensor) -> float:
    return float((logits.argmax(1) == classes).double().mean())


def _loss_scale(recipe: Recipe, step: int, state: dict[str, Any]) -> float:
    """With the optimizer that clips, gradients are short in the first steps and long later."""
    if recipe.bad and (recipe.seed + step) % BAD_EVERY == 0:
        return math.nan
    scale = min(10.0, 0.01 * 10.0**step) if recipe.optimizer == "clipping" else 1.0
    steps: int = state.get("steps", 0) + state.get("set_before", 0)
    return scale * (1 + 0.1 * (steps % 3))


def _scale(network: Network, optimizer: torch.optim.Optimizer) -> float:
    """Contribution of attributes to the loss."""
    history: list[float] = getattr(optimizer, "history", [])
    return network.scales[-1] * (1 + float(network.shift)) * (1 + 0.1 * (len(history) % 2))


def _change_attributes(network: Network, optimizer: torch.optim.Optimizer) -> None:
    network.scales.append(1 + 0.1 * (len(network.scales) % 3))
    network.shift.add_(0.01)
    vars(optimizer)["history"] = [*vars(optimizer).get("history", []), 1.0]


def _change_gradients(model: nn.Module) -> None:
    """Clip each value, and add noise."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.clamp_(-LARGEST, LARGEST)
            parameter.grad.add_(torch.randn_like(parameter.grad), alpha=LARGEST / 100)


def _set_before(
    session: Session,
    recipe: Recipe,
    network: Network,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> None:
    if recipe.hooks:
        session.on_gradients(lambda: _change_gradients(model))
    if recipe.attributes:
        session.on_commit(lambda: _change_attributes(network, optimizer))
    for each in network.modules():
        if isinstance(each, Extra):
            session.on_commit(each.count)
    if recipe.thaws:
        session.on_commit(network.head.requires_grad_)
    if not recipe.surrounds:
        return
    session.state["set_before"] = 1
    for group in optimizer.param_groups:
        group["lr"] *= 0.5

    def change() -> None:
        session.state["set_before"] += 1

    session.on_commit(change)


def _change_after(session: Session, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    session.state["set_before"] += 1
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.copy_(tensor * 2)
    for group in optimizer.param_groups:
        group["lr"] *= 0.5


def _keep(
    session: Session, recipe: Recipe, model: nn.Module, optimizer: torch.optim.Optimizer
) -> nn.Module | None:
    """Keep what the recipe keeps next to the model; returns the average, if there is one."""
    kind = "none" if recipe.attaches else recipe.scheduler
    scheduler = optimizers.scheduler(kind, optimizer, recipe.steps)
    if scheduler is not None:
        session.register("scheduler", scheduler)
        session.on_commit(
            (lambda: scheduler.step(session.loss or 0.0))
            if isinstance(scheduler, ReduceLROnPlateau)
            else scheduler.step
        )
    if recipe.counts:
        session.on_commit(lambda: _count(session.state, session.loss))
        session.on_commit(session.main_only(lambda: _look(model, recipe)))
    if not recipe.average:
        return None
    moving = get_ema_multi_avg_fn(0.8)  # type: ignore[no-untyped-call]
    average = session.register("average", AveragedModel(model, multi_avg_fn=moving))
    session.on_commit(lambda: average.update_parameters(model))
    average.train(mode=False)  # its own buffers must not change in the loop
    return average


def _count(state: dict[str, Any], loss: float | None) -> None:
    state["steps"] = state.get("steps", 0) + 1
    state["losses"] = [*state.get("losses", []), loss][-2:]


def _distance(
    teacher: nn.Module, logits: torch.Tensor, x: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    with torch.no_grad():
        target = teacher(x, lengths)
    return F.mse_loss(logits.float(), target.float())


def _stop(session: Session, run_dir: Path) -> None:
    """Ask for a stop, and wait until the request has come: the run ends after this very step."""
    arena: Any = session._member._arena
    try:
        os.close(os.open(run_dir / STOP, os.O_CREAT | os.O_EXCL))
    except FileExistsError:  # another shard, or the resumed run
        return
    started = [each for each in json_lines.read(run_dir / EVENTS) if each["event"] == "run-started"]
    os.kill(started[-1]["pid"], signal.SIGTERM)
    nap = threading.Event()
    while not arena.stop_requested:
        nap.wait(POLL_S)
