"""Members: the processes of one measurement, which all-reduce a vector of one size.

They are forks of this process, and share the memory that it has mapped for them. MPI has processes
of its own, one for each member; see `mpi`.
"""

from __future__ import annotations

import ctypes
import json
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final, Protocol, Self

import torch
import torch.distributed as dist

from holdfast.arena.memory import Arena
from holdfast.arena.pages import populate
from holdfast.collectives.algorithms.choice import ALGORITHMS
from holdfast.collectives.algorithms.links import Algorithm
from holdfast.collectives.algorithms.vector_sums import links_of
from holdfast.collectives.barrier_tags import describe
from holdfast.collectives.connections import Listener
from holdfast.collectives.exact import TreeReducer
from holdfast.collectives.group import Group
from holdfast.collectives.network import GroupHosts, Network
from holdfast.collectives.reduction import ReductionMemory
from holdfast.collectives.slot import WEIGHT, Slot, SlotLayout
from holdfast.coordinator.authority import Authority
from holdfast.core.balance.times import StepTimes
from holdfast.core.step import tree
from holdfast.errors import HoldfastError
from holdfast.linux.lifeline import die_with_parent
from holdfast.wire.tls import Role
from holdfast_bench.collectives.mpi import NAME as MPI
from holdfast_bench.collectives.mpi import MpiWorker, mpi_workers
from holdfast_bench.collectives.terms import num_wrong, term

TIMEOUT_S: Final = 120.0
LOOP_BYTES: Final = 32 << 20
"""How much a repetition reduces at least, or once."""
MAX_LOOPS: Final = 200
MEMORY: Final = "memory"
TLS: Final = "tls"
TRANSPORTS: Final = (MEMORY, "tcp", TLS)
_KEY: Final = b"k" * 32
SYSTEMS: Final = ("tree", *ALGORITHMS, "gloo", MPI)


@dataclass(slots=True, kw_only=True)
class Taken:
    """Measurements of one system.

    Attributes:
        seconds: Time of the slowest worker for one all-reduce, by round.
        wrong: Elements of all workers that are not the sum.
    """

    seconds: list[float] = field(default_factory=list)
    wrong: int = 0


def measure(
    workers: int, size: int, transport: str, systems: Sequence[str], rounds: int, python: str
) -> dict[str, Taken]:
    """Measure systems with one number of workers and one size.

    Args:
        workers: How many.
        size: Size of the vector, bytes.
        transport: A name from TRANSPORTS.
        systems: Names from SYSTEMS.
        rounds: How often.
        python: Interpreter of the workers of MPI.

    Raises:
        HoldfastError: A worker failed.
    """
    with ExitStack() as owned:
        folder = owned.enter_context(tempfile.TemporaryDirectory())
        world = owned.enter_context(_World(workers, size, transport))
        of_mpi: list[MpiWorker] = []
        if MPI in systems:
            of_mpi = owned.enter_context(
                mpi_workers(
                    python, workers, size, in_memory=transport == MEMORY, timeout_s=TIMEOUT_S
                )
            )
        work = partial(_work, world, of_mpi, systems, rounds, Path(folder))
        children = [_fork(os.getpid(), partial(work, rank)) for rank in range(workers)]
        statuses = [os.waitpid(child, 0)[1] for child in children]
        if any(statuses):
            raise HoldfastError(f"a worker of {workers} failed with {size:,} bytes; see above")
        found = json.loads((Path(folder) / "taken.json").read_text(encoding="utf-8"))
    return {name: Taken(**each) for name, each in found.items()}


