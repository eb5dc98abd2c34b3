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
from itertools import chain
from typing import Final

import torch
from torch import nn

from holdfast.arena.layout import ALIGNMENT, Entry, Layout, aligned
from holdfast.arena.replica import MODEL, Replica
from holdfast.arena.state_dicts import plain_name
from holdfast.arena.tensors import DTYPES, as_real, view
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
        self._modules = [(plain_name(n), each) for n, each in replica.model.named_modules()]
        self._dicts = [module._buffers for _, module in self._modules]
        buffers = replica.model_buffers
        start, end = replica.buffer_range
        self._committed = replica.flat[start:end].view(torch.int64).view(-1, _WORDS)
        self._flat = self._committed.clone()
        self._memory = self._flat.view(-1).view(torch.uint8)
        names = {MODEL + name: name for name in buffers}
        places = {
            names[each.name]: replace(each, offset=each.offset - start)
            for each in replica.layout.entries
            if each.name in names
        }
        self._views = {name: view(self._memory, each) for name, each in places.items()}
        # Those of one dtype are neighbours here and in a slot, in the same order.
        self._averaged: list[tuple[torch.Tensor, slice]] = []
        self._kept: list[torch.Tensor] = []
        at = 0
        for name, first, last in Layout(tuple(places.values()), end - start).dtype_ranges():
            values = as_real(self._memory[first:last].view(DTYPES[name])).view(-1)
            if values.is_floating_point():
                self._averaged.append((values, slice(at, at + last - first)))
                at += last - first
            else:
                self._kept.append(self._memory[first:last])
        self._rows = _Rows([places[name] for name in layout.buffer_names], self._flat)
        # User code may hold these objects. Memory that several of them share stays shared.
        users = Counter(each.untyped_storage().data_ptr() for each in buffers.values())
        self._working = {}
        self._apart: list[tuple[torch.Tensor, torch.Tensor]] = []
        for name, buffer in buffers.items():
            self._working[name] = buffer
            if users[buffer.untyped_storage().data_ptr()] == 1:
                buffer.data = self._views[name]
            else:
                self._working[name] = _writable(buffer.to(self._memory.device))
                self._apart.append((self._working[name], self._views[name]))
        tensors = {buffer: name for name, buffer in buffers.items()}
        self._places = [  # a buffer that several modules share has several places and one name
            (module._buffers, key, tensors[buffer])
            for _, module in self._modules
            for key, buffer in module._buffers.items()
            if buffer in tensors
        ]
        objects = {id(buffers[name]): id(own) for name, own in self._working.items()}
        self._bound = [objects.get(each, each) for each in self._bound_now()]
        self._known = {  # with those of a base
            (id(module), key)
            for _, module in self._modules
            for key, buffer in module._buffers.items()
            if buffer is not None
        }
        self._addresses = [each.data_ptr() for each in self._working.values()]

    def begin(self) -> None:
        """Give the model the values from which every shard of the step starts.

        Does not count as a write for autograd: a discarded shard may still be in its backward
        pass.
        """
        # User code may have bound another tensor in the shard before.
        if self._bound_now() != self._bound:
            for buffers, key, name in self._places:
                buffers[key] = self._working[name]
        if self._working:
            self._flat.copy_(self._committed)
        for buffer, values in self._apart:
            # Through `.data`, which does not raise the version that autograd compares in a backward
            # pass.
            buffer.data.copy_(values)

    def _bound_now(self) -> list[int]:
        """Identities of the model's buffers; nearly always the same, so it has to be fast."""
        return [*map(id, chain.from_iterable(map(dict.values, self._dicts)))]

    @contextmanager
    def committed(self) -> Iterator[None]:
        """Within the context, the model computes with the committed values, even inside a shard."""
        # Inside a shard the buffers may have moved on: remember both the objects and their values.
        bound = [buffers[key] for buffers, key, _ in self._places]
        moved = self._flat.clone()
        apart = [buffer.clone() for buffer, _ in self._apart]
        self.begin()
        try:
            yield
        finally:
            self._flat.copy_(moved)
            for (buffer, _), value in zip(self._apart, apart, strict=True):
                buffer.data.copy_(value)
            for (buffers, key, _), buffer in zip(self._places, bound, strict=True):
                buffers[key] = buffer

    def write_to(self, slot: Slot, weight: float) -> torch.Tensor:
        """Write the values after a shard to its slot; returns which averaged buffers it changed,
        bool[n] on their device.

        Raises:
            JobError: A buffer was added, removed or reshaped.
        """
        self._gather()
        if not self._working:
            return self._rows.none
        for mine, place in self._averaged:
            theirs = slot.averages[place].view(mine.dtype)
            # Weight x value, like a gradient: the sum is divided by the whole weight at the root.
            if not weight:  # 0 x NaN is NaN
                theirs.zero_()
            elif theirs.device == mine.device:
                torch.mul(mine, weight, out=theirs)
            else:
                theirs.copy_(mine * weight)
        for theirs, mine in zip(slot.kept, self._kept, strict=True):
            theirs.copy_(mine)
        # A buffer that no shard changes is left alone at the commit: a weighted mean of equal
        # values may round.
        return self._rows.with_any((self._flat != self._committed).any(1))

    def take(
        self,
        mean: Slot,
        changed: torch.Tensor,
        kept: Sequence[torch.Tensor],
        is_bad: torch.Tensor | None = None,
    ) -> None:
        """Commit the means of averaged buffers that some shard has changed, and integer buffers.

        Args:
            mean: Has the means.
            changed: bool or uint8[n], by averaged buffer.
            kept: Integer buffers; see `Slot`.
            is_bad: True on the device, bool[], to commit nothing.
        """
        if not self._working:
            return
        for mine, place in self._averaged:
            mine.copy_(mean.averages[place].view(mine.dtype))
        for mine, theirs in zip(self._kept, kept, strict=True):
            mine.copy_(theirs)
        flags = changed.to(self._flat.device, torch.bool)
        is_taken = self._rows.of_buffers(flags).unsqueeze(1)
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
        self._apart = []
        self._places = []

    def current_values(self) -> list[torch.Tensor]:
        """The values after a shard, by position.

        Raises:
            JobError: A buffer was added, removed or reshaped.
        """
        self._gather()
        return list(self._views.values())

    def _gather(self) -> None:
        """Copy the model's current values from tensors that have other memory.

        Raises:
            JobError: A buffer was added, removed or reshaped.
        """
        for buffer, values in self._apart:
            values.copy_(buffer.detach())
        # By `.data`, which leaves the object.
        if [*map(torch.Tensor.data_ptr, self._working.values())] != self._addresses:
            for (name, buffer), address in zip(self._working.items(), self._addresses, strict=True):
                if buffer.data_ptr() != address:
                    buffer.data = self._views[name].copy_(
                        _of_shape(name, buffer, self._views[name])
                    )
        if self._bound_now() != self._bound:
            for buffers, key, name in self._places:
                bound = buffers.get(key)
                # Of several modules that share a buffer, one may have bound a new tensor: that is
                # the value.
                if bound is not self._working[name]:
                    self._views[name].copy_(_of_shape(name, bound, self._views[name]))
            for prefix, module in self._modules:
                self._check_none_is_new(prefix, module)

    def _check_none_is_new(self, prefix: str, module: nn.Module) -> None:
        for key, buffer in module._buffers.items():
            if buffer is not None and (id(module), key) not in self._known:
                name = f"{prefix}.{key}" if prefix else key
                raise JobError(
                    f"buffer {name} did not exist when training began, so other workers and "
                    "checkpoints do not have it; register it with a tensor of its final shape in "
                    "the model's constructor"
                )


