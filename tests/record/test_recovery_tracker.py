"""Recovery reports: how they result from the events of a run, and their text."""

from pathlib import Path

import pytest

from holdfast.record import recovery_reports
from holdfast.record.recovery_tracker import RecoveryTracker

LOGS = Path("run/logs")


def event(at, name, **fields):
    return {"time_unix_s": float(at), "event": name, **fields}


def step(at, number, samples=20):
    return {"time_unix_s": float(at), "step": number, "samples": samples}


def started(at, rank, pid=None):
    return event(at, "worker-started", rank=rank, pid=pid or 100 + rank)


def exited(at, rank, cause, status, pid=None, **fields):
    known = {"rank": rank, "pid": pid or 100 + rank, "unexpected": True, "error": "", **fields}
    return event(at, "worker-exited", cause=cause, status=status, **known)


def killed(at, rank, **fields):
    return exited(at, rank, "was killed by SIGKILL", -9, **fields)


def generation(at, number, members, *, at_step, last_committed_step=0, from_checkpoint=False):
    fields = {"number": number, "members": members, "step": at_step}
    fields |= {"last_committed_step": last_committed_step, "from_checkpoint": from_checkpoint}
    return event(at, "generation-started", **fields)


def run_of(workers, steps):
    """A run's first events, and the lines of its first steps, one a second."""
    ranks = range(workers)
    return [
        event(0, "run-started", workers=workers),
        *(started(0.5, rank) for rank in ranks),
        generation(1, 1, [*ranks], at_step=0, from_checkpoint=True),
    ], [step(1 + number, number) for number in range(1, steps + 1)]


def track(entries, steps=(), workers=4, done=5):
    """The reports of a run of 5 steps, after which these events came."""
    events, before = run_of(workers, done)
    return RecoveryTracker().see([*events, *entries], [*before, *steps])


def test_a_worker_that_is_replaced():
    [report] = track(
        [killed(6.1, 1), started(6.2, 1, pid=200), generation(6.4, 2, [0, 1, 2, 3], at_step=5)],
        [step(6.7, 6)],
    )
    assert recovery_reports.text(report, LOGS).splitlines() == [
        "── recovery 1, after step 5 ── rank 1 was killed by SIGKILL",
        "   others      ranks 0, 2 and 3 halted and kept their state",
        "   time        0.60 s: forked 0.10, all ready 0.20, next step 0.30",
        "   recomputed  0 steps, 0 samples",
    ]
    assert (report.number, report.outcome, report.time_unix_s) == (1, "recovered", 6.7)


def test_loading_the_checkpoint_of_a_restart_is_a_phase():
    [report] = track(
        [killed(6.1, 1), generation(6.4, 2, [0, 1, 2, 3], at_step=4, from_checkpoint=True)],
        [{**step(6.9, 5), "loaded": {"time_unix_s": 6.6}}],
    )
    assert dict(report.seconds) == {"all ready": 0.3, "loaded": 0.2, "next step": 0.3}
    assert (report.checkpoint, report.recomputed_steps) == (4, 1)


def test_a_host_that_does_not_answer_is_a_failure_of_its_workers():
    [report] = track(
        [
            event(8, "host-lost", host="node-2", ranks=[2, 3]),
            generation(8.1, 2, [0, 1], at_step=5),
        ],
        [step(8.4, 6)],
    )
    assert recovery_reports.text(report, LOGS).splitlines() == [
        "── recovery 1, after step 5 ── the host node-2 does not answer",
        "   others      ranks 2 and 3 were ended; ranks 0 and 1 halted and kept their state",
        "   time        0.40 s: all ready 0.10, next step 0.30",
        "   recomputed  0 steps, 0 samples",
    ]


