"""`holdfast events`: what happened in a run, in words."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.record import history

SOURCES = Path(holdfast.__file__).parent
COMPOSED = {
    "runs/process_exits.py": ["agent-exited", "coordinator-exited", "fork-server-exited"],
    "rundir/run_directory.py": [],  # what its callers name
    "worker/loop/training_loop.py": [],
    "worker/membership/unlike_members.py": [],
}
KILLED = "was killed by SIGKILL"
EVENTS = [
    {"time_unix_s": 100.0, "event": "run-started", "workers": 2},
    {"time_unix_s": 101.25, "event": "worker-started", "rank": 1, "pid": 7},
    {"time_unix_s": 102.5, "event": "worker-exited", "rank": 1, "pid": 7, "status": -9,
     "cause": KILLED, "error": "", "unexpected": True},
    {"time_unix_s": 103.0, "event": "worker-exited", "rank": 0, "pid": 6, "status": 3,
     "cause": "exited 3", "error": "", "unexpected": False},
    {"time_unix_s": 103.5, "event": "worker-exited", "rank": 1, "pid": 8, "status": 0,
     "cause": "exited 0", "error": "", "unexpected": False},
    {"time_unix_s": 4000.0, "event": "something", "new": [1]},
]  # fmt: skip
REPORT = {
    "number": 1, "time_unix_s": 102.75, "outcome": "recovered",
    "causes": [{"who": "rank 1", "rank": 1, "what": KILLED, "injected_fault": "", "stack": []}],
    "step": 5, "ended": [], "halted": [0], "seconds": {"forked": 0.25}, "total_s": 0.25,
    "checkpoint": None, "recomputed_steps": 0, "recomputed_samples": 0,
}  # fmt: skip


def test_what_another_version_has_written_is_shown_as_it_is_or_left_out():
    bare = {"event": "worker-exited", "time_unix_s": 101.0, "unexpected": False}
    (told,) = history.describe([bare], [{}, {"time_unix_s": 101.0}], Path("logs"))
    assert told.startswith("0:00:00.000  worker-exited unexpected=false")


def test_events_are_shown_in_order_with_recovery_reports_among_them():
    started, *told = history.describe(EVENTS, [REPORT], Path("logs"))
    assert started.startswith("0:00:00.000  run started with 2 workers at 19")
    assert told == [
        "0:00:01.250  rank 1 started, process 7",
        "0:00:02.500  rank 1 was killed by SIGKILL",
        (
            "── recovery 1, after step 5 ── rank 1 was killed by SIGKILL\n"
            "   others      rank 0 halted and kept its state\n"
            "   time        0.25 s: forked 0.25\n"
            "   recomputed  0 steps, 0 samples"
        ),
        "0:00:03.000  rank 0 exited 3 (expected)",
        "0:00:03.500  rank 1 exited 0",
        "1:05:00.000  something new=[1]",
    ]


def test_the_time_starts_again_where_a_run_is_resumed():
    resumed = [*EVENTS, {**EVENTS[0], "time_unix_s": 5000.0}]
    assert list(history.describe(resumed, [], Path("logs")))[-1].startswith(
        "0:00:00.000  run started"
    )


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"event": "run-ended", "status": "finished", "steps": 9}, "run finished, 9 steps"),
        ({"event": "run-ended", "status": "stopped"}, "run stopped"),
        (
            {"event": "fault-injected", "kind": "kill", "rank": 1, "step": 12},
            "kill, rank 1, after step 12",
        ),
        (
            {"event": "fault-injected", "kind": "agent", "step": 0},
            "fault injected: agent, after step 0",
        ),
        (
            {"event": "fault-injected", "kind": "stop", "rank": 0, "after_s": 1.5},
            "fault injected: stop, rank 0",
        ),
    ],
)
def test_an_unknown_field_of_an_event_is_left_out(event, words):
    [told] = history.describe([{"time_unix_s": 100.0, **event}], [], Path("logs"))
    assert told.endswith(words)


def _sources_of_runs():
    """All but those of searches, whose record is their own."""
    return [path for path in SOURCES.rglob("*.py") if "tuning" not in path.parts]


def test_every_event_has_words():
    names, composed = set(), set()
    for path, text in ((path, path.read_text()) for path in _sources_of_runs()):
        for name in _names_of_events(ast.parse(text)) if "event(" in text else ():
            if isinstance(name, ast.Constant):
                names.add(name.value)
            else:
                composed.add(str(path.relative_to(SOURCES)))
    assert composed == set(COMPOSED), "what these compose is listed above by hand"
    assert names.union(*COMPOSED.values()) == set(history.TEMPLATES)


def _names_of_events(tree):
    """The name of each event that is logged."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args)
    found = []
    for call in calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("event", "_log_event"):
            found.append(call.args[0])
        elif isinstance(call.func, ast.Name) and call.func.id == "log_event":
            found.append(call.args[1])  # after the run's directory
    return found


@pytest.fixture
def events(tmp_path):
    """Run the command in a directory with runs: `events(word, …) -> status, output, error`."""
    for name in ("old", "new"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    (tmp_path / "runs" / "old" / "events.jsonl").touch()
    path = tmp_path / "runs" / "new"
    (path / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in EVENTS))
    (path / "recoveries.jsonl").write_text(f"{json.dumps(REPORT)}\n")

    def run(*words):
        command = [sys.executable, "-m", "holdfast", "events", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.mark.soak
@pytest.mark.slow
def test_the_newest_run_is_shown_by_default(events):
    assert events() == events("runs/new")
    assert "rank 1 was killed by SIGKILL" in events()[1]
    assert events("runs/old") == (0, "", "")


@pytest.mark.slow
def test_json_is_one_object(events):
    status, out, err = events("--json")
    assert (status, err) == (0, "")
    assert json.loads(out) == {"events": EVENTS, "recoveries": [REPORT]}


@pytest.mark.slow
def test_a_directory_without_a_run_is_one_line(events, tmp_path):
    assert events("nowhere") == (
        2, "", "holdfast: nowhere contains no run; pass the directory of one\n"
    )  # fmt: skip
