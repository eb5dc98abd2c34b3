"""The digest that workers compare changes with every bit."""

import pytest
import torch

from holdfast.arena.digest import BITS, digest

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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.bool, torch.complex64])
def test_the_digest_does_not_depend_on_the_address(dtype):
    tensor = torch.arange(30).view(5, 6).to(dtype)
    assert digest([tensor.t()]) == digest([tensor.t().contiguous()])
    assert digest([tensor]) == digest([torch.cat([tensor, tensor])[5:]])
    assert digest([torch.empty(0, dtype=dtype)]) != digest([])
