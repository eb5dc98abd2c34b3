"""Weights: the state dict of a model, from wherever it is kept.

It has tensors, and entries that are none (see `arena.state_dicts`). They are read from a
checkpoint, whatever number of workers wrote it, or from a file that PyTorch, safetensors or the
library transformers wrote.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from holdfast.arena.json_values import decode, encode
from holdfast.arena.replica import KEPT
from holdfast.arena.state_dicts import EXTRA_STATE, THE_MODEL, extra_entries, plain_name
from holdfast.arena.tensors import DTYPES
from holdfast.checkpoint import parts
from holdfast.checkpoint.find import find_checkpoint, manifest_of, unlocked
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.reader import read_state
from holdfast.errors import CheckpointError, JobError

FOLDER_FILE: Final = "model.safetensors"
"""The weights in a folder that the library transformers wrote."""

T = TypeVar("T")
StateDict = dict[str, Any]
"""Tensors and extra entries by key."""


def read_checkpoint(checkpoint: Path, of: str | None = None, key: Path | None = None) -> StateDict:
    """The state dict of a trained model, each byte of it verified.

    Args:
        checkpoint: The directory of a checkpoint.
        of: The name of a registered module to read instead of the model, or of one of several
            models.
        key: The file with the key of an encrypted checkpoint; by default, the one that the job of
            its run names.

    Raises:
        CheckpointError: A file holds something else than the manifest says.
        JobError: There is nothing called `of`, or no key that opens the checkpoint.
    """
    try:
        return _read(checkpoint, manifest_of(checkpoint), of, key)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; use another checkpoint, or a copy of this one") from None


def _read(checkpoint: Path, manifest: Manifest, of: str | None, key: Path | None) -> StateDict:
    store = unlocked(checkpoint, manifest, key)
    keys = keys_of(manifest, of)
    wanted = {entry.name: entry for entry in manifest.layout.entries if entry.name in keys.values()}
    tensors = {n: torch.empty(e.shape, dtype=DTYPES[e.dtype]) for n, e in wanted.items()}
    # Only one chunk of the state is in memory next to the tensors: optimizer states may be larger.
    chunk = bytearray(parts.CHUNK_BYTES)
    memory = memoryview(chunk)
    for start, end in read_state(
        store, checkpoint.name, manifest, lambda start, end: memory[: end - start]
    ):
        for name, entry in wanted.items():
            first = max(entry.offset, start)
            last = min(entry.end, end)
            if first < last:
                flat = tensors[name].view(-1).view(torch.uint8).numpy()
                flat.data[first - entry.offset : last - entry.offset] = memory[
                    first - start : last - start
                ]
    for name, entry in wanted.items():
        if entry.strides:
            tensors[name] = tensors[name].as_strided(entry.shape, entry.strides).contiguous()
    extra = manifest.user_state.get("extra_state", {})
    root = KEPT + of if of in manifest.state_dicts else THE_MODEL
    entries = _within(extra.get(root, {}), of if root == THE_MODEL else None)
    return {key: tensors[name] for key, name in keys.items()} | {
        key: decode(value) for key, value in entries.items()
    }


def keys_of(manifest: Manifest, of: str | None = None) -> dict[str, str]:
    """The tensors of a state dict by key: a tensor under two keys is in a checkpoint once.

    Raises:
        JobError: There is nothing called `of`.
    """
    known = manifest.state_dicts
    found = known[of] if of in known else _within(known[""], of)
    if of is not None and of not in known and not found:
        registered = ", ".join(name for name in known if name)
        raise JobError(
            f"the checkpoint of step {manifest.step} has no module {of}; it has the model"
            + (f", and {registered}" if registered else "")
        )
    return {plain_name(key): name for key, name in found.items()}


def _within(entries: Mapping[str, T], of: str | None) -> dict[str, T]:
    """The entries of one of several models; with `of=None` all of them."""
    prefix = "" if of is None else f"{of}."
    return {key.removeprefix(prefix): e for key, e in entries.items() if key.startswith(prefix)}


def load_weights(path: Path) -> StateDict:
    """The state dict in a file, in a folder of transformers, in a checkpoint or in a run.

    Raises:
        JobError: It cannot be read as one.
        CheckpointError: A checkpoint is damaged.
    """
    if (path / FOLDER_FILE).exists():
        return load_weights(path / FOLDER_FILE)
    if path.is_dir():
        return read_checkpoint(find_checkpoint(path))
    try:
        return load_file(path) if path.suffix == ".safetensors" else _saved_by_torch(path)
    except OSError as error:
        raise JobError(f"{path}: {error.strerror or error}; name a file with weights") from None
    except (SafetensorError, RuntimeError, EOFError, pickle.UnpicklingError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise JobError(
            f"{path} holds no state dict that can be read: {reason}; save one with "
            "torch.save(model.state_dict(), …), or as .safetensors"
        ) from None


def load_into(
    model: nn.Module, weights: StateDict, source: object, *, strict: bool = True
) -> list[str]:
    """Load `weights` into `model`; returns what did not fit, in words.

    Args:
        model: Its tensors are written to.
        weights: From `source`.
        source: Origin of the tensors, for the message.
        strict: True if everything must fit; if not, the rest is loaded.

    Raises:
        JobError: Something does not fit; nothing was loaded.
    """
    expected: StateDict = model.state_dict(keep_vars=True)
    # The keys of a compiled model are those of the model that is not.
    own = {plain_name(key): key for key in expected}
    given = {own.get(plain_name(key), key): value for key, value in weights.items()}
    extra = {own[key] for key in extra_entries(model)}
    wrong = sorted(_misfits(expected, given, extra))
    if wrong and strict:
        raise JobError(f"the weights of {source} do not fit the model: {'; '.join(wrong)}")
    fitting = {
        key: value
        for key, value in given.items()
        if key in extra or (key in expected and _shape(value) == _shape(expected[key]))
    }
    model.load_state_dict(fitting, strict=False)
    return wrong


def digest(weights: StateDict) -> str:
    """SHA-256 over all tensors in key order: key, dtype, shape and bytes."""
    hasher = hashlib.sha256()
    for key, value in sorted(weights.items()):
        if not isinstance(value, torch.Tensor):
            hasher.update(f"{key}\0{json.dumps(encode(value, key), sort_keys=True)}\0".encode())
            continue
        hasher.update(f"{key}\0{value.dtype}\0{list(value.shape)}\0".encode())
        hasher.update(value.contiguous().view(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def _misfits(expected: StateDict, weights: StateDict, extra: set[str]) -> Iterator[str]:
    """Misfits in words; `extra` are keys whose values may have any shape."""
    present = {id(expected[key]) for key in weights.keys() & expected.keys()}
    for key, value in expected.items():
        if key not in weights and id(value) not in present:  # not even under another name
            yield f"{key} is missing"
        elif key in weights and key not in extra and _shape(weights[key]) != _shape(value):
            there = _shape(weights[key])
            here = _shape(value)
            yield f"{key} has shape {there}, and {here} in the model"
    for key in weights.keys() - expected.keys():
        yield f"{key} is unexpected"


def _shape(value: object) -> list[int] | None:
    return list(value.shape) if isinstance(value, torch.Tensor) else None


def _saved_by_torch(path: Path) -> StateDict:
    loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(loaded, Mapping):
        raise ValueError(f"it is a {type(loaded).__name__}")
    others = [
        str(key)
        for key, value in loaded.items()
        if not isinstance(value, torch.Tensor) and str(key).rpartition(".")[2] != EXTRA_STATE
    ]
    if others or not loaded:
        raise ValueError(f"these entries are not tensors: {', '.join(others) or 'it is empty'}")
    return {str(key): value for key, value in loaded.items()}
