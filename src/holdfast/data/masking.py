"""Masking: samples for masked language modelling (Devlin et al., "BERT", NAACL 2019, 3.1)."""

from __future__ import annotations

from typing import Final

import torch

from holdfast.data.dataset import Batch, Dataset
from holdfast.data.permutation import Indices

MASK: Final = 256
"""The token that replaces a masked byte."""
IGNORE_INDEX: Final = -100
"""The target of bytes that are not predicted; `cross_entropy` ignores it."""
SHARE: Final = 0.15
"""Share of a sample's bytes that are predicted."""


class Masked:
    """Text in which some bytes are to be predicted.

    In every sample 15 % of the bytes are selected, the same number in each, so that a mean over the
    samples is one over the selected bytes. Of these 80 % are masked, 10 % are replaced by a random
    byte, and 10 % stay as they are. The selection differs in every epoch.

    Args:
        text: Has bytes as the first part of its batches, int64[n, length].
    """

    reads_ahead = True

    def __init__(self, text: Dataset) -> None:
        self._text = text
        self.fingerprint = f"masked:{text.fingerprint}"

    def __len__(self) -> int:
        return len(self._text)

    def batch(self, indices: Indices, generator: torch.Generator) -> Batch:
        """`(x, y)`, int64[n, length] each: tokens, and the selected bytes or IGNORE_INDEX."""
        text = self._text.batch(indices, generator)[0]
        num_selected = max(1, round(SHARE * text.shape[1]))
        selected = torch.rand(text.shape, generator=generator).topk(num_selected).indices
        targets = text.gather(1, selected)
        draw = torch.rand(targets.shape, generator=generator)
        other = torch.randint(MASK, targets.shape, generator=generator)
        shown = torch.where(draw < 0.8, MASK, torch.where(draw < 0.9, other, targets))
        y = torch.full_like(text, IGNORE_INDEX).scatter_(1, selected, targets)
        return text.scatter(1, selected, shown), y
