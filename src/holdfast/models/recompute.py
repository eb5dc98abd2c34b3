"""Gradient checkpointing (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).

A block keeps only its inputs in the forward pass and recomputes everything else that its backward
pass needs. The second computation draws the same random numbers and works on copies of the block's
buffers, so neither gradients nor the statistics of batch normalization differ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint


def recompute(blocks: Iterable[nn.Module]) -> None:
    """Make each of `blocks` recompute its activations in the backward pass when it is trained."""
    for block in blocks:
        block.forward = functools.partial(_forward, block, block.forward)


def _forward(block: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not block.training:
        return forward(*args, **kwargs)
    return checkpoint(
        forward,
        *args,
        use_reentrant=False,
        preserve_rng_state=True,
        context_fn=lambda: (nullcontext(), _on_copies_of_buffers(block)),
        **kwargs,
    )


@contextmanager
def _on_copies_of_buffers(block: nn.Module) -> Iterator[None]:
    """Make `block` read and change copies of its buffers in this context."""
    originals = [(module._buffers, dict(module._buffers)) for module in block.modules()]
    for buffers, original in originals:
        buffers.update({name: b if b is None else b.clone() for name, b in original.items()})
    try:
        yield
    finally:
        for buffers, original in originals:
            buffers.update(original)