class _World:
    """The hosts of the workers: one with all of them, or one for each, which are connected.

    Args:
        workers: How many.
        size: Size of the vector, bytes.
        transport: A name from TRANSPORTS.
    """

    def __init__(self, workers: int, size: int, transport: str) -> None:
        self.workers = workers
        self._owned = ExitStack()
        self._ranks: tuple[tuple[int, ...], ...] = tuple((rank,) for rank in range(workers))
        self._listeners: list[Listener] = []
        if transport == MEMORY:
            self._ranks = (tuple(range(workers)),)
        else:
            self._listeners = self._listen(is_encrypted=transport == TLS)
        self._hosts = [_Host(ranks, workers, size) for ranks in self._ranks]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._owned.close()
        for host in self._hosts:
            host.arena.close()

    def host_of(self, rank: int) -> _Host:
        """The host of a worker."""
        return next(host for host in self._hosts if rank in host.ranks)

    def join(self, rank: int) -> Group:
        """The group of a worker, connected to all other hosts; for its process."""
        group = Group(self.host_of(rank).arena, rank, TIMEOUT_S, describe)
        members = tuple(range(self.workers))
        if not self._listeners:
            group.enter(1, members)
            return group
        addresses = {at: each.address for at, each in enumerate(self._listeners)}
        hosts = GroupHosts(ranks=self._ranks, addresses=addresses, key=_KEY)
        network = Network(hosts, rank, group.deadline)
        group.enter(1, members, network)
        network.connect(self._listeners[rank], 1, has_mesh=True)
        return group

    def _listen(self, *, is_encrypted: bool) -> list[Listener]:
        folder = Path(self._owned.enter_context(tempfile.TemporaryDirectory()))
        credentials = Authority.create(folder).issue("bench", Role.DATA) if is_encrypted else None
        listeners = [Listener("127.0.0.1", credentials) for _ in self._ranks]
        for each in listeners:
            self._owned.callback(each.close)
        return listeners


