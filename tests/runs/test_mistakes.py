"""Ordinary mistakes: each ends in a message that says what to do, below the user's own line."""

import mistake_tasks
import pytest

import holdfast
from conftest import events_of, sampled
from holdfast.errors import JobError, RankTraceback, WorkerFailed

pytestmark = pytest.mark.slow

JOB = {"workers": 2, "batch": 32}

NO_STEP = "3 failures without a step in between; see "


@pytest.mark.parametrize(
    ("task", "error", "messages", "line"),
    sampled([
        ("steps_the_optimizer", JobError, ["optimizer.step() was called", "remove it"],
         "optimizer.step()"),
        ("has_mismatched_layers", WorkerFailed,
         ["raised RuntimeError: mat1 and mat2 shapes", NO_STEP, "logs/rank-"],
         "return self.second(self.first(x))"),
        ("raises_with_a_new_message_each_time", WorkerFailed, ["is not there; ", NO_STEP],
         "raise ValueError("),
        ("calls_loss_backward", JobError, ["call session.backward(loss) instead"], ""),
        ("calls_no_backward", JobError, ["no shard of step 1 called session.backward"], ""),
        ("gives_a_float", JobError, ["not a float; remove .item()"], "session.backward("),
        ("gives_a_model", JobError, ["was given a Linear; give it a function"], "session.attach("),
        ("gives_an_optimizer", JobError, ["was given a SGD; give it a function"],
         "session.attach("),
        ("logs_a_vector", JobError, ["session.log(logits=…) needs one number"], "session.log("),
        ("asks_for_its_rank", WorkerFailed, ["a session has no rank; ", "session.main_only"],
         "if session.rank == 0:"),
        ("gives_a_class", JobError, ["the class Unlabelled as data", "TensorDataset(x, y)"],
         "train_on(session, Unlabelled)"),
        ("gives_a_dictionary", JobError, ["a dict as data"], "train_on(session, {"),
        ("gives_a_path", JobError, ["a str as data"], 'train_on(session, "data/train.csv")'),
        ("does_not_pad", JobError, ["cannot be stacked: ", "collate="], "train_on("),
        ("has_an_unlabelled_sample", WorkerFailed, ["raised KeyError: 'no label for 7'", NO_STEP],
         "raise KeyError("),
        ("imports_what_is_not_installed", WorkerFailed, ["No module named 'nowhere_to_be_found'"],
         "import nowhere_to_be_found"),
        ("takes_two_arguments", JobError, ["takes one argument, the session, or none"], None),
    ], 1),
)  # fmt: skip
def test_a_mistake_is_named_with_the_line_that_makes_it(tmp_path, task, error, messages, line):
    with pytest.raises(error) as caught:
        holdfast.train(getattr(mistake_tasks, task), JOB, run_dir=tmp_path / "run")
    assert [each for each in messages if each not in str(caught.value)] == [], caught.value
    cause = caught.value.__cause__
    if line is None:
        assert cause is None
        return
    assert isinstance(cause, RankTraceback)
    assert line in cause.text
    assert mistake_tasks.__file__ in cause.text
    assert "src/holdfast" not in cause.text


def test_a_loop_may_unpack_batches_and_leave_the_epochs_to_the_job(tmp_path):
    job = JOB | {"epochs": 3, "params": {"hidden": 3}}
    result = holdfast.train(mistake_tasks.reads_a_parameter, job, run_dir=tmp_path / "run")
    assert result.steps == 3 * 2
    assert not events_of(tmp_path / "run", "keys-not-read")


def test_keys_that_a_task_does_not_read_are_named(tmp_path, capfd):
    given = {"optimizer": {"name": "sgd", "lr": 0.5}, "params": {"hidden": 3}, "epochs": 1}
    holdfast.train(mistake_tasks.does_not_evaluate, JOB | given, run_dir=tmp_path / "run")
    (event,) = events_of(tmp_path / "run", "keys-not-read")
    assert event["keys"] == "optimizer, params.hidden"
    assert "the task has not read optimizer, params.hidden" in capfd.readouterr().err


def test_the_best_of_no_evaluation_is_refused(tmp_path):
    job = JOB | {"evaluation": {"best": "accuracy"}}
    with pytest.raises(JobError, match=r"evaluation\.best=accuracy, and nothing is evaluated"):
        holdfast.train(mistake_tasks.does_not_evaluate, job, run_dir=tmp_path / "run")
