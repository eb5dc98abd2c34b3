"""Lightning's Trainer in a run: the library's own result, with any workers, through kills."""

import csv
import re
from pathlib import Path

import pytest
import torch

from conftest import back_to, killing, needs_library
from holdfast.errors import JobError
from holdfast.launch.fork_client import ForkServer
from holdfast.launch.spawn import WORKER, spawn

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
    needs_library("lightning"),
]

TASKS = Path(__file__).with_name("lightning_tasks.py")


@pytest.fixture(scope="module")
def warm():
    """A fork server that has imported the library."""
    with ForkServer(spawn(WORKER), [f"{TASKS}:main"]) as forks:
        yield forks


@pytest.fixture
def fit(train, warm, tmp_path):
    """Train a task with so many workers: `fit(workers, name, …) -> result`."""

    def run(workers, name="run", task="exact", shards=1, params=None, **keys):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        given = {"folder": str(folder), **(params or {})}
        options = {"batch": 64, "clip_norm": None, "epochs": 1, "shards": shards, **keys}
        run_dir = tmp_path / f"{name}.run"
        return train(
            task=f"{TASKS}:{task}",
            on=warm,
            run_dir=run_dir,
            workers=workers,
            params=given,
            **options,
        )

    return run


def saved(folder):
    """What the checkpoint callback has saved last."""
    return torch.load(folder / "best" / "last.ckpt", weights_only=True)


def logged(folder):
    """The lines of the logger as numbers."""
    (path,) = folder.glob("lightning_logs/*/metrics.csv")
    with path.open() as file:
        return [{k: float(v) for k, v in line.items() if v} for line in csv.DictReader(file)]


def printed(run_dir, rank=0):
    return (run_dir / "logs" / f"rank-{rank}.log").read_text()


def assert_same(one, other, tolerance):
    weights, others = saved(one)["state_dict"], saved(other)["state_dict"]
    for name, value in weights.items():
        torch.testing.assert_close(value, others[name], rtol=0, atol=tolerance)
    assert tolerance or saved(one)["loops"] == saved(other)["loops"]
    assert [path.name for path in (one / "best").iterdir()] == [
        path.name for path in (other / "best").iterdir()
    ]
    lines = logged(one), logged(other)
    if tolerance:  # of a step, the library logs the last micro-batch, and we the mean
        lines = [
            [each for each in of_one if "head" not in each and "lr-AdamW" not in each]
            for of_one in lines
        ]
    assert len(lines[0]) == len(lines[1]) >= 6
    for line, expected in zip(*lines, strict=True):
        assert line == pytest.approx(expected, abs=tolerance)


def test_two_workers_train_as_the_library_does_alone(fit, tmp_path):
    fit(2, task="beside", shards=2, params={"accumulated": 2})
    library, *_ = sorted((tmp_path / "run").glob("library-*"))
    for ours in (tmp_path / "run").glob("ours-*"):  # outside of a run
        assert_same(library, ours, 0)
    assert_same(library, tmp_path / "run", 1e-6)
    assert "ended 9 3" in printed(tmp_path / "run.run")


def test_kills_another_number_of_workers_and_a_resume_change_nothing(fit, tmp_path):
    alone = fit(1, shards=3, checkpoint={"every_steps": 3})
    watch = killing(tmp_path / "killed.run", step=3, rank=1)
    killed = fit(3, "killed", shards=3, watch=watch)
    assert killed["weights_sha256"] == alone["weights_sha256"]
    assert_same(tmp_path / "run", tmp_path / "killed", 0)
    (losses,) = set(re.findall(r"losses .*", printed(tmp_path / "run.run")))
    assert losses in printed(tmp_path / "killed.run", 1)
    back_to(tmp_path / "run.run", 3)  # in the middle of an epoch
    resumed = fit(2, shards=3, resume=True, checkpoint={"every_steps": 3})
    assert resumed["weights_sha256"] == alone["weights_sha256"]
    assert losses in printed(tmp_path / "run.run", 1)


@pytest.mark.full
def test_the_worker_that_writes_files_may_be_lost(fit, tmp_path):
    keys = {"shards": 2, "params": {"averages": False}}
    alone = fit(1, **keys)
    killed = fit(2, "killed", watch=killing(tmp_path / "killed.run", step=3, rank=0), **keys)
    assert killed["weights_sha256"] == alone["weights_sha256"]
    names = [sorted(p.name for p in (tmp_path / of / "best").iterdir()) for of in ("run", "killed")]
    assert names[0] == names[1]
    # The library rewrites its file for new columns: what it holds then is lost with the worker.
    expected = logged(tmp_path / "run")
    lines = logged(tmp_path / "killed")
    assert lines[-1] == expected[-1]
    assert all(line in expected for line in lines)


@pytest.mark.full
def test_early_stopping_ends_the_run(fit, tmp_path):
    fit(2, task="main", shards=2, params={"accumulated": 2, "patience": 1, "min_delta": 99})
    assert "ended 6 2" in printed(tmp_path / "run.run")


def test_what_a_run_cannot_do_is_refused_by_name(fit, tmp_path):
    fit(1, task="refused")
    lines = re.findall(r"^(?:refused: |accepted)(.*)", printed(tmp_path / "run.run"), re.MULTILINE)
    expected = [
        "strategy=fsdp", "strategy=deepspeed", "set bf16-mixed",
        "fast_dev_run.*limit_train_batches.*max_time", "clip by norm",
        "reload_dataloaders_every_n_epochs", "holdfast train --resume",
        "manual optimization.*optimizer_step.*on_before_optimizer_step of Counting",
        "LightningModule", "give one DataLoader", "batch_sampler", "several optimizers",
    ]  # fmt: skip
    assert len(lines) == len(expected)
    for line, pattern in zip(lines, expected, strict=True):
        assert re.search(pattern, line), line


@pytest.mark.parametrize(
    ("net", "message"),
    [("sum", "reduce_fx=sum"), ("nothing", "returned None"), ("read", "read it in training_step")],
)
def test_what_a_step_cannot_do_is_refused_by_name(fit, net, message):
    with pytest.raises(JobError, match=message):
        fit(1, task="refused_in_a_step", params={"net": net})


def test_a_second_fit_is_refused(fit):
    with pytest.raises(JobError, match=r"fit.. was called twice"):
        fit(1, task="twice")
