"""Hosts of this process, whose members all-reduce: threads, or processes that it forks."""

from contextlib import ExitStack, contextmanager

from holdfast.arena.memory import Arena
from holdfast.collectives.algorithms.host_links import HostLinks
from holdfast.collectives.algorithms.shared_links import SharedLinks
from holdfast.collectives.barrier_tags import ReduceTag, describe
from holdfast.collectives.connections import Listener
from holdfast.collectives.group import Group
from holdfast.collectives.network import GroupHosts, Network


class Hosts:
    """An arena per host, and on several hosts a listener per member.

    Args:
        ranks: The ranks of each host.
        credentials: Certificate of the workers; None for connections in plain.
    """

    def __init__(self, ranks, credentials=None):
        self.ranks = tuple(map(tuple, ranks))
        self.num_members = sum(map(len, ranks))
        self.arenas = [Arena.create(self.num_members) for _ in ranks]
        self._listeners = []
        if len(ranks) > 1:
            self._listeners = [Listener("127.0.0.1", credentials) for _ in range(self.num_members)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for each in (*self.arenas, *self._listeners):
            each.close()

    @contextmanager
    def member(self, rank):
        """The group of one member, connected to the other hosts; for its own thread or process."""
        host = next(at for at, ranks in enumerate(self.ranks) if rank in ranks)
        group = Group(Arena(self.arenas[host].fd), rank, 20, describe)
        with ExitStack() as owned:
            network = None
            if self._listeners:
                addresses = {at: each.address for at, each in enumerate(self._listeners)}
                described = GroupHosts(ranks=self.ranks, addresses=addresses, key=b"k" * 32)
                network = Network(described, rank, group.deadline)
                owned.callback(network.close)
            group.enter(1, tuple(range(self.num_members)), network)
            if network is not None:
                network.connect(self._listeners[rank], 1, has_mesh=True)
            # All are in the generation: from here on rounds count.
            group.barrier(ReduceTag.PARTIALS, 0)
            yield group


def links_of(group, vectors):
    """The links of a member, with the vectors of its host by rank."""
    if group.network is None:
        return SharedLinks(group, vectors)
    return HostLinks(group, group.network, vectors)
