"""Who may have committed the interrupted step, and who gives it to whom."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from holdfast.core.protocol import ResumePoint, Stage, Status, StoredCheckpoint
from holdfast.core.resume_point import choose_resume_point


def halted(host: str, committed: dict[int, int], reduced_step: int = 0) -> Status:
    return Status(
        host=host, number=1, stage=Stage.HALT, committed=committed, reduced_step=reduced_step
    )


ONE_HOST = {0: "a", 1: "a", 2: "a"}
TWO_HOSTS = {0: "a", 1: "a", 2: "b", 3: "b"}


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


def reachable(hosts: str) -> Iterator[dict[str, tuple[bool, bool]]]:
    """Whether each host can complete a step and has committed it, wherever the step may be.

    A host can complete it once it has the sums of all others, and commits once all can complete.
    """
    for complete in itertools.product((False, True), repeat=len(hosts)):
        for committed in itertools.product((False, True), repeat=len(hosts)):
            if all(complete) or not any(committed):
                yield dict(zip(hosts, zip(complete, committed, strict=True), strict=True))


def test_whatever_hosts_are_lost_the_others_agree_with_what_they_have_committed() -> None:
    members = dict(enumerate("abcabc"))
    for state, survivors in itertools.product(reachable("abc"), ("a", "c", "ab", "bc", "abc")):
        statuses = [
            halted(
                host,
                {rank: 7 + state[host][1] for rank, place in members.items() if place == host},
                reduced_step=8 if state[host][0] else 0,
            )
            for host in survivors
        ]
        start = choose_resume_point(members, statuses)
        if any(committed for _, committed in state.values()):
            assert start.step == 8, (state, survivors)
        for rank, host in members.items():
            if host in survivors:  # none needs the state of another host
                assert start.donors[rank] == rank, (state, survivors)
