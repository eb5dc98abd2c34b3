"""Buffers: a model's buffers (such as the statistics of BatchNorm) during a step.

The replica holds the values from which every shard of the step starts; it changes at the commit
only. The model computes in memory of its own with the layout of those values, so that all buffers
are set, compared and committed in a few passes, none of which waits for a GPU. Their values after a
shard go to the shard's slot, next to the gradient: floating-point buffers are averaged by weight,
of integer buffers the first shard's are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import torch
from torch import nn

from holdfast.arena.layout import ALIGNMENT, aligned
from holdfast.arena.replica import MODEL, Replica
from holdfast.arena.state_dicts import plain_name
from holdfast.arena.tensors import view
from holdfast.collectives.slot import Slot, SlotLayout
from holdfast.errors import JobError

_WORDS: Final = ALIGNMENT // 8
"""Words of 64 bits in a row of memory. No row has elements of two buffers."""


class Buffers:
    """The buffers of one worker's model.

    Args:
        replica: Holds their committed values.
        layout: Says which are averaged, and of which the first shard's are kept.
    """

    def __init__(self, replica: Replica, layout: SlotLayout) -> None:
        self._averaged = layout.buffer_names
        self._kept = layout.kept_names
        self._modules = [(plain_name(n), each) for n, each in replica.model.named_modules()]
        given = replica.model_buffers
        start, end = replica.buffer_range
        self._committed = replica.flat[start:end].view(torch.int64).view(-1, _WORDS)
        self._flat = self._committed.clone()
        memory = self._flat.view(-1).view(torch.uint8)
        entries = {each.name: each for each in replica.layout.entries}
        places = {
            name: replace(each, offset=each.offset - start)
            for name in given
            for each in [entries[MODEL + name]]
        }
        self._views = {name: view(memory, each) for name, each in places.items()}
        self._rows = [
            torch.tensor(list(rows), dtype=torch.int64, device=memory.device)
            for rows in (
                [places[name].offset // ALIGNMENT for name in self._averaged],
                [aligned(places[name].end) // ALIGNMENT for name in self._averaged],
            )
        ]
        numbers = torch.full((len(self._flat),), len(self._averaged))  # of kept ones
        for number, name in enumerate(self._averaged):
            each = places[name]
            numbers[each.offset // ALIGNMENT : aligned(each.end) // ALIGNMENT] = number
        self._buffer_of_row = numbers.to(memory.device)
        # User code may hold these objects. Memory that several of them share stays shared.
        users = Counter(each.untyped_storage().data_ptr() for each in given.values())
        self._working = {}
        for name, buffer in given.items():
            self._working[name] = buffer
            if users[buffer.untyped_storage().data_ptr()] == 1:
                buffer.data = self._views[name]
            else:
                self._working[name] = _writable(buffer.to(memory.device))
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
            self._flat.copy_(self._committed)
            self._scatter()

    def _scatter(self) -> None:
        """Copy values to the tensors that have other memory."""
        for name, buffer in self._working.items():
            if buffer.data_ptr() != self._views[name].data_ptr():
                # Through `.data`, which does not raise the version that autograd compares in a
                # backward pass.
                buffer.data.copy_(self._views[name])

    def _gather(self) -> None:
        """Copy the model's current values from tensors that have other memory.

        Raises:
            JobError: A buffer was added, removed or reshaped.
        """
        for name, buffer in self._found().items():
            if buffer.data_ptr() != self._views[name].data_ptr():
                self._views[name].copy_(buffer.detach())

    @contextmanager
    def committed(self) -> Iterator[None]:
        """Within the context, the model computes with the committed values, even inside a shard."""
        # Inside a shard the buffers may have moved on: remember both the objects and their values.
        bound = [module._buffers[key] for module, key, _ in self._places]
        moved = self._flat.clone()
        apart = [buffer.clone() for buffer in self._working.values()]
        self.begin()
        try:
            yield
        finally:
            self._flat.copy_(moved)
            for buffer, value in zip(self._working.values(), apart, strict=True):
                buffer.data.copy_(value)
            for (module, key, _), buffer in zip(self._places, bound, strict=True):
                module._buffers[key] = buffer

    def write_to(self, slot: Slot, weight: float) -> torch.Tensor:
        """Write the values after a shard to its slot; returns which averaged buffers it changed,
        bool[n] on their device.

        Raises:
            JobError: A buffer was added, removed or reshaped.
        """
        self._gather()
        # Weight x value, like a gradient: the sum is divided by the whole weight at the root.
        if self._averaged:
            averaged = [self._views[name] for name in self._averaged]
            torch._foreach_copy_(slot.buffers, torch._foreach_mul(averaged, weight))
            if not weight:  # 0 x NaN is NaN
                torch._foreach_zero_(slot.buffers)
        if self._kept:
            torch._foreach_copy_(slot.kept, [self._views[name] for name in self._kept])
        # A buffer that no shard changes is left alone at the commit: a weighted mean of equal
        # values may round. Each has changed if the count of changed rows rises within it.
        count = torch.zeros(len(self._flat) + 1, dtype=torch.int64, device=self._flat.device)
        torch.cumsum((self._flat != self._committed).any(1), 0, out=count[1:])
        starts, ends = self._rows
        return count[ends] > count[starts]

    def take(
        self,
        means: Sequence[torch.Tensor],
        changed: torch.Tensor,
        kept: Sequence[torch.Tensor],
        is_bad: torch.Tensor | None = None,
    ) -> None:
        """Commit the means of averaged buffers that some shard has changed, and the `kept` ones.

        Args:
            means: By averaged buffer.
            changed: bool or uint8[n], by averaged buffer.
            kept: By integer buffer.
            is_bad: True on the device, bool[], to commit nothing.
        """
        if self._averaged:
            torch._foreach_copy_([self._views[name] for name in self._averaged], list(means))
        if self._kept:
            torch._foreach_copy_([self._views[name] for name in self._kept], list(kept))
        flags = changed.to(self._flat.device, torch.bool)
        is_taken = torch.cat([flags, flags.new_ones(1)])[self._buffer_of_row].unsqueeze(1)
        if is_bad is not None:
            is_taken = is_taken & ~is_bad
        self._committed.copy_(torch.where(is_taken, self._flat, self._committed))

    def commit(self) -> None:
        """Commit the values that the model's buffers have now, between two steps.

        Raises:
            JobError: A buffer was added, removed or reshaped.
        """
        self._gather()
        self._committed.copy_(self._flat)

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
