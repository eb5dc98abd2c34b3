"""Replica: everything that training changes, in one flat and aligned stretch of memory.

Parameters, buffers and optimizer state lie behind each other, and the model and the optimizer
work on views of them. So a checkpoint, a copy to a new worker and a comparison of two workers
are each one pass over bytes, and none of them knows what a model is. The memory is either this
process's own (`private`) or a section of the arena, which outlives the process.
"""

from __future__ import annotations

import hashlib

import torch
from torch import nn
from torch.optim import Optimizer

from holdfast.arena import optimizer_state
from holdfast.arena.layout import Layout
from holdfast.arena.tensors import field_of, pack_by_dtype, views
from holdfast.errors import JobError

MODEL = "model."


def replica_layout(model: nn.Module, optimizer: Optimizer) -> Layout:
    """The layout of what training changes: parameters, buffers, then optimizer state.

    Raises:
        JobError: The optimizer is not one that can be laid out.
    """
    names: dict[torch.Tensor, str] = {p: name for name, p in model.named_parameters()}
    return Layout.pack(
        [
            *pack_by_dtype(field_of(MODEL + n, p) for p, n in names.items()).entries,
            *pack_by_dtype(field_of(MODEL + n, b) for n, b in model.named_buffers()).entries,
            *optimizer_state.expected_fields(optimizer, names),
        ]
    )


class Replica:
    """One worker's copy of the trained state.

    Args:
        model: Its parameters and buffers are moved into the flat memory.
        optimizer: Holds parameters of `model` and has taken no step.
        layout: Of the two, from `replica_layout`.
        flat: The memory to move to, uint8[layout.size_bytes], aligned to 64 bytes.
        empty: Whether to leave that as it is: all of it will be written to.

    Attributes:
        flat: All of the state; padding is zero.
        parameters: The model's parameters by name.
        buffers: Views of the model's buffers by name.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        layout: Layout,
        flat: torch.Tensor,
        *,
        empty: bool = False,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.layout, self.flat = layout, flat
        self.parameters = dict(model.named_parameters())
        self._names: dict[torch.Tensor, str] = {p: name for name, p in self.parameters.items()}
        self._views = views(self.flat, self.layout)
        if not empty:
            flat.zero_()
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                target = self._views[MODEL + name]
                if not empty:
                    target.copy_(parameter)
                parameter.data = target
        self.buffers = {name: self._views[MODEL + name] for name, _ in model.named_buffers()}
        homes = {id(buffer): self.buffers[name] for name, buffer in model.named_buffers()}
        self._homes = {  # a buffer that several modules share has several names and one home
            name: homes[id(buffer)] for name, buffer in model.named_buffers(remove_duplicate=False)
        }
        self.capture_buffers()

    def capture_buffers(self) -> None:
        """Take back buffers that the model has bound to tensors of its own.

        Raises:
            JobError: A buffer has changed its shape.
        """
        for prefix, module in self.model.named_modules():
            for key, buffer in module._buffers.items():
                name = f"{prefix}.{key}" if prefix else key
                home = self._homes.get(name)
                if buffer is None or home is None or buffer is home:
                    continue
                if buffer.shape != home.shape:
                    raise JobError(
                        f"buffer {name} changed its shape from {tuple(home.shape)} to "
                        f"{tuple(buffer.shape)} in training; give it its final shape at the start"
                    )
                home.copy_(buffer)
                module._buffers[key] = home

    def capture_optimizer(self) -> None:
        """Take in state that the optimizer has made since, so that it too lies in `flat`.

        Raises:
            JobError: It made something that it did not make at first.
        """
        for parameter, state in self.optimizer.state.items():
            for key, value in state.items():
                name = optimizer_state.name_of(self._names[parameter], key)
                home = self._views.get(name)
                if value is home or value is None:
                    continue
                if home is None or not isinstance(value, torch.Tensor) or value.shape != home.shape:
                    raise JobError(
                        f"the optimizer began to keep {name}, which was not in its first step; "
                        "holdfast needs an optimizer whose state keeps its shape"
                    )
                home.copy_(value)
                state[key] = home

    @property
    def absent(self) -> frozenset[str]:
        """Optimizer state that does not exist yet, its parameter never having had a gradient."""
        present = {
            optimizer_state.name_of(self._names[parameter], key)
            for parameter, state in self.optimizer.state.items()
            for key, value in state.items()
            if value is not None
        }
        names = {entry.name for entry in self.layout.entries if not entry.name.startswith(MODEL)}
        return frozenset(names - present)

    def restored(self, absent: frozenset[str]) -> None:
        """Hand state that was written into `flat` to the optimizer, save what is `absent`."""
        for name, parameter in self.parameters.items():
            prefix = optimizer_state.name_of(name, "")
            keys = [key for key in self._views if key.startswith(prefix) and key not in absent]
            if keys:
                self.optimizer.state[parameter] = {
                    key.removeprefix(prefix): self._views[key] for key in keys
                }

    def checksum(self) -> int:
        """63 bits that tell two replicas apart, in one pass at the speed of memory."""
        words = self.flat.view(torch.int64)
        mixed = int(words.sum()) ^ int(words[::7].sum()) << 1
        return mixed & (2**63 - 1)

    def weights_sha256(self) -> str:
        """SHA-256 over all parameters and buffers in name order: name, dtype, shape and bytes."""
        hasher = hashlib.sha256()
        entries = (entry for entry in self.layout.entries if entry.name.startswith(MODEL))
        flat = self.flat.cpu()
        for entry in sorted(entries, key=lambda entry: entry.name):
            name = entry.name.removeprefix(MODEL)
            hasher.update(f"{name}\0{entry.dtype}\0{list(entry.shape)}\0".encode())
            hasher.update(flat[entry.offset : entry.end].numpy().data)
        return hasher.hexdigest()
