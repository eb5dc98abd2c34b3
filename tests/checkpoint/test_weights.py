"""Weights are read from checkpoints and files, and written to files that other tools read."""

import re
import subprocess
import sys

import pytest
import safetensors.torch
import torch

from checkpoints import layout_of, save, state_of
from holdfast.checkpoint.exports import weights
from holdfast.checkpoint.exports.export import export
from holdfast.checkpoint.find import find_checkpoint
from holdfast.errors import CheckpointError, JobError

LAYOUT = layout_of()
KEYS = {"": {"w": "w", "b": "b", "tied": "b"}, "average": {"n": "n"}}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    run = tmp_path_factory.mktemp("run")
    return save(run / "checkpoints", 7, state_of(LAYOUT), LAYOUT, world=3, state_dicts=KEYS)


def same(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(one[key].view(torch.uint8), other[key].view(torch.uint8)) for key in one
    )


def test_weights_are_the_bytes_of_the_state_under_each_key(checkpoint):
    flat = state_of(LAYOUT)
    read = weights.read_checkpoint(checkpoint)
    for key, name in KEYS[""].items():
        (entry,) = [each for each in LAYOUT.entries if each.name == name]
        assert tuple(read[key].shape) == entry.shape
        stored = read[key].reshape(-1).view(torch.uint8)
        assert torch.equal(stored, flat[entry.offset : entry.end])
    assert list(weights.read_checkpoint(checkpoint, "average")) == ["n"]
    assert find_checkpoint(checkpoint.parent.parent) == checkpoint
    assert same(weights.load_weights(checkpoint.parent.parent), read)


@pytest.mark.parametrize("name", ["weights.safetensors", "weights.pt"])
def test_an_exported_file_holds_the_weights(checkpoint, tmp_path, name):
    export(checkpoint, tmp_path / name)
    read = weights.read_checkpoint(checkpoint)
    assert same(weights.load_weights(tmp_path / name), read)
    with pytest.raises(JobError, match="exists; name another file"):
        export(checkpoint, tmp_path / name)
    export(checkpoint, tmp_path / name, "average", replace=True)
    assert list(weights.load_weights(tmp_path / name)) == ["n"]
    assert [path.name for path in tmp_path.iterdir()] == [name]


READ_BY_DCP = """
import sys

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

expected = torch.load(sys.argv[2], weights_only=True)
found = {key: torch.zeros_like(tensor) for key, tensor in expected.items()}
dcp.load(found, checkpoint_id=sys.argv[1], no_dist=True)
dcp_to_torch_save(sys.argv[1], sys.argv[3])
converted = torch.load(sys.argv[3], weights_only=True)
for state in (found, converted):
    assert state.keys() == expected.keys()
    for key in expected:
        assert torch.equal(state[key].view(torch.uint8), expected[key].view(torch.uint8))
assert "holdfast" not in sys.modules
"""


@pytest.mark.slow
def test_torch_distributed_checkpoint_reads_an_export_without_holdfast(checkpoint, tmp_path):
    target, plain, converted = (tmp_path / name for name in ("dcp", "plain.pt", "converted.pt"))
    export(checkpoint, target, is_dcp=True)
    export(checkpoint, plain)
    words = [sys.executable, "-W", "ignore", "-c", READ_BY_DCP, target, plain, converted]
    subprocess.run(words, check=True)


def test_an_export_for_dcp_is_replaced_as_a_whole_or_not_at_all(checkpoint, tmp_path):
    target = tmp_path / "dcp"
    export(checkpoint, target, is_dcp=True)
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    with pytest.raises(JobError, match="exists; name another file"):
        export(checkpoint, target, is_dcp=True)
    with pytest.raises(JobError, match="no module ema"):
        export(checkpoint, target, "ema", replace=True, is_dcp=True)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    export(checkpoint, target, "average", replace=True, is_dcp=True)
    assert [path.name for path in tmp_path.iterdir()] == ["dcp"]
    other = tmp_path / "mine"
    other.mkdir()
    with pytest.raises(JobError, match=r"is not of torch\.distributed\.checkpoint"):
        export(checkpoint, other, replace=True, is_dcp=True)
    (tmp_path / "file").touch()
    with pytest.raises(JobError, match="file/dcp: Not a directory"):
        export(checkpoint, tmp_path / "file" / "dcp", is_dcp=True)


@pytest.mark.parametrize(
    ("name", "of", "message"),
    [
        ("weights.onnx", None, "no format is called .onnx; name a file that ends in"),
        (
            "weights",
            None,
            "a folder is for a model of the library transformers or adapters of",
        ),
        ("weights.pt", "ema", "no module ema; it has the model, and average"),
    ],
)
def test_what_cannot_be_exported_leaves_no_file(checkpoint, tmp_path, name, of, message):
    with pytest.raises(JobError, match=message):
        export(checkpoint, tmp_path / name, of)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_checkpoint_is_not_exported(tmp_path):
    damaged = save(tmp_path / "checkpoints", 7, state_of(LAYOUT), LAYOUT, state_dicts=KEYS)
    part = damaged / "part-1-of-2.safetensors"
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)
    with pytest.raises(CheckpointError, match="does not match its digest"):
        export(damaged, tmp_path / "weights.pt")
    assert not (tmp_path / "weights.pt").exists()


def test_a_directory_without_a_checkpoint_is_named(tmp_path):
    with pytest.raises(JobError, match="neither a checkpoint nor the directory of a run"):
        find_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"nonsense", "holds no state dict that can be read"),
        ({"epoch": 3, "w": torch.zeros(2)}, "these entries are not tensors: epoch"),
        ([torch.zeros(2)], "it is a list"),
        ({"model": print}, "holds no state dict that can be read: Weights only load failed"),
    ],
)
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_file_without_a_state_dict_is_refused(tmp_path, content, message, suffix):
    path = tmp_path / f"weights{suffix}"
    if isinstance(content, bytes) or suffix == ".safetensors":
        path.write_bytes(b"nonsense")
        message = "holds no state dict that can be read"
    else:
        torch.save(content, path)
    with pytest.raises(JobError, match=re.escape(str(path)) + ".*" + message):
        weights.load_weights(path)


def test_what_does_not_fit_is_listed_and_nothing_is_loaded():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    found = {"0.weight": torch.ones(2, 3), "0.bias": torch.ones(5), "1.bias": torch.ones(1)}
    found["head"] = torch.ones(1)
    wrong = [
        "0.bias has shape [5], and [2] in the model",
        "1.weight is missing",
        "head is unexpected",
    ]
    with pytest.raises(JobError, match=re.escape("; ".join(wrong))):
        weights.load_into(model, found, "found.pt")
    assert same(dict(model.state_dict()), before)
    assert weights.load_into(model, found, "found.pt", strict=False) == wrong
    assert torch.equal(model[0].weight, torch.ones(2, 3))
    assert torch.equal(model[0].bias, before["0.bias"])


def test_one_of_two_keys_of_a_tied_tensor_is_enough(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[1].weight = model[0].weight
    safetensors.torch.save_model(model, str(tmp_path / "tied.safetensors"))
    found = weights.load_weights(tmp_path / "tied.safetensors")
    assert len(found) == 3
    assert weights.load_into(model, found, "tied.safetensors") == []
