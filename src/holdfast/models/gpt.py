"""Gpt: a small decoder-only transformer (Radford et al., 2019; pre-norm, learned positions).

Shapes: B batch, T positions, D width, H heads, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from holdfast.models.recompute import recompute


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each with a residual connection.

    Args:
        width: Features per position, a multiple of `heads`.
        heads: Attention heads.
        dropout: Probability that a feature or an attention weight is dropped in training.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:  # noqa: N803
        """Float32[B, T, D] to the same shape."""
        x_BTD = x_BTD + self._drop(self._attend(self.norm1(x_BTD)))  # noqa: N806
        return x_BTD + self._drop(self.down(F.gelu(self.up(self.norm2(x_BTD)))))

    def _attend(self, x_BTD: torch.Tensor) -> torch.Tensor:  # noqa: N803
        batch, positions, width = x_BTD.shape
        q, k, v = self.qkv(x_BTD).view(batch, positions, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        mixed: torch.Tensor = self.out(y.transpose(1, 2).reshape(batch, positions, width))
        return mixed

    def _drop(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, self.dropout, self.training)


class Gpt(nn.Module):
    """A stack of blocks between an embedding and its transpose.

    Args:
        vocabulary: Number of tokens.
        context: Maximum number of positions.
        width, heads, dropout: As in `Block`.
        layers: Number of blocks.
        gradient_checkpointing: True to recompute each block in the backward pass.
    """

    def __init__(
        self,
        *,
        vocabulary: int,
        context: int,
        width: int,
        heads: int,
        layers: int,
        dropout: float,
        gradient_checkpointing: bool,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        if gradient_checkpointing:
            recompute(self.blocks)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:  # noqa: N803
        """Tokens, int64[B, T], to logits of the next token, float32[B, T, V]."""
        return self._predict(self.blocks(self._embed(tokens_BT)))

    def pipeline_parts(self) -> list[object]:
        """The embedding, the blocks and the prediction, which are divided over a pipeline."""
        first = (self._embed, [self.tokens, self.positions])
        return [first, *self.blocks, (self._predict, [self.norm, self.tokens])]

    def _embed(self, tokens_BT: torch.Tensor) -> torch.Tensor:  # noqa: N803
        embedded: torch.Tensor = self.tokens(tokens_BT)
        return embedded + self.positions.weight[: tokens_BT.shape[1]]

    def _predict(self, x_BTD: torch.Tensor) -> torch.Tensor:  # noqa: N803
        return F.linear(self.norm(x_BTD), self.tokens.weight)
