"""Two checkpoints are compared element by element, wherever their tensors are in the state."""

import math

import pytest
import torch

from checkpoints import save, state_of
from conftest import change_last_byte
from holdfast.arena.layout import Field, Layout
from holdfast.arena.tensors import DTYPES, views
from holdfast.checkpoint.diff import TensorDiff, compare
from holdfast.errors import CheckpointError

FIELDS = [
    Field("w", "F32", (3000, 1000)),  # more than a chunk
    *(Field(name.lower(), name, (7, 3)) for name in DTYPES if name != "F32"),
]


def states():
    """A layout, the same with other places, and the same values in both."""
    here, there = Layout.pack(FIELDS), Layout.pack(FIELDS[::-1])
    one = torch.zeros(here.size_bytes, dtype=torch.uint8)
    other = torch.zeros(there.size_bytes, dtype=torch.uint8)
    generator = torch.Generator().manual_seed(0)
    for name, tensor in views(one, here).items():
        tensor.copy_(torch.randint(2, tensor.shape, generator=generator))
        views(other, there)[name].copy_(tensor)
    return here, one, there, other


def compared(tmp_path, here, one, there, other):
    read = []
    first, second = (
        save(tmp_path / name, 1, flat, layout)
        for name, flat, layout in (("one", one, here), ("other", other, there))
    )
    found = compare(first, second, read.append)
    assert sum(read) == here.size_bytes + there.size_bytes
    return found


def test_the_same_values_in_other_places_are_equal(tmp_path):
    found = compared(tmp_path, *states())
    assert (found.is_equal, found.compared) == (True, len(FIELDS))


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_at_the_same_index_are_compared_whatever_their_strides(tmp_path, dtype):
    here, there = (
        Layout.pack([Field("w", dtype, (2, 3, 5), strides=strides)])
        for strides in ((15, 1, 3), (1, 10, 2))
    )
    one, other = (torch.zeros(each.size_bytes, dtype=torch.uint8) for each in (here, there))
    mine = views(one, here)["w"].copy_(torch.arange(30).view(2, 3, 5) % 2)
    theirs = views(other, there)["w"].copy_(mine)
    assert not torch.equal(one, other)
    assert compared(tmp_path, here, one, there, other).is_equal
    theirs[1, 2, 3] = torch.logical_not(theirs[1, 2, 3])
    found = compared(tmp_path / "again", here, one, there, other)
    assert found.tensors == (TensorDiff(name="w", elements=30, differing=1, max_abs=1.0),)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_element_that_differs_is_counted_with_its_distance(tmp_path, dtype):
    here, one, there, other = states()
    name = "w" if dtype == "F32" else dtype.lower()
    values = views(other, there)[name].view(-1)
    values[-2:] = torch.logical_not(values[-2:])  # 0 and 1
    found = compared(tmp_path, here, one, there, other)
    expected = TensorDiff(name=name, elements=len(values), differing=2, max_abs=1.0)
    assert (found.is_equal, found.tensors) == (False, (expected,))


def test_bits_count_and_not_only_values(tmp_path):
    here, one, there, other = states()
    for flat, layout, values in (
        (one, here, (0.0, math.inf, 1.0)),
        (other, there, (-0.0, math.nan, 1.0)),
    ):
        views(flat, layout)["f64"].view(-1)[:3] = torch.tensor(values)
    (found,) = compared(tmp_path, here, one, there, other).tensors
    assert (found.differing, math.isnan(found.max_abs)) == (2, True)


def test_tensors_that_cannot_be_compared_are_named(tmp_path):
    here = Layout.pack([Field("a", "F32", (2,)), Field("b", "F32", (2,)), Field("c", "F32", (2,))])
    there = Layout.pack([Field("a", "F32", (3,)), Field("b", "F32", (2,)), Field("d", "I8", ())])
    same = torch.zeros(here.size_bytes, dtype=torch.uint8)
    found = compared(tmp_path, here, same, there, same)
    assert (found.compared, found.tensors) == (1, ())
    assert found.unlike == {
        "a": ("F32[2]", "F32[3]"), "c": ("F32[2]", "none"), "d": ("none", "I8[]")
    }  # fmt: skip


def test_damage_is_not_taken_for_a_difference(tmp_path):
    layout = Layout.pack([Field("a", "F32", (2,))])
    one, other = (save(tmp_path / name, 1, state_of(layout), layout) for name in ("one", "other"))
    part = other / "part-1-of-2.safetensors"
    change_last_byte(part)
    with pytest.raises(CheckpointError, match="does not match its digest"):
        compare(one, other, lambda count: None)