def test_a_script_that_has_made_no_step_has_recovered_once_it_restarts():
    events, _ = run_of(2, 0)
    went = [
        killed(6.1, 1),
        exited(6.2, 0, "exited 3", 3, unexpected=False),
        started(6.3, 0, pid=200),
    ]
    release = generation(6.4, 2, [0, 1], at_step=0, from_checkpoint=True)
    [report] = RecoveryTracker(waits_for_steps=False).see([*events, *went, release], [])
    assert recovery_reports.text(report, LOGS).splitlines() == [
        "── recovery 1 ── rank 1 was killed by SIGKILL",
        "   others      rank 0 was ended",
        "   time        0.30 s: forked 0.20, all ready 0.10",
        "   then        the script restarted",
    ]


def test_a_script_that_reports_resumes_where_it_says():
    events, _ = run_of(2, 0)
    steps = [step(2 + n / 10, n, samples=100) for n in range(10, 41, 10)]  # every tenth
    resumed = generation(6.4, 2, [0, 1], at_step=0, last_committed_step=40, from_checkpoint=True)
    news = [*events, killed(6.1, 1), resumed]
    [report] = RecoveryTracker(waits_for_steps=False).see(news, [*steps, step(7, 21, samples=10)])
    assert (report.outcome, report.step, report.checkpoint) == ("recovered", 40, 20)
    assert (report.recomputed_steps, report.recomputed_samples) == (20, 200)


def test_an_injected_fault_is_named_and_timed_from_its_injection():
    [report] = track(
        [
            event(6.0, "fault-injected", kind="kill", rank=1, step=5),
            event(1.5, "fault-injected", kind="slow", rank=2, step=0),
            killed(6.1, 1),
            killed(6.1, 2),
            generation(6.4, 2, [0, 3], at_step=5),
        ],
        [step(6.7, 6)],
    )
    assert [cause.injected_fault for cause in report.causes] == ["kill", ""]
    assert dict(report.seconds) == {"found": 0.1, "all ready": 0.3, "next step": 0.3}
    assert report.total_s == 0.7
    told = recovery_reports.text(report, LOGS).splitlines()
    assert told[0].endswith("rank 1 was killed by SIGKILL (injected fault: kill)")
    assert told[1] == "   and         rank 2 was killed by SIGKILL"


RAISED = {"cause": "raised RuntimeError: Connection closed by peer", "status": 1}


@pytest.mark.parametrize(
    "cascading",
    [
        [exited(6.2, rank, unexpected=False, **RAISED) for rank in (0, 2, 3)],
        [killed(6.2, rank, unexpected=False) for rank in (0, 2, 3)],
        [exited(6.2, rank, "was killed by SIGABRT", -6, unexpected=False) for rank in (0, 2, 3)],
    ],
)
def test_of_a_failure_with_three_cascading_ones_only_the_root_cause_is_named(cascading):
    anew = [started(6.3, rank, pid=200 + rank) for rank in range(4)]
    release = generation(
        6.5, 2, [0, 1, 2, 3], at_step=4, last_committed_step=5, from_checkpoint=True
    )
    [report] = track([killed(6.1, 1), *cascading, *anew, release], [step(6.7, 5, samples=20)])
    assert [cause.who for cause in report.causes] == ["rank 1"]
    assert (report.ended, report.halted) == ((0, 2, 3), ())
    assert (report.checkpoint, report.recomputed_steps, report.recomputed_samples) == (4, 1, 20)


def test_a_kill_during_a_recovery_is_a_root_cause_and_so_is_a_failure_of_a_replacement():
    [report] = track(
        [
            killed(6.1, 1),
            killed(6.2, 2),
            started(6.3, 1, pid=201),
            started(6.3, 2, pid=202),
            exited(6.4, 1, pid=201, **RAISED),
            started(6.5, 1, pid=203),
            generation(6.6, 4, [0, 1, 2, 3], at_step=5),
        ],
        [step(6.7, 6)],
    )
    assert [cause.who for cause in report.causes] == ["rank 1", "rank 2", "rank 1"]
    assert (report.ended, report.halted) == ((), (0, 3))


