"""One host of `reduction`: its workers reduce a gradient with those of the other hosts.

Every worker measures all systems in turn, repetition by repetition, in one process. The first rank
writes how long each repetition took for the slowest worker.

    holdfast        the exact reduction: every block is added along the tree
    holdfast, TLS   the same, encrypted
    ring, …         the algorithms of the job key `collective`, in plain
    int8, …         the methods of the job key `compression`, in plain, with error feedback
    order-free      the same exchange in plain, but a block is added when it arrives
    gloo            torch.distributed's all-reduce on gloo, in plain
    stream          one TCP stream of the same bytes from the first host to the second
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import torch
import torch.distributed as dist

from holdfast.arena.memory import Arena
from holdfast.collectives import host_sums
from holdfast.collectives.algorithms.choice import ALGORITHMS, TREE
from holdfast.collectives.algorithms.links import Algorithm
from holdfast.collectives.algorithms.vector_sums import VectorSums, links_of
from holdfast.collectives.barrier_tags import ReduceTag, describe
from holdfast.collectives.compression.feedback import ErrorMemory
from holdfast.collectives.connections import Listener
from holdfast.collectives.exact import TreeReducer
from holdfast.collectives.exchange import HostExchange
from holdfast.collectives.group import Group
from holdfast.collectives.network import GroupHosts, Network
from holdfast.collectives.reduction import ReductionMemory
from holdfast.collectives.slot import WEIGHT, Slot, SlotLayout
from holdfast.core.balance.times import StepTimes
from holdfast.core.step import tree
from holdfast.job.settings import CompressionSettings
from holdfast.linux.lifeline import die_with_parent
from holdfast.wire.tls import Credentials

TIMEOUT_S: Final = 120.0
POLL_S: Final = 0.01
LOOP_BYTES: Final = 32 << 20
"""How much one repetition reduces at least, or once."""
MAX_LOOPS: Final = 100
METHODS: Final = ("bf16", "int8", "4bit", "topk", "powersgd")
"""Methods of compression; top k sends 1 % of the values, and PowerSGD has matrices of rank 4."""
COLUMNS: Final = 1024
"""The gradient is one matrix with so many columns."""
_KEY: Final = b"k" * 32
_STREAM_PORT: Final = 29700
_ROOT: Final = -1
TAKEN: Final = "taken.json"
"""The file for the seconds of each system."""

System = Callable[[], None]


class _OrderFree(HostExchange):
    """Adds a block to the sum when it arrives; no order is kept, so the bits depend on the network.

    For a plan in which every host passes on one sum.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._counts: dict[int, int] = {}  # hosts whose block has been added, by place in the cell

    def _reduce_what_has_come(self, lane: int) -> None:
        own = self._cells[self._network.host][lane]
        counts = self._counts
        for host in self._network.others:
            come = self._received.get((host, lane), {})
            for count in list(come):
                index = own[count]
                (block,) = come.pop(count).values()
                root = self._blocks.root[index]
                if count not in counts:
                    root.copy_(self._blocks.local_sum(self._outline.nodes[0], index))
                root.add_(block)
                counts[count] = counts.get(count, 0) + 1
                if counts[count] == len(self._network.others):
                    root.mul_(1 / len(self._network.hosts.ranks))
                    self._blocks.squares[index] = float(torch.dot(root, root))
                    self._reduced[lane] = count + 1


