"""CIFAR as published: read by an unpickler that runs nothing, completely or not at all."""

import os
import pickle
import random
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast.data.catalog import build
from holdfast.errors import JobError
from holdfast.job.data import Cifar

REAL = Path(__file__).parents[2].parent / "shared" / "data" / "cifar-10-batches-py"
FILES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def cifar(name, path, *, augment=False):
    return build(Cifar(name=name, path=path, augment=augment))


def pixels_of(name, rows=4):
    return np.random.default_rng(len(name) + ord(name[-1])).integers(
        256, size=(rows, 3072), dtype=np.uint8
    )


@pytest.fixture
def directory(tmp_path):
    """A directory in CIFAR-10's form, four images a file."""
    path = tmp_path / "cifar-10-batches-py"
    path.mkdir()
    for number, name in enumerate(FILES):
        batch = {b"data": pixels_of(name), b"labels": [number, 1, 2, 3], b"batch_label": b"x"}
        (path / name).write_bytes(pickle.dumps(batch, protocol=3))
    return path


def archive_of(directory):
    path = directory.parent / "cifar-10-python.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(directory, directory.name)
    return path


def test_a_directory_and_its_archive_hold_the_same_images(directory):
    from_directory = cifar("cifar10", directory)
    from_archive = cifar("cifar10", archive_of(directory))
    assert (len(from_directory.training), len(from_directory.test)) == (20, 4)
    assert from_directory.training.fingerprint == from_archive.training.fingerprint
    assert from_directory.test.fingerprint == from_archive.test.fingerprint


def test_pixels_and_labels_are_in_their_places(directory):
    found = cifar("cifar10", directory)
    seen = np.concatenate([pixels_of(name) for name in FILES[:5]]).reshape(-1, 3, 1024) / 1.0
    mean, deviation = (f(seen, axis=(0, 2))[None, :, None, None] for f in (np.mean, np.std))
    x, y = found.test.batch(np.arange(4), torch.Generator())
    expected = (pixels_of("test_batch").reshape(4, 3, 32, 32) - mean) / deviation
    torch.testing.assert_close(x, torch.from_numpy(expected).float())
    assert y.tolist() == [5, 1, 2, 3]
    assert (found.shape, found.classes) == ((3, 32, 32), 10)


def test_cifar100_has_its_own_labels(tmp_path):
    for name, label in (("train", 99), ("test", 0)):
        batch = {b"data": pixels_of(name), b"fine_labels": [label] * 4, b"coarse_labels": [1] * 4}
        (tmp_path / name).write_bytes(pickle.dumps(batch, protocol=3))
    found = cifar("cifar100", tmp_path)
    assert found.classes == 100
    assert found.training.batch(np.arange(4), torch.Generator())[1].tolist() == [99] * 4


class Harmful:
    def __reduce__(self):
        return os.system, ("touch harmed",)


def ask_for_a_call(path):
    path.write_bytes(pickle.dumps({b"data": Harmful(), b"labels": [1]}, protocol=3))


def hold_objects(path):
    batch = {b"data": np.array([[None]], dtype=object), b"labels": [1]}
    path.write_bytes(pickle.dumps(batch, protocol=3))


def hold_wrong_shape(path):
    batch = {b"data": np.zeros((3, 3072), np.uint8), b"labels": [1]}
    path.write_bytes(pickle.dumps(batch, protocol=3))


def hold_floats(path):
    batch = {b"data": np.zeros((1, 3072)), b"labels": [1]}
    path.write_bytes(pickle.dumps(batch, protocol=3))


def hold_a_label_out_of_range(path):
    batch = {b"data": np.zeros((1, 3072), np.uint8), b"labels": [10]}
    path.write_bytes(pickle.dumps(batch, protocol=3))


def hold_a_list(path):
    path.write_bytes(pickle.dumps([1, 2], protocol=3))


def be_cut_short(path):
    path.write_bytes(path.read_bytes()[:-100])


def be_empty(path):
    path.write_bytes(b"")


def be_missing(path):
    path.unlink()


FAULTS = [
    ask_for_a_call, hold_objects, hold_wrong_shape, hold_floats, hold_a_list,
    hold_a_label_out_of_range, be_cut_short, be_empty, be_missing,
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_faulty_file_is_refused_by_name_and_runs_nothing(directory, fault, monkeypatch):
    monkeypatch.chdir(directory.parent)
    fault(directory / "data_batch_3")
    with pytest.raises(JobError, match="data_batch_3"):
        cifar("cifar10", directory)
    assert not (directory.parent / "harmed").exists()


@pytest.mark.parametrize("seed", range(20))
def test_an_archive_truncated_at_any_byte_is_an_error_and_never_a_short_data_set(directory, seed):
    archive = archive_of(directory)
    data = archive.read_bytes()
    kept = len(data) - seed if 0 < seed < 10 else random.Random(seed).randrange(len(data))
    archive.write_bytes(data[:kept])
    with pytest.raises(JobError, match=r"cifar-10-python\.tar\.gz"):
        cifar("cifar10", archive)


def test_missing_data_say_what_to_download_and_where_to_put_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path))
    advice = (
        rf"add --download, or download https://\S+/cifar-100-python.tar.gz to {tmp_path}/cifar100, "
        "or set data.path"
    )
    with pytest.raises(JobError, match=f"cifar100 is not downloaded yet; {advice}"):
        cifar("cifar100", None)
    with pytest.raises(JobError, match=f"nowhere does not exist; {advice}"):
        cifar("cifar100", tmp_path / "nowhere")


def test_downloaded_files_are_found(directory, tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path / "kept"))
    (tmp_path / "kept" / "cifar10").mkdir(parents=True)
    archive_of(directory).rename(tmp_path / "kept" / "cifar10" / "cifar-10-python.tar.gz")
    assert len(cifar("cifar10", None).training) == 20


@pytest.mark.skipif(not REAL.is_dir(), reason="the real images are not on this machine")
def test_real_images_are_read_in_full():
    found = cifar("cifar10", REAL, augment=True)
    assert (len(found.training), len(found.test)) == (3805, 761)
    x, y = found.training.batch(np.arange(3805), torch.Generator().manual_seed(0))
    assert y.bincount().min() > 300
    assert abs(float(x.mean())) < 0.5
