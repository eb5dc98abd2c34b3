"""Synthetic data: reproducible, learnable, and named as synthetic."""

import json
import typing
from collections import Counter

import numpy as np
import pytest
import torch

from conftest import SMALL
from holdfast.data.catalog import build, build_text, synthetic_text
from holdfast.job import data


def entropy(text, order):
    """Of a byte when `order` bytes before it are known, bits."""
    pairs = Counter(text[i : i + order + 1] for i in range(len(text) - order))
    known = Counter(text[i : i + order] for i in range(len(text) - order))
    shares = np.array([[count, known[pair[:order]]] for pair, count in pairs.items()])
    return float(-(shares[:, 0] * np.log2(shares[:, 0] / shares[:, 1])).sum() / len(text))


def test_two_letters_predict_the_next_and_one_does_not():
    text = synthetic_text(50_000)
    assert text == synthetic_text(50_000)
    assert entropy(text, 2) < 0.9
    assert entropy(text, 1) > 1.8
    assert entropy(text, 0) > 2.5


def test_a_text_is_cut_into_windows_like_any_other():
    training, test = build_text(data.SyntheticText(name="synthetic-text", size=5000, length=16))
    x, y = training.batch(np.arange(len(training)), torch.Generator())
    assert bytes(x.flatten().tolist()) == synthetic_text(5000)[: x.numel()]
    assert torch.equal(x[:, 1:], y[:, :-1])
    assert len(test) == 31


def test_images_of_a_class_share_a_pattern():
    spec = data.SyntheticImages(name="synthetic-images", size=400, classes=3, height=8)
    found = build(spec)
    x, y = found.training.batch(np.arange(400), torch.Generator())
    means = torch.stack([x[y == c].mean(0).flatten() for c in range(3)])
    x, y = found.test.batch(np.arange(100), torch.Generator())
    nearest = torch.cdist(x.flatten(1), means).argmin(1)
    assert (nearest == y).double().mean() > 0.95


def test_names_of_synthetic_data_begin_with_synthetic():
    for part in typing.get_args(data.LabelledData) + typing.get_args(data.TextData):
        [*names] = typing.get_args(part.model_fields["name"].annotation)
        made_up = part.__name__.startswith("Synthetic")
        assert all(name.startswith("synthetic-") == made_up for name in names)


@pytest.mark.soak
@pytest.mark.slow
def test_every_result_is_stamped_with_the_name_of_its_data(tmp_path):
    import holdfast

    made_up = {**SMALL, "data": {"name": "synthetic-images", "size": 64}, "epochs": 1}
    result = holdfast.train("digits", made_up, run_dir=tmp_path / "run")
    assert result.data == "synthetic-images"
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    assert written["data"] == result.as_dict()["data"] == "synthetic-images"
