"""The error table: each fault that a user can make or meet ends `holdfast train` in one line that
names it and says what to do, with the right status, leaving no process and no temporary file.
"""

import json
import os
import socket
import subprocess
import sys
import uuid

import pytest

from conftest import FAILING_TASKS, SMALL, events_of, holdfast_processes, memory_group, sampled
from holdfast.job import load

pytestmark = pytest.mark.slow

HOLDFAST = [sys.executable, "-m", "holdfast"]
FAULT_OF_THE_JOB, FAILED_RUN = 2, 1
GROUP_LIMIT_BYTES = 800_000_000
"""Enough for the processes of a small run, too little for that of the `big` model."""

OWN = ["train", "own.yaml"]
BIG = ["model={name: mlp, hidden: [3500, 3500]}", "workers=4"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory with job files, good and bad, to start commands in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text("batch: 20\nshards: 5\nworkers: 2\nname: own\n")
    (tmp_path / "many.yaml").write_text("# mine\nname: many\nbatch: many\n")
    (tmp_path / "mine.py").write_text("import nowhere\n")
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"\x1f\x8b\x08 and then nothing")
    (tmp_path / "file").touch()
    other = tmp_path / "other"
    other.mkdir()
    (other / "job.yaml").write_text(load.dump(load.check({**SMALL, "seed": 5}, where="test")))
    yield tmp_path
    assert [path.name for path in tmp_path.rglob("*") if path.name.endswith(".tmp")] == []


