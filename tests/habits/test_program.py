"""The program that starts a run: its options, globals, names of classes, and signals."""

import subprocess
import sys

import pytest

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
            path = tmp_path / f"{name.replace('__', '/')}.py"
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
