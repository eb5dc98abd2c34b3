"""The program that starts a run: its options, globals, names of classes, and signals."""

import subprocess
import sys

import pytest

from conftest import sampled

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
if __name__ in ("__main__", "another name") and "read" not in sys.argv:
    holdfast.train(main, {{"batch": 16, "hang_timeout_s": 20}}, run_dir="run")
elif __name__ == "__main__":
    print(torch.load("saved.pt", weights_only=False))
"""


@pytest.mark.parametrize("how", sampled(["spawn", "forkserver"], 0))
@pytest.mark.full
def test_classes_of_a_program_are_those_of_main_in_its_workers(program, how):
    program("classes.py", how, classes=CLASSES)
    read = program("classes.py", "read")
    assert read == "[Net(in_features=2, out_features=1, bias=True), Vocabulary(words=[4])]\n"


def test_a_package_is_started_as_a_module(program):
    main = OPTIONS.replace(LOOP, "from .loop import train").replace(
        "session, args.lr", 'session, args.lr if main.__module__ == "pkg.options" else 0'
    )
    loop = f"import torch{LOOP}"
    files = {"pkg____init__": "", "pkg__options": main, "pkg__loop": loop}
    assert program("-m", "pkg.options", "--lr", "0.5", **files) == "lr 0.5 0.5\n"


def test_a_run_that_starts_on_import_of_a_module_is_refused(program):
    main = OPTIONS.replace('if __name__ == "__main__":', "if True:").replace("required=True", "")
    refused = program("-m", "pkg.options", status=1, pkg____init__="", pkg__options=main)
    assert "pkg.options starts a run while it is imported" in refused.splitlines()[-1]
