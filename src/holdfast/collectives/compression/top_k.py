"""Top k: only the largest elements are sent, with their places; the others count as zero.

The largest are chosen within each piece of 65,536 elements, so that the size of a message does not
depend on its values, and a place takes 2 bytes. A value is sent as bfloat16.

Source: D. Alistarh et al., The convergence of sparsified gradient methods, NeurIPS 2018; Y. Lin et
al., Deep gradient compression, ICLR 2018.
"""

from __future__ import annotations

from typing import Final

import torch

from holdfast.collectives.compression.codec import PIECE, padded

_MIDDLE: Final = PIECE // 2
"""Added to a place that was sent as int16."""


class TopK:
    """Implements `Codec`.

    Args:
        share: Part of the elements that are sent, above 0, up to 1.
    """

    def __init__(self, share: float) -> None:
        self._share = share

    def size(self, count: int) -> int:
        """Implements `Codec.size`."""
        return padded(4 * self._kept(count))

    def encode(self, values: torch.Tensor, out: torch.Tensor) -> None:
        """Implements `Codec.encode`."""
        count = self._kept(len(values))
        # Of values that are not finite, NaN counts as the largest.
        places = values.abs().topk(count, sorted=False).indices
        out[: 2 * count].view(torch.int16).copy_(places - _MIDDLE)
        out[2 * count : 4 * count].view(torch.bfloat16).copy_(values[places])

    def decode(self, data: torch.Tensor, out: torch.Tensor) -> None:
        """Implements `Codec.decode`."""
        count = self._kept(len(out))
        places = data[: 2 * count].view(torch.int16).long() + _MIDDLE
        out.zero_()
        out[places] = data[2 * count : 4 * count].view(torch.bfloat16).float()

    def _kept(self, count: int) -> int:
        return min(count, max(1, round(self._share * count)))
