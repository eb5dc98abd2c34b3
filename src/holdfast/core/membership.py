"""Membership: which hosts have joined, which ranks they run, and which hosts are fenced.

A world grows when hosts have capacity for more ranks: at once if that makes it full, else after a
last call, so that hosts which join together are placed together. After a failure it first rests
for a while on the workers that are left, if they are enough.

A worker on standby has a rank, and capacity of its host, and is no member. The world is smaller by
it, and so may be what the policy requires. If there are too few workers without it, it is a member
again, fit or not.

A rank that has run out of memory has a cap: the most shards of a step that it can compute on its
host. With a cap of 0 it is retired: it has capacity of its host, and neither a worker nor a way
back, since it would run out of memory again. The run does not wait for it. Once its host is lost it
may be placed on another one, which ends its cap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Final

from holdfast.core.actions import GenerationOpened
from holdfast.core.policy import RecoveryPolicy
from holdfast.core.protocol import Cap, Eviction, Failure, Standby, Status

NAMED_HOSTS: Final = 3
"""The most hosts that `in_words` names."""


class Membership:
    """The hosts of one run, and the ranks of its newest generation.

    Args:
        policy: The user's.
        newest: The generation that was recorded before the coordinator was restarted.
        now: This process's monotonic clock, seconds, as in every `now` here.

    Attributes:
        members: The host of every rank, in rank order, without ranks that have failed since.
            Others hold it too: it is replaced, not changed.
        standbys: The ranks on standby; likewise replaced, not changed.
        caps: The ranks that have run out of memory; likewise.
        scaled: Workers of a full world since the run was scaled; 0 if it never was.
        by_host: The ranks of each host as the newest generation was opened.
        statuses: The newest status of every host that has joined.
    """

    def __init__(self, policy: RecoveryPolicy, newest: GenerationOpened, now: float) -> None:
        self._policy = policy
        self.standbys = newest.standbys
        self.caps = newest.caps
        self.members = newest.members
        self.scaled = newest.scaled
        self.by_host = by_host(newest.members)
        self.statuses: dict[str, Status] = {}
        self._capacity = 0
        self._fenced: dict[str, None] = {}
        self._grow_at: float | None = None
        self._regrow_from = now
        self._has_trained = bool(newest.members)
        self._join_deadline: float | None = now + policy.join_timeout_s

    @property
    def lacks_workers(self) -> bool:
        """True if there are too few workers to train, or they have too little memory."""
        return len(self.members) < self._least or not self._have_memory(self.members)

    @property
    def can_compute(self) -> bool:
        """True if all workers of a full world together may have the memory for a step."""
        # A rank whose host is lost may be placed on one with more.
        capped = [rank for rank, cap in self.caps.items() if cap.host in self.statuses]
        return len(capped) < self._full or self._have_memory(capped)

    @property
    def most_shards(self) -> dict[int, int]:
        """The caps of members."""
        return {rank: cap.shards for rank, cap in self.caps.items() if rank in self.members}

    def _have_memory(self, ranks: Collection[int]) -> bool:
        """True if some ranks together have the memory for the shards of a step."""
        if any(rank not in self.caps for rank in ranks):
            return True
        return sum(self.caps[rank].shards for rank in ranks) >= self._policy.num_shards

    @property
    def _retired(self) -> dict[int, str]:
        """The host of each rank that has no memory for a shard."""
        return {rank: cap.host for rank, cap in self.caps.items() if not cap.shards}

    @property
    def _full(self) -> int:
        """Workers of a full world."""
        return self.scaled or self._policy.workers or self._policy.world_size

    @property
    def _most(self) -> int:
        """The most members that a full world has now."""
        return self._full - len(self.standbys) - len(self._retired)

    @property
    def is_full(self) -> bool:
        """True if the members are those of a full world."""
        return len(self.members) == self._most and max(self.members, default=0) < self._full

    @property
    def _least(self) -> int:
        """The fewest workers to train with."""
        policy = self._policy
        least = self._full if policy.min_workers is None else policy.min_workers
        least = max(least, 0 if self._has_trained else policy.start_workers)
        return max(1, min(least, self._most))

    @property
    def hosts(self) -> dict[str, None]:
        """The hosts that have ranks in the newest generation, members or on standby."""
        return dict.fromkeys((*self.by_host, *(each.host for each in self.standbys.values())))

    def has_ranks(self, host: str) -> bool:
        """True if a host has ranks in the newest generation; see `hosts`."""
        return host in self.by_host or any(each.host == host for each in self.standbys.values())

    def standbys_of(self, host: str) -> dict[int, Eviction]:
        """The ranks on standby of a host, and why."""
        return {r: each.eviction for r, each in self.standbys.items() if each.host == host}

    def is_fenced(self, status: Status) -> bool:
        """True if a host must not take part any more.

        A coordinator that was restarted does not know which hosts were fenced before. But an agent
        that has taken part, and that is not a member of the newest generation, may have been: the
        state of its workers is old.
        """
        host = status.host
        has_retired = host in self._retired.values()
        is_known = host in self.statuses or host in self.hosts or has_retired
        return host in self._fenced or (status.generation > 0 and not is_known)

    def join(self, status: Status) -> bool:
        """Record a host's status; returns False if a newer one is recorded already."""
        older = self.statuses.get(status.host)
        if older is not None and status.number < older.number:
            return False  # one with the same number is repeated on a new connection
        # The sum is kept up to date, since it is asked for with every status of a thousand hosts.
        self.statuses[status.host] = status
        self._capacity += self._capacity_of(status) - (self._capacity_of(older) if older else 0)
        return True

    def _capacity_of(self, status: Status) -> int:
        """Number of workers that a host may have: an equal share, unless the run was scaled."""
        share = 0 if self.scaled else self._policy.host_share
        return min(status.capacity, share or status.capacity)

    def refuses_size(self, workers: int) -> str:
        """Why the run cannot have so many workers now, in words; empty if it can."""
        most = self._policy.world_size
        if workers > most:
            return f"the run can have {most} at most, which max_workers decides at its start"
        capacity = sum(status.capacity for status in self.statuses.values())
        if not self.members or workers <= capacity:  # before it has begun, hosts still join
            return ""
        return f"its hosts can run {capacity}; let another host join"

    def scale(self, workers: int) -> None:
        """Make so many workers a full world, from the next generation on."""
        self.scaled = workers
        self._capacity = sum(map(self._capacity_of, self.statuses.values()))
        self._drop_standbys([rank for rank in self.standbys if rank >= workers])
        self.caps = {rank: cap for rank, cap in self.caps.items() if rank < workers}

    @property
    def of_generation(self) -> list[Status]:
        """The newest status of every host of the generation that has joined and is not fenced."""
        return [self.statuses[host] for host in self.by_host if host in self.statuses]

    @property
    def addresses(self) -> dict[int, str]:
        """Addresses at which members accept connections, as reported by their agents."""
        return {
            rank: each for status in self.of_generation for rank, each in status.addresses.items()
        }

    def unlike(self) -> dict[str, str]:
        """Members whose workers compute other bits than those of the first host, and why; none
        where that is allowed.

        The first is a host with a state, if there is one: the others trained with it.
        """
        if self._policy.allows_unlike_hosts:
            return {}
        # Statuses are in the order in which hosts have joined, which all decisions here follow.
        members = [status for host, status in self.statuses.items() if host in self.by_host]
        first = next((each for each in members if each.committed), members[0])
        return {
            each.host: f"its {differences} on {first.host}"
            for each in members
            if (differences := _differences(each.numerics, first.numerics))
        }

    def fence(self, hosts: Sequence[str]) -> bool:
        """Remove hosts for good; returns whether any of them runs ranks."""
        # Their ranks stay members until the caller opens a generation, which places them elsewhere.
        had_ranks = any(host in self.hosts for host in hosts)
        self._drop_standbys([r for r, each in self.standbys.items() if each.host in hosts])
        for host in hosts:
            self._fenced[host] = None
            if host in self.statuses:
                self._capacity -= self._capacity_of(self.statuses.pop(host))
        return had_ranks

    def remove(self, ranks: Mapping[int, object]) -> None:
        """Remove ranks whose workers have failed."""
        self.members = {rank: host for rank, host in self.members.items() if rank not in ranks}
        self._drop_standbys(ranks)

    def change_caps(self, status: Status) -> dict[int, Failure]:
        """Cap the workers of a host that ran out of memory; returns the failures that were new."""
        new = {}
        for rank, failure in status.failed.items():
            if failure.cap is None or self.members.get(rank) != status.host:
                continue
            cap = Cap(host=status.host, shards=failure.cap)
            if self.caps.get(rank) != cap:
                self.caps = {**self.caps, rank: cap}
                new[rank] = failure
        return new

    def change_standbys(self, status: Status) -> bool:
        """Put a rank on standby, or make some members again, as an agent requests; returns whether
        there is a change. A rank stays a member where the others would be too few, or where every
        generation restarts all workers.
        """
        eviction = status.eviction
        policy = self._policy
        # Those that are fit return first: with them another one can be spared.
        before = self.standbys
        if status.fit:
            self._return([rank for rank in before if rank in status.fit])
        if eviction is None or eviction.rank not in self.members or policy.restart_all:
            return self.standbys is not before
        others = {rank: host for rank, host in self.members.items() if rank != eviction.rank}
        standby = Standby(host=self.members[eviction.rank], eviction=eviction)
        # What `_least` would require with one more on standby.
        if len(others) >= max(1, min(self._least, self._most - 1)) and self._have_memory(others):
            self.members = others
            self.standbys = {**self.standbys, eviction.rank: standby}
        return self.standbys is not before

    def _return(self, ranks: Collection[int]) -> None:
        """Make ranks on standby members again."""
        returning = {rank: self.standbys[rank].host for rank in ranks}
        self.members = dict(sorted({**self.members, **returning}.items()))
        self._drop_standbys(ranks)

    def _drop_standbys(self, ranks: Collection[int]) -> None:
        if any(rank in self.standbys for rank in ranks):
            remaining = {rank: each for rank, each in self.standbys.items() if rank not in ranks}
            self.standbys = remaining

    def opened(self, generation: int, *, restart_all: bool) -> GenerationOpened:
        """The entry for a generation with the ranks that were assigned."""
        return GenerationOpened(
            generation, self.members, restart_all, self.standbys, self.caps, self.scaled
        )

    def delay_growth(self, now: float) -> None:
        """Do not replace failed workers for a while, if enough are left."""
        self._regrow_from = now + self._policy.regrow_delay_s

    def is_resize_due(self, now: float) -> bool:
        """True if a generation with more workers is due now, or with fewer since it was scaled."""
        if self.scaled and max(self.members, default=-1) >= self.scaled:
            return True
        # A world that would not be larger, or still be too small, is not worth a generation.
        retired = [host for host in self._retired.values() if host in self.statuses]
        without = len(self.standbys) + len(retired)
        size = min(self._capacity, self._full) - without
        if size <= len(self.members) or size < self._least:
            self._grow_at = None
            return False
        # More capacity may join until then, and is placed with this one.
        if self._grow_at is None:
            is_full = size + without == self._full
            wait_s = 0.0 if is_full else self._policy.last_call_s
            rested_at = now if self.lacks_workers else self._regrow_from  # then nothing trains
            self._grow_at = max(now + wait_s, rested_at)
        return now >= self._grow_at

    def reassign_ranks(self, now: float, *, restart_all: bool) -> list[str]:
        """Place ranks on all hosts with capacity; returns the hosts that lost all of theirs.

        Args:
            now: The time.
            restart_all: True if all workers are forked again, those on standby too.
        """
        before = self.hosts
        if restart_all:
            self._return(self.standbys)
        self._place(now)
        # A slow worker is better than none: without enough others all on standby return.
        if self.lacks_workers and self.standbys:
            self._return(self.standbys)
            self._place(now)
        # From here on this is the membership of the next generation.
        self.by_host = by_host(self.members)
        self._grow_at = None
        if not self.lacks_workers:
            self._join_deadline = None
        elif self._join_deadline is None:
            self._join_deadline = now + self._policy.join_timeout_s
        return [host for host in before if host in self.statuses and host not in self.hosts]

    def _place(self, now: float) -> None:
        retired = {rank: host for rank, host in self._retired.items() if host in self.statuses}
        reserved = Counter([*(each.host for each in self.standbys.values()), *retired.values()])
        capacity = {
            h: self._capacity_of(status) - reserved[h] for h, status in self.statuses.items()
        }
        absent = self.standbys.keys() | retired.keys()
        size = self._full
        # Process groups number their ranks without gaps. All workers are new, so any rank may move.
        if self._policy.restart_all and self._capacity >= self._least:
            size = min(size, self._capacity)
        present = {
            rank: host
            for rank, host in self.members.items()
            if host in capacity and rank not in absent and rank < size
        }
        # Soon after a failure lost workers are not replaced, if the others are enough to train.
        are_enough = len(present) >= self._least and self._have_memory(present)
        if now < self._regrow_from and are_enough:
            capacity = dict(Counter(present.values()))
        ranks = [rank for rank in range(size) if rank not in absent]
        self.members = place(ranks, capacity, present)
        self.caps = {
            rank: cap
            for rank, cap in self.caps.items()
            if self.members.get(rank, cap.host) == cap.host
        }

    def on_resumed(self) -> None:
        """Note that the run has trained, with all workers that it needs to begin."""
        self._has_trained = True

    def on_recovered(self) -> None:
        """All members turned out to be training: no further workers are waited for."""
        self._join_deadline = None

    def next_deadline(self) -> float | None:
        """Time at which growth is due, or too few have joined; None for never."""
        waits = (self._grow_at, self._join_deadline)
        return min((wait for wait in waits if wait is not None), default=None)

    def join_timeout(self, now: float) -> str:
        """Cause of the run's end because too few workers have joined in time, or nothing."""
        if self._join_deadline is None or now < self._join_deadline:
            return ""
        joined = f"only {len(self.members)} of {self._least} required workers joined"
        if len(self.members) >= self._least:
            joined = "the workers have too little memory for all shards, and no other one joined"
        return f"{joined} within {self._policy.join_timeout_s:.0f} s"

    def missing(self) -> str:
        """Number of workers that must still join, in words; empty if there are enough."""
        if not self.lacks_workers:
            return ""
        joined = len(self.members)
        wanted = max(self._least, joined + 1)
        more = wanted - joined
        return f"{more} more worker{'s'[: more > 1]} ({joined} of {wanted} joined)"

    def check_invariants(self, *, is_known: bool) -> None:
        """Check what must always hold.

        Args:
            is_known: True if the members are those of a current generation, so that none is fenced.

        Raises:
            AssertionError: It does not hold.
        """
        assert all(0 <= rank < self._policy.world_size for rank in self.members)
        assert list(self.members) == sorted(self.members)
        assert not is_known or not self._fenced.keys() & set(self.members.values())
        assert not self._fenced.keys() & self.statuses.keys()
        assert self._capacity == sum(map(self._capacity_of, self.statuses.values()))
        assert not self.standbys.keys() & self.members.keys(), "a rank in two places"
        assert not self._fenced.keys() & {each.host for each in self.standbys.values()}
        assert not self._retired.keys() & (self.members.keys() | self.standbys.keys())
        assert not is_known or self.members or not self.standbys, "only standbys are left"