class _Worker:
    """One worker.

    Args:
        options: Of the command line.
        rank: Its rank.
        memory, arena: The memory of its host.
    """

    def __init__(
        self, options: argparse.Namespace, rank: int, memory: ReductionMemory, arena: Arena
    ) -> None:
        self.rank = rank
        self._options = options
        ranks = _ranks(options)
        self.world_size = sum(map(len, ranks))
        self.group = Group(arena, rank, TIMEOUT_S, describe)
        self._plain = self._network(ranks, "plain", None)
        self.group.enter(1, tuple(range(self.world_size)), self._plain)
        shown = Credentials.model_validate_json(_credentials_of(options.folder, options.host))
        self._encrypted = self._network(ranks, "tls", shown)
        self._reducer = TreeReducer(self.group, memory, self.world_size)
        self._table = [tree.ABSENT] * tree.num_nodes(self.world_size)
        self._table[tree.leaf(rank, self.world_size)] = 0
        slot = memory.partial_sum(rank, 0)
        slot.sums[0].normal_()
        memory.tables[rank] = 0
        slot.stats[WEIGHT] = 1 / self.world_size
        slot.used.fill_(1)
        slot.write_logged({}, 1)
        self._memory = memory
        self._vectors = {each: memory.partial_sum(each, 0).sums[0] for each in self.group.local}
        self._links = links_of(self.group, self._vectors)
        self._vector = slot.sums[0]
        self._gradient = self._vector.clone()
        self._steps = 0

    def _network(
        self, ranks: tuple[tuple[int, ...], ...], name: str, credentials: Credentials | None
    ) -> Network:
        listener = Listener(self._options.address, credentials)
        addresses = _everyone(self._options.folder, name, self.rank, listener.address, ranks)
        hosts = GroupHosts(ranks=ranks, addresses=addresses, key=_KEY)
        network = Network(hosts, self.rank, self.group.deadline)
        return network.connect(listener, 1, has_mesh=True)

    def encrypted(self) -> None:
        """Reduce once over TLS."""
        self.group.network = self._encrypted
        self.exact()
        self.group.network = self._plain

    def exact(self) -> None:
        """Reduce once."""
        self._reducer.reduce(self._table, self._steps, 0, 0, StepTimes())
        self._steps += 1

    def in_place(self, algorithm: Algorithm) -> None:
        """Reduce once by an algorithm."""
        algorithm(self._links, self.group.members, range(len(self._vector)))
        self._links.finish()

    def compressed(self, method: str) -> System:
        """A system that reduces compressed gradients."""
        size = self._memory.layout.sums_bytes
        # Each worker has its own: none is ever lost.
        errors = torch.zeros(self.world_size, 2, size, dtype=torch.uint8)
        steps = torch.zeros(self.world_size, 2, dtype=torch.int64)
        keys = CompressionSettings.model_validate({"method": method})
        memory = replace(self._memory, errors=ErrorMemory(errors, steps))
        sums = VectorSums(self.group, memory, TREE, keys)
        sums.begin_generation(0, self.world_size)

        def reduce() -> None:
            self._vector.copy_(self._gradient)
            sums.add_up(self._steps, 1.0)
            self.group.barrier(ReduceTag.REDUCED, self._steps)
            self._steps += 1

        return reduce

    def order_free(self) -> None:
        """Reduce once, in any order."""
        with patch.object(host_sums, "HostExchange", _OrderFree):
            self.exact()


def _systems(worker: _Worker, options: argparse.Namespace) -> dict[str, System]:
    systems: dict[str, System] = {"holdfast": worker.exact, "holdfast, TLS": worker.encrypted}
    for name, algorithm in ALGORITHMS.items():
        systems[name] = partial(worker.in_place, algorithm)
    for method in METHODS:
        systems[method] = worker.compressed(method)
    if options.workers == 1 and options.hosts > 2:
        systems["order-free"] = worker.order_free
    gradient = torch.zeros(options.size // 4)
    os.environ |= {
        "MASTER_ADDR": options.net + ".1",
        "MASTER_PORT": "29600",
        "GLOO_SOCKET_IFNAME": "eth0",
    }
    dist.init_process_group("gloo", rank=worker.rank, world_size=worker.world_size)
    systems["gloo"] = lambda: dist.all_reduce(gradient)
    if options.stream:
        systems["stream"] = _stream(worker.rank, options)
    return systems


def _stream(rank: int, options: argparse.Namespace) -> System:
    """Send `size` bytes from the first host to the second, and wait for an answer."""
    memory = memoryview(bytearray(options.size))
    if rank == 0:
        peer = socket.create_server((options.address, _STREAM_PORT)).accept()[0]

        def send() -> None:
            peer.sendall(memory)
            peer.recv(1)

        return send
    if rank == options.workers:
        source = _connect((options.net + ".1", _STREAM_PORT))

        def receive() -> None:
            source.recv_into(memory, len(memory), socket.MSG_WAITALL)
            source.sendall(b"x")

        return receive
    return lambda: None


def _connect(address: tuple[str, int]) -> socket.socket:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return socket.create_connection(address)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)


