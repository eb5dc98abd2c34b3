"""Digest: a number that tells two ranges of memory apart, at the speed of memory.

The 64-bit words are summed by column, as if in rows of COLUMNS words, and the sums are hashed. Sums
of integers do not depend on their order, and every single bit changes one of them. Changes within
one column may cancel out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

import torch

BITS: Final = 56
"""Bits of a digest."""
COLUMNS: Final = 128
_WORD: Final = 8


def digest(tensors: Iterable[torch.Tensor]) -> int:
    """Digest the bytes of `tensors`, in their order; BITS bits, never negative."""
    hasher = hashlib.blake2b(digest_size=BITS // 8)
    for tensor in tensors:
        data = tensor.detach().contiguous().view(-1).view(torch.uint8)
        # A view as 64-bit words needs memory that is aligned to them.
        if data.data_ptr() % _WORD:
            data = data.clone()
        # Whole rows are summed, which one pass over memory does; the rest is hashed as it is.
        whole = len(data) // (_WORD * COLUMNS) * (_WORD * COLUMNS)
        sums = data[:whole].view(torch.int64).view(-1, COLUMNS).sum(0)
        # The length keeps apart tensors whose bytes only continue one another.
        hasher.update(len(data).to_bytes(_WORD))
        hasher.update(sums.cpu().numpy().data)
        hasher.update(data[whole:].cpu().numpy().data)
    return int.from_bytes(hasher.digest())
