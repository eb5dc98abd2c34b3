"""`holdfast run`: scripts find what torchrun would give them, and end as programs do."""

import gzip
import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from conftest import holdfast_processes, printed, sampled, wait_until

pytestmark = pytest.mark.slow

TRAIN = Path(__file__).parent / "scripts" / "train.py"
HOLDFAST = [sys.executable, "-m", "holdfast", "run"]


@pytest.fixture
def mark():
    """A word in the environment of a command, by which all its descendants are known."""
    name = f"HOLDFAST_TEST_{uuid.uuid4().hex}"
    yield name
    wait_until(lambda: holdfast_processes(name) == [])


TELLS = """
import json, os, sys
told = {"environment": dict(os.environ), "argv": sys.argv, "path": sys.path,
        "file": __file__, "names": sorted(globals()), "cwd": os.getcwd(),
        "spec": __spec__ and __spec__.name, "main": sys.modules["__main__"].__dict__ is globals()}
open(sys.argv[1] + os.environ["RANK"], "w").write(json.dumps(told))
"""


@pytest.mark.parametrize(
    "how", sampled([["tells.py"], ["-m", "inner.tells"]], 0), ids=["file", "module"]
)
@pytest.mark.full
def test_a_script_finds_what_torchrun_would_give_it(tmp_path, how):
    (tmp_path / "inner").mkdir()
    for path in ("tells.py", "inner/tells.py"):
        (tmp_path / path).write_text(TELLS)
    environment = {
        **os.environ,
        "GLIBC_TUNABLES": "glibc.malloc.arena_max=9:glibc.malloc.perturb=0",
    }
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    runs = {
        name: subprocess.Popen(
            [*command, "--nproc-per-node", "2", *how, str(tmp_path / f"{name}-"), "--json", "-m"],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.DEVNULL,
        )
        for name, command in {"torchrun": torchrun, "holdfast": HOLDFAST}.items()
    }
    assert [process.wait(60) for process in runs.values()] == [0, 0]
    for rank in (0, 1):
        theirs, ours = (json.loads((tmp_path / f"{name}-{rank}").read_text()) for name in runs)
        assert ours["environment"].pop("HOLDFAST_RUN_DIR").startswith(str(tmp_path / "runs"))
        assert theirs["environment"].pop("TORCHELASTIC_SIGNALS_TO_HANDLE")  # is for torchrun
        differ = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_MAX_RESTARTS"}
        for name in (*differ, "TORCHELASTIC_ERROR_FILE"):
            assert all(told["environment"].pop(name) for told in (theirs, ours))
        assert theirs["argv"].pop(1) != ours["argv"].pop(1)
        assert ours == theirs


def test_workers_that_do_not_seed_draw_different_numbers(run, tmp_path):
    run("import random, numpy, torch; print(random.random(), numpy.random.rand(), torch.rand(1))")
    assert not set(printed(tmp_path, 0).split()) & set(printed(tmp_path, 1).split())


MEETS = """
import os, torch.distributed as d
d.init_process_group('gloo'); d.barrier(); os._exit(0)
"""


@pytest.mark.parametrize(
    "text",
    sampled(
        [
            "import sys; sys.exit()",
            "raise SystemExit(0)",
            "import os; os._exit(0)",
            MEETS,
        ],
        3,
    ),
)
def test_status_0_is_success_however_a_script_ends(run, text):
    assert run(text).status == "finished"


def test_the_end_of_a_script_is_that_of_a_program(run, tmp_path):
    run(
        f"""
import atexit, concurrent.futures, gzip, threading, time
left_open = open({str(tmp_path / "open")!r}, "w"); left_open.write("whole")
zipped = gzip.open({str(tmp_path / "open.gz")!r}, "wt"); zipped.write("whole")
pool = concurrent.futures.ThreadPoolExecutor(2)
pool.submit(time.sleep, 0.01)
atexit.register(print, "at exit")
def late():
    time.sleep(0.1); print("a thread")
threading.Thread(target=late).start()
print("the end")
""",
        workers=1,
    )

    assert (tmp_path / "open").read_text() == "whole"
    assert gzip.decompress((tmp_path / "open.gz").read_bytes()) == b"whole"
    assert printed(tmp_path).split("\n")[:3] == ["the end", "a thread", "at exit"]


@pytest.mark.soak
def test_the_main_module_serves_processes_and_pickles(run, tmp_path):
    run(
        """
import multiprocessing, pickle
import torch
class Squares(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i): return i * i
def double(x): return 2 * x
if __name__ == "__main__":
    assert isinstance(pickle.loads(pickle.dumps(Squares())), Squares)
    print([int(x) for x in torch.utils.data.DataLoader(Squares(), num_workers=1)])
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(double, [4]))
""",
        workers=1,
    )
    assert printed(tmp_path) == "[0, 1, 4, 9]\n[8]\n"


