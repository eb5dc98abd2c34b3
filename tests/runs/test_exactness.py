"""The promise: who computed what never shows in the weights."""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import SMALL, TASKS, metrics_of, sampled

pytestmark = pytest.mark.slow

MODELS = {"cnn": SMALL["model"], "mlp": {"name": "mlp", "hidden": [16, 16], "dropout": 0.3}}


@pytest.mark.parametrize("workers", sampled([1, 2, 3, 4], 2))
@pytest.mark.parametrize("model", sampled(MODELS, 0))
def test_weights_are_the_same_for_any_number_of_workers(train, reference, model, workers):
    result = train(model=MODELS[model], workers=workers)
    assert result["weights_sha256"] == reference(model=MODELS[model])
    assert result["steps"] == 12


@st.composite
def uneven_shares(draw):
    world = draw(st.integers(2, 5))
    cuts = sorted(draw(st.lists(st.integers(0, 8), min_size=world - 1, max_size=world - 1)))
    bounds = [0, *cuts, 8]
    return [hi - lo for lo, hi in itertools.pairwise(bounds)]


def for_uneven_plans(count):
    """Have a test see so many plans that are drawn at random."""

    def decorate(test):
        given_plans = given(shares=uneven_shares(), ahead=st.sampled_from([0, 2]))
        checks = [HealthCheck.function_scoped_fixture]
        limits = settings(max_examples=count, deadline=None, suppress_health_check=checks)
        return limits(given_plans(test))

    return decorate


@for_uneven_plans(3)
@pytest.mark.soak
def test_weights_are_the_same_for_an_uneven_plan(train, reference, shares, ahead):
    check_uneven_plan(train, reference, shares, ahead)


@pytest.mark.soak
@for_uneven_plans(40)
def test_weights_are_the_same_for_many_uneven_plans(train, reference, shares, ahead):
    check_uneven_plan(train, reference, shares, ahead)


def check_uneven_plan(train, reference, shares, ahead):
    result = train(workers=len(shares), shards_per_worker=shares, loader={"prefetch": ahead})
    assert result["weights_sha256"] == reference()


@pytest.mark.parametrize("hidden", sampled([[199, 101], [787, 53]]))
def test_clipping_does_not_depend_on_the_workers_where_sizes_are_odd(train, tmp_path, hidden):
    """Each of these weights has blocks of its own and a size that is no multiple of a vector."""
    keys = {"model": {"name": "mlp", "hidden": hidden}, "clip_norm": 0.05, "batch": 60}
    hashes, norms = set(), []
    for workers in (1, 2, 3):
        run_dir = tmp_path / str(workers)
        hashes.add(train(run_dir, workers=workers, epochs=1, **keys)["weights_sha256"])
        norms.append([line["norm"] for line in metrics_of(run_dir) if "norm" in line])
    assert len(hashes) == 1
    assert norms[0] == norms[1] == norms[2]
    assert max(norms[0]) > 0.05, "nothing was clipped"


def test_another_seed_gives_other_weights(train, reference):
    assert train(seed=1)["weights_sha256"] != reference()


def test_metrics_do_not_depend_on_the_workers_either(train, once, tmp_path):
    train(run_dir=tmp_path / "three", workers=3, shards_per_worker=[0, 7, 1])
    one, three = metrics_of(once(epochs=2)), metrics_of(tmp_path / "three")
    for line in [*one, *three]:
        for clocked in ("seconds", "phases", "workers", "time_unix_s"):
            line.pop(clocked, None)
    assert one == three


@pytest.mark.parametrize("shards", sampled([1, 3, 5]))
def test_any_number_of_shards_is_exact(train, shards):
    hashes = {
        train(shards=shards, workers=workers)["weights_sha256"]
        for workers in range(1, min(shards, 3) + 1)
    }
    assert len(hashes) == 1


def test_what_a_module_draws_does_not_depend_on_its_folder(train, tmp_path):
    """Each host has the code of a run in a folder of its own."""
    source = """
import torch

RATE = float(torch.rand(()))

def main(session):
    model, _ = session.attach(
        lambda: torch.nn.Linear(4, 1), lambda p: torch.optim.SGD(p, lr=RATE)
    )
    for shard in session.shards(torch.utils.data.TensorDataset(torch.ones(8, 4)), epochs=1):
        session.backward(model(shard.x).mean())
"""
    found = set()
    for folder in (tmp_path / "here", tmp_path / "there"):
        folder.mkdir()
        (folder / "mine.py").write_text(source)
        found.add(train(task=f"{folder / 'mine.py'}:main")["weights_sha256"])
    assert len(found) == 1


@pytest.mark.parametrize("task", sampled(["own_loop", "odd_model", "weighted", "skipping"], 1))
def test_a_custom_task_is_exact_too(train, task):
    keys = {"task": f"{TASKS}:{task}", "batch": 20, "shards": 5}
    first = train(workers=1, **keys)
    second = train(workers=3, **keys)
    assert first["weights_sha256"] == second["weights_sha256"]
    same = first.keys() - {"samples_per_s", "seconds"}
    assert {key: first[key] for key in same} == {key: second[key] for key in same}


@pytest.mark.parametrize("workers", sampled([1, 2, 3], 1))
def test_fast_numerics_learn_as_well(train, workers):
    result = train(numerics="fast", workers=workers, epochs=6)
    exact = train(numerics="exact", workers=workers, epochs=6)
    assert result["weights_sha256"] != exact["weights_sha256"]
    assert abs(result["metrics"]["accuracy"] - exact["metrics"]["accuracy"]) < 0.1
    assert result["metrics"]["accuracy"] > 0.7


@pytest.mark.soak
def test_more_workers_than_batches_of_work_still_train(train):
    """With eight shards and a batch of three, most workers owe nothing; they take part anyway."""
    keys = {"task": f"{TASKS}:odd_model", "batch": 3, "shards": 8}
    assert train(workers=1, **keys)["weights_sha256"] == train(workers=4, **keys)["weights_sha256"]
