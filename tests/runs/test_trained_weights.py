"""The weights of a run get out of it, and into another run."""

from pathlib import Path

import pytest
import torch
from weight_tasks import Tied, X

from conftest import events_of
from holdfast.api.train import run_job
from holdfast.errors import JobError
from holdfast.job import load
from holdfast.runs.run import LaunchOptions

pytestmark = pytest.mark.slow

TASK = f"{Path(__file__).with_name('weight_tasks.py')}:averaged"


@pytest.fixture(scope="module")
def trained(forks, tmp_path_factory):
    """Train `Tied`: `trained(key=value, …) -> Result`."""

    def run(run_dir=None, resume=False, **keys):
        keys = {"task": TASK, "batch": 32, "shards": 4, "epochs": 2, **keys}
        path = run_dir or tmp_path_factory.mktemp("runs") / "run"
        options = LaunchOptions(forks=forks)
        return run_job(load.request(keys, "test"), options, run_dir=path, resume=resume)

    return run


@pytest.fixture(scope="module")
def source(trained):
    return trained(workers=3)


def test_a_result_gives_its_weights_to_a_plain_model(source):
    model, average = Tied(), Tied()
    source.load_into(model)
    source.load_into(torch.optim.swa_utils.AveragedModel(average), of="average")
    assert "scale" not in source.state_dict()
    assert model.last.weight is model.first.weight
    assert not torch.equal(model(X), Tied()(X))
    assert source.state_dict("average")["n_averaged"] == source.steps
    with pytest.raises(JobError, match=r"do not fit the model: .*first.bias is unexpected"):
        source.load_into(torch.nn.Linear(6, 6))


def test_a_run_begins_with_the_weights_of_another(trained, source, tmp_path):
    file = tmp_path / "weights.pt"
    torch.save(source.state_dict(), file)
    keys = {"workers": 3, "init_from": str(file), "params": {"gone": str(file)}}
    killed = trained(run_dir=tmp_path / "killed", **keys)  # its replacement does not read the file
    assert not file.exists()
    assert len(events_of(tmp_path / "killed", "worker-exited")) == 1
    (loaded,) = events_of(tmp_path / "killed", "weights-loaded")
    assert loaded["path"] == str(file)
    alone = trained(init_from=str(source.run_dir))
    assert killed.weights_sha256 == alone.weights_sha256 != source.weights_sha256
    assert killed.history["loss"][0] < source.history["loss"][0]
    again = trained(run_dir=tmp_path / "killed", resume=True, **keys)
    assert again.weights_sha256 == killed.weights_sha256


def test_weights_that_do_not_fit_are_listed_or_left_out(trained, tmp_path):
    file = tmp_path / "weights.pt"
    torch.save({"first.bias": torch.ones(6), "head.bias": torch.ones(2)}, file)
    with pytest.raises(JobError, match=r"weights.pt do not fit .*; head.bias is unexpected"):
        trained(init_from=str(file), epochs=1)
    trained(run_dir=tmp_path / "run", init_from={"path": str(file), "strict": False}, epochs=1)
    (loaded,) = events_of(tmp_path / "run", "weights-loaded")
    assert "head.bias is unexpected" in loaded["misfits"]


@pytest.mark.soak
def test_an_extended_run_has_the_weights_of_a_longer_one(trained, tmp_path):
    whole = trained(epochs=4)
    trained(run_dir=tmp_path / "run", workers=2, epochs=2)
    with pytest.raises(JobError, match=r"epochs=2, not 4; continue it with extend=true"):
        trained(run_dir=tmp_path / "run", resume=True, epochs=4)
    extended = trained(run_dir=tmp_path / "run", epochs=4, extend=True)
    assert extended.weights_sha256 == whole.weights_sha256
    (event,) = events_of(tmp_path / "run", "run-extended")
    assert (event["epochs"], event["total_steps"], event["step"]) == (4, 12, 6)
    with pytest.raises(JobError, match=r"is a run with epochs=4, not 3"):
        trained(run_dir=tmp_path / "run", resume=True, epochs=3, extend=True)


@pytest.mark.soak
def test_a_scheduler_of_an_extended_run_spans_its_new_length(trained, tmp_path):
    keys = {"task": TASK.replace("averaged", "one_cycle")}
    whole = trained(**keys, epochs=4)
    trained(run_dir=tmp_path / "run", **keys, epochs=2)
    extended = trained(
        run_dir=tmp_path / "run", workers=2, resume=True, extend=True, **keys, epochs=4
    )
    assert extended.history["lr"][6:] == whole.history["lr"][6:]
    assert extended.history["lr"][:6] != whole.history["lr"][:6]
