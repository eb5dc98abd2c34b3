"""`parallel.zero=3`: the weights of a model that is not divided, also across failures."""

from pathlib import Path

import pytest

from conftest import back_to, events_of, killing, result_of, sampled
from holdfast.errors import JobError

pytestmark = pytest.mark.slow

TASKS = Path(__file__).with_name("zero_tasks.py")
MLP = {"model": {"name": "mlp", "hidden": [161, 161], "dropout": 0.1}}
MOMENTUM = {"optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9}}
TEXT = {
    "task": "language",
    "data": {"name": "synthetic-text", "size": 16384},
    "model": {"name": "gpt", "width": 64, "heads": 2, "layers": 2, "dropout": 0.1},
    "batch": 32,
    "epochs": 1,
}
ZERO = {"parallel": {"zero": 3}}


@pytest.mark.parametrize(
    ("workers", "keys"),
    sampled(
        [
            (2, {"precision": "bf16", "evaluation": {"every_epochs": 1}}),
            (4, MLP | MOMENTUM),
            (2, TEXT),
            (2, {"task": f"{TASKS}:looking", "batch": 12, "shards": 2}),
            (4, {}),
            (1, MLP),
            (3, MLP | {"shards": 9, "precision": "fp16"}),
            (2, MLP | {"shards": 64, "batch": 640}),
            (4, TEXT | {"precision": "bf16"}),
            (2, TEXT | MOMENTUM | {"clip_norm": None}),
        ],
        0,
        1,
        2,
        3,
    ),
    ids=str,
)
def test_any_number_of_workers_gives_the_weights_of_one(train, once, workers, keys):
    whole = result_of(once(workers=1, **keys))
    divided = train(workers=workers, **ZERO, **keys)
    assert divided["weights_sha256"] == whole["weights_sha256"]
    assert divided["metrics"] == whole["metrics"]


def test_a_killed_worker_changes_nothing(train, once, tmp_path):
    whole = result_of(once(workers=1, **MLP))
    run = tmp_path / "run"
    keys = {"run_dir": run, "workers": 2, "checkpoint": {"every_steps": 2}, **ZERO, **MLP}
    killed = train(watch=killing(run, step=5, rank=1), **keys)
    assert killed["weights_sha256"] == whole["weights_sha256"]
    assert [event["number"] for event in events_of(run, "generation-started")] == [1, 2]


def test_a_run_resumes_with_another_number_of_workers(train, once, tmp_path):
    whole = result_of(once(workers=1, **MLP))
    run = tmp_path / "run"
    keys = {"run_dir": run, "checkpoint": {"every_steps": 2, "keep": 9}, **MLP}
    train(workers=2, **ZERO, **keys)
    for step, workers, parallel in ((4, 4, ZERO), (6, 1, {}), (2, 2, ZERO)):
        back_to(run, step)  # as if the run had ended before its last steps
        again = train(resume=True, workers=workers, **parallel, **keys)
        assert again["weights_sha256"] == whole["weights_sha256"]


@pytest.mark.parametrize(
    ("task", "message"),
    sampled(
        [
            ("adafactor", "does not support Adafactor, whose step over some elements"),
            ("scalar", "the parameter scale, which has no rows; give it the shape"),
            ("transposed", "the parameter layer.weight in its memory format"),
            ("hooked", "the parameter scale with a hook on its gradient"),
            ("backward_of_torch", "call session.backward.loss. instead of loss.backward"),
            ("without_backward", "every worker must call session.backward for every shard"),
            ("clipping", "the weights were modified in session.on_commit"),
            ("skipping", "the workers use other layers of the model|reached different barriers"),
            ("writing", "a weight was modified in the session.shards loop"),
            ("exploding", "the gradient of .* in step 1 is not finite"),
        ],
        0,
        6,
    ),
)
def test_what_cannot_be_divided_is_refused_by_name(train, task, message):
    keys = {"task": f"{TASKS}:{task}", "batch": 16, "shards": 4, "workers": 2}
    with pytest.raises(JobError, match=message):
        train(**ZERO, **keys)