def place(
    ranks: Sequence[int], capacity: Mapping[str, int], present: Mapping[int, str]
) -> dict[int, str]:
    """Give every rank a host, as far as there is capacity.

    A rank stays where it is while its host has capacity for it. The others fill the hosts in name
    order, each up to an equal share, first those that already run ranks: neighbouring ranks, whose
    shards meet soonest in the reduction tree, share a host, and a new worker finds its state on its
    own.

    Args:
        ranks: Ranks to place, in order.
        capacity: Workers that each host can run.
        present: Hosts of the ranks that have one now.

    Returns:
        The host by rank, in rank order, without the ranks for which there is no capacity.
    """
    free = Counter(capacity)
    used = set(present.values())
    placed: dict[int, str] = {}
    # A rank that stays keeps its worker, and so its state.
    for rank, host in sorted(present.items()):
        if free[host] > 0:
            placed[rank] = host
            free[host] -= 1
    # Up to its share, each host is filled in order with the ranks that have none.
    hosts = sorted(free, key=lambda host: (host not in used, host))
    share = _equal_share(len(ranks), capacity.values())
    loads = Counter(placed.values())
    vacant = [host for host in hosts for _ in range(min(free[host], share - loads[host]))]
    absent = (rank for rank in ranks if rank not in placed)
    return dict(sorted((placed | dict(zip(absent, vacant, strict=False))).items()))


