"""Digest: a number that tells two ranges of memory apart, at the speed of memory.

The 64-bit words are summed by column, as if in rows of COLUMNS words, in two levels: groups of
GROUP rows first, then the sums of the groups, once as they are and once multiplied by an odd random
weight for each group. All of it wraps around. The results are hashed.

Sums of integers do not depend on their order, so the CPU and a GPU give the same digest. Every
single bit changes one of them, whatever else is equal. Changes that cancel out within one column of
one group are missed; between groups they are noticed, because of the weights.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from typing import Final

import numpy as np
import torch

BITS: Final = 56
"""Bits of a digest."""
COLUMNS: Final = 128
GROUP: Final = 64
"""Rows of a group, which is 64 KiB."""
_WORD: Final = 8


def digest(tensors: Iterable[torch.Tensor]) -> int:
    """Digest the bytes of `tensors`, in their order; BITS bits, never negative."""
    hasher = hashlib.blake2b(digest_size=BITS // 8)
    for tensor in tensors:
        # The length keeps apart tensors whose bytes only continue one another.
        hasher.update(tensor.nbytes.to_bytes(_WORD))
        hasher.update(sums(tensor).cpu().numpy().data)
    return int.from_bytes(hasher.digest())


def sums(tensor: torch.Tensor) -> torch.Tensor:
    """Sums for the digest of a tensor, int64[3, COLUMNS] on its device; waits for nothing there.

    The plain sums, those weighted by group without the rows that fill none, and the bytes that
    fill no row.
    """
    data = tensor.detach().contiguous().view(-1).view(torch.uint8)
    # A view as 64-bit words needs memory that is aligned to them.
    if data.data_ptr() % _WORD:
        data = data.clone()
    whole = len(data) // (_WORD * COLUMNS) * (_WORD * COLUMNS)
    rows = data[:whole].view(torch.int64).view(-1, COLUMNS)
    num_groups = len(rows) // GROUP
    result = rows.new_zeros(3, COLUMNS)
    torch.sum(rows[num_groups * GROUP :], 0, out=result[0])
    if num_groups:
        groups = rows[: num_groups * GROUP].view(num_groups, GROUP, COLUMNS).sum(1)
        result[0] += groups.sum(0)
        weights = _weights(1 << num_groups.bit_length(), data.device)
        # A product has the high bits of a sum in its own high bits only, whatever the weight. So
        # they count as low ones, too.
        groups ^= groups >> 32 & 0xFFFFFFFF
        torch.sum(groups.mul_(weights[:num_groups]), 0, out=result[1])
    result[2].view(torch.uint8)[: len(data) - whole] = data[whole:]
    return result


@functools.cache
def _weights(count: int, device: torch.device) -> torch.Tensor:
    """The weights of the first groups, int64[count, 1]: odd, so that a product keeps each bit.

    They are the first outputs of splitmix64 with seed 0 (Steele, Lea and Flood, "Fast Splittable
    Pseudorandom Number Generators", 2014, figure 17).
    """
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = (z ^ (z >> np.uint64(31))) | np.uint64(1)
    return torch.from_numpy(z.view(np.int64)).view(-1, 1).to(device)
