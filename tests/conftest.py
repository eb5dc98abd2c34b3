"""What tests share: a fork server, runs on it, and a look at what runs leave behind."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from hashlib import sha256
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from threading import Event

import pytest
import torch
from hypothesis import settings

import zygote_client
from cpu_times import CpuTimes
from holdfast.api.attended import accept_older_checkpoint
from holdfast.api.script import run_script
from holdfast.checkpoint import names
from holdfast.checkpoint.store import CheckpointStore
from holdfast.cli import app
from holdfast.faults.target import Target
from holdfast.job import load
from holdfast.launch.collector import without_collector
from holdfast.launch.fork_client import ForkServer
from holdfast.launch.spawn import WORKER, spawn
from holdfast.linux import control_groups
from holdfast.rundir.run_directory import RunDirectory
from holdfast.runs.controls import Controls
from holdfast.runs.hosts.placement import Placement
from holdfast.runs.run import LaunchOptions
from holdfast.runs.run import run as run_in
from zygote_client import locked

TASKS = Path(__file__).parent / "runs" / "sample_tasks.py"
FAILING_TASKS = TASKS.with_name("failing_tasks.py")

needs_avx2 = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"),
    reason="needs a processor with AVX2",
)

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU with CUDA")


def needs_library(*names):
    """Skip where a library is not installed; does not import it, as pytest.importorskip does."""
    absent = [name for name in names if not _is_installed(name)]
    return pytest.mark.skipif(bool(absent), reason=f"not installed: {', '.join(absent)}")


def _is_installed(name):
    package, _, module = name.rpartition(".")
    if not package:
        return find_spec(name) is not None
    parent = find_spec(package)
    return parent is not None and bool(
        PathFinder.find_spec(module, parent.submodule_search_locations)
    )


class Library:
    """A library that is imported when a test first uses it: collecting tests stays fast."""

    def __init__(self, name):
        self._name = name

    def __getattr__(self, attribute):
        if attribute.startswith("_"):  # pytest looks for marks of its own in all names
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)


SMALL = {
    "data": {"name": "digits", "augment": True},
    "model": {"name": "cnn", "width": 4, "dropout": 0.2},
    "optimizer": {"name": "adamw", "lr": 0.01},
    "schedule": {"name": "cosine", "warmup_steps": 3},
    "clip_norm": 0.5,
    "batch": 256,
    "epochs": 2,
    "shards": 8,
}
"""A job of twelve steps with everything that could make runs differ: batch normalisation,
augmentation, dropout, clipping, a schedule, and a short last batch."""


def pytest_configure(config):
    times = CpuTimes(is_worker=hasattr(config, "workerinput"))
    config.pluginmanager.register(times, "cpu-times")
    settings.register_profile("busy machine", settings(), deadline=None)
    settings.load_profile("busy machine")
    torch.set_num_threads(1)  # threads of several pytest processes would wait for each other
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` ignores it


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    with without_collector():  # it would look at all tests again and again
        return (yield)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory):
    """A folder that all pytest processes of a session share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def zygote(shared_folder, pytestconfig):
    """The client of the process that forks the commands of tests."""
    client = zygote_client.Client(shared_folder)
    if "HOLDFAST_EXEC" not in os.environ:
        zygote_client.install(client)
    pytestconfig.pluginmanager.get_plugin("cpu-times").use(client)
    return client


@pytest.fixture(autouse=True)
def forked_commands(request, zygote):
    """Commands are forked from the zygote, unless the test is marked `exec`."""
    zygote.is_used = request.node.get_closest_marker("exec") is None


