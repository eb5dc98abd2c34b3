"""The program that starts a run: its options, globals, names of classes, and signals."""

import pickletools
import signal
import subprocess
import sys
import zipfile

import pytest

from conftest import events_of, printed, sampled, wait_until

pytestmark = pytest.mark.slow

LOOP = """
x = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(x, x.sum(1))
def train(session, lr):
    model, _ = session.attach(lambda: torch.nn.Linear(4, 1), lambda p: torch.optim.SGD(p, lr=lr))
    for x, y in session.shards(data):
        session.backward((model(x).squeeze(1) - y).square().mean())
"""
OPTIONS = f"""
import argparse
import holdfast, torch
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
args = parser.parse_args()
{LOOP}
def main(session):
    train(session, args.lr)
if __name__ == "__main__":
    job = {{"workers": 2, "batch": 16}}
    print("lr", *holdfast.train(main, job, run_dir="run").history["lr"])
"""


@pytest.fixture
def program(tmp_path):
    """Runs a program in a folder of its own; returns its output, or its error output."""

    def run(*words, status=0, **files):
        for name, text in files.items():
            path = tmp_path / f"{name.replace('__', '/', 1)}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == status, done.stderr
        return done.stdout if status == 0 else done.stderr

    return run


def test_workers_and_resumed_runs_have_the_options_of_the_program(program):
    assert program("options.py", "--lr", "0.5", options=OPTIONS) == "lr 0.5 0.5\n"
    longer = ("--run", "run", "--resume", "extend=true", "epochs=2", "--json")
    assert '"steps": 4' in program("-m", "holdfast", "train", *longer)
    refused = program("-m", "holdfast", "train", "options.py:main", "batch=16", status=2)
    assert "options.py ended with SystemExit: 2 while it was imported" in refused.splitlines()[-1]
    assert "session.job.params (params.NAME=VALUE)" in refused.splitlines()[-1]


CLASSES = f"""
import dataclasses, inspect, multiprocessing, pickle, sys
import holdfast, torch
@dataclasses.dataclass
class Vocabulary:
    words: list
class Net(torch.nn.Linear):
    pass
def square(number):
    return Vocabulary([number * number])
{LOOP}
def main(session):
    assert "Vocabulary([number" in inspect.getsource(square)
    assert sys.modules["__main__"].square is square
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        assert pool.map(square, [3]) == [Vocabulary([9])]
    train(session, 0.1)
    session.main_only(torch.save)([Net(2, 1), square(2)], "saved.pt")
if __name__ in ("__main__", "another name"):
    holdfast.train(main, {{"batch": 16, "hang_timeout_s": 20}}, run_dir="run")
"""


@pytest.mark.parametrize("how", sampled(["spawn", "forkserver"], 0))
@pytest.mark.full
def test_classes_of_a_program_are_those_of_main_in_its_workers(program, tmp_path, how):
    program("classes.py", how, classes=CLASSES)
    with zipfile.ZipFile(tmp_path / "saved.pt") as saved:
        operations = [*pickletools.genops(saved.read("saved/data.pkl"))]
    classes = {argument for code, argument, _ in operations if code.name == "GLOBAL"}
    assert {"__main__ Net", "__main__ Vocabulary"} <= classes


@pytest.mark.full
def test_a_package_is_started_as_a_module(program):
    main = OPTIONS.replace(LOOP, "from .loop import train").replace(
        "session, args.lr", 'session, args.lr if main.__module__ == "pkg.options" else 0'
    )
    loop = f"import torch{LOOP}"
    files = {"pkg____init__": "", "pkg__options": main, "pkg__loop": loop}
    assert program("-m", "pkg.options", "--lr", "0.5", **files) == "lr 0.5 0.5\n"


@pytest.mark.full
def test_a_run_that_starts_on_import_of_a_module_is_refused(program):
    main = OPTIONS.replace('if __name__ == "__main__":', "if True:").replace("required=True", "")
    refused = program("-m", "pkg.options", status=1, pkg____init__="", pkg__options=main)
    assert "pkg.options starts a run while it is imported" in refused.splitlines()[-1]


