"""The coordinator's debug log, and the machine's table of transitions, which it checks."""

import pytest

from holdfast.core.actions import (
    AppendToJournal,
    GenerationOpened,
    ProbeHost,
    RefuseHost,
    RunEnded,
    SendDesiredState,
)
from holdfast.core.coordinator import CoordinatorStateMachine
from holdfast.core.debug_log import DebugLog, action_in_words, check, event_in_words
from holdfast.core.events import (
    AgentLost,
    Disconnected,
    ProbeCompleted,
    ProgressRequested,
    StatusReceived,
    Tick,
)
from holdfast.core.policy import RecoveryPolicy
from holdfast.core.protocol import (
    Cap,
    CheckpointResult,
    DesiredState,
    Draft,
    Eviction,
    Failure,
    Probe,
    ResumePoint,
    Stage,
    Standby,
    Status,
    StoredCheckpoint,
)


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


def test_a_new_generation_at_the_same_stage_is_checked():
    log = log_of()
    log.handle(joined(), 1.0)
    log.machine.check_invariants = lambda: 1 / 0
    log.handle(Tick(), 1.5)
    log.handle(joined(), 1.6)
    failed = {0: Failure(cause="was killed")}
    with pytest.raises(ZeroDivisionError):
        log.handle(joined(number=2, generation=1, stage=Stage.HALT, failed=failed), 2.0)


SLOW = Eviction(rank=2, reason="compute", step=5, threshold_s=0.2, step_s=1.0)
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
        (
            joined(
                generation=2,
                stage=Stage.RUN,
                eviction=SLOW,
                fit=frozenset({5, 4}),
                finished=frozenset({3, 0}),
                draft=Draft(number=1, step=4),
                stop=True,
            ),
            (
                "a reports RUN in generation 2, rank 2 must go to standby, fit [4, 5], "
                "finished [0, 3], checkpoint of step 4 written, stopping"
            ),
        ),
        (
            joined(generation=2, stage=Stage.HALT, left={1: 7}, lost_checkpoint=True),
            "a reports HALT in generation 2, left {1: 7}, lost a checkpoint",
        ),
        (ProbeCompleted(3, is_reached=True), "probe 3 was accepted"),
        (ProbeCompleted(3, is_reached=False), "probe 3 was not answered"),
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


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (AppendToJournal(RunEnded("")), "record the end"),
        (AppendToJournal(RunEnded("rank 0 was killed")), "record the end: rank 0 was killed"),
        (
            AppendToJournal(
                GenerationOpened(
                    3,
                    {0: "a", 1: "b"},
                    restart_all=True,
                    standbys={2: Standby(host="b", eviction=SLOW)},
                )
            ),
            "record generation 3 {0: a, 1: b}, all restart, standbys [2]",
        ),
        (RefuseHost("b", "another driver"), "refuse b: another driver"),
        (ProbeHost(Probe(4, "b", "b:9")), "probe b at b:9 (probe 4)"),
    ],
)
def test_an_action_in_words(action, words):
    assert action_in_words(action) == words


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"stage": Stage.END}, "END in generation 3"),
        ({"stage": Stage.END, "reason": "was fenced"}, "END in generation 3, was fenced"),
        (
            {"stage": Stage.HALT, "ranks": (0, 1), "standbys": {2: SLOW}, "restart_all": True},
            "HALT in generation 3, ranks [0, 1], standbys [2], all restarted",
        ),
        (
            {
                "stage": Stage.RUN,
                "restart_all": True,
                "resume_point": ResumePoint(step=7, donors={}),
                "requested_checkpoint": 2,
                "checkpoint_result": CheckpointResult(generation=3, number=1, step=4),
                "stop": True,
            },
            "RUN in generation 3, from step 7, checkpoint 2, checkpoint of step 4 committed, stop",
        ),
        (
            {
                "stage": Stage.RUN,
                "checkpoint_result": CheckpointResult(
                    generation=3, number=1, step=4, error="disk full"
                ),
            },
            "RUN in generation 3, checkpoint of step 4 failed: disk full",
        ),
    ],
)
def test_a_desired_state_in_words(fields, words):
    action = SendDesiredState("a", DesiredState(generation=3, **fields))
    assert action_in_words(action) == f"ask a for {words}"
