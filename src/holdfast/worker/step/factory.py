"""Stepper factory: chooses how the steps of a job are computed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from holdfast.arena.layout import Layout
from holdfast.arena.replica import Trained
from holdfast.job.settings import ParallelSettings
from holdfast.job.train_job import TrainJob
from holdfast.worker.context import WorkerContext
from holdfast.worker.step.ddp import DdpModel, DdpStepper
from holdfast.worker.step.device import DeviceStepper
from holdfast.worker.step.partial_weights import refuse_state_dicts
from holdfast.worker.step.pipeline.pipeline_stepper import PipelineStages
from holdfast.worker.step.stepper import StepContext, Stepper
from holdfast.worker.step.tree import TreeStepper

Divide = Callable[[Trained, Layout, WorkerContext], Trained]
"""Divides a model, of the given layout, over the members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepperFactory:
    """Builds the stepper of a job.

    Attributes:
        model: The model as user code calls it.
        reduces_in_slots: True if gradients are summed through slots in the arena.
        build: Builds the stepper once the members have met.
        divide: Divides the model; None if each member has all of it.
    """

    model: nn.Module
    reduces_in_slots: bool
    build: Callable[[StepContext], Stepper]
    divide: Divide | None = None


def stepper_factory(job: TrainJob, model: nn.Module, device: torch.device) -> StepperFactory:
    """The factory for a job that trains `model` on a device."""
    if job.sync == "ddp":
        wrapped = DdpModel(model)
        build_ddp = functools.partial(DdpStepper, wrapped)
        return StepperFactory(model=wrapped, reduces_in_slots=False, build=build_ddp)
    if job.parallel.zero and job.workers > 1:
        return _sharded(model, job.parallel)
    if job.parallel.pipeline > 1:
        stages = PipelineStages(job.parallel)
        divide = _refusing(stages.divide, job.parallel)
        return StepperFactory(model=model, reduces_in_slots=True, build=stages.build, divide=divide)
    exchange = job.exchange_on(gpu=device.type != "cpu")
    build: Callable[[StepContext], Stepper] = TreeStepper if exchange == "arena" else DeviceStepper
    return StepperFactory(model=model, reduces_in_slots=exchange != "alone", build=build)


def _sharded(model: nn.Module, parallel: ParallelSettings) -> StepperFactory:
    """The factory for a model whose rows are divided over the workers."""
    # FSDP2 takes a second to import.
    from holdfast.worker.step.sharded.sharded_model import ShardedModel
    from holdfast.worker.step.sharded.sharded_stepper import ShardedStepper

    divided: list[ShardedModel] = []

    def divide(whole: Trained, layout: Layout, context: WorkerContext) -> Trained:
        divided.append(ShardedModel(whole, layout, context))
        return divided[-1].trained

    def build(context: StepContext) -> Stepper:
        return ShardedStepper(divided[-1], context)

    return StepperFactory(
        model=model, reduces_in_slots=False, build=build, divide=_refusing(divide, parallel)
    )


def _refusing(divide: Divide, parallel: ParallelSettings) -> Divide:
    """`divide`, and no state dicts from then on."""

    def divide_and_refuse(whole: Trained, layout: Layout, context: WorkerContext) -> Trained:
        divided = divide(whole, layout, context)
        refuse_state_dicts(divided.model, parallel)
        return divided

    return divide_and_refuse
