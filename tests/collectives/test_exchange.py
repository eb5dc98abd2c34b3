"""Gradients that are summed over several hosts have the bits of one host."""

import functools
import itertools
import random
import threading
from collections import Counter, defaultdict

import pytest
import torch

from holdfast.arena.memory import Arena
from holdfast.collectives.barrier_tags import describe
from holdfast.collectives.connections import Listener
from holdfast.collectives.device_exchange import sum_messages
from holdfast.collectives.device_sums import DeviceSums, largest_share
from holdfast.collectives.exact import TreeReducer
from holdfast.collectives.exchange import AllComputed
from holdfast.collectives.gradient_sets import GradientSet
from holdfast.collectives.group import Group
from holdfast.collectives.network import GroupHosts, Network
from holdfast.collectives.reduction import ReductionMemory
from holdfast.collectives.slot import Slot, SlotLayout
from holdfast.core.balance.times import StepTimes
from holdfast.core.step import tree
from holdfast.core.step.plan import Plan, cells
from holdfast.errors import HoldfastError
from holdfast.job.train_job import TrainJob
from holdfast.worker.context import WorkerContext
from holdfast.worker.process_groups.device_messages import ProcessGroupMessages

PARAMETERS = {
    "long": torch.empty(300_000),
    "short": torch.empty(7, 5),
    "other": torch.empty(140_001),
}
BUFFERS = {"mean": torch.empty(11), "count": torch.zeros((), dtype=torch.int64)}
LAYOUT = SlotLayout(PARAMETERS, BUFFERS)
REST = SlotLayout({}, BUFFERS)
CPU = torch.device("cpu")
STEPS = 3


class Host:
    """The memory of one host, for workers that are threads here."""

    def __init__(self, world_size, num_leaves):
        self.arena = Arena.create(world_size)
        num_slots = 2 * tree.max_partials(num_leaves)
        self.slots = {
            (rank, number): new_slot() for rank in range(world_size) for number in range(num_slots)
        }
        self.memory = ReductionMemory(
            layout=LAYOUT,
            partial_sum=lambda rank, number: self.slots[rank, number],
            root=new_slot(),
            tables=torch.zeros((world_size, tree.num_nodes(num_leaves)), dtype=torch.int64),
            norms=torch.zeros(len(LAYOUT.blocks), dtype=torch.float64),
            times=torch.zeros((world_size, len(StepTimes._fields)), dtype=torch.int64),
        )


def new_slot():
    return Slot(torch.zeros(LAYOUT.layout.size_bytes, dtype=torch.uint8), LAYOUT)


def set_of(shard, step):
    """What one shard leaves."""
    drawn = torch.Generator().manual_seed(1000 * step + shard)
    found = GradientSet(REST, CPU)
    made = [torch.randn(each.shape, generator=drawn) for each in PARAMETERS.values()]
    found.begin(made, 0.25, torch.rand((), generator=drawn))
    for each in found.rest.sums:
        each.copy_(torch.randn(each.shape, generator=drawn))
    found.rest.kept[0].fill_(shard)
    found.rest.used.fill_(1)
    found.write_logged({"accuracy": shard / 10})
    return found


def device_sums(group, host, exchange):
    """What adds on the device of a worker; None to add in the arena."""
    if exchange == "arena":
        return None
    messages = None
    if exchange == "nccl":
        job = TrainJob(workers=1, shards=1, threads_per_worker=1)
        worker = WorkerContext.of(job, group, None, host.arena)
        messages = ProcessGroupMessages(worker, CPU)
        messages.connect()
    return DeviceSums(group, host.memory, CPU, None, messages)


class Final(set):
    """The blocks that change no more."""

    is_all = False
    is_final = set.__contains__


def send_ahead(reducer, table, sets, step, *, is_valid):
    """Publish sums, block by block in any order, while they are exchanged already; at first other
    ones, unless they are valid.
    """
    chance = random.Random(f"{step} {table}")
    if not is_valid:
        other = set_of(99, step)
        slots = reducer.blocks.publish(table, lambda _: other)
        reducer.hosts.begin(slots, step, 0, AllComputed())
        reducer.hosts.is_valid = False
        return reducer.blocks.publish(table, sets.__getitem__)
    slots = reducer.blocks.publish(table, sets.__getitem__)
    final = Final()
    reducer.hosts.begin(slots, step, 0, final)
    for index in chance.sample(range(len(LAYOUT.blocks)), len(LAYOUT.blocks)):
        final.add(index)
        reducer.hosts.look_again()
    return slots


def train(group, host, counts, num_leaves, empty, exchange):
    """What a worker does in a few steps: its sums, then a reduction."""
    rank, found = group.rank, []
    sums = device_sums(group, host, "arena" if "ahead" in exchange else exchange)
    reducer = TreeReducer(group, host.memory, num_leaves, on_device=sums)
    for step in range(STEPS):
        table, sets = [tree.ABSENT] * tree.num_nodes(num_leaves), {}

        def merge(left, right, sets=sets):
            sets[left].add(sets[right])

        for shard in Plan(counts=counts).shards_of(rank):
            sets[shard] = set_of(shard, step)
            number = tree.EMPTY if shard in empty else shard
            tree.carry(table, tree.leaf(shard, num_leaves), number, merge)
        # Not all hosts send ahead in every step.
        if "ahead" in exchange and (rank + step) % 3:
            is_valid = exchange == "ahead" or rank != 1
            table = send_ahead(reducer, table, sets, step, is_valid=is_valid)
        else:
            table = (sums or reducer.blocks).publish(table, sets.__getitem__)
        reduced = reducer.reduce(
            table, step, 10 * step + rank, 100 + rank, StepTimes(1000 + rank, step)
        )
        root = host.memory.root if sums is None else sums.root
        if sums is None:
            reducer.scale_gradient(0.5, step)
        else:
            root.sums[0].mul_(0.5)  # the gradients
        found.append(
            (
                reduced.loss,
                reduced.weight,
                reduced.votes,
                reduced.step_times,
                reduced.replica_digests,
                [each.tolist() for each in reduced.kept],
                reduced.used.tolist(),
                reduced.norm if sums is None else None,
                [each.clone() for each in root.sums],
            )
        )
        group.barrier(1, 1000 + step)
    return found


