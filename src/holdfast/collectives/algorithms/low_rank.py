"""Low rank: the gradient of a matrix is sent as two narrow matrices (PowerSGD).

    P = M Q         every worker, by the same Q; summed over all workers, then made orthonormal
    Q = Mᵀ P        every worker; summed over all workers
    P Qᵀ            what all take for the sum of M; the next step begins with this Q

M, n x m, is the gradient of a parameter, with all but its first dimension flattened. P and Q have
`rank` columns, so rank (n + m) values are sent in place of n m. What is no matrix, or would not get
smaller, is sent as it is. The error of a worker is what its M has more than its share of P Qᵀ.

The first Q of a generation, and that after a step that was sent whole or skipped, is drawn from the
number of the step: so a run that is resumed continues like one that was not interrupted. All
workers compute P Qᵀ, so hosts need like processors to get the same bits.

Source: T. Vogels et al., PowerSGD: practical low-rank gradient compression for distributed
optimization, NeurIPS 2019.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from holdfast.collectives.algorithms import hierarchical
from holdfast.collectives.algorithms.host_links import HostLinks
from holdfast.collectives.group import Group
from holdfast.collectives.network import Network
from holdfast.collectives.slot import SlotLayout


@dataclass(frozen=True, slots=True)
class Matrix:
    """A parameter whose gradient is sent as two matrices.

    Attributes:
        start: Its first element in the vector.
        rows, columns: Its size.
        rank: Columns of P and Q.
    """

    start: int
    rows: int
    columns: int
    rank: int

    @property
    def stop(self) -> int:
        """The end of its elements in the vector."""
        return self.start + self.rows * self.columns

    def of(self, vector: torch.Tensor) -> torch.Tensor:
        """The matrix in a vector."""
        return vector[self.start : self.stop].view(self.rows, self.columns)


def matrices_of(layout: SlotLayout, at: int, most: int) -> list[Matrix]:
    """The matrices of a range of equal dtype that get smaller.

    Args:
        layout: The layout of the vector.
        at: The number of the range.
        most: Columns of P and Q, at most.
    """
    dtype, _, _, is_gradient = layout.dtype_ranges[at]
    if dtype not in ("F32", "F64") or not is_gradient:
        return []
    matrices = []
    for (of, start, stop), shape in zip(layout.gradient_spans, layout.gradient_shapes, strict=True):
        if of == at and len(shape) > 1 and stop > start:
            rows = shape[0]
            columns = (stop - start) // rows
            rank = min(most, rows, columns)
            if rank * (rows + columns) < rows * columns:
                matrices.append(Matrix(start, rows, columns, rank))
    return matrices


class LowRankVector:
    """Implements `CompressedVector`: matrices by two narrow ones, and the rest as it is.

    Args:
        group: The workers.
        network: Its connections.
        vectors: The vector of each worker of this host, in shared memory, by member.
        messages: Other vectors of that length, for what is sent.
        matrices: The matrices in a vector, in order.
    """

    def __init__(
        self,
        group: Group,
        network: Network,
        vectors: Mapping[int, torch.Tensor],
        messages: Mapping[int, torch.Tensor],
        matrices: Sequence[Matrix],
    ) -> None:
        self._members = range(len(group.members))
        self._vector = vectors[group.member_index]
        self._message = messages[group.member_index]
        self._whole_links = HostLinks(group, network, vectors)
        self._links = HostLinks(group, network, messages)
        self._matrices = matrices
        starts = [0, *(each.stop for each in matrices)]
        ends = [*(each.start for each in matrices), len(self._vector)]
        self._rest = list(map(slice, starts, ends))
        self._rights: list[torch.Tensor] = []

    def add_up(self, step: int, error: torch.Tensor | None, *, is_whole: bool) -> None:
        """Implements `CompressedVector.add_up`."""
        if is_whole:
            self._rights = []
            hierarchical.all_reduce(self._whole_links, self._members, range(len(self._vector)))
            return
        matrices = [each.of(self._vector) for each in self._matrices]
        rights = self._rights or self._drawn(step)
        rest = [self._vector[each] for each in self._rest]
        products = [matrix @ right for matrix, right in zip(matrices, rights, strict=True)]
        lefts = self._summed([*products, *rest])
        for each, total in zip(rest, lefts[len(matrices) :], strict=True):
            each.copy_(total)
        # Orthonormal columns, so that P Pᵀ M is what P can say of M.
        lefts = [torch.linalg.qr(left).Q for left in lefts[: len(matrices)]]
        products = [matrix.T @ left for matrix, left in zip(matrices, lefts, strict=True)]
        self._rights = self._summed(products)
        for layout, left, right in zip(self._matrices, lefts, self._rights, strict=True):
            matrix = layout.of(self._vector)
            total = left @ right.T
            if error is not None:
                torch.sub(matrix, total, alpha=1 / len(self._members), out=layout.of(error))
            matrix.copy_(total)

    def undo(self) -> None:
        """Implements `CompressedVector.undo`: what is not finite would stay so."""
        self._rights = []

    @property
    def ratio(self) -> float:
        """Implements `CompressedVector.ratio`."""
        saved = sum(m.rows * m.columns - m.rank * (m.rows + m.columns) for m in self._matrices)
        return len(self._vector) / max(1, len(self._vector) - saved)

    def _summed(self, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The sums of tensors over all workers, each of the same shape."""
        sizes = [each.numel() for each in parts]
        message = self._message[: sum(sizes)]
        if parts:
            torch.cat([each.reshape(-1) for each in parts], out=message)
        hierarchical.all_reduce(self._links, self._members, range(len(message)))
        sums = torch.split(message.clone(), sizes)
        self._links.finish()  # from here on no worker reads this message
        return [total.view(part.shape) for total, part in zip(sums, parts, strict=True)]

    def _drawn(self, step: int) -> list[torch.Tensor]:
        """The first Q of each matrix."""
        generator = torch.Generator().manual_seed(step)
        return [
            torch.randn(m.columns, m.rank, generator=generator, dtype=self._vector.dtype)
            for m in self._matrices
        ]