@pytest.fixture(autouse=True)
def loader_processes_end():
    """Loader processes are forked, which is safe only once the pool of the test before is gone."""
    yield
    for thread in threading.enumerate():
        if type(thread).__name__ == "_ExecutorManagerThread":
            thread.join(60)


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory):
    """Tests leave nothing in the user's list of runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def command_line(monkeypatch, capsys):
    """Run the command in this process, without a fork server:
    `command_line(argument, …) -> status, output, errors`.
    """

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["holdfast", *arguments])
        with pytest.raises(SystemExit) as end:
            app.run(None)
        captured = capsys.readouterr()
        return end.value.code, captured.out, captured.err

    return run


@pytest.fixture(scope="session")
def forks(zygote):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(TASKS.with_name("failpoints"))
        spawned = spawn(WORKER)
    with ForkServer(spawned) as server:
        yield server


@pytest.fixture
def train(forks, tmp_path):
    """Run a job: `train(key=value, …) -> result`; on the shared fork server, or another.

    Checkpoints are of the steps in which they are due, unless `checkpoint.busy` says otherwise.

    `watch` is called with the steps committed, again and again; see `watching`.
    """
    count = 0

    def run(
        run_dir=None,
        resume=False,
        controls=None,
        on=forks,
        watch=None,
        sinks=(),
        profile=None,
        **keys,
    ):
        nonlocal count
        count += 1
        if "checkpoint" in keys:
            keys["checkpoint"] = {"busy": "wait", **keys["checkpoint"]}
        job = load.check({**SMALL, **keys}, where="test")
        path = run_dir or tmp_path / f"run-{count}"
        with (
            RunDirectory(path, job, resume=resume) as directory,
            watching(path, watch) if watch else nullcontext(),
        ):
            options = LaunchOptions(forks=on, controls=controls or Controls())
            return run_in(directory, options, sinks, placement=Placement(profile=profile))

    return run


def back_to(run, step):
    """Have a run resume from an older checkpoint."""
    store = CheckpointStore.of_run(run)
    for name in store.committed():
        if names.step_of(name) > step:
            store.delete(name)
    accept_older_checkpoint(run)


@contextmanager
def watching(run_dir, watch):
    """While the block runs a run, call `watch` with the most steps that a worker has committed,
    fifty times a second from the start of the first agent.

    That is from outside, and more often than the run reports its progress.
    """
    over, target = Event(), Target(run_dir)

    def look():
        while not over.wait(0.02):
            target.look()
            if target.arena is not None:
                watch(target.reached)

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            yield
        finally:
            over.set()
        looking.result()


def killing(run_dir, step, rank):
    """Kill the worker of `rank` once `step` steps are committed; see `watching`."""
    killed = []

    def watch(committed):
        if not killed and committed >= step:
            started = [e["pid"] for e in events_of(run_dir, "worker-started") if e["rank"] == rank]
            killed.append(os.kill(started[-1], signal.SIGKILL))

    return watch


@pytest.fixture
def run(forks, tmp_path):
    """Run a script on the shared fork server: `run(text or path, argument, …, key=value)`."""

    def of(script, *arguments, **keys):
        if not isinstance(script, Path):
            path = tmp_path / "script.py"
            path.write_text(script)
            script = path
        given = {"path": str(script), "arguments": [str(each) for each in arguments]}
        job = load.check_script({"script": given, "workers": 2, **keys}, where="test")
        return run_script(job, LaunchOptions(forks=forks), run_dir=tmp_path / "run")

    return of


@pytest.fixture
def mark():
    """A word in the environment of a command, by which all its descendants are known."""
    name = f"HOLDFAST_TEST_{uuid.uuid4().hex}"
    yield name
    assert holdfast_processes(name) == []


@pytest.fixture
def command(tmp_path):
    """Start a command: `command(word, …) -> Popen`; nothing of it is left at the end."""
    mark, started = f"HOLDFAST_TEST={tmp_path}", []

    def start(*words):
        with (tmp_path / f"output-{len(started)}").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", *map(str, words)],
                stdout=output, stderr=subprocess.STDOUT, cwd=tmp_path, start_new_session=True,
                env={**os.environ, "HOLDFAST_TEST": str(tmp_path)},
            )  # fmt: skip
        started.append(process)
        return process

    yield start
    for each in started:
        if each.poll() is None:
            each.send_signal(signal.SIGINT)
            each.send_signal(signal.SIGINT)
            each.wait(60)
    wait_until(lambda: holdfast_processes(mark) == [])


def own_loopback_address():
    """An address of this machine that no other test uses, so that all its ports are free."""
    return "127." + ".".join(str(1 + secrets.randbelow(254)) for _ in range(3))


@pytest.fixture
def no_thread_while_forking():
    """Ends a test with the threads that it started: the next one forks loader processes.

    A fork that is made while a thread of a closing pool holds a lock waits for that lock forever.
    """
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(30)


@pytest.fixture
def free_port():
    """One that nobody had just now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def sampled(cases, *kept):
    """The parameters of an exhaustive test: `make test` runs the cases at the positions `kept`,
    `make soak` the others.
    """
    assert all(position < len(cases) for position in kept), "a position without a case"
    return [case if position in kept else _soaked(case) for position, case in enumerate(cases)]


