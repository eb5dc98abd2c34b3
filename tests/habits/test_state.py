"""State of models, optimizers and user code is right after a resume and in exports, or refused."""

import re
from pathlib import Path

import pytest
import state_tasks
import torch

from conftest import back_to
from holdfast.checkpoint.exports import weights
from holdfast.checkpoint.exports.export import export
from holdfast.checkpoint.find import find_checkpoint, manifest_of
from holdfast.errors import JobError

pytestmark = pytest.mark.slow

TASKS = Path(__file__).with_name("state_tasks.py")


def own(name, **keys):
    plain = {"data": None, "model": None, "schedule": {"name": "constant"}, "clip_norm": None}
    kept = {"checkpoint": {"every_steps": 5, "keep": 9}}
    return {**plain, **kept, "task": f"{TASKS}:{name}", "batch": 16, "shards": 2, **keys}


@pytest.fixture
def resumed(train, tmp_path):
    """Train with one worker, go back to step 5 and resume with two:
    `resumed(name) -> run, weights`. The weights are those of the run that was not interrupted.
    """

    def run(name, **keys):
        run_dir = tmp_path / name
        whole = train(run_dir=run_dir, workers=1, **own(name, **keys))
        back_to(run_dir, 5)
        again = train(run_dir=run_dir, resume=True, workers=2, **own(name, **keys))
        assert again["weights_sha256"] == whole["weights_sha256"]
        return run_dir, whole["weights_sha256"]

    return run


def test_extra_state_is_resumed_and_exported(resumed, train, tmp_path):
    run, _ = resumed("extra_state")
    model = state_tasks.annealed()
    file = tmp_path / "weights.pt"
    export(find_checkpoint(run), file)
    model.load_state_dict(torch.load(file, weights_only=True))
    assert model[2].history.seen == 12
    assert model[2].trace.tolist() == list(range(12))
    assert model[3].history.seen == 6
    other = state_tasks.annealed()
    weights.load_into(other, weights.read_checkpoint(find_checkpoint(run)), run)
    assert other[2].history.seen == 12
    kept = weights.read_checkpoint(find_checkpoint(run), "kept")
    assert kept["_extra_state"]["seen"] == 24
    with pytest.raises(JobError, match=r"2._extra_state, which is no tensor .* ends in .pt"):
        export(find_checkpoint(run), tmp_path / "weights.safetensors")


def test_nested_optimizers_and_their_numbers_are_resumed(resumed):
    run, _ = resumed("nested_optimizers")
    manifest = manifest_of(find_checkpoint(run))
    names = {entry.name for entry in manifest.layout.entries}
    assert {
        "optimizer[parts[0]].0.weight:momentum_buffer",
        "optimizer[parts[1]].0.bias:slow",
        "optimizer[parts[1].optimizer].0.bias:exp_avg",
    } <= names
    assert "optimizer 0.box.held[rest]" in manifest.user_state["optimizer_values"]
    assert manifest.uninitialized == ()


def test_other_names_of_parts_of_the_state_stay_part_of_it(resumed, train, tmp_path):
    keys = {"params": {"mark": str(tmp_path / "mark")}}
    _, weights_sha256 = resumed("aliases", **keys)
    (tmp_path / "mark").touch()
    killed = train(workers=2, **own("aliases", **keys))
    assert killed["weights_sha256"] == weights_sha256
    assert not (tmp_path / "mark").exists()


def test_what_is_compiled_has_code_for_each_shape(train):
    """Automatic dynamic shapes would depend on which shapes a worker has met first."""
    train(workers=1, **own("compiled_for_shapes", batch=15))


@pytest.mark.full
def test_names_are_those_of_the_model_that_is_not_compiled(train, tmp_path):
    mark = tmp_path / "mark"
    keys = own("perhaps_compiled", params={"mark": str(mark)})
    run = tmp_path / "run"
    plain = train(run_dir=run, workers=1, **keys)
    back_to(run, 5)
    mark.touch()
    compiled = train(run_dir=run, resume=True, workers=1, **keys)
    assert compiled["weights_sha256"] == plain["weights_sha256"]
    found = weights.read_checkpoint(find_checkpoint(run))
    assert found.keys() == state_tasks.Model().state_dict().keys()
    assert {"n_averaged", "module.body.0.weight"} <= (
        weights.read_checkpoint(find_checkpoint(run), "average").keys()
    )
    for model in (state_tasks.Model(), state_tasks.compiled_model()):
        weights.load_into(model, found, run)
        assert torch.equal(model.head.weight, found["head.weight"])
        renamed = {f"_orig_mod.{key}": value for key, value in found.items()}
        weights.load_into(model, renamed, run)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("extra_state_of_objects", r"1._extra_state in the state dict of model is a History, whi"),
        (
            "extra_state_in_forward",
            r"extra_state.model.2._extra_state.last.\$tuple\[0\] .* was modified in the session.sh",
        ),
        ("second_optimizer", r"^SGD, optimizer of the model's parameters, is not part of the s"),
        ("average_not_registered", r"AveragedModel, average, is not part of the state, .* give it"),
        ("object_of_optimizer", r"history of the optimizer is a History, which can be neither sav"),
        ("object_of_module", r"attribute history is a History, which can be neither saved nor se"),
        ("list_of_optimizers", r"optimizer factory returned a list, which is no torch.optim.Opt"),
        ("lazy_part", r"0\.weight has no shape until the model is called; call it once in its"),
        ("parallel_part", r"the model's factory wraps 0 in DataParallel; remove it"),
    ],
)
def test_state_that_would_be_lost_is_refused(train, task, message):
    with pytest.raises(JobError, match=message):
        train(**own(task))


def test_variables_of_a_function_are_no_state(resumed):
    run, _ = resumed("counts_in_a_closure")
    log = (run / "logs" / "rank-0.log").read_text()
    assert re.findall(r"counted .*", log) == ["counted 12 12", "counted 7 12"]
