"""Sent ahead: blocks of a step's gradient are exchanged with other hosts while autograd computes
the others.

    backward of the last shard   … ─▶ gradient of layer 9 ─▶ of layer 8 ─▶ … ─▶ of layer 0
    thread of the exchange             └▶ blocks of layer 9 ─▶ of layer 8 ─▶ …

A worker that is the only one of its host does so. Its earlier sums are complete by then. That of
the last shard is left apart from its sibling's, and the exchange adds the two block by block: the
same pairs are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from holdfast.collectives.exact import TreeReducer
from holdfast.collectives.gradient_sets import Gradients
from holdfast.collectives.slot import SlotLayout
from holdfast.core.step import tree
from holdfast.worker.step.shard_work import CurrentShard, PartialSums


class SentAhead:
    """The gradient that one worker sends while it is computed.

    Args:
        parameters: The parameters, in the order of gradients.
        layout: Layout of the slots.
        reducer: Exchanges blocks.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], layout: SlotLayout, reducer: TreeReducer
    ) -> None:
        self._parameters = parameters
        self._reducer = reducer
        self._num_blocks = layout.num_gradient_blocks
        # The blocks that the gradient of each parameter is in.
        self._blocks_of = [
            [
                index
                for index, (at, first, last) in enumerate(layout.blocks)
                if at == span_at and first < end and start < last
            ]
            for span_at, start, end in layout.gradient_spans
        ]
        self._handles: list[RemovableHandle] = []
        self._shard: CurrentShard | None = None
        self._weight: float | None = None
        self._slots: list[int] = []
        self._number = 0
        self._seen: dict[int, torch.Tensor] = {}
        self._missing: list[int] = []
        self._is_over = False
        self._is_changed = False

    def begin(
        self, sums: PartialSums, shard: CurrentShard, weight: float, step: int, plan: int
    ) -> None:
        """Begin to send, before the backward pass of the last shard of a step.

        Args:
            sums: The sums of this worker, without that shard.
            shard: The shard.
            weight: Its weight.
            step: Steps committed before.
            plan: A digest of the plan.
        """
        self._is_over = False
        node = tree.leaf(shard.leaf, sums.num_leaves)
        table = [*sums.table]
        table[node] = shard.number
        sums.sets[shard.number].weight = weight
        blocks = self._reducer.blocks
        self._slots = blocks.publish(table, sums.sets.__getitem__, without=shard.number)
        self._number = self._slots[node]
        self._shard = shard
        self._weight = weight
        self._seen = {}
        self._is_changed = False
        self._missing = [0] * self._num_blocks
        for each in self._blocks_of:
            for index in each:
                self._missing[index] += 1
        self._handles = [
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(self._on_gradient, at)
            )
            for at, parameter in enumerate(self._parameters)
            if parameter.requires_grad
        ]
        self._reducer.hosts.begin(self._slots, step, plan, self)

    @property
    def is_all(self) -> bool:
        """Implements `Computed.is_all`."""
        return self._is_over or not any(self._missing)

    def is_final(self, index: int) -> bool:
        """Implements `Computed.is_final`."""
        # Averaged buffers follow the gradients. User code may change them until the shard ends.
        return self._is_over or (index < self._num_blocks and not self._missing[index])

    def _on_gradient(self, at: int, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        if at in self._seen:  # as reentrant checkpointing adds to it once more
            self._is_changed = True
        elif gradient is not None and not gradient.is_sparse and not gradient.is_conj():
            self._seen[at] = gradient
            self._publish(at, gradient)

    def _publish(self, at: int, gradient: torch.Tensor | None) -> None:
        self._reducer.blocks.publish_gradient(self._number, at, gradient)
        for index in self._blocks_of[at]:
            self._missing[index] -= 1
        if not all(self._missing[index] for index in self._blocks_of[at]):
            self._reducer.hosts.look_again()

    def end_backward(self, gradients: Gradients) -> None:
        """Send the gradients that autograd has not finished by itself, such as sparse ones."""
        if self._shard is None:
            return
        self._remove_hooks()
        for at, gradient in enumerate(gradients):
            seen = self._seen.get(at)
            if seen is None:
                self._publish(at, gradient)
            elif gradient is None or gradient.data_ptr() != seen.data_ptr():
                self._is_changed = True

    def holds(self, shard: CurrentShard) -> bool:
        """True if the gradient of a shard was sent as it is."""
        is_sent = self._shard is shard and shard.weight == self._weight
        return is_sent and not self._is_changed and not self._handles

    def finish(self, sums: PartialSums) -> list[int] | None:
        """Complete what was begun, after the last shard.

        Returns:
            The slot of each node; None if nothing was sent that counts.
        """
        shard = self._shard
        is_kept = shard is not None and self.holds(shard)
        if shard is None or not is_kept or not sums.has(shard):
            self.drop()
            return None
        self._reducer.blocks.publish_rest(self._number, sums.sets[shard.number])
        self._is_over = True
        self._shard = None
        return self._slots

    def drop(self) -> None:
        """Discard what was begun: what was sent has changed, or does not count."""
        if self._shard is not None:
            self._is_over = True
            self._reducer.hosts.is_valid = False  # all exchange all blocks once more
        self._remove_hooks()
        self._shard = None

    def cancel(self) -> None:
        """Forget what was begun in an earlier generation."""
        self._remove_hooks()
        self._shard = None
        self._reducer.hosts.cancel()

    def _remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
