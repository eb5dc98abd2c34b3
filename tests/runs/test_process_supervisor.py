"""Coordinator, agent and fork server may be killed at any moment: what then happens to the run."""

import os
import signal

import pytest

from conftest import TASKS, events_of, metrics_of, sampled, wait_until
from holdfast.errors import HoldfastError
from holdfast.launch.fork_client import ForkServer
from holdfast.launch.spawn import WORKER, spawn
from holdfast.runs.controls import Controls

pytestmark = pytest.mark.slow

LONG = {"epochs": 14, "workers": 2, "checkpoint": {"every_steps": 25}}


@pytest.fixture
def struck(train, reference, tmp_path):
    """Run a job while processes are killed, `struck((step, who, …), …)`; returns its events.

    It has a fork server of its own if that is struck. It must end with the weights of the
    undisturbed run, and each step written down once.
    """

    def run(*strikes, number=signal.SIGKILL, **keys):
        keys = {**LONG, **keys}
        path, due, killed = tmp_path / "run", list(strikes), set()
        if any("fork-server" in strike for strike in strikes):
            keys["on"] = None

        def kill(step):
            if due and step >= due[0][0]:
                pids = [pid_of(path, who) for who in due[0][1:]]
                if killed.isdisjoint(pids):
                    due.pop(0)
                    killed.update(pids)
                    for pid in pids:
                        os.kill(pid, number)

        result = train(run_dir=path, watch=kill, **keys)
        assert not due
        assert result["weights_sha256"] == reference(**LONG)
        steps = [line["step"] for line in metrics_of(path) if "loss" in line]
        assert steps == list(range(1, result["steps"] + 1))
        return events_of(path)

    return run


def pid_of(run_dir, who):
    """The newest process of a kind that a run has started."""
    return [e["pid"] for e in events_of(run_dir) if e["event"] == f"{who}-started"][-1]


def statuses(events, who):
    """How the processes of a kind have ended that were replaced."""
    return [event["status"] for event in events if event["event"] == f"{who}-exited"]


def generations(events):
    return [event["step"] for event in events if event["event"] == "generation-started"]


@pytest.mark.soak
def test_a_coordinator_may_be_killed_again_and_again_and_no_worker_notices(struck):
    events = struck((5, "coordinator"), (40, "coordinator"))
    assert generations(events) == [0]
    assert sum(event["event"] == "coordinator-started" for event in events) == 3


@pytest.mark.soak
def test_an_agent_that_is_killed_takes_its_workers_and_the_next_restores_the_checkpoint(struck):
    events = struck((35, "agent"), (65, "agent"))
    first, *others = generations(events)
    assert first == 0
    assert others[0] >= 25
    assert others[1] >= 50
    assert all(step % 25 == 0 for step in others)


@pytest.mark.soak
def test_a_coordinator_that_is_killed_in_a_recovery_brings_it_to_its_end(struck):
    events = struck((10, "worker", "coordinator"), (45, "coordinator", "worker"))
    assert all(step > 0 for step in generations(events)[1:])


@pytest.mark.soak
def test_fork_server_and_agent_may_be_killed_at_once(struck):
    events = struck((35, "fork-server", "agent"))
    assert generations(events) == [0, 25]
    assert statuses(events, "fork-server") == [-signal.SIGKILL]


@pytest.mark.soak
@pytest.mark.parametrize("who", sampled(["agent", "coordinator", "fork-server"], 0))
def test_what_is_stopped_is_replaced_like_what_is_killed(struck, who):
    events = struck((15, who), number=signal.SIGSTOP)
    assert statuses(events, who) == [-signal.SIGKILL]


@pytest.mark.soak
def test_a_fork_server_may_be_killed_while_it_takes_the_place_of_another(struck):
    events = struck((35, "fork-server"), (0, "fork-server"))  # the second as soon as there is one
    assert statuses(events, "fork-server") == [-signal.SIGKILL] * 2
    assert len(generations(events)) == 2


@pytest.mark.soak
def test_a_run_replaces_a_shared_fork_server_with_its_own(train, reference, tmp_path):
    """Coordinator and agent were forks of it, and all three count as one exit."""

    def watch(step):
        if step:
            lent.process.kill()

    with ForkServer(spawn(WORKER)) as lent:
        wait_until(lent.is_ready)
        limits = {"limit": 1}
        result = train(run_dir=tmp_path / "run", watch=watch, on=lent, restarts=limits)
    assert result["weights_sha256"] == reference(2)
    events = events_of(tmp_path / "run")
    assert [e["pid"] for e in events if e["event"] == "fork-server-exited"] == [lent.process.pid]
    assert pid_of(tmp_path / "run", "fork-server") != lent.process.pid
    assert statuses(events, "coordinator") == statuses(events, "agent") == [-signal.SIGKILL]