@pytest.fixture
def train(place):
    """Run a command in `place`: `train(arguments, prefix) -> status, output, lines of errors`,
    without the lines about progress, waiting and recoveries.
    """
    mark = f"HOLDFAST_TEST_{uuid.uuid4().hex}"

    def run(arguments, prefix=()):
        done = subprocess.run(
            [*prefix, *HOLDFAST, *map(str, arguments)],
            env={**os.environ, mark: "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        lines = done.stderr.splitlines()
        told = ("epoch ", "evaluation ", "waiting for ", "── recovery ", "   ")
        return done.returncode, done.stdout, [line for line in lines if not line.startswith(told)]

    yield run
    assert holdfast_processes(mark) == []


@pytest.mark.parametrize(
    ("arguments", "status", "messages"),
    sampled([
        pytest.param(["train", "digits", "worker=2"], FAULT_OF_THE_JOB,
                     ["unknown key worker; did you mean workers? (from worker=2)"],
                     id="unknown key"),
        pytest.param(["train", "digitz"], FAULT_OF_THE_JOB,
                     ["no job 'digitz'", "did you mean digits?"], id="unknown job"),
        pytest.param(["train", "many.yaml"], FAULT_OF_THE_JOB,
                     ["job many.yaml, line 3: batch: input should be a valid integer, not 'many'"],
                     id="wrong type"),
        pytest.param(["train", "digits", "--tee", "7"], FAULT_OF_THE_JOB,
                     ["--tee 7: '7' is not a rank; use all"], id="wrong rank"),
        pytest.param(["train", "cifar10", "data.path=nowhere"], FAULT_OF_THE_JOB,
                     ["nowhere does not exist; add --download", "set data.path"],
                     id="absent data"),
        pytest.param(["train", "cifar10", "data.path=cifar-10-python.tar.gz"], FAULT_OF_THE_JOB,
                     ["cifar-10-python.tar.gz: ", "download the data set"], id="damaged data"),
        pytest.param(["train", "digits", "data=null"], FAULT_OF_THE_JOB,
                     ["task classification needs images", "data.name=digits"], id="no data"),
        pytest.param([*OWN, "task=mine.py:main"], FAULT_OF_THE_JOB,
                     ["importing mine.py failed with ModuleNotFoundError", "'nowhere'"],
                     id="task that does not import"),
        pytest.param([*OWN, "task=none.py:main"], FAULT_OF_THE_JOB,
                     ["task file none.py does not exist"], id="task without a file"),
        pytest.param([*OWN, f"task={FAILING_TASKS}:vector_loss"], FAULT_OF_THE_JOB,
                     ["the loss must be a scalar", "take the mean over the shard's samples"],
                     id="loss that is no scalar"),
        pytest.param([*OWN, f"task={FAILING_TASKS}:hungry", "on_failure=stop"], FAILED_RUN,
                     ["rank 1 ran out of memory, asking for 4000000000000000 bytes (see ",
                      "): set shards=10 for shards of 2 samples, not 4, or make"],
                     id="allocator refuses"),
        pytest.param(["train", "digits", "--run", "other", "--resume"], FAULT_OF_THE_JOB,
                     ["other is a run with ", "or start a new one"],
                     id="run directory of another job"),
        pytest.param(["train", "digits", "--resume"], FAULT_OF_THE_JOB,
                     ["no run of digits to resume: there is no runs/digits-DATE-TIME-ID here"],
                     id="nothing to resume"),
        pytest.param(["train", "digits", "--run", "file/run"], FAULT_OF_THE_JOB,
                     ["run directory file/run: Not a directory; ", "another run dir"],
                     id="file in the way"),
        pytest.param(["train", "digits", "workers=9"], FAULT_OF_THE_JOB,
                     ["workers=9 is more than shards=8", "start at most 8 workers, or set "],
                     id="more workers than shards"),
        pytest.param(["train", "digits", "script={path: mine.py}"], FAULT_OF_THE_JOB,
                     ["use holdfast run to run a script; remove the key script"],
                     id="script as a task"),
    ], 7, 10),
)  # fmt: skip
def test_a_fault_ends_in_one_line_that_says_what_to_do(train, arguments, status, messages):
    found, out, err = train(arguments)
    lines_of_the_user = 3 if "vector_loss" in arguments[-1] else 0
    assert (found, out, len(err)) == (status, "", 1 + lines_of_the_user), err
    assert [message for message in messages if message not in err[-1]] == []


def test_too_few_descriptors_are_named(train):
    """One that is inherited, and has a number above the limit, is none of them."""
    few = ["bash", "-c", 'exec 200</dev/null; ulimit -n 40; exec "$0" "$@"']
    keys = ["workers=16", "shards=16", "batch=64", "--run", "run"]
    status, out, err = train(["train", "digits", *keys], few)
    assert (status, out, len(err)) == (FAILED_RUN, "", 1), err
    assert err[0].startswith("holdfast: [Errno 24] Too many open files: 'run/logs/rank-")
    assert err[0].endswith("; raise the limit of open files (ulimit -n) and resume the run")


@pytest.mark.soak
def test_a_port_that_is_taken_is_named(train):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, out, err = train(["train", "digits", "sync=ddp", f"port={port}"])
    assert (status, out, len(err)) == (FAULT_OF_THE_JOB, "", 1), err
    assert f"port {port} of 127.0.0.1: Address already in use; set port=0" in err[0]


def test_the_traceback_of_a_worker_that_raises_is_shown_once_and_only_its_own(train):
    status, out, err = train([*OWN, "workers=4", f"task={FAILING_TASKS}:raising"])
    assert (status, out) == (FAILED_RUN, "")
    assert err[:2] == ["on rank 1", "Traceback (most recent call last):"]
    assert err[-2] == "ValueError: the data of step 2 are odd"
    blamed = "holdfast: rank 1 raised ValueError: the data of step 2 are odd"
    assert err[-1].startswith(f"{blamed}; 3 failures without a step in between; see runs/")
    assert err[-1].endswith("logs/rank-1.log")
    assert err.count(err[1]) == 1
    assert not any(f"rank {other}" in line for other in (0, 2, 3) for line in err)


@pytest.mark.soak
def test_lines_of_chosen_workers_are_shown_with_their_rank_to_the_last_before_a_crash(train):
    keys = ["workers=3", "shards=3", "on_failure=stop"]
    status, _, err = train([*OWN, f"task={FAILING_TASKS}:talking", "--tee", "1", *keys])
    assert status == FAILED_RUN
    assert err[:3] == [
        "[rank 1] step 0",
        "[rank 1] step 1",
        "[rank 1] unfinishedTraceback (most recent call last):",
    ]
    assert all(line.startswith("[rank 1] ") for line in err[:-1])
    assert err[-2] == "[rank 1] ValueError: said enough"
    assert err[-1].startswith("holdfast: rank 1 raised ValueError: said enough; see runs/")


def test_with_json_an_error_is_the_object_that_ends_the_output_too(train):
    status, out, err = train(["train", "digits", "worker=2", "--json"])
    error = json.loads(out)
    assert (status, error["error"]) == (FAULT_OF_THE_JOB, "JobError")
    assert err == [f"holdfast: {error['message']}"]


def test_systems_other_than_linux_are_refused(place):
    code = "import sys; from holdfast.cli.main import main; sys.platform = 'darwin'; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "train", "digits"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "holdfast: needs Linux (memfd, pidfd and fork)\n"


@pytest.fixture
def mounted(place):
    """A file system of its own kind in `place`: `mounted(options) -> directory`."""
    directory = place / "mounted"
    directory.mkdir()

    def mount(options):
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", directory]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("mounting a file system needs root")
        return directory

    yield mount
    if os.path.ismount(directory):
        assert list(directory.rglob("*.tmp")) == []
        subprocess.run(["umount", directory], check=True)


@pytest.mark.parametrize(
    ("options", "status", "messages"),
    sampled([
        pytest.param("ro", FAULT_OF_THE_JOB, ["run directory ", "Read-only file system; fix that"],
                     id="unwritable directory"),
        pytest.param("size=4k,nr_inodes=4", FAULT_OF_THE_JOB,
                     ["run directory ", "No space left on device; fix that, or name another"],
                     id="full at the start"),
        pytest.param("size=12k", FAULT_OF_THE_JOB,
                     ["code-version.json: No space left on device; fix that, or name another"],
                     id="full after the first files"),
        pytest.param("size=100k", FAILED_RUN,
                     ["the checkpoint of step 23 could not be written", "No space left on device",
                      "free the disk and resume"], id="full at the end"),
    ], 3),
)  # fmt: skip
def test_a_disk_that_takes_no_more_is_named(train, mounted, options, status, messages):
    directory = mounted(options)
    found, out, err = train(["train", "digits", "epochs=1", "--run", directory / "run"])
    assert (found, out) == (status, "")
    assert [message for message in messages if message not in err[-1]] == [], err
    told = [line for line in err[:-1] if "checkpoint of step 23 could not be written" not in line]
    assert told == []


@pytest.fixture
def limited():
    """What to put before a command to run it in a control group of GROUP_LIMIT_BYTES."""
    with memory_group(GROUP_LIMIT_BYTES) as group:
        yield ["sh", "-c", 'echo $$ > "$0" && exec "$@"', group / "cgroup.procs"]


@pytest.mark.soak
def test_a_run_that_cannot_fit_into_its_control_group_is_refused_before_it_fills_it(
    train, limited, place
):
    status, out, err = train(["train", "digits", *BIG, "--run", "run"], limited)
    assert (status, out, len(err)) == (FAULT_OF_THE_JOB, "", 1), err
    assert "the run needs at least " in err[0]
    assert (
        f" are available of the 800.0 MB that {limited[-1].parent} allows. 4 workers keep "
        in err[0]
    )
    assert "start fewer workers, set fewer shards, make the model smaller" in err[0]
    assert not (place / "run" / "metrics.jsonl").exists()


def test_a_worker_that_is_oom_killed_is_reported_so(train, limited):
    job = [*OWN, f"task={FAILING_TASKS}:swelling", "on_failure=stop"]
    status, out, err = train(job, limited)
    assert (status, out, len(err)) == (FAILED_RUN, "", 1), err
    assert "rank 1 was OOM-killed (limit: the 800.0 MB that " in err[0]
    assert "): set shards=10 for shards of 2 samples, not 4, or make" in err[0]


@pytest.mark.soak
def test_the_others_train_without_a_worker_that_is_oom_killed(train, limited, place):
    job = [*OWN, f"task={FAILING_TASKS}:swelling", "--run", "run"]
    status, _, _ = train(job, limited)
    assert status == 0
    (event,) = events_of(place / "run", "worker-out-of-memory")
    assert (event["rank"], event["cap"]) == (1, 0)


@pytest.mark.soak
@pytest.mark.parametrize("keys", sampled([["on_failure=stop"], ["restarts.limit=1"]], 0))
def test_a_fork_server_that_is_oom_killed_is_reported_so(train, limited, keys):
    status, out, err = train([*OWN, f"task={FAILING_TASKS}:starving", *keys], limited)
    assert (status, out, len(err)) == (FAILED_RUN, "", 1), err
    assert "the fork server was OOM-killed (limit: the 800.0 MB" in err[0]


@pytest.mark.exec  # it has no torch to import
def test_a_fork_server_that_does_not_come_up_ends_the_run(train, place, monkeypatch):
    (place / "broken").mkdir()
    (place / "broken" / "torch.py").write_text("raise ImportError('libtorch.so is not here')")
    path = [str(place / "broken"), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    status, out, err = train([*OWN, "--run", "run"])
    assert (status, out, len(err)) == (FAILED_RUN, "", 1), err
    assert "the fork server died; see fork-server.log in the run's logs" in err[0]
    assert "libtorch.so is not here" in (place / "run" / "logs" / "fork-server.log").read_text()
