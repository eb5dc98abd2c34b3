"""Recoveries are timed from what workers log, whoever launches them."""

import os
import random
import signal
import subprocess
import sys

import pytest

from conftest import holdfast_processes, wait_until
from holdfast.errors import HoldfastError, JobError
from holdfast_bench import launch as launches
from holdfast_bench.launch import PeerLaunch, ProcessSpec, signal_worker
from holdfast_bench.peers import systems
from holdfast_bench.trial import FAULT_STEP

pytestmark = pytest.mark.slow

WORKER = """
import json, os, sys, time
rank, log = sys.argv[1], open(f"rank-{sys.argv[1]}.jsonl", "a")
for step in range(10**6):
    began = time.monotonic()
    time.sleep(0.005)
    line = {"pid": os.getpid(), "step": step + 1, "world": 2, "began": began}
    print(json.dumps({**line, "ended": time.monotonic()}), file=log, flush=True)
"""


def workers(*, relaunched):
    return [
        ProcessSpec(arguments=[sys.executable, "-c", WORKER, str(rank)], relaunched=relaunched)
        for rank in range(2)
    ]


def recover(tmp_path, number, *, relaunched, timeout_s=30.0):
    commands = workers(relaunched=relaunched)
    with PeerLaunch(commands, tmp_path) as launch:
        launch.wait_for_steps(FAULT_STEP)
        return launches.recover(launch, signal_worker(number, random.Random(0)), timeout_s)


def test_a_recovery_ends_with_a_step_of_the_survivor_and_of_the_replacement(tmp_path):
    found = recover(tmp_path, signal.SIGKILL, relaunched=True)
    assert 0 < found.seconds["anyone"] < found.seconds["committed"]


def test_a_worker_that_is_never_replaced_has_no_recovery(tmp_path):
    found = recover(tmp_path, signal.SIGSTOP, relaunched=True, timeout_s=3.0)
    assert found.seconds.keys() == {"anyone"}


def test_a_launcher_that_exits_is_an_error(tmp_path):
    with pytest.raises(HoldfastError, match="exited with status -9; the last line printed was"):
        recover(tmp_path, signal.SIGKILL, relaunched=False)


def test_nothing_that_a_launch_has_started_outlives_it(tmp_path):
    starter = "import subprocess, sys; subprocess.Popen(['sleep', '1000'], start_new_session=True)"
    command = ProcessSpec(
        arguments=[sys.executable, "-c", starter],
        environment={"MARK": str(tmp_path)},
        relaunched=True,
    )
    with PeerLaunch([command], tmp_path) as launch:
        assert launch.wait(lambda: bool(holdfast_processes(str(tmp_path))), 30)
    wait_until(lambda: holdfast_processes(str(tmp_path)) == [])


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_that_a_benchmark_has_started_outlives_its_command(tmp_path, number):
    options = ["--workloads", "small", "--workers", "2", "--rounds", "1", "--steps", "100000"]
    command = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "bench", "scaling", *options],
        env={**os.environ, "MARK": str(tmp_path)},
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: len(holdfast_processes(str(tmp_path))) >= 3)
    command.send_signal(number)
    assert command.wait(30) == -number
    wait_until(lambda: holdfast_processes(str(tmp_path)) == [])


def test_ctrl_c_ends_a_benchmark_with_its_run(tmp_path):
    words = ["host", "--shapes", "gpt-2", "--shards", "1", "--turns", "100000"]
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast", "bench", *words],
        env={**os.environ, "MARK": str(tmp_path), "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as command:
        try:
            wait_until(lambda: any(tmp_path.glob("*/run/metrics.jsonl")))
            os.killpg(command.pid, signal.SIGINT)
            _, said = command.communicate(timeout=30)
        finally:
            command.kill()
    assert command.returncode == 130
    assert said == "gpt-2, 1 shards\nstopping after this step; once more to abort\n"
    wait_until(lambda: holdfast_processes(str(tmp_path)) == [])


def test_peers_that_are_not_installed_are_named_and_left_out(tmp_path, capsys):
    """In an environment that has what every peer needs, and nothing else."""
    for name in ("torch", "safetensors"):
        (tmp_path / f"{name}.py").touch()
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    there, absent = systems.installed(str(python))
    assert [peer.name for peer in there] == ["torchrun"]
    assert absent["torchft"] == f"{python} has no torchft"
    said = capsys.readouterr().err
    for name, module in {"torchft": "torchft", "Ray Train": "ray"}.items():
        assert f"{name} is left out: {python} has no {module}\n" in said
    (tmp_path / "torch.py").unlink()
    with pytest.raises(JobError, match="lacks torch; install it there"):
        systems.installed(str(python))
    with pytest.raises(JobError, match="does not run"):
        systems.installed(str(tmp_path / "absent"))


@pytest.mark.soak
def test_torchrun_restarts_the_script():
    (torchrun, *_) = systems.PEERS
    found = torchrun.recover(sys.executable, "small", signal.SIGKILL, random.Random(0))
    assert found.seconds["anyone"] <= found.seconds["committed"]
    assert 5 <= found.lost <= 15  # since the checkpoint of step 20, or of one later


@pytest.mark.soak
def test_restarts_are_timed_for_each_way():
    command = [sys.executable, "-m", "holdfast", "bench", "restart", "--rounds", "1"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("1 of 1") == 3
