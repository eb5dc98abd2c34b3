"""A layout places tensors aligned and without overlap."""

import math

from hypothesis import given
from hypothesis import strategies as st

from holdfast.arena.layout import ALIGNMENT, ITEM_BYTES, Field, Layout

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
