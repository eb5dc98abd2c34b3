"""Buffers: a model's buffers (such as the statistics of BatchNorm) during a step.

The replica holds the values from which every shard of the step starts; it changes at the commit
only. The model computes with its own tensors. Their values after a shard go to the shard's slot,
next to the gradient: floating-point buffers are averaged by weight, of integer buffers the first
shard's are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from holdfast.arena.replica import Replica
from holdfast.arena.state_dicts import plain_name
from holdfast.collectives.slot import Slot, SlotLayout
from holdfast.errors import JobError


class Buffers:
    """The buffers of one worker's model.

    Args:
        replica: Holds their committed values.
        layout: Says which are averaged, and of which the first shard's are kept.
    """

    def __init__(self, replica: Replica, layout: SlotLayout) -> None:
        self._committed = replica.buffers
        self._averaged = layout.buffer_names
        self._kept = layout.kept_names
        self._modules = [(plain_name(n), each) for n, each in replica.model.named_modules()]
        given = replica.model_buffers
        device = replica.flat.device
        self._working = {name: _writable(buffer.to(device)) for name, buffer in given.items()}
        names = {buffer: name for name, buffer in given.items()}
        self._places = [  # a buffer that several modules share has several places and one name
            (module, key, names[buffer])
            for _, module in self._modules
            for key, buffer in module._buffers.items()
            if buffer in names
        ]
        self._known = {  # with those of a base
            (id(module), key)
            for _, module in self._modules
            for key, buffer in module._buffers.items()
            if buffer is not None
        }

    def begin(self) -> None:
        """Give the model the values from which every shard of the step starts.

        Does not count as a write for autograd: a discarded shard may still be in its backward
        pass.
        """
        # User code may have bound another tensor in the shard before.
        for module, key, name in self._places:
            module._buffers[key] = self._working[name]
        if self._working:
            # Through `.data`, which does not raise the version that autograd compares in a backward
            # pass.
            working = [buffer.data for buffer in self._working.values()]
            torch._foreach_copy_(working, [self._committed[name] for name in self._working])

    @contextmanager
    def committed(self) -> Iterator[None]:
        """Within the context, the model computes with the committed values, even inside a shard."""
        # Inside a shard the buffers may have moved on: remember both the objects and their values.
        bound = [module._buffers[key] for module, key, _ in self._places]
        moved = [buffer.clone() for buffer in self._working.values()]
        self.begin()
        try:
            yield
        finally:
            for buffer, value in zip(self._working.values(), moved, strict=True):
                buffer.data.copy_(value)
            for (module, key, _), buffer in zip(self._places, bound, strict=True):
                module._buffers[key] = buffer

    def write_to(self, slot: Slot, weight: float) -> list[bool]:
        """Write the values after a shard to its slot; returns which averaged buffers it changed.

        Raises:
            JobError: A buffer was added, removed or reshaped.
        """
        left = self._found()
        # Weight x value, like a gradient: the sum is divided by the whole weight at the root.
        if self._averaged:
            averaged = [left[name] for name in self._averaged]
            torch._foreach_copy_(slot.buffers, torch._foreach_mul(averaged, weight))
            if not weight:  # 0 x NaN is NaN
                torch._foreach_zero_(slot.buffers)
        if self._kept:
            torch._foreach_copy_(slot.kept, [left[name] for name in self._kept])
        # A buffer that no shard changes is left alone at the commit: a weighted mean of equal
        # values may round.
        return [not torch.equal(left[name], self._committed[name]) for name in self._averaged]

    def take(self, root: Slot, changed: Sequence[bool], kept: Sequence[torch.Tensor]) -> None:
        """Commit the means in `root`, where some shard changed them, and the `kept` ones."""
        means = zip(self._averaged, root.buffers, changed, strict=True)
        for name, mean, was_changed in means:
            if was_changed:
                self._committed[name].copy_(mean)
        for name, value in zip(self._kept, kept, strict=True):
            self._committed[name].copy_(value)

    def commit(self) -> None:
        """Commit the values that the model's buffers have now, between two steps.

        Raises:
            JobError: A buffer was added, removed or reshaped.
        """
        for name, buffer in self._found().items():
            self._committed[name].copy_(buffer)

    def release(self) -> None:
        """Stop managing the model's buffers: user code has them to itself."""
        self._working = {}
        self._places = []

    def current_values(self) -> list[torch.Tensor]:
        """The values after a shard, by position."""
        return list(self._found().values())

    def _found(self) -> dict[str, torch.Tensor]:
        """The model's current buffers by name."""
        buffers = {}
        for module, key, name in self._places:
            buffer = module._buffers.get(key)
            start = self._working[name]
            if buffer is not start and (buffer is None or buffer.shape != start.shape):
                now = "None" if buffer is None else f"a tensor of shape {tuple(buffer.shape)}"
                raise JobError(
                    f"buffer {name} had shape {tuple(start.shape)} at the start and is {now} "
                    "now; give it its final shape in the model's constructor"
                )
            # Of several modules that share a buffer, one may have bound a new tensor: that is the
            # value.
            if name not in buffers or buffer is not start:
                buffers[name] = buffer
        for prefix, module in self._modules:
            if module._buffers:
                self._check_none_is_new(prefix, module)
        return buffers

    def _check_none_is_new(self, prefix: str, module: nn.Module) -> None:
        for key, buffer in module._buffers.items():
            if buffer is not None and (id(module), key) not in self._known:
                name = f"{prefix}.{key}" if prefix else key
                raise JobError(
                    f"buffer {name} did not exist when training began, so other workers and "
                    "checkpoints do not have it; register it with a tensor of its final shape in "
                    "the model's constructor"
                )


def _writable(buffer: torch.Tensor) -> torch.Tensor:
    """`buffer`, or a copy if elements of it share memory, as those of an expanded tensor do."""
    shared = any(
        size > 1 and not stride for size, stride in zip(buffer.shape, buffer.stride(), strict=True)
    )
    return buffer.clone(memory_format=torch.contiguous_format) if shared else buffer
