"""What user code changes between two steps stays, on every worker and in the checkpoint."""

import pytest
from test_user_state import own

from conftest import TASKS, back_to, events_of, sampled
from holdfast.checkpoint.store import CheckpointStore
from holdfast.errors import JobError

pytestmark = pytest.mark.slow

CHANGES = TASKS.parent / "change_tasks.py"


def changing(name, **keys):
    return own(name, task=f"{CHANGES}:{name}", **keys)


def test_an_optimizer_may_keep_a_gradient_that_it_has_written_to(train):
    one = train(**changing("keeping_gradients", workers=1))
    assert train(**changing("keeping_gradients"))["weights_sha256"] == one["weights_sha256"]


@pytest.mark.soak
@pytest.mark.parametrize("every_steps", sampled([0, 4], 1))
def test_buffers_may_be_changed_after_a_step(train, tmp_path, every_steps):
    keys = {"checkpoint": {"every_steps": every_steps}}
    alone = train(**changing("annealing", workers=1, **keys))
    run, deaths = tmp_path / "run", [(5, 1, str(tmp_path / "mark"))]
    killed = train(run, **changing("annealing", params={"deaths": deaths}, **keys))
    assert killed["weights_sha256"] == alone["weights_sha256"]
    assert (
        len([e for e in events_of(run) if e["event"] == "worker-exited" and e["unexpected"]]) == 1
    )
    again = train(run, resume=True, **changing("annealing", params={"deaths": deaths}, **keys))
    assert again["weights_sha256"] == alone["weights_sha256"]
    assert CheckpointStore.of_run(run).newest().step == 8


@pytest.mark.soak
def test_buffers_may_be_changed_with_ddp_too(train):
    assert train(**changing("annealing", sync="ddp"))["steps"] == 8


def test_a_run_that_continues_must_not_begin_with_other_weights(train, tmp_path):
    keys = changing("replacing_weights", checkpoint={"every_steps": 4, "keep": 9})
    train(tmp_path / "run", **keys)
    back_to(tmp_path / "run", 4)
    with pytest.raises(JobError, match="the model was modified after step 4 was loaded"):
        train(tmp_path / "run", resume=True, **keys)


@pytest.mark.soak
def test_state_survives_a_death_before_the_loop_of_a_resumed_run(train, tmp_path):
    keys = {"params": {"mark": str(tmp_path / "mark")}, "checkpoint": {"every_steps": 4, "keep": 9}}
    whole = train(tmp_path / "run", **changing("counting", **keys))
    back_to(tmp_path / "run", 4)
    again = train(tmp_path / "run", resume=True, **changing("counting", **keys))
    assert again["weights_sha256"] == whole["weights_sha256"]
    lost = [
        e for e in events_of(tmp_path / "run") if e["event"] == "worker-exited" and e["unexpected"]
    ]
    assert [each["rank"] for each in lost] == [1]


@pytest.mark.parametrize("what", sampled(["attributes", "noise"], 0))
def test_modules_may_be_changed_after_a_step(train, tmp_path, what):
    alone = train(**changing("in_callback", workers=1, params={"what": what}))
    params = {"what": what, "deaths": [(5, 1, str(tmp_path / "mark"))]}
    run = tmp_path / "run"
    killed = train(run, **changing("in_callback", params=params))
    assert killed["weights_sha256"] == alone["weights_sha256"]
    assert (
        len([e for e in events_of(run) if e["event"] == "worker-exited" and e["unexpected"]]) == 1
    )


@pytest.mark.soak
@pytest.mark.parametrize("every_steps", sampled([0, 3, 4], 1))
@pytest.mark.parametrize("on_failure", sampled(["replace", "shrink", "restart"], 0))
def test_code_after_the_loop_sees_the_trained_model_in_every_life_of_the_run(
    train, tmp_path, every_steps, on_failure
):
    keys = {"checkpoint": {"every_steps": every_steps}, "on_failure": on_failure}
    run, params = tmp_path / "run", {"mark": str(tmp_path / "mark")}
    alone = train(**changing("after_the_loop", workers=1))
    killed = train(run, **changing("after_the_loop", params=params, **keys))
    assert killed["weights_sha256"] == alone["weights_sha256"]
    assert (tmp_path / "mark").exists()
    again = train(run, resume=True, **changing("after_the_loop", params=params, **keys))
    assert again["weights_sha256"] == alone["weights_sha256"]


@pytest.mark.soak
def test_a_lone_worker_leaves_the_optimizer_state_that_code_replaces_after_a_step(train, tmp_path):
    undisturbed = train(**changing("new_momentum", workers=1))
    params = {"deaths": [(5, 0, str(tmp_path / "mark"))]}
    killed = train(**changing("new_momentum", workers=1, params=params))
    assert killed["weights_sha256"] == undisturbed["weights_sha256"]
    assert (tmp_path / "mark").exists()


