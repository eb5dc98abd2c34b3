"""Masked language modelling's samples (Devlin et al., "BERT", NAACL 2019, section 3.1)."""

from __future__ import annotations

from typing import Final

import torch

from holdfast.data.dataset import Batch, Dataset
from holdfast.data.permutation import Indices

MASK: Final = 256
"""The token that hides a byte."""
IGNORE_INDEX: Final = -100
"""The target where nothing is asked; `cross_entropy` passes over it."""
SHARE: Final = 0.15
"""Of the bytes of a sample that are asked for."""


class Masked:
    """Text in which some bytes are to be guessed.

    In every sample 15 % of the bytes are chosen, the same number in each, so that a mean over the
    samples is one over the bytes asked for. Of those 80 % are hidden, 10 % are replaced by a random
    byte, and 10 % stay as they are. Which ones is chosen anew in every epoch.

    Args:
        text: Gives bytes as the first part of its batches, int64[n, length].
    """

    def __init__(self, text: Dataset) -> None:
        self._text = text
        self.fingerprint = f"masked:{text.fingerprint}"

    def __len__(self) -> int:
        return len(self._text)

    def batch(self, indices: Indices, generator: torch.Generator) -> Batch:
        """`(x, y)`, int64[n, length] each: tokens, and the bytes asked for or UNASKED."""
        text = self._text.batch(indices, generator)[0]
        num_asked = max(1, round(SHARE * text.shape[1]))
        asked = torch.rand(text.shape, generator=generator).topk(num_asked).indices
        targets = text.gather(1, asked)
        fate = torch.rand(targets.shape, generator=generator)
        other = torch.randint(MASK, targets.shape, generator=generator)
        shown = torch.where(fate < 0.8, MASK, torch.where(fate < 0.9, other, targets))
        y = torch.full_like(text, IGNORE_INDEX).scatter_(1, asked, targets)
        return text.scatter(1, asked, shown), y
