"""Which agents an engine is asked to start and to stop."""

import itertools

from holdfast.core.placement.replacing import (
    EARLY_S,
    JOIN_S,
    MARGIN_S,
    MAX_EARLY_ENDS,
    AgentPlace,
    PlaceState,
    Replacing,
)

RUNNING = AgentPlace(state=PlaceState.RUNNING, host="a")
ENDED = AgentPlace(state=PlaceState.ENDED, host="a", cause="killed")


def draining(deadline_unix_s=None):
    return AgentPlace(state=PlaceState.DRAINING, host="a", deadline_unix_s=deadline_unix_s)


def test_one_that_ends_is_replaced_under_another_name():
    agents = Replacing(2)
    assert agents.missing(0) == ["agent-1", "agent-2"]
    assert agents.missing(0) == []
    places = {"agent-1": RUNNING, "agent-2": ENDED}
    assert agents.look(places, 100) == {"agent-2": ENDED}
    assert agents.look(places, 100) == {}, "it is reported once"
    assert agents.missing(100) == ["agent-3"]


def test_those_that_end_at_once_are_started_more_and_more_slowly_and_then_no_more():
    agents, now, waits = Replacing(1), 0.0, []
    while not agents.has_given_up:
        while not (names := agents.missing(now)):
            now += 0.1
        waits.append(round(now, 1))
        now += 1
        agents.look({names[0]: ENDED}, now)
    assert len(waits) == MAX_EARLY_ENDS
    pauses = [later - sooner for sooner, later in itertools.pairwise(waits)]
    assert pauses == sorted(pauses)
    assert pauses[-1] > 2 * pauses[0]


def test_the_first_early_end_delays_nothing_and_each_further_one_doubles_the_delay():
    agents, delays, now = Replacing(1), [], 0.0
    (name,) = agents.missing(now)
    for _ in range(5):
        assert not agents.has_given_up
        now += 1.0
        agents.look({name: ENDED}, now)
        tries = ((later / 4, agents.missing(now + later / 4)) for later in range(100))
        delay, (name,) = next(each for each in tries if each[1])
        delays.append(delay)
        now += delay
    assert delays == [0.0, 0.5, 1.0, 2.0, 4.0]
    assert agents.has_given_up


def test_one_that_has_served_counts_as_no_early_end():
    agents, now = Replacing(1), 0.0
    for _ in range(2 * MAX_EARLY_ENDS):
        (name,) = agents.missing(now)
        now += EARLY_S + 1
        agents.look({name: ENDED}, now)
    assert not agents.has_given_up


def test_one_whose_host_is_taken_away_has_a_successor_before_it_is_stopped():
    agents = Replacing(1)
    agents.missing(0)
    places = {"agent-1": draining()}
    agents.look(places, 50)
    assert agents.missing(50) == ["agent-2"]
    assert agents.to_stop(places, 50 + 2 * JOIN_S, 0) == [], "the engine does not know it yet"
    places["agent-2"] = AgentPlace(state=PlaceState.PENDING)
    assert agents.to_stop(places, 50 + 2 * JOIN_S, 0) == [], "its successor has no host yet"
    places["agent-2"] = RUNNING
    assert agents.to_stop(places, 50 + JOIN_S - 1, 0) == []
    assert agents.to_stop(places, 50 + JOIN_S + 1, 0) == ["agent-1"]
    agents.look({**places, "agent-1": ENDED}, 70)
    assert agents.missing(70) == []


def test_one_without_a_successor_is_stopped_just_before_its_host_is_taken_away():
    agents = Replacing(1)
    agents.missing(0)
    places = {"agent-1": draining(1000.0)}
    agents.look(places, 50)
    assert agents.to_stop(places, 60, 1000 - MARGIN_S - 1) == []
    assert agents.to_stop(places, 60, 1000 - MARGIN_S + 1) == ["agent-1"]


def test_an_end_is_early_up_to_a_limit_and_one_late_end_begins_the_count_again():
    agents, now = Replacing(1), 100.0
    for served_s in [1.0] * (MAX_EARLY_ENDS - 1) + [EARLY_S] + [1.0] * (MAX_EARLY_ENDS - 1):
        now += 100.0  # longer than any delay
        (name,) = agents.missing(now)
        now += served_s
        agents.look({name: ENDED}, now)
        assert not agents.has_given_up
    now += 100.0
    (name,) = agents.missing(now)
    agents.look({name: ENDED}, now + EARLY_S - 0.1)
    assert agents.has_given_up


def test_only_those_that_end_are_replaced_and_others_are_of_no_interest():
    agents = Replacing(3)
    agents.missing(0)
    places = {
        "agent-1": ENDED,
        "agent-2": AgentPlace(state=PlaceState.PENDING),
        "agent-3": draining(),
        "another": ENDED,
        "a guest": draining(),
    }
    assert agents.look(places, 100) == {"agent-1": ENDED}
    assert agents.missing(100) == ["agent-4", "agent-5"]
    assert agents.missing(100) == []


def test_one_that_leaves_and_ends_is_replaced_once():
    agents = Replacing(2)
    agents.missing(0)
    agents.look({"agent-1": draining(), "agent-2": RUNNING}, 100)
    assert agents.missing(100) == ["agent-3"]
    agents.look({"agent-1": ENDED, "agent-2": RUNNING, "agent-3": RUNNING}, 130)
    assert agents.missing(130) == []
    agents.look({"agent-2": ENDED, "agent-3": RUNNING}, 140)
    assert agents.missing(140) == ["agent-4"]


def test_the_time_to_join_counts_from_the_first_look_at_one_that_leaves():
    agents = Replacing(2)
    agents.missing(0)
    places = {"agent-1": draining(), "agent-2": RUNNING}
    for now in (50, 55, 60):
        agents.look(places, now)
    agents.missing(50)
    places["agent-3"] = RUNNING
    assert agents.to_stop(places, 50 + JOIN_S, 0) == []
    assert agents.to_stop(places, 50 + JOIN_S + 0.1, 0) == ["agent-1"]


def test_one_that_leaves_is_stopped_at_its_deadline_only_and_not_without_one():
    agents = Replacing(2)
    agents.missing(0)
    places = {"agent-1": draining(1000.0), "agent-2": draining()}
    agents.look(places, 50)
    assert agents.to_stop(places, 1000, 1000 - MARGIN_S) == []
    assert agents.to_stop(places, 1000, 1000 - MARGIN_S + 0.1) == ["agent-1"]
    assert agents.to_stop(places, 1000, 1e12) == ["agent-1"]


def test_a_place_knows_only_its_state_at_first():
    place = AgentPlace(state=PlaceState.PENDING)
    assert (place.host, place.cause, place.succeeded, place.deadline_unix_s) == (
        "",
        "",
        False,
        None,
    )


def test_during_a_delay_none_is_to_start():
    agents = Replacing(1)
    for now in (0, 10):
        (name,) = agents.missing(now)
        agents.look({name: ENDED}, now + 1)
    assert agents.missing(11) == []
    assert agents.missing(11.5) == ["agent-3"], "half a second later"