def _credentials_of(folder: Path, host: int) -> str:
    """Read the `Credentials` that `reduction` has written for a host as JSON."""
    return (folder / f"host-{host}.json").read_text(encoding="ascii")


def measure(worker: _Worker, options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds that one reduction took for the slowest worker, by system and repetition."""
    systems = _systems(worker, options)
    loops = max(1, min(MAX_LOOPS, LOOP_BYTES // options.size))
    taken: dict[str, list[float]] = {name: [] for name in systems}
    for repetition in range(options.repetitions + 1):
        for name, once in systems.items():
            dist.barrier()
            began = time.perf_counter()
            for _ in range(loops):
                once()
            seconds = torch.tensor((time.perf_counter() - began) / loops)
            dist.all_reduce(seconds, dist.ReduceOp.MAX)
            if repetition:  # the first one warms up
                taken[name].append(float(seconds))
    return taken


def _everyone(
    folder: Path, what: str, rank: int, mine: str, ranks: tuple[tuple[int, ...], ...]
) -> Mapping[int, str]:
    """The address of every rank."""
    draft = folder / f".{what}-{rank}"
    draft.write_text(mine)
    draft.rename(folder / f"{what}-{rank}")
    paths = {each: folder / f"{what}-{each}" for own in ranks for each in own}
    deadline = time.monotonic() + TIMEOUT_S
    while not all(path.exists() for path in paths.values()):
        assert time.monotonic() < deadline, "a host did not start"
        time.sleep(POLL_S)
    return {each: path.read_text() for each, path in paths.items()}


def _ranks(options: argparse.Namespace) -> tuple[tuple[int, ...], ...]:
    count = options.workers
    return tuple(tuple(range(h * count, (h + 1) * count)) for h in range(options.hosts))


def _memory(options: argparse.Namespace) -> ReductionMemory:
    """State that the workers of this host share."""
    layout = SlotLayout({"gradient": torch.empty(options.size // 4 // COLUMNS, COLUMNS)}, {})
    world_size = options.hosts * options.workers
    slots = {
        (rank, number): Slot(_shared(layout.layout.size_bytes, torch.uint8), layout)
        for rank in (*_ranks(options)[options.host], _ROOT)
        for number in range(2)
    }
    return ReductionMemory(
        layout=layout,
        partial_sum=lambda rank, number: slots[rank, number],
        root=slots[_ROOT, 0],
        tables=_shared(world_size * tree.num_nodes(world_size), torch.int64).view(world_size, -1),
        norms=_shared(len(layout.blocks), torch.float64),
        times=_shared(world_size * len(StepTimes._fields), torch.int64).view(world_size, -1),
    )


def _shared(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Zeros that forked processes share."""
    memory = mmap.mmap(-1, count * dtype.itemsize)
    return torch.frombuffer(memory, dtype=dtype)


def main() -> None:
    """Measure one size; the first rank writes one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", type=int, required=True)
    parser.add_argument("--hosts", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--repetitions", type=int, required=True)
    parser.add_argument("--net", required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--stream", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    arena = Arena.create(options.hosts * options.workers)
    parent, first, *others = os.getpid(), *_ranks(options)[options.host]
    memory = _memory(options)
    children = [_fork(parent, partial(_work, options, rank, memory, arena)) for rank in others]
    taken = _work(options, first, memory, arena)
    for child in children:
        os.waitpid(child, 0)
    if first == 0:
        (options.folder / TAKEN).write_text(json.dumps(taken), encoding="utf-8")
    os._exit(0)  # gloo may abort a process at its end


def _work(
    options: argparse.Namespace, rank: int, memory: ReductionMemory, arena: Arena
) -> dict[str, Any]:
    taken = measure(_Worker(options, rank, memory, arena), options)
    dist.barrier()
    return taken


def _fork(parent: int, work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            die_with_parent(parent)
            work()
        finally:
            os._exit(0)
    return pid


if __name__ == "__main__":
    main()
