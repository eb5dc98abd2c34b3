"""Mistral with QLoRA: a frozen base of 4-bit weights, and adapters that are trained.

Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", NeurIPS 2023. The weights of
linear layers are quantized to NF4 by bitsandbytes, with scales that are quantized themselves;
embeddings, norms and the head stay in bfloat16. Adapters are those of peft (Hu et al., "LoRA",
ICLR 2022).

`tensors` yields the base, which `session.base` keeps once a host; `network` builds the model around
it. Neither downloads anything, nor runs code of a model folder.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
import torch
from safetensors import safe_open
from torch import nn

from holdfast.errors import JobError
from holdfast.job.models import MistralSpec
from holdfast.linux.supply import usable_cores
from holdfast.models.recompute import recompute

# Read when the libraries are imported; bitsandbytes would fetch kernels, too.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it reports kernels that it cannot fetch
_NEEDED: Final = "the model mistral needs libraries: {}; pip install 'holdfast[qlora]'"
try:
    from transformers import MistralConfig
    from transformers.models.mistral.modeling_mistral import (
        MistralForCausalLM,
        MistralRotaryEmbedding,
    )

    if not Path("/proc/driver/nvidia").exists():  # with a GPU they start CUDA, before a fork
        import bitsandbytes  # noqa: F401  # takes seconds, which workers need not spend again
        import peft  # noqa: F401
except ImportError as missing:
    raise JobError(_NEEDED.format(missing)) from None

STORED: Final = torch.bfloat16
"""Dtype of what is not quantized."""
_DEVIATION: Final = 0.02
"""Of random weights, as Mistral was initialized."""
_QUANTIZING_BYTES: Final = 2 << 30
"""Memory in which the largest weight of Mistral-7B is read and quantized."""
_DTYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16}
_SIZES: Final = {
    "vocabulary": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "feedforward": "intermediate_size",
}
"""The job's keys of the network's sizes, and their names in its configuration."""


def config_of(spec: MistralSpec) -> MistralConfig:
    """The network's configuration, that of the model folder if there is one.

    Raises:
        JobError: The folder has no Mistral network, or the job contradicts it.
    """
    if spec.path is None:
        return MistralConfig(
            **{name: spec.size(key) for key, name in _SIZES.items()},
            bos_token_id=None,
            eos_token_id=None,
            use_cache=False,
            attn_implementation="sdpa",
        )
    path = spec.path / "config.json"
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise JobError(f"{path}: {error.strerror}; set model.path to a model folder") from None
    except ValueError as error:
        raise JobError(f"{path} is no JSON: {error}") from None
    if given.get("model_type") != "mistral":
        raise JobError(f"{path} describes a {given.get('model_type')!r}, not a 'mistral' network")
    if "quantization_config" in given:
        raise JobError(f"{path}: the weights are quantized already; use a folder with plain ones")
    _check_sizes(spec, given, path)
    known = {**given, "use_cache": False, "attn_implementation": "sdpa"}
    return MistralConfig(**known)


def _check_sizes(spec: MistralSpec, given: Mapping[str, Any], path: Path) -> None:
    """Raises: JobError: A size that the job sets is another one in the folder."""
    for key, name in _SIZES.items():
        if getattr(spec, key) not in (None, given.get(name)):
            raise JobError(
                f"model.{key}={getattr(spec, key)}, but {path} says {name}={given.get(name)}; "
                f"remove model.{key}"
            )


def base_key(spec: MistralSpec, seed: int) -> dict[str, Any]:
    """Values that determine the base."""
    import bitsandbytes

    config = config_of(spec).to_dict()
    sizes = {name: value for name, value in config.items() if name.endswith(("_size", "_heads"))}
    source: dict[str, Any] = {"weights": "random", "seed": seed}
    if spec.path is not None:
        files = [(each.name, each.stat()) for each in _weight_files(spec.path)]
        source = {
            "weights": str(spec.path.resolve()),
            "files": [(name, state.st_size, state.st_mtime_ns) for name, state in files],
        }
    versions = {"bitsandbytes": bitsandbytes.__version__}
    return {**source, **versions, **sizes, "layers": config["num_hidden_layers"]}


def tensors(spec: MistralSpec, seed: int) -> Iterator[tuple[str, torch.Tensor]]:
    """The base, tensor by tensor: of quantized weights, the bytes and their scales.

    Each core quantizes a weight of its own.

    Args:
        spec: The model.
        seed: Seed of random weights.

    Raises:
        JobError: The folder lacks a weight, or one has another shape.
    """
    with torch.device("meta"):
        shapes = {
            n: tuple(p.shape) for n, p in MistralForCausalLM(config_of(spec)).named_parameters()
        }
    weight_of = (
        partial(_random, seed)
        if spec.path is None
        else partial(_read, spec.path, _places(spec.path))
    )

    def stored(name: str) -> dict[str, torch.Tensor]:
        weight = weight_of(name, shapes[name]).to(STORED)
        return _quantized(name, weight) if _is_quantized(name) else {name: weight}

    fit = psutil.virtual_memory().available // _QUANTIZING_BYTES
    ahead = max(1, min(usable_cores(), fit))
    with ThreadPoolExecutor(ahead) as pool:
        waiting: deque[Future[dict[str, torch.Tensor]]] = deque()
        for name in shapes:
            waiting.append(pool.submit(stored, name))
            if len(waiting) > ahead:
                yield from waiting.popleft().result().items()
        for last in waiting:
            yield from last.result().items()


def _quantized(name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    from bitsandbytes import functional

    packed, state = functional.quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
    parts = state.as_dict(packed=True)
    return {name: packed, **{f"{name}.{key}": part for key, part in parts.items()}}


def _is_quantized(name: str) -> bool:
    return name.endswith("_proj.weight")


def _random(seed: int, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Random weights, from a generator of their own."""
    if "norm" in name:
        return torch.ones(shape)
    own = hashlib.sha256(f"{seed} {name}".encode()).digest()[:8]
    generator = torch.Generator().manual_seed(int.from_bytes(own) >> 1)
    return torch.randn(shape, generator=generator) * _DEVIATION


