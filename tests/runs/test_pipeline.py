"""`parallel.pipeline`: a model whose layers are divided over the workers."""

import pytest

from conftest import FAILING_TASKS, TASKS, events_of, metrics_of, result_of, sampled
from holdfast.errors import JobError, WorkerFailed

pytestmark = pytest.mark.slow

TASK = str(TASKS.with_name("pipeline_tasks.py"))
FAULTY = {
    "task": f"{TASKS.with_name('faulty_tasks.py')}:main",
    "batch": 4,
    "shards": 2,
    "workers": 2,
    "checkpoint": {"every_steps": 10, "keep": 3},
}
GPT = {
    "task": "language",
    "data": {"name": "text", "length": 16, "path": str(TASKS)},
    "model": {"name": "gpt", "width": 16, "heads": 2, "layers": 2, "dropout": 0.2},
    "batch": 200,
    "shards": 4,
    "epochs": 1,
}
"""A model that ties its first part to its last."""
POINTS = {"batch": 12, "shards": 6}
STEP_KEYS = ("step", "loss", "norm", "logged")


def steps_of(run_dir):
    lines = [line for line in metrics_of(run_dir) if "loss" in line]
    return [{key: line[key] for key in STEP_KEYS} for line in lines]


@pytest.mark.parametrize(
    ("stages", "keys"),
    sampled(
        [
            (2, {}),
            (4, {}),
            (2, GPT),
            (4, GPT),
            (3, {"precision": "bf16"}),
            (3, {"task": f"{TASK}:odd", **POINTS}),
            (5, {"task": f"{TASK}:odd", **POINTS}),
            (2, {"task": f"{TASK}:twice", **POINTS}),
        ],
        0,
        3,
        5,
        7,
    ),
    ids=str,
)
def test_the_weights_are_those_of_one_process(train, tmp_path, stages, keys):
    alone = train(run_dir=tmp_path / "alone", workers=1, **keys)
    divided = train(
        run_dir=tmp_path / "divided", workers=stages, parallel={"pipeline": stages}, **keys
    )
    assert divided["weights_sha256"] == alone["weights_sha256"]
    assert divided["metrics"] == alone["metrics"]
    assert steps_of(tmp_path / "divided") == steps_of(tmp_path / "alone")


@pytest.mark.parametrize("rank", sampled([0, 1], 1))
def test_a_lost_stage_restarts_all_from_the_newest_state(train, once, tmp_path, rank):
    untouched = result_of(once(**FAULTY, params={"faults": []}))
    fault = {
        "at": "holdfast.worker.step.pipeline.pipeline_stepper:PipelineStepper.begin_shard",
        "when": "before",
        "rank": rank,
        "step": 35,
        "how": "kill",
        "mark": str(tmp_path / "mark"),
    }
    run = tmp_path / "run"
    result = train(run_dir=run, parallel={"pipeline": 2}, params={"faults": [fault]}, **FAULTY)
    assert result["weights_sha256"] == untouched["weights_sha256"]
    first, second = (event["step"] for event in events_of(run, "generation-started"))
    assert (first, second >= 30) == (0, True)  # from a snapshot since the newest checkpoint


def test_a_run_is_resumed_with_other_stages_and_without(train, tmp_path):
    keys = {"checkpoint": {"every_steps": 4}, "clip_norm": 0.1, "epochs": 3}
    whole = train(workers=1, **keys)
    run = tmp_path / "run"
    with_stop = {"stop_after_epochs": 1} | keys
    train(run_dir=run, workers=3, parallel={"pipeline": 3}, **with_stop)
    longer = {"stop_after_epochs": 2} | keys
    train(run_dir=run, resume=True, workers=2, parallel={"pipeline": 2}, **longer)
    again = train(run_dir=run, resume=True, workers=2, parallel={}, **keys)
    assert again["weights_sha256"] == whole["weights_sha256"]


@pytest.mark.parametrize(
    ("task", "error", "message"),
    sampled(
        [
            ("dying", WorkerFailed, "rank 1 was killed by SIGKILL"),
            ("raising", WorkerFailed, "rank 1 raised ValueError: the data of step 2 are odd"),
            ("breaking", WorkerFailed, "rank 1 raised RuntimeError: this function has no gradient"),
            ("no_backward", JobError, "no shard of step 1 called session.backward"),
            ("bare_backward", JobError, "has a gradient that session.backward has not computed"),
            ("exploding", JobError, "in step 4 is not finite"),
            ("leaving_early", JobError, "workers reached different barriers"),
            ("vector_loss", JobError, "the loss must be a scalar"),
            ("twice", JobError, "session.backward was called twice"),
        ],
        1,
        5,
    ),
)
def test_the_worker_at_fault_is_named(train, task, error, message):
    keys = {"task": f"{FAILING_TASKS}:{task}", "batch": 20, "shards": 5, "workers": 2}
    with pytest.raises(error, match=message):
        train(parallel={"pipeline": 2}, **keys)


@pytest.mark.parametrize(
    ("task", "model", "message"),
    sampled(
        [
            ("refused", "whole", "give it a method pipeline_parts"),
            ("refused", "short", "set parallel.pipeline to at most 1"),
            ("refused", "lacking", "leaves out other.weight"),
            ("refused", "shared", "does not support the buffer 0.running_mean"),
            ("refused", "drawing", "generators of Python or numpy"),
            ("refused", "nested", "a part of the model returns a tuple"),
            ("called_twice", "", "random numbers of the model between two of its calls"),
            ("clipping", "", "does not support Clipping, whose step for one parameter depends"),
            ("weighed_by_output", "", "a weight must not depend on the model's output"),
        ],
        2,
        6,
    ),
)
def test_what_would_give_other_weights_is_refused(train, task, model, message):
    keys = {"task": f"{TASK}:{task}", "params": {"model": model}, "workers": 2, **POINTS}
    with pytest.raises(JobError, match=message):
        train(parallel={"pipeline": 2}, **keys)