def _equal_share(size: int, capacities: Collection[int]) -> int:
    """The most ranks of a host. With it hosts have capacity for `size` ranks, or else for all that
    they can run.
    """
    largest = max(capacities, default=0)
    shares = range(largest)
    return next((n for n in shares if sum(min(each, n) for each in capacities) >= size), largest)


def _differences(other: Mapping[str, str], first: Mapping[str, str]) -> str:
    return ", ".join(
        f"{name} is {other.get(name, 'unknown')}, but {value}"
        for name, value in first.items()
        if other.get(name) != value
    )


def by_host(members: Mapping[int, str]) -> dict[str, tuple[int, ...]]:
    """The ranks of each host, in rank order."""
    ranks: dict[str, list[int]] = {}
    for rank, host in members.items():
        ranks.setdefault(host, []).append(rank)
    return {host: tuple(own) for host, own in ranks.items()}


def in_words(hosts: Mapping[str, Sequence[int]]) -> str:
    """The ranks of each host as words; names the first NAMED_HOSTS of them."""
    first = islice(hosts.items(), NAMED_HOSTS)
    named = [f"{_in_words(ranks)} on {host}" for host, ranks in first]
    more = len(hosts) - len(named)
    return " and ".join([*named, *([f"{more} more hosts"] if more else [])])


def _in_words(ranks: Sequence[int]) -> str:
    return f"rank{'s'[: len(ranks) > 1]} {', '.join(map(str, ranks))}"
