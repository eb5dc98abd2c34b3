"""Coordinator and agent may die at any point of what they do: the run comes to the same end."""

import json
import signal
from pathlib import Path

import pytest
from faulty_tasks import marks

from conftest import TASKS, events_of, metrics_of, sampled
from holdfast.runs import coordinator_process, supervisor

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

FAILPOINTS = Path(__file__).parent / "failpoints"

FAULTY = {
    "task": f"{TASKS.parent / 'faulty_tasks.py'}:main",
    "batch": 20,
    "shards": 2,
    "workers": 2,
    "checkpoint": {"every_steps": 4, "keep": 1},
}
LAST_STEP = 15

POINT = ("who", "at", "when", "which")
"""As in `failpoints/sitecustomize.py`."""

START = [
    ("coordinator", "holdfast.coordinator.journal:Journal.__init__", "after", 1),
    ("coordinator", "holdfast.coordinator.dispatcher:Dispatcher.tell", "before", "StatusReceived("),
    ("coordinator", "holdfast.coordinator.journal:Journal.append", "after", "GenerationOpened("),
    ("coordinator", "holdfast.coordinator.service:RunService._send", "after", "<Stage.RUN"),
    ("agent", "holdfast.launch.fork_client:ForkClient.await_ready", "before", 1),
    ("agent", "holdfast.launch.fork_client:ForkClient.fork", "after", 1),
    ("agent", "holdfast.agent.agent:Agent._resume_workers", "after", 1),
]
RECOVERY = [
    (
        "coordinator",
        "holdfast.coordinator.journal:Journal.append",
        "before",
        "GenerationOpened(generation=2",
    ),
    (
        "coordinator",
        "holdfast.coordinator.journal:Journal.append",
        "after",
        "GenerationOpened(generation=2",
    ),
    (
        "coordinator",
        "holdfast.coordinator.service:RunService._send",
        "after",
        "2, stage=<Stage.RUN",
    ),
    ("agent", "holdfast.agent.agent:Agent._on_worker_exit", "before", 1),
    ("agent", "holdfast.arena.memory:Arena.announce", "after", 2),
    ("agent", "holdfast.launch.fork_client:ForkClient.fork", "after", 4),
    ("agent", "holdfast.agent.agent:Agent._resume_workers", "before", 2),
]
DECISION = [
    ("holdfast.coordinator.dispatcher:Dispatcher.tell", "before", "draft=Draft("),
    (
        "holdfast.coordinator.service:RunService._send",
        "before",
        "checkpoint_result=CheckpointResult(",
    ),
    (
        "holdfast.coordinator.service:RunService._send",
        "after",
        "checkpoint_result=CheckpointResult(",
    ),
]
COMMIT = [
    ("holdfast.agent.agent:Agent._on_worker", "before", "PartStagedMessage("),
    ("holdfast.agent.checkpoints:prepare", "before", 1),
    ("pathlib:Path.open", "after", "manifest.json"),
    ("holdfast.wire.link:CoordinatorLink.send", "after", "draft=Draft("),
    ("pathlib:Path.rename", "before", ".tmp"),
    ("pathlib:Path.rename", "after", ".tmp"),
    ("holdfast.agent.agent:Agent._send_all", "before", "CheckpointResultMessage("),
]
END = [
    ("coordinator", "holdfast.coordinator.journal:Journal.append", "before", "RunEnded("),
    ("coordinator", "holdfast.coordinator.journal:Journal.append", "after", "RunEnded("),
    ("agent", "holdfast.agent.agent:Agent._on_worker", "before", "FinishedMessage("),
    ("agent", "holdfast.wire.link:CoordinatorLink.send", "before", "finished=frozenset({0, 1})"),
]
OVER = [
    ("coordinator", "holdfast.coordinator.dispatcher:Dispatcher.tell", "before", "Disconnected("),
    ("agent", "holdfast.agent.agent:Agent._send_all", "before", "ShutdownMessage("),
]