class _Rows:
    """The rows of memory of each averaged buffer.

    Args:
        places: The buffers.
        memory: All rows, int64[rows, _WORDS].

    Attributes:
        none: False for each buffer.
    """

    def __init__(self, places: Sequence[Entry], memory: torch.Tensor) -> None:
        rows = [(each.offset // ALIGNMENT, aligned(each.end) // ALIGNMENT) for each in places]
        numbers = torch.full((len(memory),), len(rows))  # of kept buffers
        for number, (first, last) in enumerate(rows):
            numbers[first:last] = number
        self._buffer_of_row = numbers.to(memory.device)
        self._borders = torch.tensor(rows, dtype=torch.int64, device=memory.device).view(-1, 2)
        self.none = torch.zeros(len(rows), dtype=torch.bool, device=memory.device)

    def with_any(self, flags: torch.Tensor) -> torch.Tensor:
        """The buffers with a flag in one of their rows, bool[buffers].

        Args:
            flags: bool[rows].
        """
        # The count of flags rises within them.
        count = torch.zeros(len(flags) + 1, dtype=torch.int64, device=flags.device)
        torch.cumsum(flags, 0, out=count[1:])
        counts = count[self._borders]
        return counts[:, 1] > counts[:, 0]

    def of_buffers(self, flags: torch.Tensor) -> torch.Tensor:
        """The rows of the buffers with a flag, and of kept ones, bool[rows].

        Args:
            flags: bool[buffers].
        """
        return torch.cat([flags, flags.new_ones(1)])[self._buffer_of_row]


def _of_shape(name: str, buffer: torch.Tensor | None, expected: torch.Tensor) -> torch.Tensor:
    if buffer is None or buffer.shape != expected.shape:
        now = "None" if buffer is None else f"a tensor of shape {tuple(buffer.shape)}"
        raise JobError(
            f"buffer {name} had shape {tuple(expected.shape)} at the start and is {now} now; give "
            "it its final shape in the model's constructor"
        )
    return buffer.detach()


def _writable(buffer: torch.Tensor) -> torch.Tensor:
    """`buffer`, or a copy if elements of it share memory, as those of an expanded tensor do."""
    shared = any(
        size > 1 and not stride for size, stride in zip(buffer.shape, buffer.stride(), strict=True)
    )
    return buffer.clone(memory_format=torch.contiguous_format) if shared else buffer
