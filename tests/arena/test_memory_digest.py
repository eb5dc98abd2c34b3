"""The digest that workers compare changes with every bit."""

import pytest
import torch

from holdfast.arena.digest import BITS, COLUMNS, GROUP, digest, sums

DATA = torch.randint(0, 256, (2203,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("lead", [0, 3])
def test_every_bit_counts(lead):
    memory = torch.cat([torch.zeros(lead, dtype=torch.uint8), DATA])[lead:]
    before = digest([memory])
    assert 0 <= before < 1 << BITS
    for byte in range(0, len(memory), 3):
        for bit in range(8):
            memory[byte] ^= 1 << bit
            assert digest([memory]) != before, (byte, bit)
            memory[byte] ^= 1 << bit
    assert digest([memory]) == before


def test_the_same_bit_of_two_words_counts_as_two():
    left, right = DATA.clone(), DATA.clone()
    left[8] ^= 128
    right[16] ^= 128
    assert digest([left]) != digest([right])


def test_every_tensor_counts_and_so_does_their_order():
    tensors = [torch.full((9,), float(n)) for n in range(100)]
    seen = {digest(tensors), digest(tensors[::-1])}
    for tensor in tensors:
        tensor[-1].neg_().sub_(1)
        seen.add(digest(tensors))
    assert len(seen) == 102


ROW = 8 * COLUMNS
LARGE = torch.randint(
    0,
    256,
    (40 * GROUP * ROW + 11 * ROW + 77,),
    dtype=torch.uint8,
    generator=torch.Generator().manual_seed(1),
)
"""Forty groups, eleven more rows, and a piece of one."""


def missed(change, times):
    """How many of `times` random changes do not change the digest; `change` is its own inverse."""
    generator = torch.Generator().manual_seed(0)
    before = digest([LARGE])
    unnoticed = 0
    for _ in range(times):
        undo = change(lambda high: int(torch.randint(high, (), generator=generator)))
        unnoticed += digest([LARGE]) == before
        undo()
    assert digest([LARGE]) == before
    return unnoticed


def flip(byte, bit):
    LARGE[byte] ^= 1 << bit


def test_a_flip_in_whole_groups_in_the_last_one_and_in_the_tail_is_noticed():
    def change(draw):
        starts = (0, 40 * GROUP * ROW, len(LARGE) - 77)
        start = starts[draw(3)]
        place = (start + draw(len(LARGE) - start), draw(8))
        flip(*place)
        return lambda: flip(*place)

    assert missed(change, 400) == 0


@pytest.mark.parametrize("bits", [range(64), range(60, 64)])  # a weight has least say in the latter
def test_opposite_flips_of_one_bit_in_one_column_of_two_groups_are_noticed(bits):
    rows = LARGE[: len(LARGE) // ROW * ROW].view(torch.int64).view(-1, COLUMNS)

    def change(draw):
        # One becomes 1 and the other 0, so that the sum of the column stays as it is.
        column, bit = draw(COLUMNS), bits[draw(len(bits))]
        first = draw(len(rows))
        value = rows[:, column] >> bit & 1
        opposite = (value != value[first]).nonzero()[:, 0].tolist()
        others = [row for row in opposite if row // GROUP != first // GROUP]
        pair = first, others[draw(len(others))]
        mask = 1 << bit if bit < 63 else -1 << 63

        def flip_both():
            for row in pair:
                rows[row, column] ^= mask

        flip_both()
        return flip_both

    assert missed(change, 300) == 0


@pytest.mark.parametrize("start", [0, 8, 5])
def test_swapped_ranges_of_64_kib_are_noticed(start):
    size = GROUP * ROW

    def change(draw):
        first = draw(38)
        second = first + 1 + draw(38 - first)
        one, other = (LARGE[start + at * size :][:size] for at in (first, second))

        def swap():
            kept = one.clone()
            one.copy_(other)
            other.copy_(kept)

        swap()
        return swap

    assert missed(change, 50) == 0


def test_the_digest_is_that_of_its_definition():
    words = torch.arange(3 * GROUP * COLUMNS)
    # The first three outputs of splitmix64 with seed 0.
    weights = [w | 1 for w in (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F)]
    groups = (words.view(3, GROUP, COLUMNS).sum(1) << 20).tolist()
    weighted = [
        sum(
            w * (group[column] ^ group[column] >> 32)
            for w, group in zip(weights, groups, strict=True)
        )
        % 2**64
        for column in range(COLUMNS)
    ]
    assert [each % 2**64 for each in sums(words << 20)[1].tolist()] == weighted


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.bool, torch.complex64])
def test_the_digest_does_not_depend_on_the_address(dtype):
    tensor = torch.arange(30).view(5, 6).to(dtype)
    assert digest([tensor.t()]) == digest([tensor.t().contiguous()])
    assert digest([tensor]) == digest([torch.cat([tensor, tensor])[5:]])
    assert digest([torch.empty(0, dtype=dtype)]) != digest([])
