"""CIFAR's published form: read with an unpickler that runs nothing, in whole or not at all."""

import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast.data.cifar import cifar
from holdfast.errors import JobError

REAL = Path(__file__).parents[2].parent / "shared" / "data" / "cifar-10-batches-py"
FILES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


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
    from_directory = cifar("cifar10", directory, augment=False)
    from_archive = cifar("cifar10", archive_of(directory), augment=False)
    assert [len(images) for images in from_directory] == [20, 4]
    assert [i.fingerprint for i in from_directory] == [i.fingerprint for i in from_archive]


def test_pixels_and_labels_are_in_their_places(directory):
    test = cifar("cifar10", directory, augment=False)[1]
    x, y = test.batch(np.arange(4), torch.Generator())
    plain = x * torch.tensor([0.2470, 0.2435, 0.2616])[None, :, None, None]
    plain += torch.tensor([0.4914, 0.4822, 0.4465])[None, :, None, None]
    expected = torch.from_numpy(pixels_of("test_batch")).view(4, 3, 32, 32)
    assert torch.equal((plain * 255).round().to(torch.uint8), expected)
    assert y.tolist() == [5, 1, 2, 3]


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


def hold_a_list(path):
    path.write_bytes(pickle.dumps([1, 2], protocol=3))


def be_cut_short(path):
    path.write_bytes(path.read_bytes()[:-100])


def be_empty(path):
    path.write_bytes(b"")


def be_missing(path):
    path.unlink()


FAULTS = [
    ask_for_a_call, hold_objects, hold_wrong_shape, hold_floats, hold_a_list, be_cut_short,
    be_empty, be_missing,
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_faulty_file_is_refused_by_name_and_runs_nothing(directory, fault, monkeypatch):
    monkeypatch.chdir(directory.parent)
    fault(directory / "data_batch_3")
    with pytest.raises(JobError, match="data_batch_3"):
        cifar("cifar10", directory, augment=False)
    assert not (directory.parent / "harmed").exists()


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_truncated_archive_is_an_error_and_never_a_short_data_set(directory, share):
    archive = archive_of(directory)
    archive.write_bytes(archive.read_bytes()[: int(share * archive.stat().st_size)])
    with pytest.raises(JobError, match=r"cifar-10-python\.tar\.gz"):
        cifar("cifar10", archive, augment=False)


def test_absent_data_say_what_to_fetch_and_where_to_put_it():
    with pytest.raises(JobError, match=r"fetch https://\S+/cifar-100-python.tar.gz .* data.path"):
        cifar("cifar100", None, augment=False)


@pytest.mark.skipif(not REAL.is_dir(), reason="the real images are not on this machine")
def test_real_images_are_read_in_full():
    training, test = cifar("cifar10", REAL, augment=True)
    assert (len(training), len(test)) == (3805, 761)
    x, y = training.batch(np.arange(3805), torch.Generator().manual_seed(0))
    assert y.bincount().min() > 300
    assert abs(float(x.mean())) < 0.5
