"""A layout places tensors aligned and without overlap."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.arena.layout import ALIGNMENT, ITEM_BYTES, Field, Layout
from holdfast.arena.tensors import field_of, flattened, rearrange, view, views

FIELDS = st.lists(
    st.builds(
        Field,
        st.text("abc", min_size=1),
        st.sampled_from(sorted(ITEM_BYTES)),
        st.lists(st.integers(0, 20), max_size=3).map(tuple),
    ),
    max_size=12,
)


@given(FIELDS)
def test_entries_are_aligned_and_do_not_overlap(fields):
    layout = Layout.pack(fields)
    assert [Field(e.name, e.dtype, e.shape) for e in layout.entries] == fields
    end = 0
    for entry in layout.entries:
        assert entry.offset % ALIGNMENT == 0
        assert entry.offset >= end
        assert entry.size_bytes == ITEM_BYTES[entry.dtype] * math.prod(entry.shape)
        end = entry.end
    assert layout.size_bytes >= end
    assert layout.size_bytes % ALIGNMENT == 0


@given(FIELDS)
def test_runs_tile_the_layout(fields):
    layout, end = Layout.pack(fields), 0
    for dtype, start, stop in layout.dtype_ranges():
        assert start == end
        assert (stop - start) % ITEM_BYTES[dtype] == 0
        end = stop
    assert end == layout.size_bytes


def test_the_digest_tells_layouts_apart():
    one = Layout.pack([Field("a", "F32", (2, 3))])
    other = Layout.pack([Field("a", "F32", (3, 2))])
    assert one.digest != other.digest
    assert one.digest == Layout.pack([Field("a", "F32", (2, 3))]).digest


X = torch.arange(120.0)
TENSORS = {
    "scalar": torch.tensor(1.0),
    "contiguous": X.view(2, 3, 4, 5),
    "channels_last": X.view(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "kernel of one": X.view(4, 30, 1, 1).to(memory_format=torch.channels_last),
    "channels_last_3d": X.view(2, 3, 1, 4, 5).to(memory_format=torch.channels_last_3d),
    "transposed": X.view(8, 15).t(),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_view_has_the_strides_of_a_tensor_without_gaps_and_its_memory(name):
    tensor = TENSORS[name]
    layout = Layout.pack([Field("first", "U8", (3,)), field_of(name, tensor)])
    flat = torch.zeros(layout.size_bytes, dtype=torch.uint8)
    copy = view(flat, layout.entries[1]).copy_(tensor)
    assert torch.equal(copy, tensor)
    assert copy.stride() == tensor.stride()
    assert not copy._is_view()
    stored = flat[layout.entries[1].offset : layout.entries[1].end].view(tensor.dtype)
    assert torch.equal(stored, torch.as_strided(tensor, (tensor.numel(),), (1,)))
    # A contiguous tensor in the same order, as a gradient of another format is written.
    assert torch.equal(flattened(tensor.contiguous(), copy), stored)
    assert torch.equal(stored.view(layout.entries[1].stored_shape).flatten(), stored)


@pytest.mark.parametrize("tensor", [X.view(8, 15)[:, :4], X.view(8, 15).t()[1:], X[:1].expand(3)])
def test_a_tensor_with_gaps_or_shared_elements_becomes_contiguous(tensor):
    assert field_of("x", tensor).strides == ()


@pytest.mark.parametrize("one", TENSORS)
def test_tensors_are_rearranged_by_index(one):
    tensor = TENSORS[one]
    stored = Layout.pack([field_of("x", tensor), field_of("y", X)])
    wanted = Layout.pack([Field("x", "F32", tuple(tensor.shape)), field_of("y", X)])
    flat = torch.zeros(stored.size_bytes, dtype=torch.uint8)
    views(flat, stored)["x"].copy_(tensor)
    for before, after in ((stored, wanted), (wanted, stored)):
        rearrange(flat, before, after)
        assert torch.equal(views(flat, after)["x"], tensor)
