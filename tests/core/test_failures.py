"""Who failed: which exits are expected, which are root causes, which other failures caused."""

import pytest

from holdfast.core.failures import (
    LEFT_STATUS,
    Exit,
    Report,
    describe,
    is_state_untrusted,
    judge,
    memory_advice,
    root_cause,
)
from holdfast.core.protocol import Failure
from holdfast.errors import BY_NAME, MEANINGS, OutOfMemory

RAISED = Report(error="ValueError", message="no such file", traceback="Traceback …")


def exit_of(status, **fields):
    return Exit(rank=1, status=status, **fields)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "exited 0"),
        (3, "exited 3"),
        (-9, "was killed by SIGKILL"),
        (-99, "was killed by signal 99"),
    ],
)
def test_an_exit_status_in_words(status, words):
    assert describe(status) == words


@pytest.mark.parametrize(
    ("status", "repeatable"), [(-9, False), (-15, False), (-11, True), (7, True)]
)
def test_only_what_a_process_does_to_itself_is_repeatable(status, repeatable):
    failure = judge(exit_of(status))
    assert failure == Failure(cause=describe(status), repeatable=repeatable)


def test_an_exception_of_user_code_is_repeatable_and_keeps_its_traceback():
    assert judge(exit_of(1, report=RAISED)) == Failure(
        cause="raised ValueError: no such file", traceback="Traceback …", repeatable=True
    )


@pytest.mark.parametrize("error", MEANINGS, ids=lambda error: error.__name__)
def test_every_error_of_ours_means_what_the_table_says(error):
    report = Report(error=error.__name__, message="so it was")
    failure = judge(exit_of(1, report=report, advice="lower batch"))
    meaning = MEANINGS[error]
    assert failure == Failure(
        cause="so it was" + (": lower batch" if error is OutOfMemory else ""),
        error=error.__name__ if meaning.fatal else "",
        fatal=meaning.fatal,
        repeatable=meaning.repeatable,
        state_untrusted=meaning.state_untrusted,
        is_cascading=meaning.is_cascading,
    )
    assert BY_NAME[error.__name__] is error


def test_the_seconds_of_a_hang_are_no_part_of_its_cause():
    assert judge(exit_of(-9, hung="did nothing for 3.0 s")) == Failure(
        cause="hung: it did nothing", repeatable=True
    )
    stopped = judge(exit_of(-9, hung="was stopped for 0.8 s"))
    assert stopped == Failure(cause="hung: it was stopped")


def test_a_kill_after_the_kernel_ran_out_of_memory_is_fatal_and_others_are_not():
    failure = judge(exit_of(-9, exhausted="this machine's memory", advice="lower batch"))
    assert failure.fatal
    assert failure.error == "OutOfMemory"
    assert failure.cause == "was OOM-killed (limit: this machine's memory): lower batch"
    assert not judge(exit_of(-11, exhausted="this machine's memory")).fatal


@pytest.mark.parametrize("after_failure", [False, True])
def test_a_worker_whose_shards_others_can_compute_is_capped_when_it_runs_out_of_memory(
    after_failure,
):
    refused = Report(error="OutOfMemory", message="so it was")
    for how in (
        {"status": -9, "exhausted": "this machine's memory"},
        {"status": 1, "report": refused},
    ):
        failure = judge(exit_of(**how, cap=3, advice="lower batch", after_failure=after_failure))
        assert (failure.error, failure.cap) == ("OutOfMemory", 3)
        assert not failure.fatal
        assert not failure.is_cascading


@pytest.mark.parametrize(
    ("batch", "shards", "advice"),
    [
        (64, 8, "set shards=16 for shards of 4 samples, not 8"),
        (60, 8, "set shards=15 for shards of 4 samples, not 8"),
        (64, 64, "lower batch"),
        (64, 0, "lower batch"),
    ],
)
def test_finer_shards_are_advised_while_there_are_any(batch, shards, advice):
    assert memory_advice(batch, shards).startswith(
        f"{advice}, or make the model smaller, in a new run"
    )


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (exit_of(-9), False),
        (exit_of(0), False),
        (exit_of(-9, cancelled=True), True),
        (exit_of(-9, cancelled=True, hung="did nothing for 3.0 s"), False),
        (exit_of(1, run_over=True), True),
        (exit_of(LEFT_STATUS), False),
        (exit_of(LEFT_STATUS, halting=True), True),
        (exit_of(1, halting=True), False),
        (exit_of(0, is_script=True), True),
        (exit_of(0, is_script=True, report=RAISED), False),
        (exit_of(5, is_script=True), False),
        (exit_of(5, is_script=True, stopping=True), True),
    ],
)
def test_which_exits_are_expected(end, expected):
    assert end.is_expected == expected


@pytest.mark.parametrize(
    ("end", "cascading"),
    [
        (exit_of(1), False),
        (exit_of(1, after_failure=True), True),
        (exit_of(1, after_failure=True, report=RAISED), True),
        (exit_of(-6, after_failure=True), True),
        (exit_of(0, after_failure=True), False),
        (exit_of(-9, after_failure=True), False),
        (exit_of(-9, after_failure=True, hung="did nothing for 3.0 s"), False),
        (exit_of(1, after_failure=True, report=Report(error="JobError", message="")), False),
        (exit_of(1, after_failure=True, report=Report(error="ReplicaError", message="")), False),
        (exit_of(1, report=Report(error="NoStateError", message="")), True),
    ],
)
def test_which_failures_another_failure_has_caused(end, cascading):
    assert judge(end).is_cascading == cascading


def test_the_root_cause_is_the_first_failure_that_no_other_has_caused():
    caused, killed = Failure(cause="exited 1", is_cascading=True), Failure(cause="was killed")
    assert root_cause({0: caused, 3: killed, 1: killed}) == (3, killed)
    assert root_cause({0: caused}) is None


def test_one_failure_may_leave_no_state_to_be_trusted():
    killed = Failure(cause="was killed")
    wrong = Failure(cause="has another weight", state_untrusted=True)
    assert is_state_untrusted({0: killed, 1: wrong})
    assert not is_state_untrusted({0: killed})
    assert not is_state_untrusted({})