@pytest.mark.parametrize("task", sampled(["before_the_loop", "mode_of_a_kept_module"], 0))
@pytest.mark.parametrize("on_failure", sampled(["replace", "restart"], 0))
def test_a_replacement_has_what_code_changes_after_a_step(train, tmp_path, task, on_failure):
    alone = train(**changing(task, workers=1))
    params = {"deaths": [(5, 1, str(tmp_path / "mark"))]}
    keys = {"on_failure": on_failure, "checkpoint": {"every_steps": 4}}
    killed = train(**changing(task, params=params, **keys))
    assert killed["weights_sha256"] == alone["weights_sha256"]
    assert (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    ("task", "what"),
    sampled(
        [
            *[
                ("optimizer_attributes", what)
                for what in ("list", "dictionary", "tensor", "scalar", "base")
            ],
            *[("module_attributes", what) for what in ("list", "dictionary", "tensor", "private")],
            ("module_attributes", "replaced tensor"),
        ],
        1,
    ),
)
def test_attributes_may_be_changed_after_a_step(train, tmp_path, task, what):
    alone = train(**changing(task, workers=1, params={"what": what}))
    params = {"what": what, "deaths": [(5, 1, str(tmp_path / "mark"))]}
    killed = train(**changing(task, params=params))
    assert killed["weights_sha256"] == alone["weights_sha256"]


@pytest.mark.parametrize(
    ("task", "what", "message"),
    sampled(
        [
            (
                "module_attributes",
                "function",
                "attribute activation is a builtin_function_or_method",
            ),
            (
                "optimizer_attributes",
                "by_parameter",
                "by_parameter of the optimizer.* is a Parameter",
            ),
        ],
        0,
    ),
)
def test_attributes_that_cannot_be_saved_may_not_be_changed(train, task, what, message):
    with pytest.raises(JobError, match=message):
        train(**changing(task, workers=1, params={"what": what}))


@pytest.mark.parametrize(
    ("what", "name"),
    sampled(
        [
            ("replaced layer", r"module 3"),
            ("replaced parameter", r"parameter 3\.weight"),
            ("added layer", r"module 5"),
            ("weight norm", r"parameter 3\.weight"),
            ("forward hook", r"forward_hooks of module 2"),
        ],
        1,
    ),
)
def test_what_a_replacement_would_not_have_is_refused(train, what, name):
    with pytest.raises(JobError, match=rf"^{name} was added, removed or replaced in session"):
        train(**changing("in_callback", workers=1, params={"what": what}))


@pytest.mark.parametrize(
    ("what", "arguments", "name"),
    sampled([("plateau", [], "ReduceLROnPlateau"), ("steps", [2], "StepLR")], 0),
)
def test_every_scheduler_must_be_kept(train, what, arguments, name):
    keys = {"params": {"what": what, "arguments": arguments}, "workers": 1}
    with pytest.raises(JobError, match=f"{name}, scheduler for the optimizer, is not part of"):
        train(**changing("scheduler_among_others", **keys))


@pytest.mark.soak
@pytest.mark.parametrize("step", sampled([0, 5], 1))
def test_a_schedule_may_scale_a_rate_that_is_a_tensor(train, tmp_path, step):
    alone = train(**changing("scheduled", workers=1))
    deaths = [(step, 1, str(tmp_path / "mark"))]
    killed = train(**changing("scheduled", params={"deaths": deaths}))
    assert killed["weights_sha256"] == alone["weights_sha256"]


@pytest.mark.soak
def test_schedulers_may_be_kept_within_an_object(train, tmp_path):
    alone = train(**changing("schedulers_in_an_object", workers=1))
    deaths = [(5, 1, str(tmp_path / "mark"))]
    killed = train(**changing("schedulers_in_an_object", params={"deaths": deaths}))
    assert killed["weights_sha256"] == alone["weights_sha256"]


@pytest.mark.parametrize("workers", sampled([1, 2], 0))
@pytest.mark.parametrize(
    ("what", "name"),
    sampled(
        [
            ("parameter", r"model\.0\.weight"),
            ("rebound parameter", r"model\.0\.weight"),
            ("momentum", r"optimizer\.3\.bias:momentum_buffer"),
            ("average", r"kept\.average\.module\.0\.weight"),
        ],
        1,
    ),
)
def test_a_change_of_tensors_in_the_loop_is_refused(train, what, name, workers):
    with pytest.raises(
        JobError, match=rf"{name} was modified in the session.shards loop .step [12].:"
    ):
        train(**changing("in_loop", params={"what": what}, workers=workers))


@pytest.mark.parametrize(
    ("task", "message"),
    sampled(
        [
            (
                "scheduler_after_joining",
                "StepLR, scheduler for the optimizer, .* give it to session.register",
            ),
            ("keeping_too_much", "the user state takes .* bytes, most of it in kept"),
        ],
        1,
    ),
)
def test_what_would_be_lost_is_refused(train, task, message):
    with pytest.raises(JobError, match=message):
        train(**changing(task))
