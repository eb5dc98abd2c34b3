"""Who may have committed the interrupted step, and who gives it to whom."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple, TypeVar

import pytest

from holdfast.core.protocol import ResumePoint, Stage, Status, StoredCheckpoint
from holdfast.core.resume_point import choose_resume_point


def halted(host: str, committed: dict[int, int], reduced_step: int = 0) -> Status:
    return Status(
        host=host, number=1, stage=Stage.HALT, committed=committed, reduced_step=reduced_step
    )


ONE_HOST = {0: "a", 1: "a", 2: "a"}
TWO_HOSTS = {0: "a", 1: "a", 2: "b", 3: "b"}


def left(host: str, steps: dict[int, int], checkpoint: int = 0) -> Status:
    """The status of a host without a worker that has a state."""
    found = StoredCheckpoint(step=checkpoint, name=f"step-{checkpoint}") if checkpoint else None
    return Status(host=host, number=1, stage=Stage.HALT, left=steps, newest_checkpoint=found)


def test_what_lost_workers_have_left_is_newer_than_a_checkpoint() -> None:
    start = choose_resume_point(ONE_HOST, [left("a", {1: 7, 2: 6}, checkpoint=4)])
    assert (start.step, start.donors, start.checkpoint) == (7, {0: 1, 1: 1, 2: 1}, None)
    start = choose_resume_point(TWO_HOSTS, [left("a", {1: 7}), left("b", {2: 7})])
    assert start.donors == {0: 1, 1: 1, 2: 2, 3: 2}


def test_a_live_worker_has_a_newer_state_than_a_lost_one() -> None:
    start = choose_resume_point(TWO_HOSTS, [left("a", {0: 7}), halted("b", {2: 8})])
    assert (start.step, start.donors) == (8, {0: 2, 1: 2, 2: 2, 3: 2})


def test_what_was_left_in_an_earlier_life_of_the_run_is_not_taken() -> None:
    start = choose_resume_point(ONE_HOST, [left("a", {1: 3}, checkpoint=4)])
    assert (start.step, start.donors, start.checkpoint) == (4, {}, "step-4")
    assert choose_resume_point(ONE_HOST, [left("a", {1: 0})]) == ResumePoint(step=0, donors={})


def test_an_undecided_step_is_computed_again() -> None:
    start = choose_resume_point(ONE_HOST, [halted("a", {0: 7, 2: 7}, reduced_step=7)])
    assert start.step == 7
    assert {rank: start.donors[rank] for rank in (0, 2)} == {0: 0, 2: 2}
    assert start.donors[1] in (0, 2), "the new worker takes what a survivor has"


def test_a_step_that_one_worker_has_committed_is_committed_by_all() -> None:
    start = choose_resume_point(ONE_HOST, [halted("a", {0: 8, 1: 7, 2: 7}, reduced_step=8)])
    assert start.step == 8
    assert start.donors == {0: 0, 1: 1, 2: 2}, "each can do it from the root on its host"


def test_a_step_whose_only_committer_died_is_committed_from_the_root() -> None:
    start = choose_resume_point(ONE_HOST, [halted("a", {1: 7, 2: 7}, reduced_step=8)])
    assert start.step == 8


def test_a_host_without_the_root_takes_the_state_of_another() -> None:
    reports = [halted("a", {0: 7, 1: 7}), halted("b", {2: 8, 3: 7}, reduced_step=8)]
    start = choose_resume_point(TWO_HOSTS, reports)
    assert start.step == 8
    assert start.donors[2] == 2
    assert start.donors[3] == 3
    assert start.donors[0] in (2, 3)
    assert start.donors[1] in (2, 3)


def test_a_step_that_some_host_cannot_complete_was_committed_by_none() -> None:
    reports = [halted("a", {0: 7, 1: 7}, reduced_step=8), halted("b", {2: 7, 3: 7})]
    start = choose_resume_point(TWO_HOSTS, reports)
    assert start.step == 7
    assert start.donors == {rank: rank for rank in range(4)}


def test_a_step_that_every_host_can_complete_may_have_been_committed_by_a_lost_one() -> None:
    start = choose_resume_point(TWO_HOSTS, [halted("a", {0: 7, 1: 7}, reduced_step=8)])
    assert start.step == 8
    assert start.donors == {0: 0, 1: 1, 2: start.donors[2], 3: start.donors[3]}


def test_a_new_worker_finds_its_state_on_its_own_host() -> None:
    reports = [halted("a", {0: 7, 1: 7}), halted("b", {3: 7})]
    assert choose_resume_point(TWO_HOSTS, reports).donors[2] == 3


def test_an_old_root_takes_nobody_back() -> None:
    assert (
        choose_resume_point(ONE_HOST, [halted("a", {0: 7, 1: 7, 2: 7}, reduced_step=5)]).step == 7
    )


def holding(host: str, step: int) -> Status:
    newest = StoredCheckpoint(step=step, name=f"step-{step}") if step else None
    return Status(host=host, number=1, stage=Stage.HALT, newest_checkpoint=newest)


def test_without_a_replica_all_load_the_newest_checkpoint_that_any_host_has() -> None:
    start = choose_resume_point(TWO_HOSTS, [holding("a", 4), holding("b", 9)])
    assert start == ResumePoint(step=9, donors={}, checkpoint="step-9")
    assert choose_resume_point(TWO_HOSTS, [holding("a", 4), holding("b", 0)]).step == 4


def test_without_a_replica_and_a_checkpoint_the_run_begins() -> None:
    assert choose_resume_point(ONE_HOST, [halted("a", {}, reduced_step=9)]) == ResumePoint(
        step=0, donors={}
    )


def test_a_replica_counts_more_than_a_newer_checkpoint() -> None:
    start = choose_resume_point(TWO_HOSTS, [halted("a", {0: 7}), holding("b", 9)])
    assert (start.step, start.checkpoint) == (7, None)


def test_what_a_worker_elsewhere_has_does_not_count() -> None:
    """Rank 1 has moved to host b; the report of host a still has its former worker."""
    members = {0: "a", 1: "b"}
    reports = [halted("a", {0: 4, 1: 9}), halted("b", {})]
    assert choose_resume_point(members, reports).step == 4


HOSTS = "abc"
T = TypeVar("T")
PAIRS = list(itertools.permutations(range(len(HOSTS)), 2))
COMPUTES, SENT, REDUCED, COMPLETE, PARTLY_COMMITTED, COMMITTED = range(6)
"""What a host with two workers has done in a step. It sends its sums to the others; with theirs it
reduces its blocks, and sends these; with theirs it is complete, and says so; once all are complete,
its workers commit one after the other."""
SUMS, BLOCKS, ARRIVALS = range(3)
"""The messages, in the order in which a host sends them: each once it has done so much."""


class State(NamedTuple):
    """One step on three hosts.

    `arrived` holds the messages of each kind that have arrived; those that were sent may do so.
    """

    done: tuple[int, ...]
    halted: tuple[bool, ...]
    arrived: tuple[frozenset[tuple[int, int]], ...]


BEGIN = State((COMPUTES,) * 3, (False,) * 3, (frozenset(),) * 3)


def successors(state: State, kinds: Sequence[int]) -> Iterator[State]:
    """Everything that can happen next: a message arrives, a host does its next thing, or halts.

    A host that dies does so at any time after which it does nothing, so it is one that has halted
    and is not asked.
    """
    done, halted, arrived = state
    for kind, pair in itertools.product(kinds, PAIRS):
        source, target = pair
        if not halted[target] and done[source] >= SENT + kind and pair not in arrived[kind]:
            yield state._replace(arrived=changed(arrived, kind, value=arrived[kind] | {pair}))
    for host in range(len(HOSTS)):
        if not halted[host]:
            yield state._replace(halted=changed(halted, host, value=True))
            needed = done[host] - SENT  # the kind of message without which it can do nothing
            others = {(other, host) for other in range(len(HOSTS)) if other != host}
            if done[host] < COMMITTED and (needed not in kinds or others <= arrived[needed]):
                yield state._replace(done=changed(done, host, value=done[host] + 1))


def changed(values: tuple[T, ...], place: int, *, value: T) -> tuple[T, ...]:
    return (*values[:place], value, *values[place + 1 :])


def reachable(*kinds: int) -> set[State]:
    """All states, if hosts wait for these kinds of messages."""
    seen, new = {BEGIN}, [BEGIN]
    while new:
        for state in successors(new.pop(), kinds):
            if state not in seen:
                seen.add(state)
                new.append(state)
    return seen


@cache
def resumed(survivors: tuple[tuple[int, int], ...]) -> tuple[int, bool]:
    """The step from which the generation after that of step 7 resumes, and whether a survivor
    needs the state of another; given what each of them had done.
    """
    members = {rank: HOSTS[rank % len(HOSTS)] for rank in range(2 * len(HOSTS))}
    statuses = [
        halted(
            HOSTS[host],
            {host: 7 + (done >= PARTLY_COMMITTED), host + len(HOSTS): 7 + (done == COMMITTED)},
            reduced_step=8 if done >= COMPLETE else 0,
        )
        for host, done in survivors
    ]
    start = choose_resume_point(members, statuses)
    own = {status.host for status in statuses}
    moved = any(start.donors[rank] != rank for rank, host in members.items() if host in own)
    return start.step, moved


def problems(states: set[State]) -> dict[str, int]:
    """How many states and survivors there are, and how often a step that was committed is done
    again, or a survivor cannot continue from what it has.
    """
    found = {"states": len(states), "cases": 0, "done again": 0, "stuck": 0}
    for state in states:
        halted = [(host, done) for host, done in enumerate(state.done) if state.halted[host]]
        for count in range(1, len(halted) + 1):
            for survivors in itertools.combinations(halted, count):
                step, moved = resumed(survivors)
                found["cases"] += 1
                found["done again"] += step == 7 and max(state.done) >= PARTLY_COMMITTED
                found["stuck"] += moved
    return found


@pytest.mark.slow
def test_whatever_is_lost_no_step_is_done_again_and_no_survivor_is_stuck() -> None:
    """Every order of messages, halts and losses; a host that was fenced may still run."""
    found = problems(reachable(SUMS, BLOCKS, ARRIVALS))
    assert found["states"] > 9_000
    assert found["cases"] > found["states"]
    assert (found["done again"], found["stuck"]) == (0, 0)


@pytest.mark.slow
def test_the_search_finds_what_would_be_wrong_without_the_barrier_before_a_commit() -> None:
    found = problems(reachable(SUMS, BLOCKS))
    assert found["done again"] > 0
    assert found["stuck"] > 0


def test_a_new_worker_takes_its_state_from_its_host_though_others_come_first() -> None:
    reports = [halted("a", {0: 7, 1: 7}), halted("b", {2: 7})]
    assert choose_resume_point(TWO_HOSTS, reports).donors == {0: 0, 1: 1, 2: 2, 3: 2}


def test_the_order_of_reports_does_not_matter() -> None:
    reports = [halted("b", {3: 7, 2: 7}), halted("a", {1: 7})]
    start = choose_resume_point({**TWO_HOSTS, 4: "c", 5: "c"}, reports)
    again = choose_resume_point({**TWO_HOSTS, 4: "c", 5: "c"}, reports[::-1])
    assert start == again
    assert start.donors == {0: 1, 1: 1, 2: 2, 3: 3, 4: 2, 5: 3}


def test_what_is_left_of_a_rank_that_runs_elsewhere_now_is_not_taken() -> None:
    start = choose_resume_point(TWO_HOSTS, [left("a", {2: 9, 1: 7, 0: 7})])
    assert (start.step, start.donors) == (7, {0: 0, 1: 1, 2: 0, 3: 1})


def test_what_is_left_is_as_new_as_a_checkpoint_of_the_same_step() -> None:
    start = choose_resume_point(ONE_HOST, [left("a", {1: 4}, checkpoint=4)])
    assert (start.step, start.donors, start.checkpoint) == (4, {0: 1, 1: 1, 2: 1}, None)
