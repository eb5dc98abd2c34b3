"""Who is suspected, and when."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.heartbeats import Heartbeats


def watched(gaps: list[float]) -> tuple[Heartbeats, float]:
    beats, now = Heartbeats(interval_s=1.0, floor_s=3.0), 0.0
    beats.record("a", now)
    for gap in gaps:
        now += gap
        beats.record("a", now)
    return beats, now


def test_a_silent_host_is_suspected_once() -> None:
    beats, now = watched([1.0] * 20)
    assert beats.suspects(now + 2.9) == []
    assert beats.suspects(now + 3.1) == ["a"]
    assert beats.suspects(now + 9.0) == []


def test_who_is_usually_late_is_given_longer() -> None:
    regular, _ = watched([1.0] * 40)
    erratic, _ = watched([0.2, 4.0] * 20)
    assert erratic.suspects(1e3) == regular.suspects(1e3) == ["a"]
    regular, end = watched([1.0] * 40)
    erratic, late_end = watched([0.2, 4.0] * 20)
    assert erratic.deadline_of("a") - late_end > 2 * (regular.deadline_of("a") - end)


def test_a_lost_connection_shortens_the_wait_until_the_host_is_heard() -> None:
    beats, now = watched([1.0] * 5)
    beats.shorten_deadline("a", now + 0.5)
    due = beats.next_deadline()
    assert due is not None
    assert due <= now + 0.5
    beats.record("a", now + 0.4)
    assert beats.suspects(now + 0.6) == []
    beats.shorten_deadline("a", now + 1.0)
    assert beats.suspects(now + 1.0) == ["a"]


@given(st.lists(st.floats(0.01, 2.9), min_size=1, max_size=30))
def test_a_host_that_was_at_rest_is_known_as_if_it_had_not_been(gaps: list[float]) -> None:
    told, _ = watched(gaps)
    rested, _ = watched([])
    rested.pause("a")
    assert rested.suspects(1e3) == [], "nobody waits for it"
    assert rested.next_deadline() is None
    rested.resume("a", itertools.accumulate(gaps))
    assert rested.deadline_of("a") == told.deadline_of("a")
    assert rested.suspects(1e3) == ["a"]


def test_hosts_that_lose_their_connections_together_are_lost_together() -> None:
    beats = Heartbeats(interval_s=1.0, floor_s=3.0)
    for host in "abcd":
        beats.record(host, 0.0)
    for host, deadline in (("a", 1.0), ("b", 1.05), ("c", 1.5)):
        beats.shorten_deadline(host, deadline)
    assert beats.suspects(0.95) == []
    assert beats.suspects(1.0) == ["a", "b"]
    assert beats.suspects(1.45) == []
    assert beats.suspects(2.95) == ["c"], "nobody is suspected early for being silent"
    assert beats.suspects(3.0) == ["d"]


@given(st.lists(st.floats(0.01, 2.9), max_size=30))
def test_nobody_is_suspected_within_the_floor(gaps: list[float]) -> None:
    beats, now = Heartbeats(interval_s=1.0, floor_s=3.0), 0.0
    beats.record("a", now)
    for gap in gaps:
        now += gap
        assert beats.suspects(now) == []
        beats.record("a", now)
    assert beats.suspects(beats.deadline_of("a")) == ["a"]


def test_no_one_is_woken_for_hosts_that_were_heard_since() -> None:
    beats = Heartbeats(interval_s=1.0, floor_s=3.0)
    for host in ("a", "b"):
        beats.record(host, 0.0)
    beats.record("a", 1.0)
    assert beats.next_deadline() == 3.0 == beats.deadline_of("b")
    beats.record("b", 2.0)
    assert beats.next_deadline() == 4.0 == beats.deadline_of("a")
    beats.remove("a")
    assert beats.next_deadline() == 5.0
    assert beats.suspects(5.0) == ["b"]
    assert beats.next_deadline() is None


@pytest.mark.parametrize(
    ("gaps", "patience"),
    [
        ([], 2.0),  # a quarter of the interval is taken for its deviation
        ([1.0], 1.75),
        ([0.1], 1.75),  # an early report counts as one interval
        ([3.0], 4.0),
        ([1.0, 1.0], 1.5625),
        ([3.0, 1.0], 3.53125),
    ],
)
def test_the_deadline_is_the_mean_gap_and_four_deviations(
    gaps: list[float], patience: float
) -> None:
    beats = Heartbeats(interval_s=1.0, floor_s=0.5)
    for time in itertools.accumulate(gaps, initial=0.0):
        beats.record("a", time)
    assert beats.deadline_of("a") - sum(gaps) == pytest.approx(patience)
    floored = Heartbeats(interval_s=1.0, floor_s=10.0)
    floored.record("a", 5.0)
    assert floored.deadline_of("a") == 15.0


def test_a_host_that_is_not_known_is_not_suspected() -> None:
    beats, now = watched([])
    beats.shorten_deadline("b", now)
    beats.remove("b")
    beats.remove("a")
    beats.shorten_deadline("a", now)
    beats.resume("a", [1.0])
    assert beats.next_deadline() is None
    assert beats.suspects(1e3) == []


def test_a_lost_connection_that_is_known_before_the_deadline_moves_it_to_no_later_time() -> None:
    beats, now = watched([1.0] * 5)
    beats.shorten_deadline("a", now + 50.0)
    assert beats.deadline_of("a") == now + 3.0
    assert beats.suspects(now + 3.0) == ["a"]


def test_a_host_that_is_heard_again_may_be_suspected_again() -> None:
    beats, now = watched([1.0] * 5)
    assert beats.suspects(now + 3.0) == ["a"]
    assert beats.next_deadline() is None
    beats.record("a", now + 4.0)
    due = beats.deadline_of("a")
    assert beats.next_deadline() == due
    assert beats.suspects(due) == ["a"]
