"""Sections: the tensors that the workers of a host share in the arena."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch

from holdfast.arena.device.mapped import MappedMemory
from holdfast.arena.intact_replicas import NUM_PROGRESSES, PROGRESS_BYTES, IntactReplicas
from holdfast.arena.layout import Field, Layout
from holdfast.arena.memory import Arena
from holdfast.arena.pages import PAGE, drop_private_pages, populate
from holdfast.arena.staging import NUM_BUFFERS, Staging
from holdfast.arena.tensors import lock_pages, views
from holdfast.collectives.compression.feedback import ErrorMemory
from holdfast.collectives.reduction import ReductionMemory
from holdfast.collectives.slot import Slot, SlotLayout
from holdfast.core.balance.times import StepTimes
from holdfast.core.step import tree
from holdfast.worker.checks import shard_verifier


class Sections:
    """Views of the shared sections in this process.

    Args:
        arena: Its file is grown to hold them.
        parameters: The trained parameters by name.
        buffers: The model's buffers by name.
        num_leaves: Leaves of the reduction tree.
        num_shards: Shards of the job.
        replica_bytes: Size of a replica; there is one for each worker.
        num_staged: Checkpoints that can be staged at a time.
        num_partials: Partial sums of a worker whose leaves are no contiguous range.
        keeps_errors: True if compression keeps what a step does not send.
        exchanged_bytes: The most that a worker of a sharded model hands to others at a time.
        mapped: Memory of devices that the workers map; None if they do not.

    Attributes:
        exchanged: Values that workers pass on, in turns: uint8[world_size, 2, exchanged_bytes].
        mapped: The argument.
        intact: Record of which replicas are complete.
        staging: Buffers in which checkpoints wait to be written.
        reduction: Memory that the reducers share.
        verification: int64[num_shards, columns]; see `worker.checks.shard_verifier`.
        root: The slot of the reduced gradient: one for the host.
        slot_bytes: Memory of one slot.
        private_gradients: The reduced gradient, too, by parameter. Only this process sees what it
            writes to them, until `drop_private_writes`.
    """

    def __init__(
        self,
        arena: Arena,
        parameters: Mapping[str, torch.Tensor],
        buffers: Mapping[str, torch.Tensor],
        *,
        num_leaves: int,
        num_shards: int,
        replica_bytes: int,
        num_staged: int = NUM_BUFFERS,
        num_partials: int = 0,
        exchanged_bytes: int = 0,
        keeps_errors: bool = False,
        mapped: MappedMemory | None = None,
    ) -> None:
        self.slot_layout = SlotLayout(parameters, buffers)
        world_size = arena.world_size
        self.slot_bytes = slot_bytes = _paged(self.slot_layout.layout.size_bytes)
        num_blocks = len(self.slot_layout.blocks)
        errors_bytes = _paged(self.slot_layout.sums_bytes) if keeps_errors else 0
        # Twice, because a worker that is assigned other leaves in a step keeps its partial sums.
        num_slots = 2 * max(tree.max_partials(num_leaves), num_partials)
        layout = Layout.pack(
            [
                # First, so that each begins on a page for any world size.
                Field("root", "U8", (slot_bytes,)),
                Field("slots", "U8", (world_size, num_slots, slot_bytes)),
                Field("replicas", "U8", (world_size, _paged(replica_bytes))),
                Field("staging", "U8", (num_staged, _paged(replica_bytes))),
                Field("exchanged", "U8", (world_size, 2, _paged(exchanged_bytes))),
                Field("errors", "U8", (world_size, 2, errors_bytes)),
                Field("error_steps", "I64", (world_size, 2)),
                Field("progress", "U8", (world_size, NUM_PROGRESSES, PROGRESS_BYTES)),
                Field("tables", "I64", (world_size, tree.num_nodes(num_leaves))),
                Field("norms", "F64", (num_blocks,)),
                Field("times", "I64", (world_size, len(StepTimes._fields))),
                Field("verification", "I64", (num_shards, shard_verifier.COLUMNS)),
            ]
        )
        self._memory = memory = torch.frombuffer(
            arena.map_sections(layout.size_bytes), dtype=torch.uint8
        )
        assert layout.entries[0].offset == 0, "the root begins where the sections do"
        private = arena.map_privately(0, slot_bytes)
        self._private_root = torch.frombuffer(private, dtype=torch.uint8)
        self.private_gradients = Slot(self._private_root, self.slot_layout).gradients
        at = views(memory, layout)
        self.verification = at["verification"]
        self.mapped = mapped
        self.intact = IntactReplicas(arena, at["progress"], mapped)
        self._root = at["root"]
        self._slots = at["slots"]
        self._replicas = at["replicas"]
        self.exchanged = at["exchanged"]
        offset = next(each.offset for each in layout.entries if each.name == "staging")
        self.staging = Staging(arena, at["staging"], arena.sections_start + offset)
        self.root = Slot(self._root, self.slot_layout)
        self.reduction = ReductionMemory(
            layout=self.slot_layout,
            partial_sum=self.slot,
            root=self.root,
            tables=at["tables"],
            norms=at["norms"],
            times=at["times"],
            errors=ErrorMemory(at["errors"], at["error_steps"]) if keeps_errors else None,
        )
        self.world_size = world_size
        self.num_leaves = num_leaves
        self.num_slots = num_slots
        self._size_bytes = layout.size_bytes

    @functools.cache  # noqa: B019  # lives as long as the process
    def slot(self, rank: int, number: int) -> Slot:
        """Slot `number` of worker `rank`."""
        return Slot(self._slots[rank, number], self.slot_layout)

    def prepare(self, rank: int, partials: int, *, on_gpu: bool, replica_bytes: int = 0) -> None:
        """Populate the memory that worker `rank` will write: its part of the root slot, slots for
        `partials` partial sums, and a replica of `replica_bytes`, if it is here. Then lock what the
        GPU reads and writes.
        """
        own_part = torch.tensor_split(self._root, self._slots.shape[0])[rank]
        ranges = [own_part, self._slots[rank, :partials]]
        for memory in [*ranges, self._replicas[rank, :replica_bytes]]:
            populate(memory.data_ptr(), memory.numel())
        # A GPU also reads the slots of others.
        for memory in [self._root, *self._slots[:, :partials]] if on_gpu and partials else []:
            lock_pages(memory)

    def drop_private_writes(self) -> None:
        """Make `private_gradients` show the content of `root` again."""
        drop_private_pages(self._private_root.data_ptr(), self._private_root.numel())

    def used_bytes(self, partials: int) -> int:
        """The bytes that a run without failures writes, without replicas, if all workers together
        publish up to `partials` partial sums.
        """
        rest = self._size_bytes - self._slots.numel() - self._replicas.numel()
        rest -= self.exchanged.numel()  # an upper limit
        # Of this, little is ever written.
        rest -= self.world_size * NUM_PROGRESSES * PROGRESS_BYTES
        return rest + partials * self._slots.shape[-1]

    def holds(self, memory: torch.Tensor) -> bool:
        """True if a tensor is in these sections, where all workers of the host can read it."""
        place = memory.data_ptr() - self._memory.data_ptr()
        return memory.device.type == "cpu" and 0 <= place < self._size_bytes

    def replica(self, rank: int, size_bytes: int) -> torch.Tensor:
        """The memory for the replica of worker `rank`, uint8[size_bytes]."""
        return self._replicas[rank, :size_bytes]


def _paged(size_bytes: int) -> int:
    return -(-size_bytes // PAGE) * PAGE