def test_a_failure_between_resume_and_the_next_step_belongs_to_the_same_report():
    events = [
        killed(6.1, 1),
        generation(6.2, 2, [0, 2, 3], at_step=5),
        killed(6.3, 2),
        generation(6.4, 3, [0, 3], at_step=5),
    ]
    [report] = track(events, [step(6.7, 6)])
    assert len(report.causes) == 2
    first, second = track(events, [step(6.25, 6), step(6.7, 7)])
    assert (first.number, first.total_s, second.number) == (1, 0.15, 2)
    assert second.halted == (0, 3)


def test_a_lost_host_takes_its_workers_along_and_the_fork_server_its_agent():
    [report] = track(
        [
            event(6.1, "fork-server-exited", pid=1, status=-9, cause="was killed by SIGKILL"),
            event(6.1, "agent-exited", pid=2, status=-9, cause="was killed by SIGKILL"),
            *(started(8, rank, pid=200 + rank) for rank in range(4)),
            generation(
                8.5, 2, [0, 1, 2, 3], at_step=2, last_committed_step=0, from_checkpoint=True
            ),
        ],
        [step(8.7, 3)],
    )
    assert [cause.who for cause in report.causes] == ["fork-server"]
    assert " the fork server was killed by SIGKILL" in recovery_reports.text(report, LOGS)
    assert (report.ended, report.checkpoint) == ((0, 1, 2, 3), 2)
    assert (report.recomputed_steps, report.recomputed_samples) == (3, 60)
    assert recovery_reports.text(report, LOGS).splitlines()[3:] == [
        "   resumed     from the checkpoint of step 2",
        "   recomputed  3 steps, 60 samples",
    ]


def test_a_rejected_checkpoint_shows_in_the_step_from_which_all_resumed():
    release = generation(
        6.5, 2, [0, 1, 2, 3], at_step=4, last_committed_step=5, from_checkpoint=True
    )
    [report] = track([killed(6.1, 1), release], [step(6.7, 1)])
    assert (report.checkpoint, report.recomputed_steps) == (0, 5)
    assert "   resumed     from the start" in recovery_reports.text(report, LOGS)


def test_a_worker_that_exits_while_a_coordinator_is_away_is_a_root_cause():
    [report] = track(
        [
            event(6.1, "coordinator-exited", pid=1, status=-9, cause="was killed by SIGKILL"),
            exited(6.3, 1, "exited 5", 5),
            started(6.9, 1, pid=200),
            generation(7.1, 2, [0, 1, 2, 3], at_step=5),
        ],
        [step(7.4, 6)],
    )
    assert [cause.who for cause in report.causes] == ["coordinator", "rank 1"]
    assert report.ended == ()


def test_the_loss_of_a_coordinator_affects_no_worker():
    [report] = track(
        [
            event(6.1, "coordinator-exited", pid=1, status=-9, cause="was killed by SIGKILL"),
            event(6.9, "coordinator-recovered", generation=1),
        ],
        [step(6.5, 6), step(7, 7)],
    )
    assert recovery_reports.text(report, LOGS).splitlines()[1:3] == [
        "   others      no other worker was affected",
        "   time        0.80 s: back 0.80",
    ]


def test_a_hang_is_reported_with_its_stack_and_timed_from_its_detection():
    frames = [f'File "mine.py", line {n} in f' for n in range(5)]
    [report] = track(
        [
            event(6.0, "worker-hung", rank=1, pid=101, reason="did nothing for 1.5 s"),
            event(6.1, "worker-stack", rank=1, pid=101, frames=frames),
            exited(6.1, 1, "hung: it did nothing", -9),
            generation(6.4, 2, [0, 2, 3], at_step=5),
        ],
        [step(6.7, 6)],
    )
    told = recovery_reports.text(report, LOGS).splitlines()
    assert told[0].endswith("rank 1 hung: it did nothing for 1.5 s")
    assert told[1] == f"   stack       {frames[0]}"
    assert told[5:7] == [
        f"               {frames[4]}",
        "               … all threads: run/logs/rank-1.stacks",
    ]
    assert report.total_s == pytest.approx(0.7)