@functools.cache
def on_one_host(counts, empty):
    return run(counts, [list(range(len(counts)))], empty)


def run(counts, hosts, empty=(), exchange="arena"):
    """The results of every worker, with `hosts` as the ranks of each host."""
    num_leaves, world_size = sum(counts), len(counts)
    memories = [Host(world_size, num_leaves) for _ in hosts]
    listeners = {rank: Listener("127.0.0.1") for rank in range(world_size)}
    described = GroupHosts(
        ranks=tuple(map(tuple, hosts)),
        addresses={rank: each.address for rank, each in listeners.items()},
        key=b"k" * 32,
    )
    found = {}

    def work(rank, host):
        torch.set_num_threads(1)  # a new thread has those of the machine, and rounds otherwise
        group = Group(host.arena, rank, 20, describe)
        network = None
        try:
            if len(hosts) > 1:
                network = Network(described, rank, group.deadline)
                network.connect(listeners[rank], 1)
            group.enter(1, tuple(range(world_size)), network)
            found[rank] = train(group, host, counts, num_leaves, empty, exchange)
        except HoldfastError as error:
            found[rank] = error
        finally:
            listeners[rank].close()
            if network is not None:
                network.close()

    threads = [
        threading.Thread(target=work, args=(rank, memory))
        for ranks, memory in zip(hosts, memories, strict=True)
        for rank in ranks
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for each in memories:
        each.arena.close()
    return found


@pytest.mark.parametrize(
    ("counts", "hosts", "empty"),
    [
        ((2, 2, 2, 2), [[0, 1], [2, 3]], ()),
        ((4, 4), [[0], [1]], ()),
        ((3, 3, 2), [[0], [1], [2]], ()),
        ((1, 2, 0, 2, 3), [[0, 1, 2], [3], [4]], (4, 5)),
        ((3, 1, 2, 1), [[0, 2], [1, 3]], (0,)),
        ((2, 2), [[0], [1]], (2, 3)),
    ],
)
@pytest.mark.parametrize("exchange", ["arena", "staged", "nccl"])
def test_the_result_is_that_of_one_host_for_any_hosts_and_plan(counts, hosts, empty, exchange):
    one = on_one_host(counts, empty)
    several = run(counts, hosts, empty, exchange)
    for rank, steps in one.items():
        assert isinstance(several[rank], list), several[rank]
        for mine, theirs in zip(steps, several[rank], strict=True):
            assert mine[:-2] == theirs[:-2]
            assert theirs[-2] in (mine[-2], None)
            assert all(map(torch.equal, mine[-1], theirs[-1]))


@pytest.mark.parametrize(
    ("counts", "hosts", "empty"),
    [
        ((4, 4), [[0], [1]], ()),
        ((3, 3, 2), [[0], [1], [2]], (4,)),
        ((1, 2, 0, 2), [[0], [1], [2], [3]], (0,)),
    ],
)
@pytest.mark.parametrize("exchange", ["ahead", "ahead, changed"])
def test_blocks_that_are_sent_before_all_are_computed_change_nothing(
    counts, hosts, empty, exchange
):
    test_the_result_is_that_of_one_host_for_any_hosts_and_plan(counts, hosts, empty, exchange)


def test_workers_expect_the_messages_that_others_send_in_their_order():
    draw = random.Random(0)
    for _ in range(50):
        ranks = itertools.count()
        hosts = [
            tuple(itertools.islice(ranks, draw.randint(1, 4))) for _ in range(draw.randint(2, 4))
        ]
        described = GroupHosts(ranks=tuple(hosts), addresses={}, key=b"")
        lanes = range(described.num_lanes)
        blocks = [[range(draw.randint(0, 2)) for _ in lanes] for _ in hosts]
        nodes = {host: draw.sample(range(1, 16), draw.randint(0, 3)) for host in range(len(hosts))}
        networks = [Network(described, rank, None) for rank in range(next(ranks))]
        sent, received = defaultdict(list), defaultdict(list)
        for rank, network in enumerate(networks):
            for other, place, node in sum_messages(network, blocks, nodes, is_sent=True):
                sent[rank, other].append((place, node))
            for other, (_, lane), node in sum_messages(network, blocks, nodes, is_sent=False):
                received[other, rank].append(((network.host, lane), node))
        assert sent == received
        # Every sum reaches the owner of each cell that has blocks, once.
        assert Counter(each for pair in sent.values() for each in pair) == Counter(
            ((host, lane), node)
            for host, lane in itertools.product(range(len(hosts)), lanes)
            for other, theirs in nodes.items()
            for node in theirs
            if other != host and blocks[host][lane]
        )


@pytest.mark.parametrize(("hosts", "lanes"), [(2, 2), (2, 3), (3, 2), (1, 5)])
def test_every_share_of_a_lane_fits_in_mapped_memory(hosts, lanes):
    sizes = [block.nbytes for block in new_slot().blocks]
    divided = cells(sizes, hosts, lanes)
    largest = max(sum(sizes[i] for host in divided for i in host[lane]) for lane in range(lanes))
    assert largest <= largest_share(LAYOUT, hosts * lanes) <= sum(sizes)