class _Host:
    """What the workers of one host share.

    Args:
        ranks: These workers.
        workers: Workers of all hosts.
        size: Size of the vector, bytes.
    """

    def __init__(self, ranks: Sequence[int], workers: int, size: int) -> None:
        self.arena = Arena.create(workers)
        self.ranks = ranks
        layout = SlotLayout({"gradient": torch.empty(size // 4)}, {})
        num_slots = len(ranks) + 1
        whole = self.arena.map_sections(num_slots * layout.layout.size_bytes)
        populate(ctypes.addressof(ctypes.c_char.from_buffer(whole)), len(whole))
        slots = [
            Slot(part, layout)
            for part in torch.frombuffer(whole, dtype=torch.uint8).chunk(num_slots)
        ]
        self.memory = ReductionMemory(
            layout=layout,
            partial_sum=lambda rank, _number: slots[ranks.index(rank)],
            root=slots[len(ranks)],
            tables=torch.zeros(workers, tree.num_nodes(workers), dtype=torch.int64),
            norms=torch.zeros(len(layout.blocks), dtype=torch.float64),
            times=torch.zeros(workers, len(StepTimes._fields), dtype=torch.int64),
        )
        for small in (self.memory.tables, self.memory.norms, self.memory.times):
            small.share_memory_()  # type: ignore[no-untyped-call]


class _System(Protocol):
    """A system that is measured; all members call the same at once."""

    def num_wrong(self) -> int:
        """Reduce once; returns how many elements of this worker are not the sum."""
        ...

    def seconds(self, loops: int) -> float:
        """Time of one all-reduce, the mean of several."""
        ...


class _Reducer(Protocol):
    """A way to all-reduce in this process.

    Attributes:
        vector: This worker's vector.
        result: Has the sum afterwards.
    """

    vector: torch.Tensor
    result: torch.Tensor

    def reduce(self) -> None:
        """Reduce once."""
        ...


class _Tree:
    """The exact tree."""

    def __init__(self, host: _Host, group: Group) -> None:
        workers = len(group.members)
        slot = host.memory.partial_sum(group.rank, 0)
        self.vector = slot.sums[0]
        self.result = host.memory.root.sums[0]
        self._reducer = TreeReducer(group, host.memory, workers)
        self._table = [tree.ABSENT] * tree.num_nodes(workers)
        self._table[tree.leaf(group.rank, workers)] = 0
        slot.stats[WEIGHT] = 1 / workers  # they add up to 1, so the mean is the sum
        slot.used.fill_(1)
        slot.write_logged({}, 1)
        self._steps = 0

    def reduce(self) -> None:
        """Reduce once."""
        self._reducer.reduce(self._table, self._steps, 0, 0, StepTimes())
        self._steps += 1


class _InPlace:
    """An algorithm in place."""

    def __init__(self, host: _Host, group: Group, algorithm: Algorithm) -> None:
        vectors = {rank: host.memory.partial_sum(rank, 0).sums[0] for rank in group.local}
        self.vector = self.result = vectors[group.rank]
        self._links = links_of(group, vectors)
        self._algorithm = algorithm
        self._members = range(len(group.members))

    def reduce(self) -> None:
        """Reduce once."""
        self._algorithm(self._links, self._members, range(len(self.vector)))
        self._links.finish()


class _Gloo:
    """The all-reduce of torch.distributed."""

    def __init__(self, host: _Host) -> None:
        self.vector = self.result = torch.zeros_like(host.memory.root.sums[0])

    def reduce(self) -> None:
        """Reduce once."""
        dist.all_reduce(self.vector)


class _Member:
    """Implements `_System` in this process."""

    def __init__(self, reducer: _Reducer, group: Group) -> None:
        self._reducer = reducer
        self._rank = group.rank
        self._workers = len(group.members)

    def num_wrong(self) -> int:
        """Implements `_System.num_wrong`."""
        vector, result = self._reducer.vector, self._reducer.result
        vector.copy_(torch.from_numpy(term(len(vector), self._rank)))
        dist.barrier()
        self._reducer.reduce()
        found = num_wrong(result.numpy(), self._workers)
        dist.barrier()
        vector.zero_()  # sums of sums stay finite
        return found

    def seconds(self, loops: int) -> float:
        """Implements `_System.seconds`."""
        dist.barrier()
        began = time.perf_counter()
        for _ in range(loops):
            self._reducer.reduce()
        return (time.perf_counter() - began) / loops


def _system(name: str, host: _Host, group: Group, of_mpi: Sequence[MpiWorker]) -> _System:
    if name == MPI:
        return of_mpi[group.rank]
    if name == "tree":
        return _Member(_Tree(host, group), group)
    reducer = _Gloo(host) if name == "gloo" else _InPlace(host, group, ALGORITHMS[name])
    return _Member(reducer, group)


def _work(
    world: _World,
    of_mpi: Sequence[MpiWorker],
    systems: Sequence[str],
    rounds: int,
    folder: Path,
    rank: int,
) -> None:
    """What one worker does; the first one writes what all have taken."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        f"file://{folder}/store",
        rank=rank,
        world_size=world.workers,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    host, group = world.host_of(rank), world.join(rank)
    made = {name: _system(name, host, group, of_mpi) for name in systems}
    taken = {
        name: Taken(wrong=int(_over_all(system.num_wrong(), dist.ReduceOp.SUM)))
        for name, system in made.items()
    }
    size = host.memory.root.sums[0].nbytes
    loops = max(1, min(MAX_LOOPS, LOOP_BYTES // size))
    for each in range(rounds + 1):
        for name, system in made.items():
            seconds = _over_all(system.seconds(loops), dist.ReduceOp.MAX)
            if each:  # the first round warms up
                taken[name].seconds.append(seconds)
    if rank == 0:
        text = json.dumps({name: asdict(each) for name, each in taken.items()})
        (folder / "taken.json").write_text(text, encoding="utf-8")
    dist.barrier()


def _over_all(value: float, operation: dist.ReduceOp.RedOpType) -> float:
    """The sum, or the maximum, of a number over all members."""
    number = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(number, operation)
    return float(number)


def _fork(parent: int, work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            die_with_parent(parent)
            work()
            status = 0
        except Exception:  # noqa: BLE001  # whatever it was, the parent waits for a status
            traceback.print_exc()
        finally:
            os._exit(status)  # gloo may abort a process at its end
    return pid
