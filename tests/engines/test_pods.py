"""`holdfast pods run`, by the real kubectl and a stand-in for the API server."""

import os
import signal
import subprocess
import sys

import pytest

from conftest import wait_until
from pods_api import pods_api

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pods")]

TASK = """
import pathlib, sys, settings
from os import environ
print("in", environ["HOSTNAME"], settings.VALUE, flush=True)
pathlib.Path("runs/one").mkdir(parents=True)
pathlib.Path("runs/one/result.json").write_text(environ["HOSTNAME"])
print("not so good", file=sys.stderr)
sys.exit(3 if environ["HOSTNAME"] == sys.argv[1] else 0)
"""
WAITS = """
import pathlib, signal, sys, time
try:
    print("begun", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    pathlib.Path("stopped").write_text("")
    sys.exit(130)
"""


@pytest.fixture
def cluster(tmp_path):
    with pods_api(tmp_path / "cluster") as found:
        found.add("web-0", "web-1", "web-2")
        found.add("other-0", labels={"app": "other"})
        found.add("web-3", conditions=[{"type": "Ready", "status": "False"}])
        yield found


@pytest.fixture
def sources(tmp_path):
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "task.py").write_text(TASK)
    (folder / "waits.py").write_text(WAITS)
    (folder / "settings.py").write_text("VALUE = 'shipped'\n")
    return folder


def start(cluster, folder, *words):
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast", "pods", "-l", "app=trainer", "run", *words],
        cwd=folder, env=cluster.client, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_only_a_command_that_runs_needs_a_selector(tmp_path):
    pods = [sys.executable, "-m", "holdfast", "pods", "run"]
    assert subprocess.run([*pods, "--help"], cwd=tmp_path, check=False).returncode == 0
    done = subprocess.run([*pods, "ls"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "selects no pods" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_command_runs_in_all_ready_pods_and_one_that_fails_is_named(cluster, sources, tmp_path):
    out = tmp_path / "out"
    process = start(cluster, sources, "--out", str(out), "python3", "task.py", "web-1")
    printed, said = process.communicate(timeout=60)
    assert process.returncode == 3, said
    lines = printed.splitlines()
    assert sorted(line for line in lines if " in " in line) == [
        f"web-{number} | in web-{number} shipped" for number in range(3)
    ]
    assert "holdfast: web-3 is not ready, and is left out" in said
    _, _, last = said.partition("holdfast: web-1 ended with status 3:\n")
    assert {"  in web-1 shipped", "  not so good"} <= set(last.splitlines())
    assert "web-0 ended" not in said
    found = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert found == {
        f"web-{number}/{name}"
        for number in range(3)
        for name in ("output.log", "runs/one/result.json")
    }
    assert (out / "web-2/runs/one/result.json").read_text() == "web-2"
    for number in range(3):
        folder = cluster.folder / "pods" / f"web-{number}"
        assert list(folder.glob("holdfast-*")) == [], "its folder is left in the pod"


@pytest.mark.soak
def test_ctrl_c_ends_the_commands_in_all_pods(cluster, sources, tmp_path):
    out = tmp_path / "out"
    process = start(cluster, sources, "--out", str(out), "python3", "waits.py")
    for _ in range(3):
        assert process.stdout.readline().endswith("| begun\n")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert sorted(path.parent.name for path in out.rglob("stopped")) == ["web-0", "web-1", "web-2"]
    for name in ("web-0", "web-1", "web-2"):
        assert cluster.processes(name) == []


@pytest.mark.soak
def test_results_replace_no_others(cluster, sources):
    process = start(cluster, sources, "--out", str(sources), "nvidia-smi")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert said == f"holdfast: {sources} exists; name a new folder by --out\n"


@pytest.mark.soak
def test_no_command_outlives_one_that_is_killed(cluster, sources, tmp_path):
    process = start(cluster, sources, "--out", str(tmp_path / "out"), "python3", "waits.py")
    for _ in range(3):
        process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    for name in ("web-0", "web-1", "web-2"):
        wait_until(lambda name=name: cluster.processes(name) == [])


@pytest.mark.soak
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-l", "app=absent"], "no pod with app=absent is ready"),
        (["-l", "app=trainer", "-n", "Not_One"], "'Not_One' is not a namespace of Kubernetes"),
        (["-l", "app=trainer", "-n", "elsewhere"], "Kubernetes cannot be asked for pods: "),
    ],
)
def test_pods_that_cannot_be_found_are_said(cluster, tmp_path, words, message):
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "pods", *words, "run", "nvidia-smi"],
        cwd=tmp_path, env=cluster.client, text=True, capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode in (1, 2)
    assert message in done.stderr
