"""When a run ends because it has failed too often, or again and again without progress."""

import dataclasses

import pytest

from holdfast.core.policy import RecoveryPolicy
from holdfast.core.protocol import Failure
from holdfast.core.restart_budget import RestartBudget, SlidingWindow

POLICY = RecoveryPolicy(world_size=3, min_workers=3)
WRONG = Failure(cause="has another weight", repeatable=True, state_untrusted=True)


def test_a_rank_that_goes_wrong_from_one_checkpoint_on_ends_the_run_whatever_the_step():
    failures = RestartBudget(POLICY, 0.0)
    assert not failures.on_failure(2, WRONG, 40, 1.0)
    assert not failures.on_failure(2, dataclasses.replace(WRONG, cause="step 50"), 40, 70.0)
    last = dataclasses.replace(WRONG, cause="step 60")
    reason = failures.on_failure(2, last, 40, 140.0)
    assert reason == "rank 2 step 60; 3 failures without a checkpoint in between"


def test_failures_without_a_step_count_together_whatever_their_messages_and_ranks():
    budget = RestartBudget(POLICY, 0.0)
    assert not budget.on_failure(0, Failure(cause="raised KeyError: 7", repeatable=True), 5, 1.0)
    assert not budget.on_failure(1, Failure(cause="was killed by SIGKILL"), 5, 2.0)
    assert not budget.on_failure(1, Failure(cause="raised ValueError: a", repeatable=True), 5, 3.0)
    reason = budget.on_failure(2, Failure(cause="raised ValueError: b", repeatable=True), 5, 4.0)
    assert reason == "rank 2 raised ValueError: b; 3 failures without a step in between"


def test_a_step_in_between_begins_a_new_count():
    budget = RestartBudget(POLICY, 0.0)
    raised = Failure(cause="raised ValueError: a", repeatable=True)
    for step in (5, 5, 6, 6, 7, 7):
        assert not budget.on_failure(0, raised, step, 1.0)


@pytest.mark.parametrize(("rank", "start"), [(1, 40), (2, 50)])
def test_another_rank_or_a_newer_checkpoint_is_not_the_same_failure(rank, start):
    failures = RestartBudget(POLICY, 0.0)
    for _ in range(2):
        assert not failures.on_failure(2, WRONG, 40, 1.0)
    assert not failures.on_failure(rank, WRONG, start, 2.0)


def test_the_budget_forgets_old_failures() -> None:
    budget = SlidingWindow(max_failures=2, window_s=10.0)
    assert budget.admit(0.0)
    assert budget.admit(1.0)
    assert budget.admit(10.5), "the first is forgotten"
    assert not budget.admit(10.6)


def test_a_failure_is_forgotten_after_the_whole_window() -> None:
    budget = SlidingWindow(max_failures=1, window_s=10.0)
    assert budget.admit(0.0)
    assert not budget.admit(9.5)
    assert budget.admit(19.5)


@pytest.mark.parametrize(
    ("max_failures", "reason"),
    [
        (0, "b was lost"),
        (1, "b was lost; restart budget exhausted: more than 1 failures in 60 s"),
        (2, ""),
    ],
)
def test_a_run_ends_after_more_losses_than_it_tolerates(max_failures, reason):
    policy = dataclasses.replace(POLICY, max_failures=max_failures, window_s=60.0)
    budget = RestartBudget(policy, 0.0)
    if max_failures:
        assert budget.on_loss("a was lost", 1.0) == ""
    assert budget.on_loss("b was lost", 2.0) == reason


RAISED = Failure(cause="raised ValueError: a", repeatable=True)


def test_where_steps_are_not_known_only_failures_soon_after_the_start_are_repeats():
    policy = dataclasses.replace(POLICY, max_repeats=1, repeat_window_s=10.0)
    budget = RestartBudget(policy, 0.0)
    assert not budget.on_failure(0, RAISED, None, 9.0)
    budget.on_resumed(20.0)
    assert not budget.on_failure(0, RAISED, None, 30.0)  # it worked for long enough
    budget.on_resumed(40.0)
    assert budget.on_failure(0, RAISED, None, 49.9) == (
        "rank 0 raised ValueError: a; 2 failures within 10 s of the start"
    )


@pytest.mark.parametrize(
    ("max_repeats", "restart_all", "reason"),
    [
        (0, False, ""),
        (1, False, "rank 1 raised ValueError: a; 2 failures without a step in between"),
        (1, True, "rank 1 raised ValueError: a; 2 failures without a checkpoint in between"),
        (2, False, ""),
    ],
)
def test_a_run_tolerates_so_many_failures_without_progress(max_repeats, restart_all, reason):
    policy = dataclasses.replace(POLICY, max_repeats=max_repeats, restart_all=restart_all)
    budget = RestartBudget(policy, 0.0)
    assert not budget.on_failure(0, RAISED, 5, 1.0)
    assert budget.on_failure(1, RAISED, 5, 2.0) == reason


def test_a_failure_from_outside_is_no_reason_to_end():
    budget = RestartBudget(dataclasses.replace(POLICY, max_repeats=1), 0.0)
    reasons = [budget.on_failure(0, Failure(cause="was killed"), 5, 1.0) for _ in range(5)]
    assert reasons == [""] * 5
