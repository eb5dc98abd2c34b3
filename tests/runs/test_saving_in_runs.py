"""Checkpoints are written while training continues, whatever happens to the disk and the writer."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from conftest import TASKS, events_of
from holdfast.checkpoint.store import CheckpointStore
from holdfast.errors import CheckpointError, WorkerFailed
from holdfast.runs.controls import Controls
from holdfast.worker.checkpoints.saver import LONG_WAIT_S

pytestmark = pytest.mark.slow


def own(task, **keys):
    return {"task": f"{TASKS}:{task}", "batch": 20, "shards": 5, "workers": 2, **keys}


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 300 kB at the place of a run's checkpoints."""
    place = tmp_path / "run" / "checkpoints"
    place.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", place],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_full_disk_costs_checkpoints_but_neither_the_run_nor_the_last_good_one(
    train, tmp_path, small_disk
):
    keys = {
        "model": {"name": "mlp", "hidden": [256]},
        "checkpoint": {"every_steps": 5, "keep": 9},
        "workers": 2,
    }
    whole = train(**keys)["weights_sha256"]
    with pytest.raises(CheckpointError, match=r"step 12 could not be written: .*No space left"):
        train(run_dir=tmp_path / "run", **keys)
    events = events_of(tmp_path / "run")
    assert [e["step"] for e in events if e["event"] == "checkpoint-failed"] == [10, 12]
    assert [path.name for path in small_disk.glob("step-*")] == ["step-00000005"]
    subprocess.run(["mount", "-o", "remount,size=9m", small_disk], check=True)
    resumed = train(run_dir=tmp_path / "run", resume=True, **keys)
    assert resumed["weights_sha256"] == whole


def test_saving_resumes_once_a_full_disk_has_space_again(train, tmp_path, small_disk):
    keys = {
        "model": {"name": "mlp", "hidden": [256]},
        "checkpoint": {"every_steps": 5, "keep": 1},
        "workers": 2,
        "epochs": 12,
    }

    def make_space(_):
        if any(event["event"] == "checkpoint-failed" for event in events_of(tmp_path / "run")):
            subprocess.run(["mount", "-o", "remount,size=9m", small_disk], check=True)

    result = train(run_dir=tmp_path / "run", watch=make_space, **keys)
    assert result["weights_sha256"] == train(**keys)["weights_sha256"]
    kinds = [event["event"] for event in events_of(tmp_path / "run")]
    assert "checkpoint-committed" in kinds[kinds.index("checkpoint-failed") :]
    assert kinds.count("generation-started") == 1


def writers_of(run_dir):
    """The processes that write the checkpoints of a run."""
    log = run_dir / "logs" / "writer.log"
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "fd" / "1").readlink() == log:
                yield int(process.name)


def test_training_continues_while_nothing_is_written_and_makes_up_for_it(train, tmp_path):
    saving = {"every_steps": 3, "keep": 99, "busy": "defer"}
    run_dir, controls, seen = tmp_path / "run", Controls(), []

    def steps(kind):
        return [event["step"] for event in events_of(run_dir) if event["event"] == kind]

    def watch(step):
        deferred, (writer, *_) = steps("checkpoint-deferred"), [*writers_of(run_dir), 0]
        if not seen and writer:
            os.kill(writer, signal.SIGSTOP)
            seen.append(step)
        elif len(seen) == 1 and deferred and step > deferred[0] + 10:
            os.kill(writer, signal.SIGCONT)
            seen.append(step)
        controls.stop |= len(seen) == 2 and max(steps("checkpoint-committed"), default=0) > seen[1]

    train(run_dir=run_dir, controls=controls, watch=watch, **own("eternal", checkpoint=saving))
    (deferred, *_), committed = steps("checkpoint-deferred"), steps("checkpoint-committed")
    made_up = min(step for step in committed if step > deferred)
    assert deferred % 3 == 0
    assert deferred not in committed
    assert made_up >= seen[1]
    assert len([step for step in committed if seen[0] < step < deferred]) <= 2, "two buffers"


def test_a_long_wait_for_the_disk_is_recorded(train, tmp_path):
    run_dir, controls, stopped = tmp_path / "run", Controls(), {}

    def watch(_):
        now = time.monotonic()
        if not stopped:
            stopped.update((pid, now) for pid in writers_of(run_dir))
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
        elif now - min(stopped.values()) > LONG_WAIT_S + 0.5:
            for pid in stopped:
                with suppress(ProcessLookupError):  # the run is over
                    os.kill(pid, signal.SIGCONT)
        controls.stop |= bool(events_of(run_dir, "checkpoint-waited"))

    keys = own("eternal", checkpoint={"every_steps": 2})
    train(run_dir=run_dir, controls=controls, watch=watch, **keys)
    assert events_of(run_dir, "checkpoint-waited")[0]["seconds"] >= LONG_WAIT_S  # it is rounded


def test_a_writer_that_dies_is_replaced_and_costs_a_checkpoint_at_most(train, tmp_path):
    keys = own("eternal", checkpoint={"every_steps": 2})
    run_dir, controls = tmp_path / "run", Controls()
    killed, killed_at = [], [0]

    def watch(step):
        alive = [pid for pid in writers_of(run_dir) if pid not in killed]
        if len(killed) < 2 and alive and step > 5:
            os.kill(alive[0], signal.SIGKILL)
            killed.append(alive[0])
            killed_at[:] = [step]
        controls.stop |= len(killed) == 2 and step > killed_at[0] + 10

    result = train(run_dir=run_dir, controls=controls, watch=watch, **keys)
    events = events_of(run_dir)
    assert len(killed) == 2
    assert max(e["step"] for e in events if e["event"] == "checkpoint-committed") == result["steps"]
    assert [event["event"] for event in events].count("generation-started") == 1
    ended = [event for event in events if event["event"] == "writer-exited"]
    assert [(event["pid"], event["status"]) for event in ended] == [
        (pid, -signal.SIGKILL) for pid in killed
    ]
    assert list(writers_of(run_dir)) == []


def test_a_run_that_fails_leaves_what_was_in_memory(train, tmp_path):
    run_dir, saving = tmp_path / "run", {"every_steps": 0, "memory": "always"}

    def kill(step):
        if step > 20:
            for event in events_of(run_dir):
                if event["event"] == "worker-started":
                    with suppress(ProcessLookupError):
                        os.kill(event["pid"], signal.SIGKILL)

    keys = own("eternal", workers=1, checkpoint=saving, on_failure="stop")
    with pytest.raises(WorkerFailed, match="resume the run from its last checkpoint, of step"):
        train(run_dir=run_dir, watch=kill, **keys)
    assert CheckpointStore.of_run(run_dir).newest().step > 0


@pytest.mark.soak
def test_a_writer_that_hangs_is_replaced(train, tmp_path):
    run_dir, controls, hung = tmp_path / "run", Controls(), []

    def watch(step):
        if not hung and (writers := list(writers_of(run_dir))):
            os.kill(writers[0], signal.SIGSTOP)
            hung.append(writers[0])
        controls.stop |= any(event["event"] == "writer-exited" for event in events_of(run_dir))

    saving = {"every_steps": 3, "busy": "defer"}
    result = train(
        run_dir=run_dir, controls=controls, watch=watch, **own("eternal", checkpoint=saving)
    )
    [ended] = [event for event in events_of(run_dir) if event["event"] == "writer-exited"]
    assert (ended["pid"], ended["status"]) == (hung[0], -signal.SIGKILL)
    assert CheckpointStore.of_run(run_dir).newest().step == result["steps"]
