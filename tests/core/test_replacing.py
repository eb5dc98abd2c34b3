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
