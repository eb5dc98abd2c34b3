"""Current shard: the shard that a worker computes, and checks of what user code gives for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from holdfast.collectives.slot import LOGGED, NUM_STATS, Slot
from holdfast.errors import JobError


@dataclass(slots=True, kw_only=True)
class CurrentShard:
    """A shard from `begin_shard` to `end_shard`.

    Attributes:
        leaf: The leaf of the reduction tree that it fills.
        number, slot: Slot that its gradient goes to.
        fired: True for each parameter that has a gradient.
        verify_only: True if it is assigned to another worker, and this one only verifies it.
        weight: None until `backward` is called.
        discarded: True if its step was restarted meanwhile.
        raw_gradients: The gradients as autograd gives them, if they are verified.
        logged: Means over the shard by name.
    """

    leaf: int
    number: int
    slot: Slot
    fired: list[bool]
    verify_only: bool
    weight: float | None = None
    discarded: bool = False
    raw_gradients: list[torch.Tensor] = field(default_factory=list)
    logged: dict[str, float] = field(default_factory=dict)


def check_loss(loss: object) -> None:
    """Raises: JobError: `loss` is not a scalar that depends on the model."""
    if not isinstance(loss, torch.Tensor):
        raise JobError(
            f"the loss must be a tensor that depends on the model's parameters, not a "
            f"{type(loss).__name__}; remove .item() or float()"
        )
    if loss.dim() != 0 or not loss.requires_grad:
        raise JobError(
            f"the loss must be a scalar that depends on the model's parameters, not a tensor "
            f"of shape {list(loss.shape)} with requires_grad={loss.requires_grad}; "
            "take the mean over the shard's samples"
        )


def checked_number(name: str, value: Any) -> float:
    """A value that user code logs.

    Raises:
        JobError: It is no number.
    """
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise JobError(
            f"session.log({name}=…) needs one number, the mean over the shard's samples: {error}"
        ) from None


def check_logged_count(logged: Mapping[str, float]) -> None:
    """Raises: JobError: more is logged than fits."""
    if len(logged) > NUM_STATS - LOGGED:
        raise JobError(f"a step can log {NUM_STATS - LOGGED} values, not {len(logged)}")