SETTINGS = """
import time
import zipfile
LR, STARTED, NESTED = 0.1, time.time(), {"a": {"b": 1}}
class Defaults:
    width = 3
"""
GLOBALS = f"""
import argparse, collections, dataclasses, enum, math, pathlib, sys, time
import holdfast, torch
import settings
from settings import Defaults
class Mode(enum.Enum):
    FAST, SLOW = 1, 2
@dataclasses.dataclass(frozen=True)
class Inner:
    depth: int = 2
@dataclasses.dataclass
class Config:
    lr: float = 0.1
    inner: Inner = Inner()
CONFIG, PLAIN, FRESH, MODE = Config(), {{"lr": 0.1, 3: (1, 2)}}, None, Mode.FAST
ITEMS, NAMES, ARGS, OPTIMIZER = [], {{"a"}}, argparse.Namespace(lr=0.1), torch.optim.SGD
PATH, DTYPE, STARTED, BASE, LARGE = pathlib.Path("a"), torch.float32, time.time(), {{"x": 1}}, 1.0
COPY = BASE
SEEN, QUEUE = collections.Counter("a"), collections.deque([1])
GROUPS = collections.defaultdict(list)
class Flags(enum.Flag):
    SLOW, LOUD = 1, 2
FLAGS = Flags.SLOW | Flags.LOUD
LOSS = torch.nn.MSELoss()
{LOOP}
def setup(args):
    global FRESH, MODE
    FRESH, MODE = args, Mode.SLOW
    ITEMS.append(("x", 1))
    SEEN.update("aab")
    QUEUE.append(2)
    GROUPS["b"].append(3)
    settings.LR = args.lr
def values(default=PLAIN):
    return repr([CONFIG, PLAIN, FRESH, MODE, ITEMS, sorted(NAMES), ARGS, default, OPTIMIZER, PATH,
        DTYPE, settings.LR, settings.NESTED, Defaults.width, BASE, COPY, LARGE, Config.lr, LOSS,
        torch.get_default_dtype(), SEEN, QUEUE, GROUPS, FLAGS])
def main(session):
    assert values() == session.job.params["values"], values()
    assert GROUPS["c"] == []
    assert settings.STARTED != session.job.params["started"] != STARTED
    torch.set_default_dtype(torch.float32)
    train(session, 0.1)
if __name__ == "__main__":
    args = argparse.Namespace(lr=0.5)
    setup(args)
    CONFIG.lr, CONFIG.inner, PLAIN["lr"], ARGS.lr = args.lr, Inner(5), args.lr, 4
    NAMES |= {{"b"}}
    OPTIMIZER, DTYPE, LARGE = torch.optim.AdamW, torch.float64, math.inf
    PATH = pathlib.Path("b") / "c"
    settings.NESTED["a"]["b"], Defaults.width, Config.lr = 7, 9, 0.7
    COPY = {{**BASE, "x": 2}}
    torch.set_default_dtype(torch.float64)
    params = {{"values": values(), "started": time.time()}}
    print(holdfast.train(main, {{"workers": 2, "batch": 16, "params": params}}).status)
    LOSS = None
"""


@pytest.mark.full
def test_workers_have_the_globals_that_the_program_has_set(program):
    assert program("globals.py", globals=GLOBALS, settings=SETTINGS) == "finished\n"


@pytest.mark.full
@pytest.mark.parametrize(
    "change",
    sampled(["LOSS = torch.nn.L1Loss()", "LOSS.weight_ = torch.ones(3)", "CONFIG.loss = LOSS"], 0),
)
def test_a_global_that_cannot_be_given_to_workers_is_refused_by_name(program, change):
    changed = GLOBALS.replace("    params =", f"    {change}\n    params =")
    refused = program("globals.py", status=1, globals=changed, settings=SETTINGS).splitlines()[-1]
    name = "CONFIG" if "CONFIG" in change else "LOSS"
    assert f"the program has changed {name} of " in refused
    assert "globals.py after its import, and its workers cannot be given a torch.nn" in refused


@pytest.mark.full
def test_a_global_that_is_too_large_is_refused_by_name(program):
    changed = GLOBALS.replace("    params =", "    ITEMS = ['x' * 70_000]\n    params =")
    refused = program("globals.py", status=1, globals=changed, settings=SETTINGS).splitlines()[-1]
    assert "the global ITEMS and others that this program may change" in refused


NOHUP = ("nohup", sys.executable, "-m", "holdfast")


@pytest.mark.full
def test_a_run_under_nohup_goes_on_when_its_terminal_is_closed(tmp_path):
    words = ("train", "digits", "epochs=300", "workers=2", "--run", "run")
    command = subprocess.Popen([*NOHUP, *words], cwd=tmp_path, stderr=subprocess.DEVNULL)
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_until(metrics.exists)
    wait_until(lambda: b"\n" in metrics.read_bytes())
    before = metrics.read_bytes().count(b"\n")
    command.send_signal(signal.SIGHUP)
    wait_until(lambda: metrics.read_bytes().count(b"\n") > before + 60 or command.poll())
    assert command.poll() is None, events_of(tmp_path / "run")[-1]
    command.terminate()
    assert command.wait() == 130
    assert events_of(tmp_path / "run")[-1]["status"] == "stopped"


@pytest.mark.full
def test_a_script_under_nohup_ignores_what_nohup_ignores(tmp_path):
    source = "import signal; print(*map(signal.getsignal, (signal.SIGHUP, signal.SIGTERM)))"
    (tmp_path / "script.py").write_text(source)
    command = [*NOHUP, "run", "--run", "run", "script.py"]
    subprocess.run(command, cwd=tmp_path, stderr=subprocess.DEVNULL, check=True)
    assert printed(tmp_path).strip() == "1 0", "Handlers.SIG_IGN, Handlers.SIG_DFL"


@pytest.mark.full
def test_a_run_needs_no_home_no_user_name_and_no_standard_streams(tmp_path):
    words = ("train", "digits", "epochs=1", "--run", "run")
    command = ["env", "-u", "HOME", "-u", "XDG_STATE_HOME", *NOHUP[1:], *words]
    nobody = ["unshare", "--user", "--map-user=54321", "--map-group=54321"]
    if subprocess.run([*nobody, "true"], check=False, capture_output=True).returncode == 0:
        command = [*nobody, *command]  # else it runs with a user name
    closed = ["bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash"]
    subprocess.run([*closed, *command], cwd=tmp_path, check=True)
    assert events_of(tmp_path / "run")[-1]["status"] == "finished"
