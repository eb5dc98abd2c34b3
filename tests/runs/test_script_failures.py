"""`holdfast run`: what happens when the workers of a script fail."""

import re
from pathlib import Path

import pytest

from conftest import events_of, printed, sampled, wait_until
from holdfast.api.script import run_script
from holdfast.errors import WorkerFailed
from holdfast.job import load
from holdfast.rundir import json_lines
from holdfast.runs.run import LaunchOptions

pytestmark = pytest.mark.slow

TRAIN = Path(__file__).parent / "scripts" / "train.py"


@pytest.fixture(scope="module")
def weights(forks, tmp_path_factory):
    """What an fault-free run of the training script comes to."""
    path = tmp_path_factory.mktemp("reference")
    script = {"path": str(TRAIN), "arguments": [str(path)]}
    job = load.check_script({"script": script, "workers": 2}, where="test")
    result = run_script(job, LaunchOptions(forks=forks), run_dir=path / "run")
    assert (result.status, result.restarts) == ("finished", 0)
    return (path / "weights").read_text()


@pytest.mark.parametrize("fault", sampled(["kill@1", "raise@0", "exit@1", "stop@0", "sleep@1"], 0))
def test_a_script_with_checkpoints_ends_with_the_reference_weights(run, tmp_path, weights, fault):
    result = run(TRAIN, tmp_path, "--fault", fault, hang_timeout_s=3)
    assert (result.status, result.restarts) == ("finished", 1)
    assert (tmp_path / "weights").read_text() == weights
    assert "goes on from step 10" in printed(tmp_path)
    (report,) = json_lines.read(tmp_path / "run" / "recoveries.jsonl")
    assert report["outcome"] == "restarted"
    blamed = {cause["rank"] for cause in report["causes"]}
    assert blamed == ({0, 1} if fault == "sleep@1" else {int(fault[-1])})


@pytest.mark.parametrize(
    ("fault", "message"),
    sampled(
        [
            ("kill@2", "rank 2 was killed by SIGKILL"),
            ("raise@3", "rank 3 raised ValueError: as planned"),
            ("exit@1", "rank 1 exited 3"),
        ],
        1,
    ),
)
def test_only_the_root_cause_is_named_among_cascading_failures(run, tmp_path, fault, message):
    with pytest.raises(WorkerFailed, match=message):
        run(TRAIN, tmp_path, "--fault", fault, workers=4, on_failure="stop")
    tracebacks = [rank for rank in range(4) if "Traceback" in printed(tmp_path, rank)]
    assert tracebacks == ([3] if fault == "raise@3" else [])


@pytest.mark.parametrize(
    ("text", "message"),
    sampled(
        [
            ("import sys; sys.exit('enough')", "exited 1"),
            ("import os; os._exit(5)", "exited 5"),
            ("1 +", "raised SyntaxError"),
            ("prin('a typo')", "raised NameError: .*; 3 failures within 30 s of the start"),
        ],
        3,
    ),
)
def test_a_script_that_always_fails_at_its_start_is_not_restarted_for_long(
    run, tmp_path, text, message
):
    with pytest.raises(WorkerFailed, match=message):
        run(text)
    generations = [e for e in events_of(tmp_path / "run") if e["event"] == "generation-started"]
    assert len(generations) == 3


def test_a_traceback_begins_in_the_script(run, tmp_path):
    with pytest.raises(WorkerFailed) as caught:
        run("def f():\n    raise KeyError('k')\nf()", on_failure="stop", workers=1)
    words = caught.value.__cause__.text.splitlines()
    assert words[1].endswith('script.py", line 3, in <module>')
    assert caught.value.__cause__.text in printed(tmp_path)


def test_processes_that_a_worker_has_started_end_with_it(run, tmp_path):
    pid = tmp_path / "pid"
    run(f"""
import os, subprocess
child = subprocess.Popen(["sleep", "1000"])
if os.environ["RANK"] == "0":
    open({str(pid)!r}, "a").write(f"{{child.pid}} ")
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), 9)
""")
    children = pid.read_text().split()
    assert len(children) == 2
    wait_until(lambda: not any(Path(f"/proc/{child}").exists() for child in children), 10)


