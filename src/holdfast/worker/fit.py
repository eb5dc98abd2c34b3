"""Fit: the training loop of a task that is a class."""

from __future__ import annotations

import math
from collections.abc import Callable

from holdfast.job.settings import Constant, Cosine
from holdfast.tasks.task import FineTunes, Task
from holdfast.worker.session import Session


def fit(session: Session, task: Task) -> None:
    """Train what `task` describes for the job's epochs, evaluating after each; a task that
    fine-tunes is evaluated before, too.
    """
    job = session.job
    tunes = task if isinstance(task, FineTunes) else None
    if tunes is not None:
        tunes.tensors = {
            each.name: session.base(each.name, each.build, key=each.key, cache=each.cache)
            for each in tunes.frozen()
        }

    def schedule(total_steps: int) -> Callable[[int], float]:
        return lambda step: learning_rate_factor(job.schedule, step, total_steps)

    model, _ = session.attach(task.model, task.optimizer, schedule=schedule)
    test_data = task.test_data()
    metrics = None if tunes is None else tunes.metrics
    if test_data is not None:
        session.evaluate_each_epoch(test_data, task.measure, metrics=metrics)
        if tunes is not None and session.step == 0:
            before = {f"{name}_before": metric for name, metric in tunes.metrics.items()}
            session.evaluate(test_data, task.measure, metrics=before)
    for shard in session.shards(task.training_data(), epochs=job.epochs):
        loss = task.loss(model, shard.batch)
        if isinstance(loss, tuple):
            loss, logged = loss
            session.log(**logged)
        session.backward(loss)


def learning_rate_factor(schedule: Constant | Cosine, step: int, total_steps: int) -> float:
    """The factor on the learning rate in `step`: a linear warmup, then the schedule."""
    warmup = schedule.warmup_steps
    if step < warmup:
        return (step + 1) / warmup
    match schedule:
        case Constant():
            return 1.0
        case Cosine():
            share = (step - warmup) / max(1, total_steps - warmup)
            return 0.5 * (1 + math.cos(math.pi * share))