def observed(at, rank, doing, waits_for=(), frames=(), number=1):
    more = {"waits_for": [*waits_for]} if waits_for else {}
    fields = {"rank": rank, "pid": 100 + rank, "generation": number, "doing": doing, **more}
    return event(at, "worker-observed", **fields, frames=[*frames])


def hang(*seen):
    """The report of a hang of rank 1, and the lines about where the workers were."""
    [report] = track(
        [
            observed(2.0, 0, "late from an earlier recovery"),
            event(6.0, "worker-hung", rank=1, pid=101, reason="was stopped for 1.5 s"),
            *seen,
            exited(6.1, 1, "hung: it was stopped", -9),
            generation(6.4, 2, [0, 1, 2, 3], at_step=5),
        ],
        [step(6.7, 6)],
    )
    first, *others = recovery_reports.text(report, LOGS).splitlines()[1:-3]
    assert first == "   stack       none: the worker could not write it"
    return report, others


def test_a_hang_is_reported_with_who_was_missing_and_who_waited():
    summing = "summing the gradient of step 6"
    report, lines = hang(
        observed(6.0, 0, summing, [1], ['File "mine.py", line 9 in main']),
        observed(6.0, 1, "running the task's code in step 6"),
        observed(6.0, 2, summing, [1], ['File "mine.py", line 9 in main']),
        observed(6.0, 3, "saving the checkpoint of step 5"),
    )
    assert report.missing == (1,)
    assert [each.rank for each in report.whereabouts] == [0, 1, 2, 3]
    assert lines == [
        "   missing     rank 1 was running the task's code in step 6",
        "   waiting     ranks 0 and 2 were summing the gradient of step 6, and waited for rank 1",
        '               at File "mine.py", line 9 in main',
        "   meanwhile   rank 3 was saving the checkpoint of step 5",
    ]


def test_of_a_silent_host_all_ranks_are_missing_that_nobody_has_observed():
    summing = "summing the gradient of step 6"
    seen = [observed(6.2, rank, summing, [2, 3]) for rank in (0, 1)]
    lost = event(6.1, "host-lost", host="reef-2", ranks=[2, 3])
    [report] = track([lost, *seen, generation(6.4, 2, [0, 1], at_step=5)], [step(6.7, 6)])
    assert report.missing == (2, 3)
    said = recovery_reports.text(report, LOGS)
    assert "   missing     ranks 2 and 3\n" in said


def test_a_death_is_reported_without_where_the_others_were():
    seen = observed(6.0, 0, "summing the gradient of step 6", [1])
    [report] = track([killed(6.1, 1), seen, generation(6.4, 2, [0], at_step=5)], [step(6.7, 6)])
    assert report.whereabouts == ()


def test_the_stacks_of_a_script_say_who_was_missing():
    torch = 'File "/lib/python3/site-packages/torch'
    reducing = [f'{torch}/distributed/distributed_c10d.py", line 2806 in all_reduce',
                f'{torch}/distributed/c10d_logger.py", line 81 in wrapper']  # fmt: skip
    backward = [f'{torch}/autograd/graph.py", line 829 in _engine_run_backward']
    report, _ = hang(
        observed(6.0, 0, "running the script", frames=reducing),
        observed(6.0, 1, "running the script"),
        observed(6.0, 2, "running the script", frames=['File "mine.py", line 9 in main']),
        observed(6.0, 3, "running the script", frames=backward),
    )
    assert report.missing == (1, 2)
    assert [(each.doing, each.waits_for) for each in report.whereabouts] == [
        ("in all_reduce of torch.distributed", (1, 2)),
        ("running the script", ()),
        ("running the script", ()),
        ("in the backward pass", (1, 2)),
    ]


