"""What a worker holds of the state: rows of tensors, and their places in the whole."""

import torch

from holdfast.arena.holding import Holding, Rows
from holdfast.arena.layout import Field, Layout

WHOLE = Layout.pack(
    [
        Field("model.weight", "F32", (5, 3)),
        Field("model.filter", "F32", (4, 3, 2, 2), strides=(12, 1, 6, 3)),
        Field("optimizer.weight:step", "F32", ()),
    ]
)


def thirds(rank):
    """The rows of one of three workers, as `torch.chunk` cuts them."""

    def rows_of(entry):
        if not entry.shape:
            return Rows(0, 1, 1)
        padded = -(-entry.shape[0] // 3)
        first = min(rank * padded, entry.shape[0])
        return Rows(first, min(padded, entry.shape[0] - first), padded)

    return Holding.of_rows(WHOLE, rows_of)


def state():
    flat = torch.zeros(WHOLE.size_bytes, dtype=torch.uint8)
    for entry in WHOLE.entries:
        values = torch.randint(1, 255, (entry.size_bytes,), dtype=torch.uint8)
        flat[entry.offset : entry.end] = values
    return flat


def test_the_parts_of_all_workers_are_the_whole():
    flat = state()
    joined = torch.zeros_like(flat)
    for rank in range(3):
        holding = thirds(rank)
        own = torch.zeros(holding.own.size_bytes, dtype=torch.uint8)
        for piece in holding.between(0, WHOLE.size_bytes):
            own[piece.own : piece.own + piece.size] = flat[piece.start : piece.start + piece.size]
        for piece in holding.between(0, WHOLE.size_bytes):
            joined[piece.start : piece.start + piece.size] = own[piece.own : piece.own + piece.size]
    assert torch.equal(joined, flat)


def test_ranges_of_the_whole_are_found_in_a_part():
    holding = thirds(1)
    whole = [*holding.between(0, WHOLE.size_bytes)]
    cut = [
        piece
        for start in range(0, WHOLE.size_bytes, 20)
        for piece in holding.between(start, start + 20)
    ]
    assert sum(piece.size for piece in cut) == sum(piece.size for piece in whole)
    for piece in cut:
        around = next(each for each in whole if 0 <= piece.start - each.start < each.size)
        assert piece.own - around.own == piece.start - around.start


def test_rows_keep_their_memory_format_and_have_memory_for_padding():
    holding = thirds(2)
    weight, filters, step = holding.own.entries
    assert (weight.shape, filters.shape, step.shape) == ((1, 3), (0, 3, 2, 2), ())
    assert filters.strides == (12, 1, 6, 3)
    assert holding.memory["model.weight"] == (0, 2 * 12)
    assert not holding.is_all
    assert Holding.of_all(WHOLE).is_all