@pytest.mark.soak
def test_what_each_fork_server_prints_is_kept(train, tmp_path):
    task = tmp_path / "mine.py"
    task.write_text(f"import sys\nsys.path.append({str(TASKS.parent)!r})\nprint('imported')\n"
                    "from sample_tasks import eternal\n")  # fmt: skip
    path, killed = tmp_path / "run", []

    def watch(step):
        if step:
            controls.stop = bool(killed)
            if not killed:
                killed.append(pid_of(path, "fork-server"))
                os.kill(killed[0], signal.SIGKILL)

    controls = Controls()
    train(run_dir=path, controls=controls, watch=watch, on=None, task=f"{task}:eternal", shards=2)
    assert (path / "logs" / "fork-server.log").read_text() == "imported\n" * 2


def test_a_fork_server_that_dies_before_it_is_ready_ends_the_run_in_a_line(train, tmp_path):
    def watch(_):
        os.kill(pid_of(tmp_path / "run", "fork-server"), signal.SIGKILL)

    with pytest.raises(HoldfastError, match=r"the fork server died; see fork-server.log"):
        train(run_dir=tmp_path / "run", watch=watch, on=None)


@pytest.mark.soak
def test_coordinator_and_agent_may_be_killed_at_once(struck):
    assert len(generations(struck((30, "coordinator", "agent"), (60, "agent", "coordinator")))) > 1


@pytest.mark.soak
def test_a_shrunk_world_survives_the_death_of_its_coordinator(struck):
    struck((30, "worker", "agent"), (45, "worker", "coordinator"), on_failure="shrink")


@pytest.mark.parametrize("kill", sampled([[], ["worker"], ["agent"], ["coordinator"]], 2))
def test_checkpoints_are_taken_by_time_although_processes_are_killed(train, tmp_path, kill):
    path = tmp_path / "run"

    def saved():
        return [
            event["step"] for event in events_of(path) if event["event"] == "checkpoint-committed"
        ]

    def watch(_):
        if len(saved()) >= 2 and due:
            os.kill(pid_of(path, due.pop()), signal.SIGKILL)
        controls.stop = len(saved()) >= 5

    due, controls = list(kill), Controls()
    keys = {"workers": 2, "epochs": 100_000, "checkpoint": {"every_steps": 0, "every_s": 0.2}}
    result = train(run_dir=path, controls=controls, watch=watch, **keys)
    steps = saved()
    assert not due
    assert steps == sorted(set(steps))
    assert steps[-1] == result["steps"]


def test_only_its_owner_may_speak_to_a_coordinator(train, tmp_path):
    modes = []

    def watch(step):
        if step and not modes:
            modes.append((tmp_path / "run" / "coordinator.sock").stat().st_mode & 0o777)

    before = os.umask(0)
    try:
        train(run_dir=tmp_path / "run", watch=watch, workers=2, epochs=10)
    finally:
        os.umask(before)
    assert modes == [0o600]


@pytest.mark.soak
def test_a_stop_is_heard_by_the_next_coordinator(train, tmp_path):
    def watch(step):
        if step >= 5 and not controls.stop:
            os.kill(pid_of(tmp_path / "run", "coordinator"), signal.SIGKILL)
            controls.stop = True

    controls, keys = Controls(), {"workers": 2, "epochs": 10_000}
    result = train(run_dir=tmp_path / "run", controls=controls, watch=watch, **keys)
    assert result["status"] == "stopped"


@pytest.mark.parametrize("who", sampled(["agent", "coordinator", "fork-server"], 1))
def test_a_process_that_dies_repeatedly_ends_the_run_in_a_line(train, tmp_path, who):
    path, killed = tmp_path / "run", []

    def watch(step):
        begun = killed or step
        if begun and pid_of(path, who) not in killed:
            killed.append(pid_of(path, who))
            os.kill(killed[-1], signal.SIGKILL)

    what = who.replace("-", " ")
    with pytest.raises(HoldfastError, match=f"the {what} ended: more than 2"):
        train(
            run_dir=path,
            watch=watch,
            on=None,
            task=f"{TASKS}:eternal",
            workers=2,
            shards=2,
            restarts={"limit": 2},
        )
    assert len(killed) == 3


@pytest.mark.soak
@pytest.mark.parametrize("who", sampled(["agent", "fork-server"], 0))
def test_without_a_restart_budget_the_loss_of_an_agent_ends_the_run(train, tmp_path, who):
    def watch(step):
        if step >= 5 and not killed:
            killed.append(os.kill(pid_of(tmp_path / "run", who), signal.SIGKILL))

    killed = []
    with pytest.raises(HoldfastError, match="local-1 was lost"):
        train(
            run_dir=tmp_path / "run",
            watch=watch,
            on=None,
            workers=2,
            epochs=10_000,
            on_failure="stop",
        )


def test_a_run_directory_may_have_a_long_path(train, tmp_path):
    path = tmp_path / ("deep" * 30) / ("deeper" * 30)
    assert train(run_dir=path, workers=2)["status"] == "finished"
    assert not (path / "coordinator.sock").exists()
