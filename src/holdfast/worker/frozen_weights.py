"""Bases: the frozen tensors that a worker's models use, see `arena.frozen_base`.

All workers must have the same bases. They compare digests when a generation begins. After that one
worker of each host verifies a slice a step, so all of a base every `NUM_SLICES` steps, and every
worker makes sure that the model still uses the mapped tensors: another scale of quantized weights
would end in other weights unnoticed.
"""

from __future__ import annotations

import faulthandler
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from holdfast.arena.base_cache import Build, cached_base, distrust
from holdfast.arena.frozen_base import FrozenBase
from holdfast.collectives.barrier_tags import WorkerTag
from holdfast.collectives.group import Group
from holdfast.errors import JobError, ReplicaError

_DIGITS: Final = 15
"""Hexadecimal digits of a digest that members compare."""


@dataclass(frozen=True, slots=True)
class _Model:
    """A model that uses bases.

    Attributes:
        prefix: Prefix of its names, where a run trains several models.
        names: Its parameters and buffers in a base.
        places: The module and the key of each.
        addresses: Addresses of their data when it was built, with the scales of quantized weights.
    """

    prefix: str
    names: frozenset[str]
    places: tuple[tuple[nn.Module, str], ...]
    addresses: tuple[int, ...]


class Bases:
    """The bases of one worker.

    Args:
        folder: Default directory of the cache.

    Attributes:
        sources: Origin of the tensors of each base, if its key says so, by its name.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bases: list[FrozenBase] = []
        self._models: list[_Model] = []
        self._used: set[str] = set()
        self.sources: dict[str, str] = {}

    def map(
        self, name: str, build: Build, key: Mapping[str, Any], cache: Path | None
    ) -> Mapping[str, torch.Tensor]:
        """Map a base, whose tensors models may use; see `Session.base`.

        Raises:
            JobError: It cannot be built, or another one has its name.
        """
        if any(base.name == name for base in self._bases) or not name.isidentifier():
            raise JobError(f"session.base needs a unique name like an identifier, not {name!r}")
        base = cached_base(cache or self._folder, name, key, build)
        faulthandler.enable(all_threads=False)  # the log shows the line that writes to a base
        self._bases.append(base)
        if "weights" in key:
            self.sources[name] = str(key["weights"])
        return base.tensors

    @property
    def digests(self) -> dict[str, str]:
        """The digest of each base that a model uses, by its name."""
        return {base.name: base.digest for base in self._bases if base.name in self._used}

    @property
    def size_bytes(self) -> int:
        """Size of all bases, once a host."""
        return sum(base.size_bytes for base in self._bases)

    @property
    def names(self) -> frozenset[str]:
        """The parameters and buffers of the models that are in a base."""
        return frozenset(f"{each.prefix}{name}" for each in self._models for name in each.names)

    def adopt(self, model: nn.Module, name: str, device: torch.device) -> None:
        """Note which tensors of a new model are in a base, and move it to its device.

        On a GPU each worker has a copy of the base.

        Args:
            model: The model.
            name: Its name, where a run trains several.
            device: Device on which it computes.

        Raises:
            JobError: It would train a tensor of a base, or has scales of its own.
        """
        if not self._bases:
            return
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        # By address: the model may have other names for them than the base.
        names = frozenset(key for key, tensor in tensors.items() if self._holds(tensor))
        self._used |= {b.name for b in self._bases if any(b.holds(tensors[key]) for key in names)}
        for key in sorted(names):
            if tensors[key].requires_grad:
                raise JobError(
                    f"{key} is a tensor of a base, which is read-only, and requires a gradient; "
                    "freeze it with requires_grad_(False)"
                )
            for part, tensor in _scales(key, tensors[key]):
                if tensor.dim() and not self._holds(tensor):
                    raise JobError(f"{part} belongs to a tensor of a base; keep it in the base")
        if device.type != "cpu":
            model.to(device)
        prefix = f"{name}." if name else ""
        places = tuple(
            (model.get_submodule(n.rpartition(".")[0]), n.rpartition(".")[2]) for n in sorted(names)
        )
        self._models.append(_Model(prefix, names, places, tuple(_addresses(places))))

    def agree(self, group: Group) -> None:
        """Make sure that all members have the same bases.

        Raises:
            Aborted: The generation is over.
            JobError: A member has others; it is named.
        """
        digests = {base.name: base.digest for base in self._bases}
        text = repr(sorted(digests.items())).encode()
        own = int(hashlib.sha256(text).hexdigest()[:_DIGITS], 16)
        values = group.barrier(WorkerTag.ATTACH, 0, own)
        usual, count = Counter(values).most_common(1)[0]
        if count == len(values):
            return
        odd = [str(m) for m, each in zip(group.members, values, strict=True) if each != usual]
        mine = ", ".join(f"{name} ({digest[:12]})" for name, digest in digests.items())
        raise JobError(
            f"rank {' and rank '.join(odd)} has another base of frozen weights than the other "
            f"workers; rank {group.rank} has {mine or 'none'}: give all hosts the same model "
            "folder and the same versions of libraries"
        )

    def verify(self, group: Group, step: int) -> None:
        """Verify a slice of each base, on one worker of a host, and that models use the bases.

        Raises:
            ReplicaError: A base has changed; the next process that opens it verifies all of it.
            JobError: User code has bound other tensors to a model.
        """
        for each in self._models:
            if tuple(_addresses(each.places)) != each.addresses:
                raise JobError(
                    f"a tensor of the base of {each.prefix.rstrip('.') or 'the model'} was "
                    "replaced during training; other workers and checkpoints would not have the "
                    "change: leave frozen weights and their scales as they are"
                )
        # All workers of a host map the same pages, so one of them verifies for all.
        if group.rank == min(group.local):
            for base in self._bases:
                if not base.is_intact(step):
                    distrust(base)
                    raise ReplicaError(
                        f"has a base {base.name} that has changed since it was verified: the "
                        "memory or disk of its host is faulty, or the file was written to"
                    )

    def _holds(self, tensor: torch.Tensor) -> bool:
        return any(base.holds(tensor) for base in self._bases)


def _addresses(places: Iterable[tuple[nn.Module, str]]) -> Iterator[int]:
    for module, key in places:
        found: Mapping[str, torch.Tensor | None] = (
            module._parameters if key in module._parameters else module._buffers
        )
        tensor = found.get(key)
        if tensor is not None:
            yield tensor.data_ptr()
            yield from (each.data_ptr() for _, each in _scales(key, tensor))


def _scales(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that bitsandbytes keeps with a quantized weight, as an attribute of it."""
    state = getattr(tensor, "quant_state", None)
    while state is not None:
        for key, value in vars(state).items():
            if isinstance(value, torch.Tensor):
                yield f"{name}.quant_state.{key}", value
        state = getattr(state, "state2", None)
