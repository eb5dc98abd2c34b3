"""Stepper factory: chooses how the steps of a job are computed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from holdfast.job.train_job import TrainJob
from holdfast.worker.step.ddp import DdpModel, DdpStepper
from holdfast.worker.step.device import DeviceStepper
from holdfast.worker.step.stepper import StepContext, Stepper
from holdfast.worker.step.tree import TreeStepper


@dataclass(frozen=True, slots=True, kw_only=True)
class StepperFactory:
    """Builds the stepper of a job.

    Attributes:
        model: The model as user code calls it.
        reduces_in_slots: True if gradients are summed through slots in the arena.
        build: Builds the stepper once the members have met.
    """

    model: nn.Module
    reduces_in_slots: bool
    build: Callable[[StepContext], Stepper]


def stepper_factory(job: TrainJob, model: nn.Module, device: torch.device) -> StepperFactory:
    """The factory for a job that trains `model` on a device."""
    if job.sync == "ddp":
        wrapped = DdpModel(model)
        build_ddp = functools.partial(DdpStepper, wrapped)
        return StepperFactory(model=wrapped, reduces_in_slots=False, build=build_ddp)
    exchange = job.exchange_on(gpu=device.type != "cpu")
    build: Callable[[StepContext], Stepper] = TreeStepper if exchange == "arena" else DeviceStepper
    return StepperFactory(model=model, reduces_in_slots=exchange != "alone", build=build)
