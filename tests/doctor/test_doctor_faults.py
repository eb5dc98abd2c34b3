"""Faults that are planted on one host, for real, and `holdfast doctor` that names them."""

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from conftest import own_loopback_address, wait_until

pytestmark = pytest.mark.slow

FAULT, ADVICE = "fault", "advice"


def doctor(folder, *words, inside=(), environment=None):
    """Exit status of `holdfast doctor --json`, and its findings by check."""
    command = [sys.executable, "-m", "holdfast", "doctor", *map(str, words), "--json"]
    done = subprocess.run(
        [*map(str, inside), *command], cwd=folder, env={**os.environ, **(environment or {})},
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.stdout, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["ok"] == (done.returncode == 0), done.stderr
    assert {each.name for each in folder.iterdir()} <= {"runs"}, "it leaves nothing behind"
    return done.returncode, {each["check"]: each for each in told["findings"]}


def in_mounts(script):
    """A shell in a mount namespace of its own, which then runs the command."""
    return ["unshare", "--mount", "sh", "-euc", f'{script}; exec "$@"', "sh"]


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="planting it needs root")


@pytest.fixture
def wrong_clock(tmp_path_factory):
    """The environment of processes that take every time for 25 years earlier."""
    folder = tmp_path_factory.mktemp("clock")
    (folder / "sitecustomize.py").write_text(
        "import time\nnow = time.time\ntime.time = lambda: now() - 25 * 365 * 86400\n"
    )
    return {"PYTHONPATH": str(folder)}


@pytest.mark.soak
def test_a_host_without_faults_would_run_the_job(tmp_path):
    status, findings = doctor(tmp_path)
    assert status == 0
    assert "2 workers summed" in findings["trial run"]["found"]
    assert all(each["remedy"] for each in findings.values() if each["outcome"] != "ok")


@needs_root
def test_all_faults_of_a_host_are_named_at_once(tmp_path, wrong_clock):
    script = (
        "mount -t tmpfs -o size=64k tmpfs /dev/shm; mount --bind /dev/null /etc/resolv.conf; "
        "hostname no-such-host; mount -t tmpfs -o size=12m tmpfs runs"
    )
    (tmp_path / "runs").mkdir()
    inside = ["unshare", "--net", "--uts", "prlimit", "--nofile=100", "taskset", "--cpu-list", "0"]
    status, findings = doctor(
        tmp_path, "digits", "hosts=2", "workers=4", "device=cuda", "--run", "runs/one",
        inside=[*inside, *in_mounts(script)], environment=wrong_clock,
    )  # fmt: skip
    assert status == 1
    named = {check for check, each in findings.items() if each["outcome"] == FAULT}
    assert named >= {"descriptors", "clock", "loopback", "address", "gpu", "disk space"}
    hinted = {check for check, each in findings.items() if each["outcome"] == ADVICE}
    assert hinted >= {"cores", "host name", "/dev/shm"}


@pytest.mark.soak
def test_a_port_that_another_process_has_is_named_with_the_process(tmp_path):
    address = own_loopback_address()
    with socket.create_server((address, 0)) as server:
        port = server.getsockname()[1]
        words = ["digits", "hosts=2", "workers=2", "--address", address, "--port", port]
        status, findings = doctor(tmp_path, *words)
    assert status == 1
    assert f"process {os.getpid()}" in findings[f"port {port}"]["found"]


@pytest.mark.soak
def test_ctrl_c_ends_a_check_of_several_hosts_and_leaves_no_keys(tmp_path):
    words = ["doctor", "--hosts", "2", "--address", own_loopback_address(), "--run", "runs/x"]
    check = subprocess.Popen([sys.executable, "-m", "holdfast", *words], cwd=tmp_path)
    folder = tmp_path / "runs" / "x-doctor"
    wait_until((folder / "secrets" / "join.token").exists)
    check.send_signal(signal.SIGINT)
    assert check.wait(60) == 130
    assert not folder.exists()


