"""The coordinator's debug log, and the machine's table of transitions, which it checks."""

import pytest

from holdfast.core.actions import AppendToJournal, GenerationOpened
from holdfast.core.coordinator import CoordinatorStateMachine
from holdfast.core.debug_log import DebugLog, action_in_words, check, event_in_words
from holdfast.core.events import AgentLost, Disconnected, ProgressRequested, StatusReceived, Tick
from holdfast.core.policy import RecoveryPolicy
from holdfast.core.protocol import Cap, Draft, Failure, Stage, Status, StoredCheckpoint


def log_of(workers=1, most=100):
    policy = RecoveryPolicy(world_size=workers, min_workers=workers)
    return DebugLog(CoordinatorStateMachine(policy, [], 0.0), most)


def joined(host="a", number=1, **fields):
    return StatusReceived(Status(host=host, number=number, capacity=1, **fields))


def test_an_entry_has_the_event_the_time_and_what_came_of_it():
    log = log_of()
    actions = log.handle(joined(), 2.0)
    (entry,) = log.entries
    assert (entry.now, entry.event, entry.actions) == (2.0, joined(), tuple(actions))
    assert (entry.generation, entry.stage) == (1, Stage.HALT)


def test_the_log_is_bounded_and_keeps_the_newest_entries():
    log = log_of(most=3)
    for number in range(1, 8):
        log.handle(Tick(), float(number))
    assert [entry.now for entry in log.entries] == [5.0, 6.0, 7.0]


def test_the_log_has_a_line_an_event_and_its_actions_below():
    log = log_of()
    log.handle(joined(), 2.0)
    log.handle(Tick(), 3.5)
    assert list(log.in_words()) == [
        "       0.000  HALT 1      a reports IDLE in generation 0, capacity 1",
        "                          → record generation 1 {0: a}",
        "                          → ask a for HALT in generation 1, ranks [0]",
        "       1.500  HALT 1      Tick",
    ]


def test_an_event_that_the_machine_fails_with_is_the_last_one():
    log = log_of()
    log.machine.check_invariants = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        log.handle(joined(), 1.0)
    assert log.entries[-1].event == joined()
    assert log.error == "ZeroDivisionError('division by zero')"
    *_, last = log.in_words()
    assert last == "              the state machine failed: ZeroDivisionError('division by zero')"


def test_a_transition_that_is_not_in_the_table_is_refused():
    machine = log_of().machine
    machine.stage = Stage.END
    with pytest.raises(AssertionError, match="ProgressRequested led from RUN to END"):
        check(machine, Stage.RUN, ProgressRequested())
    machine.stage = Stage.RUN
    with pytest.raises(AssertionError, match="Tick led from END to RUN"):
        check(machine, Stage.END, Tick())


KILLED = Failure(cause="was killed", is_cascading=True)
FAILED = {2: Failure(cause="was killed"), 1: KILLED}


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (joined(), "a reports IDLE in generation 0, capacity 1"),
        (
            joined(generation=3, stage=Stage.HALT, failed=FAILED, committed={0: 7}, reduced_step=8),
            (
                "a reports HALT in generation 3, rank 2 was killed, rank 1 was killed (cascading), "
                "committed 0: 7, reduced step 8"
            ),
        ),
        (Disconnected("a"), "a is disconnected"),
        (AgentLost("a"), "a is lost"),
        (
            joined(draft=Draft(number=1, step=4, error="full")),
            "a reports IDLE in generation 0, capacity 1, checkpoint of step 4 not written: full",
        ),
        (
            joined(newest_checkpoint=StoredCheckpoint(step=4, name="step-4")),
            "a reports IDLE in generation 0, capacity 1, has step-4",
        ),
        (Tick(), "Tick"),
    ],
)
def test_an_event_in_words(event, words):
    assert event_in_words(event) == words


def test_actions_in_words():
    log = log_of()
    assert [action_in_words(action) for action in log.handle(joined(), 1.0)] == [
        "record generation 1 {0: a}",
        "ask a for HALT in generation 1, ranks [0]",
    ]
    caps = {1: Cap(host="a", shards=2)}
    recorded = action_in_words(AppendToJournal(GenerationOpened(2, {0: "a"}, caps=caps)))
    assert recorded == "record generation 2 {0: a}, rank 1 capped at 2"