def test_a_run_that_fails_or_ends_closes_its_report():
    failed = event(6.2, "run-failed", error="WorkerFailed", message="rank 1 …")
    [report] = track([killed(6.1, 1), failed])
    assert (report.outcome, report.ended) == ("failed", (0, 2, 3))
    assert recovery_reports.text(report, LOGS).splitlines()[-1] == "   then        the run failed"
    ended = event(6.4, "run-ended", status="finished", steps=5)
    [report] = track([killed(6.1, 1), generation(6.2, 2, [0, 2, 3], at_step=5), ended])
    assert (report.outcome, dict(report.seconds)) == ("ended", {"all ready": 0.1})


@pytest.mark.parametrize(
    "events",
    [
        [generation(6.2, 2, [0, 1, 2, 3], at_step=5)],
        [exited(6.1, 1, "exited 3", 3, unexpected=False)],
        [event(6.1, "coordinator-exited", pid=1, status=0, cause="exited 0")],
        [
            exited(6.1, 1, "the loss must be a scalar", 1, error="JobError"),
            event(6.2, "run-failed", error="JobError", message="the loss must be a scalar"),
        ],
        [event(6.2, "run-failed", error="HoldfastError", message="the run was aborted")],
    ],
    ids=["growth", "made way", "left as told", "a job that is wrong", "a run that is aborted"],
)
def test_what_is_no_failure_has_no_report(events):
    assert track(events, [step(6.7, 6)]) == []


def test_events_may_come_in_any_portions():
    events, steps = run_of(4, 5)
    events += [killed(6.1, 1), started(6.2, 1, 200), generation(6.4, 2, [0, 1, 2, 3], at_step=5)]
    steps += [step(6.7, 6), step(6.8, 7)]
    whole = RecoveryTracker(number=3).see(events, steps)
    bit_by_bit, found = RecoveryTracker(number=3), []
    for each in events:
        found += bit_by_bit.see([each], [line for line in steps if line["time_unix_s"] < 6.5])
        assert not found
    for _ in range(2):
        found += bit_by_bit.see([], steps)
    assert found == whole
    assert [report.number for report in found] == [4]


def test_a_report_is_read_back_from_plain_data():
    [report] = track([killed(6.1, 1), generation(6.4, 2, [0, 2, 3], at_step=5)], [step(7, 6)])
    plain = recovery_reports.plain(report)
    assert list(recovery_reports.reports_in([plain])) == [report]


def test_our_own_words_are_not_repeated_and_those_of_others_are_cut():
    short, long = "ran out of memory: lower batch", f"raised ValueError: {'word ' * 99}"
    for cause, error, told in [
        (short, "OutOfMemory", f"rank 1 {short}"),
        ("no room", "CheckpointError", "rank 1 raised CheckpointError: no room"),
    ]:
        [report] = track(
            [
                exited(6.1, 1, cause, 1, error=error),
                event(6.2, "run-failed", error=error, message=cause),
            ]
        )
        assert recovery_reports.text(report, LOGS).splitlines()[0].endswith(f"── {told}")
    failed = event(6.2, "run-failed", error="WorkerFailed", message=long)
    [report] = track([exited(6.1, 1, long, 1), failed])
    assert len(recovery_reports.text(report, LOGS).splitlines()[0]) < 200


def test_a_fault_that_is_logged_after_the_failure_is_named_once():
    entries = [
        event(6.1, "coordinator-exited", pid=1, status=-9, cause="was killed by SIGKILL"),
        event(6.2, "fault-injected", kind="coordinator", step=5),
        event(6.9, "coordinator-recovered", generation=1),
        event(7.1, "coordinator-exited", pid=2, status=-9, cause="was killed by SIGKILL"),
        event(7.9, "coordinator-recovered", generation=1),
    ]
    first, second = track(entries, [step(6.5, 6), step(7, 7)])
    assert [each.causes[0].injected_fault for each in (first, second)] == ["coordinator", ""]
