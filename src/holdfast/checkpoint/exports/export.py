"""Export: writes the weights of a checkpoint for PyTorch, its DCP, safetensors or transformers."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import torch
from safetensors.torch import save_file

from holdfast.checkpoint.exports.weights import FOLDER_FILE, StateDict, keys_of, read_checkpoint
from holdfast.checkpoint.find import manifest_of
from holdfast.errors import JobError

T = TypeVar("T")
_METADATA: Final = ".metadata"
"""In every directory of torch.distributed.checkpoint."""


def export(
    checkpoint: Path,
    target: Path,
    of: str | None = None,
    key: Path | None = None,
    *,
    replace: bool = False,
    is_dcp: bool = False,
) -> None:
    """Write the weights of a checkpoint to `target`, as a whole or not at all.

    Args:
        checkpoint: The directory of a checkpoint.
        target: A file that ends in .safetensors, .pt or .pth; or a folder, for a model of the
            library transformers or adapters of the library peft.
        of, key: Defined in `read_checkpoint`.
        replace: True to replace a file that exists.
        is_dcp: True to write the directory that `torch.distributed.checkpoint.load` reads instead.

    Raises:
        JobError: `target` exists, is none of these or cannot hold the state dict, or no key opens
            the checkpoint.
        CheckpointError: The checkpoint is damaged.
    """
    if target.exists() and not replace:
        raise JobError(f"{target} exists; name another file, or add --force to replace it")
    if is_dcp:
        _export_dcp(checkpoint, target, of, key)
        return
    match target.suffix:
        case ".safetensors":
            _write(target, _copies(read_checkpoint(checkpoint, of, key)), save_file)
        case ".pt" | ".pth":
            _write(target, read_checkpoint(checkpoint, of, key), torch.save)
        case "":
            _export_folder(checkpoint, target, of, key)
        case other:
            raise JobError(
                f"{target}: no format is called {other}; name a file that ends in .safetensors or "
                ".pt, or a folder for a model of transformers or adapters of peft"
            )


def _export_dcp(checkpoint: Path, target: Path, of: str | None, key: Path | None) -> None:
    if target.exists() and not (target / _METADATA).exists():
        raise JobError(f"{target} is not of torch.distributed.checkpoint; name another directory")
    weights = read_checkpoint(checkpoint, of, key)
    draft = target.with_name(f".{target.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)  # left by a crash
    try:
        _save(weights, draft)
        _take_place(draft, target)
    except OSError as error:
        raise JobError(f"{target}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _save(weights: StateDict, folder: Path) -> None:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is only one process
            save(weights, storage_writer=FileSystemWriter(folder), no_dist=True)
    except CheckpointException as error:  # no Exception
        cause, _ = next(iter(error.failures.values()))
        raise cause if isinstance(cause, OSError) else OSError(str(cause)) from None


def _take_place(draft: Path, target: Path) -> None:
    """Give a directory its name, in place of another one."""
    # A directory cannot replace another one at once, so the old one steps aside for a moment.
    old = target.with_name(f".{target.name}.old")
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    draft.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _export_folder(checkpoint: Path, target: Path, of: str | None, key: Path | None) -> None:
    """Write what `from_pretrained` of the libraries transformers and peft read."""
    manifest = manifest_of(checkpoint)
    model = manifest.hugging_face
    if model is None or of is not None:
        raise JobError(
            f"{target}: a folder is for a model of the library transformers or adapters of peft, "
            "and this is none; name a file that ends in .safetensors or .pt"
        )
    if model.lost:
        raise JobError(
            f"{target}: in a folder for peft, {model.lost}; name a file that ends in .safetensors "
            "or .pt, for load_state_dict of the whole model"
        )
    weights = _copies(read_checkpoint(checkpoint, None, key))
    once = {name: key for key, name in reversed(keys_of(manifest).items())}  # the first key of each
    config_file = "config.json"
    weights_file = FOLDER_FILE
    keys = {
        key.removeprefix(model.prefix): key for key in once.values() if key.startswith(model.prefix)
    }
    if model.adapter is not None:
        config_file = "adapter_config.json"
        weights_file = "adapter_model.safetensors"
        keys = {key: once[name] for key, name in model.keys.items()}
    own = {key: weights[source] for key, source in keys.items()}
    target.mkdir(parents=True, exist_ok=True)
    config = json.dumps(model.config, indent=2) + "\n"
    _write(target / config_file, config, lambda text, path: path.write_text(text))
    _write(target / weights_file, own, lambda state, path: save_file(state, path, {"format": "pt"}))


def _copies(weights: StateDict) -> StateDict:
    """Each key with memory of its own, as safetensors needs it.

    Raises:
        JobError: An entry is no tensor.
    """
    others = [key for key, value in weights.items() if not isinstance(value, torch.Tensor)]
    if others:
        raise JobError(
            f"the state dict has {', '.join(others)}, which is no tensor and cannot be in a "
            "safetensors file; name a file that ends in .pt"
        )
    seen = set[int]()
    copies = {}
    for key, tensor in weights.items():
        copies[key] = tensor.clone() if id(tensor) in seen else tensor
        seen.add(id(tensor))
    return copies


def _write(target: Path, content: T, write: Callable[[T, Path], object]) -> None:
    # The name appears with the whole content, in place of a file that was there.
    draft = target.with_name(f".{target.name}.draft")
    try:
        write(content, draft)
        draft.replace(target)
    except OSError as error:
        raise JobError(f"{target}: {error.strerror or error}") from None
    finally:
        draft.unlink(missing_ok=True)
