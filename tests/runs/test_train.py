"""`holdfast.train` from a script, as a user calls it."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import torch, torch.nn.functional as F
import holdfast

data = torch.utils.data.TensorDataset(torch.arange(40.0)[:, None] / 40, torch.arange(40) // 20)

def main(session):
    model, _ = session.attach(lambda: torch.nn.Linear(1, 2), lambda p: torch.optim.SGD(p, lr=1.0))
    for shard in session.shards(data, epochs=session.job.params["passes"]):
        session.backward(F.cross_entropy(model(shard.x), shard.y))

if __name__ == "__main__":
    job = {"workers": WORKERS, "batch": 10, "shards": 4, "params": {"passes": 3}}
    result = holdfast.train(main, job)
    print(result.weights_sha256, result.steps, result.run_dir.name.startswith("main-"))
"""


@pytest.mark.soak
def test_a_function_of_a_script_is_trained_alike_by_any_number_of_workers(tmp_path):
    digests = set()
    for workers in (1, 2):
        path = tmp_path / f"mine{workers}.py"
        path.write_text(SCRIPT.replace("WORKERS", str(workers)))
        done = subprocess.run(
            [sys.executable, path], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        digest, steps, named = done.stdout.split()
        assert (steps, named) == ("12", "True")
        digests.add(digest)
    assert len(digests) == 1


@pytest.mark.soak
def test_a_built_in_job_can_be_called_by_name(tmp_path):
    import holdfast

    result = holdfast.train(
        "digits", {"epochs": 1, "workers": 1, "loader": {"prefetch": 0}}, run_dir=tmp_path / "run"
    )
    assert (result.status, result.steps) == ("finished", 23)
    assert 0 < result.metrics["accuracy"] <= 1


def test_a_result_holds_tables_checkpoints_and_figures(tmp_path):
    import holdfast

    keys = {"epochs": 3, "evaluation.best": "accuracy", "checkpoint.every_steps": 10}
    result = holdfast.train("digits", keys, run_dir=tmp_path / "run")
    assert result.history["step"] == list(range(1, 70))
    assert result.history["loss"][-1] == result.loss
    assert result.evaluations["step"] == [23, 46, 69]
    assert max(result.evaluations["accuracy"]) == result.best["value"]
    assert result.checkpoint.name == "step-00000069"
    assert (result.best_checkpoint / "manifest.json").exists()
    assert result.figures["loss"].read_bytes().startswith(b"\x89PNG")


CLASH = """
import torch, torch.nn.functional as F
import holdfast

data = torch.utils.data.TensorDataset(torch.arange(40.0)[:, None] / 40, torch.arange(40) // 20)

def main(session):
    model, _ = session.attach(lambda: torch.nn.Linear(1, 2), lambda p: torch.optim.SGD(p, lr=1.0))
    session.evaluate_each_epoch(data, lambda model, batch: {"loss": 7.0, "steps": 8.0})
    for shard in session.shards(data, epochs=1):
        session.backward(F.cross_entropy(model(shard.x), shard.y))

if __name__ == "__main__":
    result = holdfast.train(main, {"workers": 1, "batch": 10, "shards": 1})
    plain = result.as_dict()
    assert result.loss == result.history["loss"][-1] == plain["loss"] < 2
    assert (result.steps, plain["steps"]) == (4, 4)
    assert result.metrics == {"loss": 7.0, "steps": 8.0}
    assert (plain["evaluation.loss"], plain["evaluation.steps"]) == (7.0, 8.0)
"""


@pytest.mark.soak
def test_metrics_may_have_the_names_of_the_metrics_of_the_run(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(CLASH)
    subprocess.run([sys.executable, path], cwd=tmp_path, check=True, timeout=120)
