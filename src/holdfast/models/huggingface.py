"""GPT-2 and BERT, built by the library transformers from their configurations.

Importing this module imports that library, which takes seconds. It never downloads anything.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import torch
from torch import nn

from holdfast.errors import JobError
from holdfast.job.models import BertSpec, Gpt2Spec
from holdfast.models.recompute import recompute

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when the library is imported
try:
    from transformers import BertConfig, GPT2Config
    from transformers.models.bert.modeling_bert import BertForMaskedLM
    from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel
except ImportError as error:
    raise JobError(
        f"the models gpt2 and bert need a library: {error}; pip install 'holdfast[transformers]'"
    ) from None


class LanguageModel(nn.Module):
    """A model of transformers that returns its logits only.

    Args:
        network: The model.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens, int64[n, positions], to logits, float32[n, positions, vocabulary]."""
        logits: torch.Tensor = self.network(input_ids=tokens).logits
        return logits


class CausalLanguageModel(LanguageModel):
    """GPT-2, whose layers can be divided over a pipeline."""

    def pipeline_parts(self) -> list[object]:
        """The embedding, the blocks and the prediction, which are divided over a pipeline."""
        body: Any = self.network.transformer
        head: Any = self.network.lm_head
        return [
            (self._embed, [body.wte, body.wpe, body.drop]),
            *((partial(_computed, block), [block]) for block in body.h),
            (self._predict, [body.ln_f, head]),
        ]

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        body: Any = self.network.transformer
        positions = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        embedded: torch.Tensor = body.drop(body.wte(tokens) + body.wpe(positions))
        return embedded

    def _predict(self, x: torch.Tensor) -> torch.Tensor:
        network: Any = self.network
        logits: torch.Tensor = network.lm_head(network.transformer.ln_f(x))
        return logits


def _computed(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The output of a block, which older versions of the library wrap in a tuple."""
    output: torch.Tensor | tuple[torch.Tensor, ...] = block(x)
    return output[0] if isinstance(output, tuple) else output


def build(spec: Gpt2Spec | BertSpec, *, context: int) -> LanguageModel:
    """The model of a job with random weights, for `context` positions."""
    match spec:
        case Gpt2Spec():
            network = GPT2LMHeadModel(_gpt2(spec, context))
            blocks = network.transformer.h
        case BertSpec():
            network = BertForMaskedLM(_bert(spec, context))
            blocks = network.bert.encoder.layer
    if spec.gradient_checkpointing:
        recompute(blocks)
    kind = CausalLanguageModel if isinstance(spec, Gpt2Spec) else LanguageModel
    return kind(network)


def _gpt2(spec: Gpt2Spec, context: int) -> GPT2Config:
    return GPT2Config(
        vocab_size=spec.vocabulary,
        n_positions=context,
        n_embd=spec.width,
        n_head=spec.heads,
        n_layer=spec.layers,
        embd_pdrop=spec.dropout,
        attn_pdrop=spec.dropout,
        resid_pdrop=spec.dropout,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
        attn_implementation="sdpa",
    )


def _bert(spec: BertSpec, context: int) -> BertConfig:
    return BertConfig(
        vocab_size=spec.vocabulary,
        max_position_embeddings=context,
        hidden_size=spec.width,
        intermediate_size=4 * spec.width,
        num_attention_heads=spec.heads,
        num_hidden_layers=spec.layers,
        hidden_dropout_prob=spec.dropout,
        attention_probs_dropout_prob=spec.dropout,
        pad_token_id=None,  # every byte is text, none is padding
        attn_implementation="sdpa",
    )
