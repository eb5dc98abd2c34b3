"""Gradients that a program changes or reads, losses, and kinds of parameters: right, or refused."""

import gradients_tasks as tasks
import pytest
import torch
import torch.nn.functional as F

import holdfast
from conftest import events_of
from holdfast.checkpoint.exports.weights import read_checkpoint
from holdfast.checkpoint.find import find_checkpoint
from holdfast.core.step.seeds import seed_for
from holdfast.data.dataset import seed_everything
from holdfast.errors import JobError, ReplicaError, WorkerFailed

pytestmark = pytest.mark.slow

JOB = {
    "batch": 32,
    "shards": 4,
    "epochs": 1,
    "clip_norm": None,
    "data": None,
    "model": None,
    "schedule": {"name": "constant"},
}


@pytest.fixture
def weights(train, tmp_path):
    """The weights that a task ends with: `weights(task, key=value, …) -> state dict`."""
    count = 0

    def of(task, **keys):
        nonlocal count
        count += 1
        run_dir = tmp_path / f"run-{count}"
        train(run_dir=run_dir, task=f"{tasks.__file__}:{task.__name__}", **JOB | keys)
        return read_checkpoint(find_checkpoint(run_dir))

    return of


def assert_same_bits(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("sync", ["tree", "ddp"])
def test_clipping_a_shards_gradient_is_refused(weights, sync):
    with pytest.raises(JobError, match=r"0.weight was changed after .*, or set clip_norm to clip"):
        weights(tasks.clips_after_backward, workers=2, sync=sync)


def plain_loop(before=lambda _: None, after=lambda _: None):
    """The weights of three steps of a plain loop, with code before it and after each backward."""
    model = tasks.network()
    optimizer = tasks.momentum(model.parameters())
    before(model)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(tasks.X), tasks.Y).backward()
        after(model)
        optimizer.step()
    return model.state_dict()


def test_hooks_of_parameters_get_the_gradient_of_the_batch(weights):
    keys = {"batch": 96, "epochs": 3}
    one = weights(tasks.clips_in_hooks_of_parameters, **keys)
    assert_same_bits(weights(tasks.clips_in_hooks_of_parameters, workers=2, **keys), one)
    torch.testing.assert_close(dict(one), plain_loop(before=tasks.clip_in_hooks))


def test_a_gradient_hook_changes_the_mean_gradient_of_the_batch(weights):
    keys = {"batch": 96, "epochs": 3}
    one = weights(tasks.clips_in_a_hook, **keys)
    assert_same_bits(weights(tasks.clips_in_a_hook, workers=2, **keys), one)
    plain = plain_loop(after=tasks.clip)
    torch.testing.assert_close(dict(one), plain)
    ddp = weights(tasks.clips_in_a_hook, workers=2, sync="ddp", **keys)
    torch.testing.assert_close(dict(ddp), plain)


def test_clip_norm_comes_before_a_gradient_hook(weights):
    keys = {"batch": 96, "epochs": 1, "clip_norm": 0.01}
    found = weights(tasks.doubles, **keys)
    start = tasks.network().state_dict()
    moved = torch.cat([(found[name] - start[name]).view(-1) for name in start]).norm()
    torch.testing.assert_close(float(moved), 0.1 * 2 * 0.01, rtol=1e-3, atol=0)


def test_a_gradient_hook_draws_the_same_noise_on_all_workers_and_after_a_kill(weights, tmp_path):
    one = weights(tasks.adds_noise)
    (tmp_path / "mark").touch()
    killed = weights(tasks.adds_noise, workers=2, params={"mark": str(tmp_path / "mark")})
    assert_same_bits(killed, one)
    assert events_of(tmp_path / "run-2", "worker-exited")


@pytest.mark.full
def test_gradients_of_several_models_are_clipped_together(weights):
    assert_same_bits(weights(tasks.clips_two_models, workers=2), weights(tasks.clips_two_models))


def test_a_hook_that_changes_gradients_on_each_worker_alone_is_noticed(weights):
    with pytest.raises((ReplicaError, WorkerFailed, JobError), match="replica"):
        weights(tasks.draws_alone, workers=2)


@pytest.mark.parametrize(
    ("task", "error", "message"),
    [
        (tasks.raises_in_a_hook, WorkerFailed, "raised ValueError: odd gradients"),
        (tasks.steps_in_a_hook, JobError, "function given to session.on_gradients; remove it"),
    ],
)
def test_errors_in_a_gradient_hook_end_the_run(weights, task, error, message):
    with pytest.raises(error, match=message):
        weights(task, workers=2)


