"""Populations: who is replaced, and that nothing depends on the number of slots."""

import json

import pytest

from conftest import wait_until
from holdfast import tune
from holdfast.checkpoint.manifest import Manifest
from holdfast.core.tuning.search import replacements
from holdfast.errors import JobError
from holdfast.tuning.space import of_values
from holdfast.tuning.suggest import perturb

KEYS = {"epochs": 3, "workers": 1, "model.width": 2, "batch": 256}
SPACE = {"optimizer.lr": "1e-4..1:log", "model.dropout": [0.0, 0.1, 0.2]}


@pytest.mark.parametrize(
    ("scores", "pairs"),
    [
        ({}, {}),
        ({0: 0.1}, {}),
        ({0: 0.1, 1: 0.2}, {0: 1}),
        ({0: 0.2, 1: 0.2}, {}),  # equals stay
        ({0: 0.1, 2: 0.4, 3: 0.3, 7: 0.2}, {0: 2}),
        ({n: n / 10 for n in range(8)}, {0: 7, 1: 6}),
        ({0: float("-inf"), 1: 0.1, 2: 0.2}, {0: 2}),
    ],
)
def test_the_worst_quarter_is_replaced_by_the_best(scores, pairs):
    assert replacements(scores) == pairs


def test_a_fork_differs_a_little_within_the_space():
    space = of_values(SPACE)
    values = {"optimizer.lr": 0.1, "model.dropout": 0.1}
    moved = [perturb(space, 0, number, values) for number in range(20)]
    assert {round(each["optimizer.lr"], 9) for each in moved} == {0.08, 0.12}
    assert {each["model.dropout"] for each in moved} == {0.0, 0.2}
    at_the_end = {"optimizer.lr": 1.0, "model.dropout": 0.2}
    ends = [perturb(space, 0, number, at_the_end) for number in range(20)]
    assert {each["optimizer.lr"] for each in ends} == {0.8, 1.0}
    assert perturb(space, 0, 3, values) == perturb(space, 0, 3, values)


def outcomes(result):
    return [(each.values, each.value, each.status, each.weights_sha256) for each in result.trials]


def lines(path, event):
    entries = map(json.loads, (path / "trials.jsonl").read_text().splitlines())
    return [entry for entry in entries if entry["event"] == event]


@pytest.fixture(scope="module")
def one_slot(tmp_path_factory):
    path = tmp_path_factory.mktemp("population") / "one"
    return tune("digits", KEYS, space=SPACE, population=2, at_once=1, run_dir=path)


@pytest.mark.slow
@pytest.mark.full
def test_the_worst_are_forks_of_the_best_with_their_weights(one_slot):
    generations = lines(one_slot.path, "evolved")
    assert [each["epoch"] for each in generations] == [1, 2]
    forks = [fork for each in generations for fork in each["forks"]]
    assert forks
    for fork in forks:
        assert one_slot.trials[fork["replaces"]].reason == f"replaced by trial {fork['trial']}"
        assert fork["values"] != one_slot.trials[fork["parent"]].values
    finished = [each for each in one_slot.trials if each.status == "finished"]
    assert len(finished) == 2
    assert {each.epochs for each in finished} == {3}
    (first,) = generations[0]["forks"]
    run = one_slot.path / "trials" / f"{first['trial']:04d}" / "checkpoints"
    manifest = min(run.glob("step-*/manifest.json"))
    forked = Manifest.parse(manifest.read_bytes(), "fork")
    assert forked.parent.root == forked.root


@pytest.mark.slow
@pytest.mark.full
def test_the_number_of_slots_and_a_kill_change_nothing(one_slot, command, tmp_path):
    path = tmp_path / "two"
    words = [f"{key}={value}" for key, value in KEYS.items()]
    ranges = ["--space", "optimizer.lr=1e-4..1:log", "--space", "model.dropout=0.0,0.1,0.2"]
    options = ["--population", 2, "--at-once", 2]
    search = command("tune", "digits", *words, *ranges, *options, "--run", path)
    wait_until(lambda: (path / "trials.jsonl").exists() and lines(path, "evolved"))
    search.kill()
    search.wait()
    assert outcomes(tune("digits", resume=True, run_dir=path)) == outcomes(one_slot)


def test_what_no_fork_continues_with_is_refused(tmp_path):
    def search(space=SPACE, keys=KEYS, **options):
        tune("digits", keys, space=space, population=4, run_dir=tmp_path / "s", **options)

    with pytest.raises(JobError, match="a population cannot vary batch"):
        search({"batch": [32, 64]})
    with pytest.raises(JobError, match="takes the place of trials, strict and stop"):
        search(stop="asha")
    with pytest.raises(JobError, match=r"every=3 must be a multiple of evaluation\.every_epochs=2"):
        search(keys={**KEYS, "evaluation.every_epochs": 2}, every=3)
    assert not (tmp_path / "s").exists()
