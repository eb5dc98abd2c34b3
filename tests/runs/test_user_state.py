"""What users keep in PyTorch's own places survives, or is refused by name."""

import json

import pytest

from conftest import TASKS, events_of, metrics_of, sampled
from holdfast.errors import JobError
from holdfast.launch.fork_client import ForkServer
from holdfast.launch.spawn import WORKER, spawn

pytestmark = pytest.mark.slow

STATE = TASKS.parent / "state_tasks.py"


def own(name, **keys):
    same = {"task": f"{STATE}:{name}", "batch": 30, "shards": 4, "workers": 2, "clip_norm": None}
    return {**same, "checkpoint": {"every_steps": 4}, **keys}


KEPT = [
    ("sgd", "exponential"),
    ("adam", "steps"),
    ("groups", "sequence"),
    ("counting", "cycle"),
    ("adagrad", "plateau"),
    ("clipping", "exponential"),
]


@pytest.mark.parametrize(("optimizer", "scheduler"), sampled(KEPT, 1))
def test_optimizers_schedulers_and_averages_survive_anything(train, tmp_path, optimizer, scheduler):
    params = {"optimizer": optimizer, "scheduler": scheduler}
    whole = train(**own("keeping", workers=1, params=params))
    assert whole["steps"] == 12

    def same(result):
        return [result[key] for key in ("weights_sha256", "metrics", "loss", "steps")] == [
            whole[key] for key in ("weights_sha256", "metrics", "loss", "steps")
        ]

    assert same(train(**own("keeping", workers=3, params=params)))
    for policy in ("replace", "shrink", "restart"):
        deaths = [(0, 0, str(tmp_path / f"{policy}-0")), (6, 1, str(tmp_path / f"{policy}-6"))]
        run_dir = tmp_path / policy
        keys = own("keeping", params={**params, "deaths": deaths}, on_failure=policy)
        assert same(train(run_dir, **keys))
        lost = [e for e in events_of(run_dir) if e["event"] == "worker-exited" and e["unexpected"]]
        assert [event["rank"] for event in lost] == [0, 1], "others than those killed have ended"


def test_a_resumed_run_continues_with_its_scheduler_and_average(train, tmp_path):
    keys = own("keeping", checkpoint={"every_steps": 4, "keep": 9})
    whole = train(tmp_path / "run", **keys)
    for step in ("step-00000008", "step-00000012"):
        for file in (tmp_path / "run" / "checkpoints" / step).iterdir():
            file.unlink()
    again = train(tmp_path / "run", resume=True, **{**keys, "workers": 3})
    assert again["weights_sha256"] == whole["weights_sha256"]
    assert again["metrics"] == whole["metrics"]


@pytest.mark.parametrize("workers", sampled([1, 2], 1))
@pytest.mark.parametrize(
    ("task", "message"),
    sampled(
        [
            ("scheduler_not_kept", "ExponentialLR, scheduler .* give it to session.register"),
            (
                "state_in_loop",
                r"session.state.seen .* was modified in the session.shards loop .step 1.",
            ),
            (
                "rate_in_loop",
                r"groups\[0\].lr \(0.1 and 0.05\) was modified in the session.shards loop .step 2.",
            ),
            ("unfreezing", "parameter 0.weight began to require a gradient"),
            ("lazy_buffer", "buffer mean did not exist when training began"),
            ("kept_late", r"session.register\('average', …\) was called too late"),
            ("kept_function", "a builtin_function_or_method, which has no state_dict"),
            ("callback_late", "session.on_commit was called in the loop"),
            ("evaluating_in_callback", "session.evaluate belongs in the loop over shards"),
        ],
        0,
        1,
        4,
        7,
    ),
)
def test_what_could_depend_on_the_workers_is_refused_by_name(train, task, message, workers):
    with pytest.raises(JobError, match=message):
        train(**own(task, workers=workers))


def test_ranks_that_keep_different_options_are_named_with_the_option(train):
    with pytest.raises(JobError, match=r"rank 0 and rank 1 differ in groups\[0\].lr \(0.1 and 1.1"):
        train(**own("rate_by_rank"))


@pytest.mark.soak
def test_strings_hash_alike_under_any_fork_server(train, tmp_path):
    found = []
    for number in range(2):
        with ForkServer(spawn(WORKER)) as forks:
            train(tmp_path / str(number), on=forks, **own("hashing", workers=1))
        lines = metrics_of(tmp_path / str(number))
        found.append([line["logged"]["hash"] for line in lines if "logged" in line])
    assert found[0] == found[1]


def test_the_state_is_in_the_checkpoint_as_json(train, tmp_path):
    train(tmp_path / "run", **own("keeping", params={"scheduler": "steps"}))
    newest = max((tmp_path / "run" / "checkpoints").glob("step-*"))
    stored = json.loads((newest / "manifest.json").read_text())
    assert stored["user_state"]["kept"]["scheduler"]["last_epoch"] == 12
    assert stored["user_state"]["frozen"] == ["0.bias"]
    assert stored["user_state"]["evaluating"] == ["1"]
    assert any(t["name"] == "kept.average.module.0.weight" for t in stored["tensors"])


@pytest.mark.soak
@pytest.mark.timeout(900)  # it compiles a model for twelve shapes, for one worker and for two
def test_a_compiled_model_sees_many_shapes_and_gives_the_same_weights(train):
    keys = own("many_shapes", compile=True)
    alone = train(**{**keys, "workers": 1})
    assert train(**keys)["weights_sha256"] == alone["weights_sha256"]
