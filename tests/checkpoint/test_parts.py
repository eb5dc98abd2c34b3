"""Parts cover the state once, and its digests do not depend on who writes."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoints import digests_of
from holdfast.arena.layout import Field, Layout
from holdfast.checkpoint import parts
from holdfast.checkpoint.parts import DigestKind


@pytest.fixture(autouse=True, scope="module")
def _small_chunks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "CHUNK_BYTES", 256)
        yield


@st.composite
def layouts(draw):
    shapes = draw(st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), max_size=8))
    dtypes = draw(st.lists(st.sampled_from(["F32", "I64", "BF16", "U8"]), min_size=8, max_size=8))
    return Layout.pack(
        Field(f"t{i}", dtype, shape)
        for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=False))
    )


@given(layouts(), st.integers(1, 7))
@settings(deadline=None)
def test_pieces_of_all_ranks_tile_every_tensor_once(layout, world):
    covered = {entry.name: [] for entry in layout.entries}
    for rank in range(world):
        chunks = parts.chunks_of(rank, world, layout.size_bytes)
        start, end = parts.byte_range(chunks, layout.size_bytes)
        for piece in parts.pieces(layout, start, end):
            covered[piece.key.partition("[")[0]].append((piece.start, piece.end))
    for entry in layout.entries:
        spans = covered[entry.name]
        if entry.size_bytes:
            assert spans[0][0] == entry.offset
            assert spans[-1][1] == entry.end
            assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))
        else:
            assert spans == []


@given(st.binary(max_size=3000), st.integers(1, 7))
@settings(deadline=None)
def test_the_root_is_the_same_for_any_number_of_writers(state, world):
    view = memoryview(state)
    digests = []
    for rank in range(world):
        start, end = parts.byte_range(parts.chunks_of(rank, world, len(state)), len(state))
        digests += digests_of(view[start:end])
    assert parts.root(digests, DigestKind.XXH3) == parts.root(digests_of(view), DigestKind.XXH3)
    assert len(digests) == parts.num_chunks(len(state))
