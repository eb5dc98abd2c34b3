"""Spaces: how they are written, what is refused, and the values in them."""

import pytest

from holdfast.errors import JobError
from holdfast.job import load
from holdfast.tuning.space import Choice, Range, applied, base_of, of_options, of_values


def base(*overrides):
    return base_of(load.load("digits", overrides))


@pytest.mark.parametrize(
    ("word", "dimension"),
    [
        ("optimizer.lr=1e-4..0.1:log", Range(key="optimizer.lr", low=1e-4, high=0.1, log=True)),
        ("batch=16..64", Range(key="batch", low=16, high=64)),
        ("model.dropout=0..0.3", Range(key="model.dropout", low=0, high=0.3)),
        ("batch=32,64", Choice(key="batch", options=(32, 64))),
        ("optimizer.lr=1e-3,1e-2", Choice(key="optimizer.lr", options=(1e-3, 1e-2))),
        (
            "model={name: cnn},{name: mlp, hidden: [8, 8]}",
            Choice(key="model", options=({"name": "cnn"}, {"name": "mlp", "hidden": [8, 8]})),
        ),
    ],
)
def test_a_range_is_read_and_written(word, dimension):
    space = of_options([word])
    assert space.dimensions == (dimension,)
    assert of_values(space.plain()) == space


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["batch"], "space batch: No such file or directory; give KEY=RANGE, or a YAML file"),
        (["batch=32"], "space batch: .* is no range; write a..b"),
        (["batch=64..32"], "space batch: 64..32 is empty"),
        (["batch=0..32:log"], "a logarithm needs numbers above 0"),
        (["batch=[1,"], "cannot be read"),
        (["batch=32,32"], "a choice is given twice"),
        (["batch=8..9", "batch=1..2"], "the space has batch twice"),
        ([], "the space is empty"),
    ],
)
def test_what_is_no_range_is_refused(words, message):
    with pytest.raises(JobError, match=message):
        of_options(words)


def test_a_file_has_conditions(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text(
        "optimizer.name: [sgd, adamw]\n"
        "optimizer.lr: {log: [1e-3, 1.0]}\n"
        "optimizer.momentum: {choice: [0.0, 0.9], when: {optimizer.name: sgd}}\n"
    )
    space = of_options([str(path)])
    assert of_values(space.plain()) == space
    space.check(base(), "digits")
    assert space.choose(lambda each: each.at(0.99)) == {
        "optimizer.name": "adamw",
        "optimizer.lr": pytest.approx(0.933, rel=0.01),
    }
    assert space.choose(lambda each: each.at(0.0))["optimizer.momentum"] == 0.0


def test_a_condition_is_a_choice_above():
    with pytest.raises(JobError, match=r"when optimizer\.name=sgd, which is no choice above it"):
        of_values({"optimizer.momentum": {"range": [0, 0.9], "when": {"optimizer.name": "sgd"}}})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["optimizer.rate=0.1..1"], "unknown key optimizer.rate"),
        (["batch=32,sixty"], "batch: input should be a valid integer"),
        (["optimizer.lr=-1..0.1"], "optimizer.lr: input should be greater than 0, not -1"),
        (["optimizer.momentum=0..0.9"], "unknown key optimizer.momentum"),
        (["workers=1..9"], "workers"),
    ],
)
def test_ends_that_no_run_takes_are_refused(words, message):
    with pytest.raises(JobError, match=message):
        of_options(words).check(base(), "digits")


def test_another_name_has_its_own_defaults():
    values = applied(base("optimizer={name: sgd, momentum: 0.5}"), {"optimizer.name": "adamw"})
    assert values["optimizer"] == {"name": "adamw"}
    same = applied(base(), {"optimizer.name": "adamw", "optimizer.lr": 1.0})
    assert same["optimizer"] == {"name": "adamw", "lr": 1.0, "weight_decay": 0.01}


def test_shares_reach_both_ends():
    lr = Range(key="lr", low=1e-4, high=1e-2, log=True)
    assert [lr.at(share) for share in (0.0, 0.5, 1.0)] == pytest.approx([1e-4, 1e-3, 1e-2])
    batch = Range(key="batch", low=1, high=3)
    assert [batch.at(share) for share in (0.0, 0.34, 0.67, 1.0)] == [1, 2, 3, 3]
    assert Choice(key="c", options=("a", "b")).at(1.0) == "b"


def test_a_grid_has_every_combination_once():
    space = of_values(
        {
            "optimizer.name": ["sgd", "adamw"],
            "optimizer.momentum": {"choice": [0.0, 0.9], "when": {"optimizer.name": "sgd"}},
            "batch": "1..2",
        }
    )
    grid = space.grid()
    assert len(grid) == 2 * 2 + 2
    assert grid[0] == {"optimizer.name": "sgd", "optimizer.momentum": 0.0, "batch": 1}
    with pytest.raises(JobError, match="a grid needs choices or integers"):
        of_values({"optimizer.lr": "0.1..1"}).grid()