@pytest.mark.soak
def test_a_job_port_that_is_taken_is_named(tmp_path):
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        status, findings = doctor(tmp_path, "digits", "sync=ddp", f"port={port}")
    assert (status, findings[f"port {port}"]["outcome"]) == (1, FAULT)


PLANTED = {
    "descriptors": (["prlimit", "--nofile=100"], FAULT),
    "disk": (in_mounts("mount -t tmpfs -o ro tmpfs runs"), FAULT),
    "disk space": (in_mounts("mount -t tmpfs -o size=12m tmpfs runs"), FAULT),
    "/dev/shm": (in_mounts("mount -t tmpfs -o size=64k tmpfs /dev/shm"), ADVICE),
    "loopback": (["unshare", "--net"], FAULT),
    "host name": (
        [
            "unshare",
            "--uts",
            *in_mounts("hostname no-such; mount --bind /dev/null /etc/resolv.conf"),
        ],
        ADVICE,
    ),
    "cores": (["taskset", "--cpu-list", "0"], ADVICE),
    "shared memory": (["prlimit", "--fsize=500000"], FAULT),
}
"""Checks, in what the command is run so that they find something, and what that means."""


@needs_root
@pytest.mark.soak
@pytest.mark.parametrize("check", PLANTED)
def test_a_planted_fault_is_named(check, tmp_path):
    (tmp_path / "runs").mkdir()
    inside, outcome = PLANTED[check]
    status, findings = doctor(tmp_path, "digits", "--run", "runs/one", inside=inside)
    assert findings[check]["outcome"] == outcome
    assert findings[check]["remedy"]
    assert status == 1 if outcome == FAULT else status in (0, 1)


@pytest.mark.soak
def test_resources_that_this_host_lacks_are_named(tmp_path):
    keys = ["resources.memory=90TiB", "resources.gpus=1", "resources.cpus=1000"]
    status, findings = doctor(tmp_path, "digits", *keys)
    assert status == 1
    assert {findings[each]["outcome"] for each in ("memory", "gpu")} == {FAULT}
    assert findings["cores"]["outcome"] == ADVICE


@pytest.mark.soak
def test_a_wrong_clock_is_named(tmp_path, wrong_clock):
    status, findings = doctor(tmp_path, environment=wrong_clock)
    assert (status, findings["clock"]["outcome"]) == (1, FAULT)


@needs_root
@pytest.mark.soak
def test_too_few_processes_are_named(tmp_path):
    caps = "+dac_override,+dac_read_search"  # root's own processes are not limited
    user = ["setpriv", "--reuid=65534", f"--inh-caps={caps}", f"--ambient-caps={caps}"]
    _, findings = doctor(tmp_path, inside=["prlimit", "--nproc=50", *user])
    assert findings["processes"]["outcome"] == FAULT


@pytest.mark.soak
def test_a_package_of_another_version_is_named(tmp_path):
    planted = tmp_path / "runs" / "numpy-1.0.dist-info"
    planted.mkdir(parents=True)
    (planted / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 1.0\n")
    status, findings = doctor(tmp_path, environment={"PYTHONPATH": str(planted.parent)})
    assert status == 1
    assert findings["packages"]["found"] == "numpy 1.0, not >=1.26"


@pytest.mark.soak
def test_data_that_are_not_here_are_named_with_how_to_get_them(tmp_path):
    elsewhere = {"HOLDFAST_DATA": str(tmp_path)}
    status, findings = doctor(tmp_path, "cifar10", environment=elsewhere)
    assert status == 1
    assert "--download" in findings["task and data"]["found"]


@pytest.mark.soak
def test_a_task_that_raises_is_named(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine.py").write_text("class Task:\n    def __init__(self, job): 1 / 0\n")
    status, findings = doctor(tmp_path, "runs/mine.py:Task")
    assert status == 1
    assert findings["task and data"]["found"] == "ZeroDivisionError: division by zero"