WAITS = """
import os, signal, sys, threading
def leave(*_):
    print("asked to leave", flush=True)
    sys.exit(0)
if sys.argv[1] == "handles":
    signal.signal(signal.SIGTERM, leave)
print("waits", flush=True)
threading.Event().wait(60)
"""


@pytest.mark.parametrize("what", sampled(["handles", "dies"], 0))
def test_a_script_is_asked_to_stop_as_torchrun_would(tmp_path, mark, what):
    (tmp_path / "waits.py").write_text(WAITS)
    process = subprocess.Popen(
        [*HOLDFAST, "--workers", "2", "--run", "run", "--json", "waits.py", what],
        cwd=tmp_path,
        env={**os.environ, mark: "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    logs = [tmp_path / "run" / "logs" / f"rank-{rank}.log" for rank in (0, 1)]
    wait_until(lambda: all(log.exists() and "waits" in log.read_text() for log in logs))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert json.loads(out)["status"] == "stopped"
    assert ("[rank 1] asked to leave" in err) == (what == "handles")


def test_a_script_may_keep_metrics_of_its_own_in_the_run_directory(run, tmp_path):
    keeps = """
import json, os, pathlib, signal, time
place = pathlib.Path(os.environ["HOLDFAST_RUN_DIR"])
(place / "loss.png").write_bytes(b"its own")
with open(place / "metrics.jsonl", "a") as metrics:
    for line in {"epoch": 1, "loss": 0.5}, {"epoch": 1, "time_unix_s": time.time()}:
        print(json.dumps(line), file=metrics)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run(keeps, workers=1).restarts == 1
    assert (tmp_path / "run" / "loss.png").read_bytes() == b"its own"


def test_a_script_inherits_no_descriptors(run, tmp_path):
    inherited = """
import os
print([fd for fd in map(int, os.listdir("/proc/self/fd"))
       if fd > 2 and os.path.exists(f"/proc/self/fd/{fd}") and os.get_inheritable(fd)])
"""
    run(inherited)
    assert printed(tmp_path) == "[]\n"


@pytest.mark.soak
def test_a_script_can_run_again_in_its_run_directory(run, tmp_path):
    script = """
import os
print(os.path.basename(os.environ["HOLDFAST_RUN_DIR"]), os.environ["TORCHELASTIC_RESTART_COUNT"])
"""
    assert [run(script, workers=n).workers for n in (1, 2)] == [1, 2]
    assert printed(tmp_path) == "run 0\nrun 0\n"
    assert json.loads((tmp_path / "run" / "result.json").read_text())["restarts"] == 0


@pytest.mark.parametrize(
    ("words", "status", "message"),
    sampled(
        [
            (["--json", "absent.py"], 2, "script 'absent.py' not found"),
            (["-m", "absent.module", "--json"], 2, "module 'absent' not found"),
            (["-m", ".absent", "--json"], 2, "module '.absent' not found"),
            (["-m", "__main__", "--json"], 2, "module '__main__' not found"),
            (["--workers", "two", "absent.py"], 2, "--workers two: use a number"),
        ],
        0,
    ),
)
def test_a_mistake_in_the_command_is_named(tmp_path, words, status, message):
    done = subprocess.run(
        [*HOLDFAST, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, message in done.stderr) == (status, True), done.stderr
    assert bool(done.stdout) == (words[0] == "--json")
    assert not list(tmp_path.iterdir())


FORKS = """
import os, sys
pid = os.fork()
if pid == 0:
    if sys.argv[2] == "raises":
        raise ValueError("in a child")
    sys.exit(0)
os.waitpid(pid, 0)
open(sys.argv[1] + os.environ["RANK"], "w").write("the parent has come to its end")
"""


@pytest.mark.soak
@pytest.mark.parametrize("how", sampled(["ends", "raises"], 0))
def test_a_child_that_comes_to_the_end_of_the_script_is_not_taken_for_its_parent(
    run, tmp_path, how
):
    assert run(FORKS, tmp_path / "end-", how).restarts == 0
    for rank in range(2):
        assert (tmp_path / f"end-{rank}").read_text() == "the parent has come to its end"


ENDS_EARLY = """
import os, pathlib, sys, threading, time
told = pathlib.Path(sys.argv[1])
if os.environ["RANK"] == "1":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    told.with_suffix(".tmp").write_text(str(os.getpid()))
    told.with_suffix(".tmp").replace(told)
    sys.exit(0)
def wait_while(happens, what):
    end = time.monotonic() + 30
    while happens():
        assert time.monotonic() < end, what
        time.sleep(0.01)
def lives(pid):
    try:
        stat = pathlib.Path("/proc", pid, "stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
wait_while(lambda: not told.exists(), "rank 1 has not begun")
wait_while(lambda: lives(told.read_text()), "rank 1 lingers")
"""


def test_a_rank_that_has_come_to_its_end_is_gone(run, tmp_path):
    result = run(ENDS_EARLY, tmp_path / "pid", on_failure="stop")
    assert (result.status, result.restarts) == ("finished", 0)