def test_a_worker_that_waits_forever_while_it_holds_the_interpreter_is_killed(run):
    result = run(
        """
import ctypes, os
while os.environ["TORCHELASTIC_RESTART_COUNT"] == "0": ctypes.PyDLL(None).pause()
""",
        hang_timeout_s=1,
        workers=1,
    )
    assert result.restarts == 1


def test_a_hang_of_a_script_is_reported_with_the_collective_that_the_others_wait_in(run, tmp_path):
    run(
        """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 1: time.sleep(600)
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
""",
        hang_timeout_s=1,
    )
    [report] = json_lines.read(tmp_path / "run" / "recoveries.jsonl")
    assert report["missing"] == [1]
    first, second = report["whereabouts"]
    assert (first["doing"], first["waits_for"]) == ("in all_reduce of torch.distributed", [1])
    assert (second["doing"], second["waits_for"]) == ("running the script", [])
    assert re.search(r'script.py", line 4 in <module>$', second["stack"][0])


@pytest.mark.soak
def test_a_worker_whose_children_compute_does_not_count_as_hung(run):
    result = run(
        """
import subprocess, sys
subprocess.run([sys.executable, "-c", '''
import time
end = time.monotonic() + 4
while time.monotonic() < end: pass
'''], check=True)
""",
        hang_timeout_s=1.5,
        workers=1,
    )
    assert result.restarts == 0


KILLS_ITS_AGENT = """
import json, os, pathlib, signal, threading
restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
print(restarts)
if restarts == "0":
    if os.environ["RANK"] == "0":
        log = pathlib.Path(os.environ["HOLDFAST_RUN_DIR"], "events.jsonl").read_text()
        events = [json.loads(line) for line in log.splitlines()]
        (agent,) = [event["pid"] for event in events if event["event"] == "agent-started"]
        os.kill(agent, signal.SIGKILL)
    threading.Event().wait()
"""


@pytest.mark.soak
def test_the_loss_of_an_agent_counts_as_one_restart(run, tmp_path):
    assert run(KILLS_ITS_AGENT).restarts == 1
    assert printed(tmp_path) == "0\n1\n"


def test_a_long_cause_is_cut_in_its_middle(run, tmp_path):
    with pytest.raises(WorkerFailed) as caught:
        run("raise ValueError(f'first {[0] * 1_000_000} last')", on_failure="stop")
    cause = str(caught.value)
    assert len(cause) < 5_000
    assert "raised ValueError: first [0" in cause
    assert "0] last" in cause
    assert (tmp_path / "run" / "events.jsonl").stat().st_size < 30_000
    assert (tmp_path / "run" / "logs" / "rank-0.log").stat().st_size > 3_000_000


FEELS = """
import os, pathlib, signal, sys, time
import torch.distributed as dist
places, rank = pathlib.Path(sys.argv[1]), os.environ["RANK"]
def lives(pid):
    try:
        stat = pathlib.Path("/proc", pid, "stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
dist.init_process_group("gloo")
(places / rank).write_text(str(os.getpid()))
dist.barrier()
if rank != "1":
    os._exit(7)
while any(lives((places / other).read_text()) for other in "02"):
    time.sleep(0.001)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_cascading_failure_is_not_named_although_it_ends_first(run, tmp_path):
    with pytest.raises(WorkerFailed, match="rank 1 was killed by SIGKILL") as caught:
        run(FEELS, tmp_path, workers=3, on_failure="stop")
    assert caught.value.rank == 1
    [report] = json_lines.read(tmp_path / "run" / "recoveries.jsonl")
    assert [cause["who"] for cause in report["causes"]] == ["rank 1"]
    assert report["ended"] == [0, 2]
