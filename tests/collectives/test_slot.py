"""Blocks: what the gradient is cut into for the reduction."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.arena.layout import ALIGNMENT, ITEM_BYTES
from holdfast.collectives.slot import SlotLayout

SIZES = st.one_of(st.integers(0, 40), st.integers(13_000, 14_000), st.integers(131_000, 400_000))
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16])


@given(tensors=st.lists(st.tuples(SIZES, DTYPES), min_size=1, max_size=8))
def test_blocks_are_aligned_and_cover_every_element_once(tensors):
    parameters = {
        str(number): torch.empty(size, dtype=dtype, device="meta")
        for number, (size, dtype) in enumerate(tensors)
    }
    layout = SlotLayout(parameters, {})
    for run, (dtype, first, last, _) in enumerate(layout.dtype_ranges):
        blocks = [(start, end) for index, start, end in layout.blocks if index == run]
        assert all(start * ITEM_BYTES[dtype] % ALIGNMENT == 0 for start, _ in blocks)
        assert [start for start, _ in blocks[1:]] == [end for _, end in blocks[:-1]]
        covered = (blocks[0][0], blocks[-1][1]) if blocks else (0, 0)
        assert covered == (0, (last - first) // ITEM_BYTES[dtype])