def _soaked(case):
    if hasattr(case, "marks"):  # it is a `pytest.param`
        return case._replace(marks=[*case.marks, pytest.mark.soak])
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.soak)


def change_last_byte(path: Path) -> None:
    """Change the last byte of a file."""
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def wait_until(happened: Callable[[], bool], timeout_s: float = 60) -> None:
    """Look again and again, and leave the processor to those who are waited for meanwhile: looking
    takes a tenth of the time at most.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        began = time.monotonic()
        if happened():
            return
        assert began < deadline, f"it did not happen within {timeout_s} s"
        time.sleep(min(max(0.005, 9 * (time.monotonic() - began)), 0.1))


def metrics_of(run_dir: Path) -> list[dict]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def events_of(run_dir: Path, name: str | None = None) -> list[dict]:
    """The events of a run, or those of one name; none while there is no file of them."""
    written = run_dir / "events.jsonl"
    lines = written.read_text().splitlines(keepends=True) if written.exists() else []
    # One that is being written now has no end yet.
    events = [json.loads(line) for line in lines if line.endswith("\n")]
    return [event for event in events if name is None or event["event"] == name]


def printed(tmp_path: Path, rank: int = 0) -> str:
    """What a rank of the run below `tmp_path` has printed."""
    return (tmp_path / "run" / "logs" / f"rank-{rank}.log").read_text()


def holdfast_processes(mark: str) -> list[int]:
    """Processes that have `mark` in their environment: descendants of a test's command."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environment = (entry / "environ").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if mark.encode() in environment and state not in "ZX":
                found.append(int(entry.name))
    return found


@pytest.fixture
def once(train, shared_folder):
    """Directory of a fault-free run that only the first test of a session trains, whichever
    process needs it first: `once(key=value, …) -> Path`. Tests that change it copy it.
    """

    def run(**keys):
        text = json.dumps(keys, sort_keys=True, default=str)
        path = shared_folder / f"reference-{sha256(text.encode()).hexdigest()[:16]}"
        with locked(path.with_suffix(".lock")):
            if not (path / "result.json").exists():
                shutil.rmtree(path, ignore_errors=True)  # of a test that failed
                result = train(run_dir=path, **keys)
                (path / "result.json").write_text(json.dumps(result))
        return path

    return run


@pytest.fixture
def reference(once):
    """Weights of such a run: `reference(epochs, key=value, …) -> weights_sha256`."""

    def weights(epochs=2, **keys):
        return result_of(once(epochs=epochs, **keys))["weights_sha256"]

    return weights


def result_of(run_dir: Path) -> dict:
    """Result of a finished run."""
    return json.loads((run_dir / "result.json").read_text())


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """A control group of so much memory; skips the test where there can be none."""
    groups = control_groups.groups("memory")
    around = next((group for group in groups if (group / "memory.stat").exists()), None)
    if around is None:
        pytest.skip("there is no control group for memory here")
    group = around / f"holdfast-test-{uuid.uuid4().hex}"

    def is_removed() -> bool:
        with suppress(OSError):
            group.rmdir()
        return not group.exists()

    try:
        group.mkdir()
        names = {path.name for path in group.iterdir()}
        limit = "memory.max" if "memory.max" in names else "memory.limit_in_bytes"
        (group / limit).write_text(str(limit_bytes))
        if "memory.swap.max" in names:
            (group / "memory.swap.max").write_text("0")
    except OSError as error:
        is_removed()
        pytest.skip(f"a control group cannot be limited here: {error}")
    yield group
    wait_until(is_removed)  # the kernel may take a moment to account for the dead
