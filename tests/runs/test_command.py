"""The command, from outside: its output, its signals, its sudden death."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import (
    FAILING_TASKS,
    SMALL,
    holdfast_processes,
    metrics_of,
    sampled,
    wait_until,
)
from holdfast.job import load

pytestmark = pytest.mark.slow

HOLDFAST = [sys.executable, "-m", "holdfast"]


@pytest.fixture
def job(tmp_path):
    """A job file of 60 steps that saves every seventh."""
    path = tmp_path / "small.yaml"
    values = {**SMALL, "epochs": 10, "workers": 2, "checkpoint": {"every_steps": 7}}
    path.write_text(load.dump(load.check(values, where="test")))
    return path


def start(mark, *arguments):
    return subprocess.Popen(
        [*HOLDFAST, *map(str, arguments)],
        env={**os.environ, mark: "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process, timeout=120):
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def run(mark, *arguments):
    return finish(start(mark, *arguments))


def result_of(out):
    return json.loads(out.splitlines()[-1])


def wait_for_step(process, run_dir, step):
    """Wait until `step` steps are written down, looking at the metrics as they grow."""
    path = run_dir / "metrics.jsonl"

    def has_come():
        ended = process.poll() is not None
        if path.exists() and len(path.read_text().splitlines()) >= step:
            return True
        assert not ended, f"it ended before step {step}: {process.communicate()}"
        return False

    wait_until(has_come)


@pytest.fixture(scope="module")
def reference(forks, tmp_path_factory):
    from holdfast.rundir.run_directory import RunDirectory
    from holdfast.runs.run import LaunchOptions, run

    chosen = load.check({**SMALL, "epochs": 10}, where="test")
    with RunDirectory(tmp_path_factory.mktemp("whole"), chosen, resume=False) as directory:
        return run(directory, LaunchOptions(forks=forks))["weights_sha256"]


def test_json_ends_with_one_object_and_the_run_directory_is_whole(mark, job, tmp_path, reference):
    status, out, _ = run(mark, "train", job, "--json", "--run", tmp_path / "run")
    result = result_of(out)
    assert status == 0
    assert len(out.splitlines()) == 1
    assert result["weights_sha256"] == reference
    assert {"loss", "accuracy", "steps", "samples_per_s", "run_dir", "status"} <= result.keys()
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    assert (tmp_path / "run" / "loss.png").read_bytes().startswith(b"\x89PNG")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names - {"system.jsonl"} == {  # that is there after two seconds
        ".lock", "job.yaml", "events.jsonl", "metrics.jsonl", "loss.png", "result.json", "logs",
        "checkpoints", "coordinator.db", "run.id", "code-version.json",
    }  # fmt: skip
    _, shown, _ = run(mark, "events", "--debug", tmp_path / "run")
    first, *_, last = (line for line in shown.splitlines() if "→" not in line)
    assert first.startswith("       0.000  ")
    assert last[14:].startswith("END ")


def tree_of(pid):
    """`pid` and all its descendants."""
    found = [pid]
    for parent in found:
        tasks = Path(f"/proc/{parent}/task")
        for children in tasks.glob("*/children"):
            found += [int(child) for child in children.read_text().split()]
    return found


@pytest.mark.soak
@pytest.mark.parametrize(
    "whole_tree", sampled([True, False], 0), ids=["whole tree", "parent alone"]
)
@pytest.mark.parametrize("seed", sampled(range(2), 0))
def test_sigkill_at_random_steps_and_resume_give_the_reference_weights(
    mark, job, tmp_path, reference, whole_tree, seed
):
    draw, run_dir = random.Random(seed), tmp_path / "run"
    for life in range(2):
        resume = ["--resume"] if life else []
        process = start(mark, "train", job, "--run", run_dir, *resume, "workers=3",
                        f"loader.workers={seed % 2}")  # fmt: skip
        done = len(metrics_of(run_dir)) if life else 0
        wait_for_step(process, run_dir, min(done, 30) + draw.randint(1, 20))
        for pid in tree_of(process.pid) if whole_tree else [process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait()
        process.communicate()
        deadline_of_the_kernel(mark)
    workers = draw.randint(1, 4)
    status, out, err = run(mark, "train", job, "--json", "--run", run_dir, "--resume",
                           f"workers={workers}")  # fmt: skip
    assert status == 0, err
    assert result_of(out)["weights_sha256"] == reference
    assert [line["step"] for line in metrics_of(run_dir) if "loss" in line] == list(range(1, 61))
    assert not list(run_dir.rglob("*.tmp"))


def deadline_of_the_kernel(mark):
    """Wait until the kernel has carried out the death of all descendants; fail if it never does."""
    wait_until(lambda: not holdfast_processes(mark))


@pytest.mark.parametrize(
    ("number", "whole_tree", "readers"),
    sampled([(signal.SIGINT, False, 0), (signal.SIGTERM, True, 2), (signal.SIGHUP, True, 0)], 1),
)
def test_a_signal_saves_ends_every_process_and_can_be_resumed(
    mark, job, tmp_path, reference, number, whole_tree, readers
):
    run_dir = tmp_path / "run"
    process = start(mark, "train", job, "--json", "--run", run_dir, f"loader.workers={readers}")
    wait_for_step(process, run_dir, 10)
    for pid in tree_of(process.pid) if whole_tree else [process.pid]:
        os.kill(pid, number)
    status, out, _ = finish(process)
    result = result_of(out)
    assert (status, result["status"]) == (130, "stopped")
    assert holdfast_processes(mark) == []
    saved = max(int(p.name.removeprefix("step-")) for p in (run_dir / "checkpoints").glob("step-*"))
    assert saved == result["steps"] >= 10
    status, out, _ = run(mark, "train", job, "--json", "--run", run_dir, "--resume")
    assert (status, result_of(out)["weights_sha256"]) == (0, reference)


def test_a_second_signal_ends_a_run_at_once(mark, tmp_path):
    path, run_dir = tmp_path / "stuck.yaml", tmp_path / "run"
    job = {
        "task": f"{FAILING_TASKS}:stuck",
        "workers": 2,
        "shards": 2,
        "batch": 20,
        "timeout_s": 300,
    }
    path.write_text(json.dumps({**job, "checkpoint": {"every_steps": 1}}))
    process = start(mark, "train", path, "--json", "--run", run_dir)
    wait_for_step(process, run_dir, 2)
    process.send_signal(signal.SIGINT)
    while "once more to abort" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    status, out, err = finish(process)
    assert (status, result_of(out)["error"]) == (130, "Interrupted")
    assert "aborting" in err.splitlines()


@pytest.mark.soak
def test_a_run_continues_when_its_output_is_not_read(mark, job, tmp_path, reference):
    process = start(mark, "train", job, "--json", "--run", tmp_path / "run")
    process.stderr.close()
    process.stderr = None
    wait_for_step(process, tmp_path / "run", 5)
    process.send_signal(signal.SIGTERM)
    status, out, _ = finish(process)
    assert (status, result_of(out)["status"]) == (130, "stopped")


@pytest.mark.soak
def test_resume_without_a_directory_takes_the_newest_run(mark, job, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, _ = run(mark, "train", job, "epochs=1", "--json")
    assert status == 0
    assert run(mark, "train", job, "epochs=1", "name=small-other")[0] == 0
    again = run(mark, "train", job, "epochs=1", "--json", "--resume")
    assert result_of(again[1])["run_dir"] == result_of(out)["run_dir"]
    assert result_of(again[1])["weights_sha256"] == result_of(out)["weights_sha256"]


@pytest.mark.soak
def test_a_pipe_gets_plain_lines_and_a_closing_table(mark, job, tmp_path):
    status, out, err = run(mark, "train", job, "epochs=1", "--run", tmp_path / "run")
    assert status == 0
    assert "weights_sha256" in out
    assert "\x1b" not in out + err


REFUSED = {
    "workers=2 hosts=3": "workers=2 leaves some of hosts=3 without",
    "workers=2 exchange=alone": "exchange=alone does not support workers=2; set exchange=auto",
    "collective=ring": "collective=ring does not support numerics=exact; set numerics=fast",
    "collective=auto numerics=fast sync=ddp": "collective=auto does not support sync=ddp",
    "compression=int8": "compression=int8 does not support numerics=exact; set numerics=fast",
    "compression=int8 numerics=fast collective=ring": "int8 does not support collective=ring",
    "compression.share=0.1": "share needs method=topk; set it, or remove share",
    "collective=ring numerics=fast exchange=staged": "does not support exchange=staged",
    "workers=9 shards=8": "workers=9 is more than shards=8",
}


def test_dry_run_prints_the_whole_job_and_does_nothing(mark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, _ = run(mark, "train", "digits", "workers=3", "--dry-run")
    assert status == 0
    (tmp_path / "again.yaml").write_text(out)
    assert load.load("again.yaml") == load.load("digits", ["workers=3"])
    status, out, _ = run(mark, "train", "digits", "--dry-run", "--json")
    assert load.request(json.loads(out), where="printed") == load.load("digits")
    for keys, refusal in REFUSED.items():
        status, _, err = run(mark, "train", "digits", *keys.split(), "--dry-run")
        assert (status, refusal in err) == (2, True)
    assert list(tmp_path.iterdir()) == [tmp_path / "again.yaml"]


def test_a_run_and_its_job_may_have_a_colon_in_their_path(command, command_line, tmp_path):
    run = tmp_path / "10:45" / "run"
    assert command("train", "digits", "epochs=1", "--run", run).wait(60) == 0
    status, printed, _ = command_line("train", str(run / "job.yaml"), "--dry-run")
    assert (status, printed) == (0, (run / "job.yaml").read_text())
    assert command("train", "--run", run, "extend=true", "epochs=2").wait(60) == 0
    assert len(metrics_of(run)) == 2 * (23 + 1)
    assert command_line("events", str(run))[0] == 0


@pytest.mark.soak
def test_a_run_directory_is_neither_shared_nor_overwritten(mark, job, tmp_path):
    run_dir = tmp_path / "run"
    process = start(mark, "train", job, "epochs=1000", "--run", run_dir)
    wait_for_step(process, run_dir, 1)
    status, _, err = run(mark, "train", job, "epochs=1000", "--run", run_dir, "--resume")
    assert (status, f"in use by another process, {process.pid} on " in err) == (2, True)
    status, _, err = run(mark, "train", job, "--run", run_dir)
    assert (status, "already contains a run" in err) == (2, True)
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 130
