"""MNIST: files in the published form are read completely, or not at all."""

import gzip
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.data.catalog import build
from holdfast.data.formats import idx
from holdfast.errors import JobError
from holdfast.job.data import Mnist

shapes = st.lists(st.integers(0, 5), min_size=1, max_size=4)


def encoded(array):
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def write(path, array):
    data = encoded(np.asarray(array, np.uint8))
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def images(count, seed):
    return np.random.default_rng(seed).integers(256, size=(count, 6, 5), dtype=np.uint8)


@pytest.fixture
def directory(tmp_path):
    write(tmp_path / "train-images-idx3-ubyte.gz", images(20, 0))
    write(tmp_path / "train-labels-idx1-ubyte.gz", np.arange(20) % 10)
    write(tmp_path / "t10k-images-idx3-ubyte", images(4, 1))
    write(tmp_path / "t10k-labels-idx1-ubyte", [9, 0, 0, 1])
    return tmp_path


@given(shape=shapes, suffix=st.sampled_from(["", ".gz"]), data=st.data())
def test_whatever_array_is_written_is_read_back(tmp_path_factory, shape, suffix, data):
    size = int(np.prod(shape))
    array = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), np.uint8)
    path = tmp_path_factory.mktemp("idx") / f"array{suffix}"
    write(path, array.reshape(shape))
    assert np.array_equal(idx.read(path), array.reshape(shape))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_file_truncated_at_any_byte_or_grown_by_one_is_refused(tmp_path, suffix):
    path = tmp_path / f"array{suffix}"
    write(path, images(2, 0))
    whole = path.read_bytes()
    for kept in range(len(whole)):
        path.write_bytes(whole[:kept])
        with pytest.raises(JobError, match="array"):
            idx.read(path)
    for more in (b"\0", b"x", whole):
        path.write_bytes(whole + more)
        with pytest.raises(JobError, match="array"):
            idx.read(path)


@given(place=st.integers(0, 200), bit=st.integers(0, 7))
def test_a_flipped_bit_in_a_compressed_file_is_an_error_or_has_no_effect(
    tmp_path_factory, place, bit
):
    path = tmp_path_factory.mktemp("idx") / "array.gz"
    write(path, images(4, 0))
    damaged = bytearray(path.read_bytes())
    damaged[place % len(damaged)] ^= 1 << bit
    path.write_bytes(damaged)
    try:
        found = idx.read(path)
    except JobError:
        return
    assert np.array_equal(found, images(4, 0))


def test_images_are_standardized_by_the_training_images(directory):
    found = build(Mnist(name="mnist", path=directory))
    x, y = found.test.batch(np.array([3, 0]), torch.Generator())
    expected = (images(4, 1)[[3, 0], None] - images(20, 0).mean()) / images(20, 0).std()
    torch.testing.assert_close(x, torch.from_numpy(expected).float())
    assert y.tolist() == [1, 9]
    assert (found.shape, found.classes, len(found.training)) == ((1, 6, 5), 10, 20)


def test_downloaded_files_are_found(directory, monkeypatch):
    monkeypatch.setenv("HOLDFAST_DATA", str(directory))
    with pytest.raises(JobError, match=f"--download, or download https.* to {directory}/mnist, or"):
        build(Mnist(name="mnist"))
    for part in ("images-idx3", "labels-idx1"):
        write(directory / f"t10k-{part}-ubyte.gz", idx.read(directory / f"t10k-{part}-ubyte"))
    (directory / "mnist").mkdir()
    for path in directory.glob("*.gz"):
        path.rename(directory / "mnist" / path.name)
    assert len(build(Mnist(name="mnist")).training) == 20


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("t10k-labels-idx1-ubyte", [10, 0, 0, 1], r"label 10 is outside 0\.\.9"),
        ("t10k-labels-idx1-ubyte", [1, 2, 3], "4 images and .*t10k-labels-idx1-ubyte 3 labels"),
        ("t10k-images-idx3-ubyte", images(4, 1)[:, :5], "6x5 and test images 5x5"),
        ("t10k-images-idx3-ubyte", images(4, 1)[0], "has 2 dimensions, not 3"),
    ],
)
def test_files_that_do_not_fit_are_refused(directory, name, array, message):
    write(directory / name, array)
    with pytest.raises(JobError, match=message):
        build(Mnist(name="mnist", path=directory))


def test_a_missing_file_is_named_with_its_address(directory):
    (directory / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(
        JobError, match=r"t10k-labels-idx1-ubyte.gz: No such file .* download https"
    ):
        build(Mnist(name="mnist", path=directory))
