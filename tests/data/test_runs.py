"""Runs on data from files: workers, formats and caches do not change the weights."""

import gzip
import struct

import numpy as np
import pytest
from PIL import Image

from conftest import Library, back_to
from holdfast.errors import JobError

pytestmark = pytest.mark.slow

datasets = Library("sklearn.datasets")

CNN = {"name": "cnn", "width": 2}


def patterns(count, seed):
    """Noisy bytes of 8x8 in three classes that can be told apart."""
    draw = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    shapes = np.random.default_rng(99).integers(0, 200, (3, 8, 8))
    return (shapes[labels] + draw.integers(0, 56, (count, 8, 8))).astype(np.uint8), labels


@pytest.mark.soak
def test_mnist_gives_the_same_weights_for_every_number_of_workers(train, tmp_path):
    for part, count in (("train", 120), ("t10k", 30)):
        x, y = patterns(count, count)
        for name, array in (("images-idx3", x), ("labels-idx1", y.astype(np.uint8))):
            sizes = struct.pack(f">{array.ndim}I", *array.shape)
            data = bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()
            (tmp_path / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(data))
    keys = {"data": {"name": "mnist", "path": str(tmp_path), "augment": True}, "batch": 40}
    one, two = (train(workers=workers, model=CNN, epochs=8, **keys) for workers in (1, 2))
    assert one["weights_sha256"] == two["weights_sha256"]
    assert one["metrics"]["accuracy"] > 0.5


def test_a_cache_changes_neither_the_weights_nor_a_resumed_run(train, tmp_path):
    x, y = patterns(60, 0)
    for number, (image, label) in enumerate(zip(x, y, strict=True)):
        path = tmp_path / "pictures" / f"class-{label}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    plain = {"name": "image-folder", "path": str(tmp_path / "pictures"), "height": 8}
    mapped = {**plain, "cache": str(tmp_path / "cache")}
    keys = {"model": CNN, "batch": 20, "checkpoint": {"every_steps": 2, "keep": 9}}
    reference = train(workers=1, data=plain, **keys)["weights_sha256"]
    run = tmp_path / "run"
    assert train(run, workers=3, data=mapped, **keys)["weights_sha256"] == reference
    back_to(run, 2)
    resumed = train(run, resume=True, workers=2, data=plain, **keys)
    assert resumed["weights_sha256"] == reference


@pytest.mark.soak
def test_parquet_gives_the_same_weights_for_every_number_of_workers(train, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    wine = datasets.load_wine()
    frame = dict(zip(wine.feature_names, wine.data.T, strict=True))
    table = pyarrow.table({**frame, "kind": wine.target})
    parquet.write_table(table, tmp_path / "wine.parquet")
    data = {
        "name": "parquet", "path": str(tmp_path / "wine.parquet"), "labels": "kind",
        "features": list(frame), "classes": 3,
    }  # fmt: skip
    keys = {"data": data, "model": {"name": "mlp", "hidden": [16]}, "batch": 32, "epochs": 8}
    one, two = (train(workers=workers, **keys) for workers in (1, 2))
    assert one["weights_sha256"] == two["weights_sha256"]
    assert one["metrics"]["accuracy"] > 0.8


@pytest.mark.soak
def test_synthetic_text_gives_the_same_weights_for_every_number_of_workers(train):
    keys = {
        "task": "language",
        "data": {"name": "synthetic-text", "size": 20_000, "length": 16},
        "model": {"name": "gpt", "width": 16, "heads": 2, "layers": 1, "dropout": 0.0},
        "batch": 64,
        "epochs": 4,
    }
    one, two = (train(workers=workers, **keys) for workers in (1, 2))
    assert one["weights_sha256"] == two["weights_sha256"]
    assert one["metrics"]["bits_per_byte"] < one["metrics"]["byte_entropy_bits"]


def test_damaged_data_end_the_run_in_one_line(train, tmp_path):
    for name in "ab":
        (tmp_path / "pictures" / name).mkdir(parents=True)
        (tmp_path / "pictures" / name / "0.png").write_bytes(b"nothing")
    path, cache = str(tmp_path / "pictures"), str(tmp_path / "cache")
    data = {"name": "image-folder", "path": path, "cache": cache}
    with pytest.raises(JobError, match=r"0\.png is damaged") as caught:
        train(workers=2, data=data, model=CNN)
    assert "\n" not in str(caught.value)
