"""Cells: which host adds which blocks of the gradient, and on which of its workers.

A host sends its partial sums of a block to the block's owner, which adds them and sends the result
to all others (reduce-scatter, then all-gather). Blocks are cut by their bytes into one contiguous
cell for each host and lane. A lane is a set of connections, one to each other host: the workers of
a host share the lanes out, so that hosts with unlike numbers of workers fit together.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence


def cells(sizes: Sequence[int], num_hosts: int, num_lanes: int) -> list[list[range]]:
    """The blocks of each host and lane: `cells(…)[host][lane]`.

    Args:
        sizes: The size of each block, bytes.
        num_hosts: Hosts of the generation.
        num_lanes: Workers of the host that has most.
    """
    ends = list(itertools.accumulate(sizes))
    count = num_hosts * num_lanes
    total = ends[-1] if ends else 0
    cuts = [bisect.bisect_left(ends, total * cell / count) for cell in range(count)]
    # A cut is at the first block that ends at or after its share; that block is left of it.
    borders = [0, *(min(cut + 1, len(sizes)) for cut in cuts[1:]), len(sizes)]
    flat = [range(start, end) for start, end in itertools.pairwise(borders)]
    return [flat[host * num_lanes : (host + 1) * num_lanes] for host in range(num_hosts)]


def lanes_of(worker: int, num_workers: int, num_lanes: int) -> range:
    """The lanes that a worker serves.

    Args:
        worker: Its position among the workers of its host.
        num_workers: Workers of its host.
        num_lanes: Defined in `cells`.
    """
    return range(worker, num_lanes, num_workers)