@pytest.fixture
def inject(train, tmp_path, reference, monkeypatch):
    """Run the faulty task while `who` dies at a point and workers at others, and compare it with an
    fault-free run: `inject(who, at, when, which, fault, …, **keys)`; returns its events.
    """

    def run(who, at, when, which, *losses, **keys):
        path, mark = tmp_path / "run", tmp_path / "mark"
        lost = [{**loss, "mark": f"{mark}-{n}"} for n, loss in enumerate(losses)]
        fault = {"who": who, "at": at, "when": when, "which": which, "mark": str(mark)}
        weights = reference(**FAULTY, params={"faults": []})
        for module in (supervisor, coordinator_process):  # a wait for nothing is noticed
            monkeypatch.setattr(module, "SHUTDOWN_TIMEOUT_S", 3600)
        monkeypatch.syspath_prepend(FAILPOINTS)
        monkeypatch.setenv("HOLDFAST_FAULT", json.dumps(fault))
        result = train(run_dir=path, **FAULTY, **keys, params={"faults": lost})
        assert marks([fault, *lost]) == [True] * (1 + len(lost))
        assert result["weights_sha256"] == weights
        steps = [line["step"] for line in metrics_of(path) if "loss" in line]
        assert steps == list(range(1, LAST_STEP + 1))
        kept = {entry.name for entry in (path / "checkpoints").iterdir()}
        newest = {f"step-{LAST_STEP:08d}", "latest"}
        if (who, at, when, which) in [*OVER, END[1]]:  # it may die before it deletes older ones
            assert kept >= newest
        else:
            assert kept == newest
        events = events_of(path)
        kinds = {event["event"] for event in events}
        assert kinds.isdisjoint(
            {"checkpoint-corrupt", "checkpoint-failed", "checkpoint-rejected", "worker-hung"}
        )
        return events

    return run


def replaced(events):
    """How replaced coordinators and agents ended, except for those that left as told."""
    ends = {}
    for event in events:
        who, _, what = event["event"].partition("-")
        if what == "exited" and who != "worker" and event["status"]:
            ends.setdefault(who, []).append(event["status"])
    return ends


def generations(events):
    return [event["step"] for event in events if event["event"] == "generation-started"]


@pytest.mark.parametrize(POINT, sampled(START, 5))
def test_a_death_at_the_start_changes_nothing(inject, who, at, when, which):
    assert replaced(inject(who, at, when, which)) == {who: [-signal.SIGKILL]}


@pytest.mark.parametrize(POINT, sampled(RECOVERY, 1))
def test_a_death_in_a_recovery_changes_nothing(inject, who, at, when, which):
    loss = {
        "at": "holdfast.worker.checkpoints.saver:CheckpointSaver._staged",
        "when": "after",
        "rank": 0,
        "step": 8,
    }
    events = inject(who, at, when, which, {**loss, "how": "kill"})
    assert replaced(events) == {who: [-signal.SIGKILL]}
    # A busy host may not have committed the checkpoint of step 4 yet.
    assert generations(events)[1] in (0, 4, 8)


@pytest.mark.parametrize(POINT[1:], sampled(DECISION, 0))
def test_no_worker_notices_a_coordinator_that_dies_in_a_commit(inject, at, when, which):
    events = inject("coordinator", at, when, which)
    assert replaced(events) == {"coordinator": [-signal.SIGKILL]}
    assert generations(events) == [0]


@pytest.mark.parametrize(POINT[1:], sampled(COMMIT, 5))
def test_an_agent_that_dies_in_a_commit_changes_nothing(inject, at, when, which):
    assert replaced(inject("agent", at, when, which)) == {"agent": [-signal.SIGKILL]}


@pytest.mark.parametrize(POINT, sampled(END, 0))
def test_a_death_at_the_end_changes_nothing(inject, who, at, when, which):
    events = inject(who, at, when, which, restarts={"limit": 1})
    assert replaced(events) == {who: [-signal.SIGKILL]}


@pytest.mark.parametrize(POINT, sampled(OVER, 1))
def test_a_death_after_the_end_of_the_run_delays_nothing(inject, who, at, when, which):
    assert generations(inject(who, at, when, which)) == [0]
