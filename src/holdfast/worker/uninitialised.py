"""Building a model without its first values, which a worker that takes over a state has no use for.

Drawing them takes longer than copying the state does. PyTorch's own initialisers leave parameters
alone meanwhile. A factory that draws random numbers for anything else must do so as it did on the
first worker, so it is called again in the ordinary way; whether it does can be seen from the
generators.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from torch import nn

_INITIALISERS: Final = tuple(
    name for name in vars(nn.init) if name.endswith("_") and not name.startswith("_")
)


def build(factory: Callable[[], nn.Module]) -> nn.Module | None:
    """The model with arbitrary values in its parameters; None if it cannot be had so."""
    before = _generators()
    with _idle_initialisers():
        model = factory()
    return model if _generators() == before else None


@contextmanager
def _idle_initialisers() -> Iterator[None]:
    kept = {name: getattr(nn.init, name) for name in _INITIALISERS}
    for name, initialise in kept.items():
        setattr(nn.init, name, functools.partial(_unless_parameter, initialise))
    try:
        yield
    finally:
        for name, initialise in kept.items():
            setattr(nn.init, name, initialise)


def _unless_parameter(
    initialise: Callable[..., torch.Tensor], tensor: torch.Tensor, *arguments: Any, **options: Any
) -> torch.Tensor:
    if isinstance(tensor, nn.Parameter):
        return tensor
    return initialise(tensor, *arguments, **options)


def _generators() -> tuple[bytes, object, bytes, object]:
    """What the global generators will draw next."""
    torchs = torch.get_rng_state().numpy().tobytes()
    _, keys, *place = np.random.get_state()
    return torchs, random.getstate(), np.asarray(keys).tobytes(), place
