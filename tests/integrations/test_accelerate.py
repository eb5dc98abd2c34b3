"""Accelerate's loop in a run: the library's own result, with any workers, through kills."""

import re
from pathlib import Path

import pytest
import torch

from conftest import back_to, killing, needs_library
from holdfast.launch.fork_client import ForkServer
from holdfast.launch.spawn import WORKER, spawn

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
    needs_library("accelerate"),
]

TASKS = Path(__file__).with_name("accelerate_tasks.py")
EXACT = {"accumulated": 2, "samples": 90, "dropout": 0.2, "shuffle": True}


@pytest.fixture(scope="module")
def warm():
    """A fork server that has imported the library."""
    with ForkServer(spawn(WORKER), [f"{TASKS}:main"]) as forks:
        yield forks


@pytest.fixture
def loop(train, warm, tmp_path):
    """Train with so many workers: `loop(workers, name, …) -> result`."""

    def run(workers, name="run", task="main", shards=2, params=EXACT, **keys):
        given = {} if task == "refused" else {"folder": str(tmp_path / name), **params}
        return train(
            task=f"{TASKS}:{task}", on=warm, run_dir=tmp_path / f"{name}.run", workers=workers,
            params=given, batch=64, clip_norm=0.5, epochs=3, shards=shards, **keys,
        )  # fmt: skip

    return run


def assert_same(one, other, tolerance):
    weights = torch.load(one / "model.pt"), torch.load(other / "model.pt")
    for name, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][name], rtol=0, atol=tolerance)
    assert (one / "losses.txt").read_text() == (other / "losses.txt").read_text()


def test_two_workers_train_as_the_library_does_alone(loop, tmp_path):
    loop(2, task="beside", params={"accumulated": 2})
    library, *_ = sorted((tmp_path / "run").glob("library-*"))
    for ours in (tmp_path / "run").glob("ours-*"):  # outside of a run
        assert_same(library, ours, 0)
    assert_same(library, tmp_path / "run", 1e-6)


def test_kills_another_number_of_workers_and_a_resume_change_nothing(loop, tmp_path):
    keys = {"shards": 3, "checkpoint": {"every_steps": 3}}
    alone = loop(1, **keys)
    killed = loop(3, "killed", shards=3, watch=killing(tmp_path / "killed.run", step=4, rank=0))
    assert killed["weights_sha256"] == alone["weights_sha256"]
    assert_same(tmp_path / "run", tmp_path / "killed", 0)
    back_to(tmp_path / "run.run", 3)  # in the middle of an epoch
    resumed = loop(2, resume=True, **keys)
    assert resumed["weights_sha256"] == alone["weights_sha256"]


def test_what_a_run_cannot_do_is_refused_by_name(loop, tmp_path):
    loop(1, task="refused", shards=1)
    text = (tmp_path / "run.run" / "logs" / "rank-0.log").read_text()
    lines = re.findall(r"^(?:refused: |accepted)(.*)", text, re.MULTILINE)
    expected = [
        "one model, one optimizer", "holdfast train --resume", "fsdp_plugin", "call prepare",
        "ReduceLROnPlateau", "range.accelerator.first_epoch", "gather was called", "clip_norm=2.0",
        "left before its end",
    ]  # fmt: skip
    for line, pattern in zip(lines, expected, strict=False):
        assert re.search(pattern, line), line
    assert all("outside of the loop over batches" in line for line in lines[-2:])