def _weight_files(folder: Path) -> list[Path]:
    """Raises: JobError: There is none."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise JobError(f"{folder} has no .safetensors file; other formats are not read")
    return files


def _places(folder: Path) -> dict[str, Path]:
    """The file of each tensor of a model folder."""
    places: dict[str, Path] = {}
    for path in _weight_files(folder):
        with safe_open(path, framework="pt") as file:
            places |= dict.fromkeys(file.keys(), path)
    return places


def _read(
    folder: Path, places: Mapping[str, Path], name: str, shape: tuple[int, ...]
) -> torch.Tensor:
    """Raises: JobError: No file has the tensor, or it has another shape."""
    if name not in places:
        raise JobError(f"{folder} has no tensor {name}")
    with safe_open(places[name], framework="pt") as file:
        weight: torch.Tensor = file.get_tensor(name)
    if tuple(weight.shape) != shape:
        raise JobError(
            f"{places[name]}: {name} has shape {tuple(weight.shape)}, not {shape} as "
            "config.json says"
        )
    return weight


class AdaptedModel(nn.Module):
    """A network that returns its logits only.

    Args:
        network: Network of peft.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens, int64[n, positions], to logits, float32[n, positions, vocabulary]."""
        logits: torch.Tensor = self.network(input_ids=tokens).logits
        return logits.float()


def network(spec: MistralSpec, base: Mapping[str, torch.Tensor]) -> AdaptedModel:
    """The model around a base, with new adapters from torch's global generator.

    Args:
        spec: The model.
        base: Tensors that `tensors` has yielded, by name; the model has no copy of it.
    """
    config = config_of(spec)
    with torch.device("meta"):
        model = MistralForCausalLM(config)
    model.model.rotary_emb = MistralRotaryEmbedding(config)
    _bind(model, base)
    adapted = _with_adapters(model, spec)
    if spec.gradient_checkpointing:
        recompute(model.model.layers)
    return AdaptedModel(adapted)


def _bind(model: nn.Module, base: Mapping[str, torch.Tensor]) -> None:
    """Give a model on `meta` the tensors of a base."""
    import bitsandbytes

    for name in [name for name, _ in model.named_parameters()]:
        place, _, key = name.rpartition(".")
        module = model.get_submodule(place)
        if not _is_quantized(name):
            module._parameters[key] = nn.Parameter(base[name], requires_grad=False)
            continue
        layer = bitsandbytes.nn.Linear4bit(
            module.in_features, module.out_features, bias=False, quant_type="nf4", device="meta"
        )
        layer.weight = bitsandbytes.nn.Params4bit.from_prequantized(
            data=base[name],
            quantized_stats=_scales(name, base),
            requires_grad=False,
            device="cpu",
            module=layer,
        )
        # In evaluations it would repack the weights in place, with other results after that.
        layer.support_avx512bf16_for_cpu = False
        parent, _, own = place.rpartition(".")
        setattr(model.get_submodule(parent), own, layer)


def _scales(name: str, base: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    prefix = f"{name}."
    return {key.removeprefix(prefix): base[key] for key in base if key.startswith(prefix)}


def _with_adapters(model: Any, spec: MistralSpec) -> nn.Module:
    import peft

    lora = spec.lora
    settings = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.targets),
        task_type="CAUSAL_LM",
    )
    if spec.path is not None:
        model.name_or_path = str(spec.path)  # which peft writes down
    with warnings.catch_warnings():  # peft reads an attribute that transformers has renamed
        warnings.simplefilter("ignore", FutureWarning)
        adapted: nn.Module = peft.get_peft_model(model, settings)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(_DTYPES[spec.adapter_dtype])
    return adapted
