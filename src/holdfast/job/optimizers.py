"""Optimizers and learning-rate schedules that a job can name."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from holdfast.job.part import Fraction, Spec


class AdamW(Spec):
    """Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019)."""

    name: Literal["adamw"]
    lr: Annotated[float, Field(gt=0)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.01


class Sgd(Spec):
    """Stochastic gradient descent with momentum."""

    name: Literal["sgd"]
    lr: Annotated[float, Field(gt=0)] = 0.1
    momentum: Fraction = 0.9
    weight_decay: Annotated[float, Field(ge=0)] = 0.0


class Constant(Spec):
    """A constant learning rate, after a linear warm-up."""

    name: Literal["constant"] = "constant"
    warmup_steps: Annotated[int, Field(ge=0)] = 0


class Cosine(Spec):
    """A learning rate that falls to zero along a half cosine, after a linear warm-up."""

    name: Literal["cosine"]
    warmup_steps: Annotated[int, Field(ge=0)] = 0


Optimizer = Annotated[AdamW | Sgd, Field(discriminator="name")]
Schedule = Annotated[Constant | Cosine, Field(discriminator="name")]
