"""Trainers of Hugging Face and TRL in a run: the library's losses, exact through failures."""

import inspect
import json
from pathlib import Path

import pytest

from conftest import back_to, killing, needs_library
from holdfast.errors import JobError
from holdfast.launch.fork_client import ForkServer
from holdfast.launch.spawn import WORKER, spawn

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of the libraries, to each other
    needs_library("transformers", "accelerate", "trl", "peft"),
]

HERE = Path(__file__).parent
FINETUNE = HERE / "finetune.py"
WITH_TRL = HERE / "finetune_trl.py"
KEYS = {
    "batch": 64,
    "epochs": 1,
    "clip_norm": None,
}  # the defaults: the library's arguments say other ones


@pytest.fixture(scope="module")
def imported():
    """A fork server that has imported the libraries."""
    with ForkServer(spawn(WORKER), [f"{FINETUNE}:main", f"{WITH_TRL}:main"]) as forks:
        yield forks


@pytest.fixture
def tune(train, tmp_path, imported):
    """Fine-tune; returns the digest of the weights, and what the task has written."""

    def run(name="one", task=FINETUNE, params=None, **keys):
        output = tmp_path / name
        given = {"output": str(output), **(params or {})}
        keys = {"run_dir": tmp_path / f"run-{name}", "on": imported, **KEYS, **keys}
        result = train(task=f"{task}:main", params=given, **keys)
        return result["weights_sha256"], json.loads(output.with_suffix(".json").read_text())

    return run


def losses(history):
    """What a log history says of losses, without times."""
    kept = ("step", "epoch", "loss", "eval_loss", "learning_rate", "num_tokens")
    return [{key: each[key] for key in kept if key in each} for each in history[:-1]]


def assert_close(ours, theirs):
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(other, rel=2e-6)


def test_a_run_has_the_losses_of_the_library_and_survives_what_it_does_not(tune, tmp_path):
    from finetune import trainer_of
    from transformers import Trainer

    library = trainer_of(Trainer, tmp_path / "library")
    result = library.train()
    _, found = tune(workers=1, shards=1)
    assert found["loss"] == pytest.approx(result.training_loss, rel=1e-6)
    assert_close(losses(found["history"]), losses(library.state.log_history))
    assert Path(found["best"]).name == Path(library.state.best_model_checkpoint).name
    files = [{p.name for p in (tmp_path / name).iterdir()} for name in ("one", "library")]
    assert files[0] == files[1]
    # Outside of a run, the class is the library's.
    from holdfast.integrations.transformers import Trainer as Ours

    assert trainer_of(Ours, tmp_path / "ours").train().training_loss == result.training_loss
    # The worker that writes files dies while it does so.
    mark = tmp_path / "mark"
    hurt, same = tune("hurt", workers=2, shards=2, params={"mark": str(mark)})
    assert mark.exists()
    undisturbed, _ = tune("two", workers=2, shards=2)
    assert hurt == undisturbed
    assert same["seen"] == same["history"][-1]["step"]


@pytest.mark.full
def test_the_weights_do_not_depend_on_workers_or_a_resume(tune, tmp_path):
    save = {"checkpoint": {"every_steps": 2}}
    whole, found = tune("one", workers=1, shards=3, **save)
    run = tmp_path / "run-three"
    watch = killing(run, step=2, rank=1)
    assert tune("three", workers=3, shards=3, watch=watch, **save)[0] == whole
    back_to(run, 2)
    resumed, again = tune("three", workers=2, shards=3, resume=True, run_dir=run, **save)
    assert resumed == whole
    assert_close(losses(again["history"]), losses(found["history"]))


@pytest.mark.parametrize("kind", [pytest.param("sft", marks=pytest.mark.full), "dpo"])
def test_trl_has_the_losses_of_the_library_and_exact_weights(tune, tmp_path, kind):
    import finetune_trl
    import transformers
    import trl

    transformers.set_seed(0)
    base = {"sft": trl.SFTTrainer, "dpo": trl.DPOTrainer}[kind]
    library = getattr(finetune_trl, kind)(tmp_path / "library", base)
    result = library.train()
    keys = {"task": WITH_TRL, "params": {"kind": kind}}
    _, found = tune(workers=1, shards=1, **keys)
    # Dropout of adapters draws other numbers.
    assert found["loss"] == pytest.approx(result.training_loss, rel=1e-5)
    assert_close(
        [{"num_tokens": each["num_tokens"]} for each in found["history"][:-1]],
        [{"num_tokens": each["num_tokens"]} for each in library.state.log_history[:-1]],
    )
    whole, _ = tune("whole", workers=2, shards=2, **keys)
    watch = killing(tmp_path / "run-killed", step=2, rank=0)
    assert tune("killed", workers=2, shards=2, watch=watch, **keys)[0] == whole


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"given": {"fp16": True}}, "fp16 (set bf16)"),
        ({"train": {"resume_from_checkpoint": True}}, "holdfast train --resume"),
        ({"given": {"auto_find_batch_size": True}}, "auto_find_batch_size"),
        ({"twice": True}, "train() was called twice"),
    ],
    ids=str,
)
def test_what_a_run_cannot_do_is_refused_by_name(tune, params, words):
    with pytest.raises(JobError) as error:
        tune(workers=1, params=params)
    assert words in str(error.value)


def test_the_methods_that_are_replaced_are_those_of_the_library():
    import transformers

    from holdfast.integrations.transformers import LiveTrainer

    replaced = {
        name: method
        for name, method in vars(LiveTrainer).items()
        if inspect.isfunction(method) and hasattr(method, "__wrapped__")
    }
    assert len(replaced) > 10
    for name in replaced:
        assert inspect.isfunction(getattr(transformers.Trainer, name)), name