KINDS = [
    pytest.param(kind, marks=[] if number in (0, 2, 6) else pytest.mark.full)
    for number, kind in enumerate([*tasks.KINDS][:-2])
]


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_tensors_train_as_in_plain_pytorch(weights, tmp_path, kind):
    keys = {"epochs": 4, "batch": 96, "params": {"kind": kind}}
    one = dict(weights(tasks.of_a_kind, **keys))
    keys["params"]["mark"] = str(tmp_path / "mark")
    (tmp_path / "mark").touch()
    keys |= {"on_failure": "restart", "checkpoint": {"every_steps": 2, "busy": "wait"}}
    assert_same_bits(dict(weights(tasks.of_a_kind, workers=2, **keys)), one)
    assert [e["step"] for e in events_of(tmp_path / "run-2", "generation-started")] == [0, 2]
    build, optimizer = tasks.KINDS[kind]
    seed_everything(seed_for("attach", 0))
    plain = build()
    steps = optimizer(plain.parameters(), lr=0.02)
    for _ in range(4):
        steps.zero_grad()
        tasks.loss_of(plain, tasks.X, tasks.Y).backward()
        steps.step()
    for name, value in plain.state_dict().items():
        if value.is_floating_point() or value.is_complex():
            torch.testing.assert_close(one[name], value, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("kind", ["SparseAdam", "LBFGS"])
def test_optimizers_of_other_kinds_are_refused_by_name(weights, kind):
    with pytest.raises(JobError, match=f"{kind} cannot be used: .*; use another optimizer"):
        weights(tasks.of_a_kind, params={"kind": kind})


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (tasks.has_a_loss_with_weights, r"tensor of shape \(3,\) that requires a gradient and"),
        (tasks.trains_a_plain_tensor, r"tensor of shape \(5,\) .*given to session.attach, or fr"),
        (tasks.trains_a_registered_module, r"tensor of shape \(3,\) that requires a gradient"),
        (
            tasks.steps_a_second_optimizer,
            r"SGD, optimizer of the model.s parameters, .* session.register",
        ),
        (tasks.shares_memory, r"one.weight and other.weight share memory, .* one parameter"),
    ],
)
def test_what_one_worker_would_train_alone_is_refused(weights, task, message):
    with pytest.raises(JobError, match=message):
        weights(task, workers=2)


@pytest.mark.full
def test_what_a_hook_trains_beside_is_refused_unless_it_is_registered(weights, tmp_path):
    keys = {"workers": 2, "params": {"saved": True}}
    one = weights(tasks.trains_beside_the_run, **keys)
    keys["params"]["mark"] = str(tmp_path / "mark")
    (tmp_path / "mark").touch()
    assert_same_bits(weights(tasks.trains_beside_the_run, **keys), one)
    with pytest.raises(JobError, match=r"SGD.step\(\) .* what no checkpoint has; .*register"):
        weights(tasks.trains_beside_the_run, workers=2, params={"saved": False})


def test_a_loss_may_depend_on_inputs_averages_and_checkpoints(weights):
    assert_same_bits(weights(tasks.depends_on_much, workers=2), weights(tasks.depends_on_much))


def test_a_shard_whose_error_is_caught_adds_nothing(weights):
    before = weights(tasks.catches_errors, params={"how": "before"})
    for how in ("forward", "backward"):
        found = weights(tasks.catches_errors, workers=2, params={"how": how})
        assert_same_bits(found, before)
    with pytest.raises(JobError, match=r"session.backward failed, .* set sync=tree"):
        weights(tasks.catches_errors, workers=2, sync="ddp", params={"how": "backward"})


@pytest.mark.full
def test_shards_without_weight_leave_the_loss_of_the_others(tmp_path):
    found = {}
    for number, keys in enumerate(
        [{"shards": 1}, {}, {"shards": 16}, {"workers": 2, "sync": "ddp"}]
    ):
        job = {"batch": 32, "shards": 4, "epochs": 1} | keys
        result = holdfast.train(tasks.labels, job, run_dir=tmp_path / str(number))
        found[number] = [*result.history["loss"], *result.history["own"]]
    for losses in found.values():
        assert losses == pytest.approx(found[0], abs=1e-5)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (-1, "session.backward needs a weight that is a number from 0, not -1"),
        ("nan", "a number from 0, not 'nan'"),
        (0, r"no shard of step 1 called session.backward\(loss\) with a weight above 0"),
    ],
)
def test_weights_that_give_no_mean_are_refused(weights, weight, message):
    with pytest.raises(JobError, match=message):
        weights(tasks.gives_a_weight, params={"weight": weight})
