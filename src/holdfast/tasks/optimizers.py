"""Optimizers: builds the one that a job names."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn, optim

from holdfast.job.settings import AdamW, Sgd


def build(spec: AdamW | Sgd, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
    """The optimizer of a job over `parameters`."""
    match spec:
        case AdamW(lr=lr, weight_decay=decay):
            return optim.AdamW(parameters, lr=lr, weight_decay=decay, fused=True)
        case Sgd(lr=lr, momentum=momentum, weight_decay=decay):
            return optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=decay, fused=True)
