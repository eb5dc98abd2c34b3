"""Replica: everything that training changes, in one flat and aligned range of memory.

    parameters | buffers | kept modules | optimizer state

The optimizer works on views of it. So does the model, except for its buffers: those in the replica
change only at a commit (see `worker.step.buffers`). So a checkpoint, a state transfer and a replica
check are each one pass over bytes, and none of them knows what a model is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from holdfast.arena import optimizer_state
from holdfast.arena.digest import digest
from holdfast.arena.holding import Holding
from holdfast.arena.layout import Entry, Layout, aligned
from holdfast.arena.nested_optimizers import groups_of, parameters_of, states_of
from holdfast.arena.state_dicts import plain_name
from holdfast.arena.tensors import check_separate, field_of, pack_by_dtype, view, views
from holdfast.errors import JobError

MODEL: Final = "model."
KEPT: Final = "kept."
_COUNT_OF_WRITES: Final = attrgetter("_version")
_ADDRESS: Final = torch.Tensor.data_ptr

StateTensors = Sequence[tuple[str, dict[str, Any], str]]
"""The tensors that optimizers keep: the name of each, and the dictionary and key that hold it."""

T = TypeVar("T")


class Writes(NamedTuple):
    """Counts of writes to tensors, and their addresses.

    Writes are counted by autograd, which does not see those through `.data`.

    Attributes:
        names: Their names.
        counts: Count of writes to each.
        addresses: Address of each.
    """

    names: tuple[str, ...]
    counts: list[int]
    addresses: list[int]

    def since(self, before: Writes) -> list[str]:
        """The tensors that are new, were written to, or have moved."""
        known = set(zip(*before, strict=True))
        return [each[0] for each in zip(*self, strict=True) if each not in known]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The part of a model that one worker holds.

    Attributes:
        holding: Part that it holds of the state.
        of_ranks: Part of each rank, by which other hosts can keep its part, too.
        parameters: Parameters that it holds, or its rows of them, by name.
        buffers: Names of the buffers that it holds.
        state_dicts: `Trained.state_dicts` of the whole model.
    """

    holding: Holding
    of_ranks: Sequence[Holding] = ()
    parameters: Mapping[str, nn.Parameter]
    buffers: frozenset[str]
    state_dicts: dict[str, dict[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The objects whose tensors make up a replica.

    Attributes:
        model: Model that is trained.
        optimizers: Hold parameters of `model`, each its own, and have taken no step.
        kept: Further modules that the user has registered, such as an average of the model.
        in_base: Names of parameters and buffers of the model that a base holds: they are no state.
        bases: The digest of each base by its name.
        part: Part that this worker holds of the model; None if it holds all.
    """

    model: nn.Module
    optimizers: tuple[Optimizer, ...]
    kept: Mapping[str, nn.Module] = field(default_factory=dict)
    in_base: frozenset[str] = frozenset()
    bases: Mapping[str, str] = field(default_factory=dict)
    part: Part | None = None

    def size_bytes(self, whole: Layout) -> int:
        """The memory that this worker needs of a state with the layout `whole`, bytes."""
        return (self.part.holding.own if self.part else whole).size_bytes

    def state_dicts(self) -> dict[str, dict[str, str]]:
        """The state dicts of the model (`""`) and of kept modules, by name: the replica's name of
        the tensor of each key. A tensor may have several keys.
        """
        if self.part is not None:
            return self.part.state_dicts
        # By identity, not by key: tied weights have several keys and one place.
        own = {**self.model_parameters(), **self.model_buffers()}
        named = {id(tensor): MODEL + name for name, tensor in own.items()}
        kept = {**self.kept_parameters(), **self.kept_buffers()}
        named |= {id(tensor): name for name, tensor in kept.items()}
        return {
            name: {
                plain_name(key): named[id(value)]
                for key, value in module.state_dict(keep_vars=True).items()
                if id(value) in named
            }
            for name, module in {"": self.model, **self.kept}.items()
        }

    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that are trained, or may be later, by name: those that require a gradient
        or that an optimizer holds.
        """
        held = set(map(id, parameters_of(*self.optimizers)))
        own = self.model_parameters().items()
        return {name: p for name, p in own if p.requires_grad or id(p) in held}

    def model_parameters(self) -> dict[str, nn.Parameter]:
        """The model's parameters by name, without those of a base."""
        if self.part is not None:
            return dict(self.part.parameters)
        own = self.model.named_parameters()
        return {plain_name(n): p for n, p in own if n not in self.in_base}

    def model_buffers(self) -> dict[str, torch.Tensor]:
        """The model's buffers by name, without those of a base."""
        own = self.model.named_buffers()
        named = {plain_name(n): b for n, b in own if n not in self.in_base}
        return {n: b for n, b in named.items() if self.part is None or n in self.part.buffers}

    def kept_parameters(self) -> dict[str, nn.Parameter]:
        """Parameters of kept modules that are not the model's, by name in a replica."""
        own = set(map(id, self.model.parameters()))
        return {n: p for n, p in self._kept(lambda m: m.named_parameters()) if id(p) not in own}

    def kept_buffers(self) -> dict[str, torch.Tensor]:
        """Buffers of kept modules that are not the model's, by name in a replica."""
        own = set(map(id, self.model.buffers()))
        return {n: b for n, b in self._kept(lambda m: m.named_buffers()) if id(b) not in own}

    def _kept(self, of: Callable[[nn.Module], Iterator[tuple[str, T]]]) -> Iterator[tuple[str, T]]:
        for name, module in self.kept.items():
            for key, tensor in of(module):
                yield f"{KEPT}{name}.{plain_name(key)}", tensor


def replica_layout(trained: Trained) -> Layout:
    """The layout of what training changes.

    Raises:
        JobError: The optimizer is not one that can be laid out.
    """
    parameters = trained.model_parameters()
    buffers = trained.model_buffers()
    names: dict[torch.Tensor, str] = {p: name for name, p in parameters.items()}
    kept = {**trained.kept_parameters(), **trained.kept_buffers()}
    check_separate({**parameters, **buffers}, parameters)
    return Layout.pack(
        [
            *pack_by_dtype(field_of(MODEL + n, p) for p, n in names.items()).entries,
            *pack_by_dtype(field_of(MODEL + n, b) for n, b in buffers.items()).entries,
            *pack_by_dtype(field_of(n, tensor) for n, tensor in kept.items()).entries,
            *optimizer_state.expected_fields(trained.optimizers, names),
        ]
    )


class Replica:
    """One worker's copy of the trained state.

    Args:
        trained: The objects whose tensors move into the flat memory.
        layout: From `replica_layout`, of the whole model.
        flat: The memory to move to, uint8[size_bytes] of what this worker holds, aligned to 64
            bytes.
        empty: True to leave the memory as it is, because all of it will be written.

    Attributes:
        holding: Part that this worker holds of the state.
        of_ranks: Part of each rank; empty if each has all.
        layout: Layout of `flat`.
        flat: All of what this worker holds; padding is zero.
        parameters: The model's parameters by name, without those of a base.
        buffers: The committed values of the model's buffers by name, without those of a base.
        kept_parameters, state_dicts, bases: Values of `trained`.
        known_state: State that `state_tensors` has found.
        uninitialized: Optimizer state that does not exist yet, in order: its parameter has had no
            gradient so far.
        uninitialized_elsewhere: The same of parameters that only other workers hold.
    """

    def __init__(
        self, trained: Trained, layout: Layout, flat: torch.Tensor, *, empty: bool = False
    ) -> None:
        self.model = trained.model
        self.optimizers = trained.optimizers
        self.state_dicts = trained.state_dicts()
        self.bases = trained.bases
        self.holding = trained.part.holding if trained.part else Holding.of_all(layout)
        self.of_ranks = trained.part.of_ranks if trained.part else ()
        self.layout = layout = self.holding.own
        self.flat = flat
        self.parameters = trained.model_parameters()
        self.model_buffers = trained.model_buffers()
        self._names: dict[torch.Tensor, str] = {p: name for name, p in self.parameters.items()}
        self._views = views(self.flat, self.layout)
        if not empty:
            flat.zero_()
        self.kept_parameters = trained.kept_parameters()
        self._moved = {MODEL + n: p for n, p in self.parameters.items()} | self.kept_parameters
        self._addresses = [self._views[name].data_ptr() for name in self._moved]
        self.buffers = {name: self._views[MODEL + name] for name in self.model_buffers}
        kept_buffers = trained.kept_buffers()
        own = {id(buffer): name for name, buffer in kept_buffers.items()}
        self._kept_places = [
            (module, key, own[id(buffer)])
            for kept in trained.kept.values()
            for module in kept.modules()
            for key, buffer in module._buffers.items()
            if id(buffer) in own
        ]
        self._state_changes = optimizer_state.StateChanges(self.optimizers)
        self.known_state: StateTensors = []
        self._watched: dict[str, torch.Tensor] = {**self._moved}
        self._captured_state: object = None
        laid_out = (entry.name for entry in layout.entries)
        self._state_names = sorted(filter(optimizer_state.is_one, laid_out))
        self.uninitialized = self._state_names
        self.uninitialized_elsewhere: Sequence[str] = ()
        # From here on the optimizers and the model work on views of `flat`.
        with torch.no_grad():
            self._move_in(empty=empty)

    def _move_in(self, *, empty: bool) -> None:
        def home(name: str, tensor: torch.Tensor) -> torch.Tensor:
            return self._views[name] if empty else self._views[name].copy_(tensor)

        # Through `.data`: user code and optimizers hold these very parameters, so they stay the
        # same objects.
        for name, moved in self._moved.items():
            moved.data = home(name, moved.data)
        # Only their values move in. The model keeps computing with tensors of its own; see
        # `Buffers`.
        for name, own in self.model_buffers.items():
            home(MODEL + name, own)
        # Buffers of kept modules change between two steps only, so they are bound like parameters.
        for module, key, name in self._kept_places:
            buffer = module._buffers[key]
            assert buffer is not None
            module._buffers[key] = home(name, buffer)
        # State that optimizers create when they are built; the rest is created in their first step,
        # and bound by `capture_optimizers`.
        for name, state, key in self.state_tensors():
            state[key] = home(name, state[key])

    def step_optimizers(self) -> None:
        """Step the optimizers of which a parameter has a gradient, with a result that depends only
        on their input; a single one steps always.

        On several threads, PyTorch's fused CPU kernels for SGD with momentum and Adagrad give
        different bits from call to call where parameters are bfloat16 or float16 (seen in 2.13). On
        one thread they do not.
        """
        # A step that trains one of several models leaves the optimizers of the others alone.
        due = self.optimizers
        if len(due) > 1:
            due = tuple(o for o in due if any(p.grad is not None for p in parameters_of(o)))
        threads = torch.get_num_threads()
        for optimizer in due:
            if threads > 1 and any(map(_is_fused_in_half, groups_of(optimizer))):
                torch.set_num_threads(1)
            try:
                with _counting_on_gpu(optimizer):
                    optimizer.step()
            finally:
                torch.set_num_threads(threads)

    def capture_modules(self) -> None:
        """Copy parameters and kept buffers that user code has bound to other memory, and bind them
        to the replica again.

        Raises:
            JobError: One has changed its shape.
        """
        at_home = self._addresses == [*map(_ADDRESS, self._moved.values())]
        for name, parameter in self._moved.items() if not at_home else ():
            home = self._views[name]
            # User code has assigned to `.data`, or moved the module: the values count, the memory
            # does not.
            if parameter.data_ptr() != home.data_ptr():
                parameter.data = home.copy_(_of_shape(name, parameter.data, home))
        for module, key, name in self._kept_places:
            buffer = module._buffers[key]
            home = self._views[name]
            if buffer is not home:
                module._buffers[key] = home.copy_(_of_shape(name, buffer, home))

    def capture_optimizers(self) -> None:
        """Copy state that an optimizer has bound to other memory, and bind it to the replica again.

        Raises:
            JobError: An optimizer keeps state that its first step did not create.
        """
        tensors = self.state_tensors()
        if tensors is self._captured_state:
            return
        for name, state, key in tensors:
            value = state[key]
            home = self._views.get(name)
            if value is home:
                continue
            if home is None or value.shape != home.shape:
                raise JobError(
                    f"the optimizer's state {name} is new or has another shape since its first "
                    "steps; use an optimizer whose state keeps its shape"
                )
            home.copy_(value)
            state[key] = home
        self._captured_state = self.state_tensors()

    def release(self) -> None:
        """Bind the model and kept modules to memory that is not part of the state.

        The model's buffers have their own already; see `worker.step.buffers`.
        """
        for name, parameter in self._moved.items():
            parameter.data = self._views[name].clone()
        for module, key, name in self._kept_places:
            module._buffers[key] = self._views[name].clone()

    def state_tensors(self) -> StateTensors:
        """The tensors that optimizers keep for parameters; the same list as before, unless an
        optimizer keeps another object since.
        """
        if self._state_changes.found():
            self.known_state = [
                (name, values, key)
                for optimizer in self.optimizers
                for name, values, key in optimizer_state.entries_of(optimizer, self._names)
                if isinstance(values[key], torch.Tensor)
            ]
            known = {name: held[key] for name, held, key in self.known_state}
            self._watched = self._moved | known
            self.uninitialized = [name for name in self._state_names if name not in known]
        return self.known_state

    def writes(self) -> Writes:
        """The writes to parameters, kept buffers and `known_state`."""
        tensors = self._watched
        if self._kept_places:
            kept = ((name, module._buffers[key]) for module, key, name in self._kept_places)
            tensors = tensors | {name: buffer for name, buffer in kept if buffer is not None}
        values = tensors.values()
        counts = list(map(_COUNT_OF_WRITES, values))
        return Writes(tuple(tensors), counts, list(map(_ADDRESS, values)))

    def restored(self, uninitialized: frozenset[str]) -> None:
        """Give the optimizers their state, which was written into `flat`, except what is
        `uninitialized`.
        """
        # The keys of each parameter in each state, by the beginning of their names.
        keys: dict[str, list[str]] = {}
        for name in filter(optimizer_state.is_one, self._views):
            if name in uninitialized:
                continue
            prefix, colon, key = name.rpartition(":")
            keys.setdefault(prefix + colon, []).append(key)
        for optimizer in self.optimizers:
            own = parameters_of(optimizer)
            for path, state in states_of(optimizer):
                for parameter in (each for each in own if each in self._names):
                    # All of it is replaced: keys that the other replica does not have must not
                    # survive.
                    state.pop(parameter, None)
                    prefix = optimizer_state.name_of(self._names[parameter], "", path)
                    if prefix in keys:
                        state[parameter] = {key: self._views[prefix + key] for key in keys[prefix]}
        self.state_tensors()

    def memory_of(self, name: str) -> torch.Tensor:
        """The memory of a tensor of which this worker holds rows, padding included: uint8[n]."""
        start, size = self.holding.memory[name]
        return self.flat[start : start + size]

    def digest(self, *ranges: tuple[int, int]) -> int:
        """A number that tells two replicas apart; see `arena.digest`.

        Args:
            ranges: The start and end of parts of `flat`, bytes; all of it by default.
        """
        return digest(self.flat[start:end] for start, end in ranges or [(0, None)])

    def entries_between(self, start: int, end: int) -> list[Entry]:
        """The tensors that have bytes between `start` and `end`."""
        return [e for e in self.layout.entries if e.offset < end and e.end > start]

    def ranges_of(self, names: Collection[str]) -> list[tuple[int, int]]:
        """The ranges of these tensors in `flat`, bytes; neighbours are one range."""
        ranges: list[tuple[int, int]] = []
        for entry in (each for each in self.layout.entries if each.name in names):
            adjoins = ranges and entry.offset == ranges[-1][1]
            start = ranges.pop()[0] if adjoins else entry.offset
            ranges.append((start, aligned(entry.end)))
        return ranges

    @cached_property
    def buffer_range(self) -> tuple[int, int]:
        """The range of the model's buffers in `flat`, bytes."""
        mine = {MODEL + name for name in self.buffers}
        entries = [entry for entry in self.layout.entries if entry.name in mine]
        return (entries[0].offset, aligned(entries[-1].end)) if entries else (0, 0)

    def weights_sha256(self) -> str:
        """SHA-256 of the weights, where this worker holds all of them; see `weights_sha256`."""
        flat = self.flat.cpu()
        return weights_sha256(self.layout, self.bases, lambda entry: view(flat, entry))


def weights_sha256(
    layout: Layout, bases: Mapping[str, str], tensor_of: Callable[[Entry], torch.Tensor]
) -> str:
    """SHA-256 over the digests of bases, and all other parameters and buffers in name order: name,
    dtype, shape and bytes, as a contiguous tensor has them.

    Args:
        layout: Layout of the state.
        bases: The digest of each base by its name.
        tensor_of: Gives a tensor of the state, on the CPU.
    """
    hasher = hashlib.sha256()
    for name, base in sorted(bases.items()):
        hasher.update(f"base {name}\0{base}\0".encode())
    entries = (entry for entry in layout.entries if entry.name.startswith(MODEL))
    # By name and not by offset, so that the digest does not depend on the layout.
    for entry in sorted(entries, key=lambda entry: entry.name):
        name = entry.name.removeprefix(MODEL)
        # With dtype and shape, so that equal bytes of different tensors give different digests.
        hasher.update(f"{name}\0{entry.dtype}\0{list(entry.shape)}\0".encode())
        values = tensor_of(entry).contiguous().view(-1).view(torch.uint8)
        hasher.update(values.numpy().data)
    return hasher.hexdigest()


def _of_shape(name: str, tensor: torch.Tensor | None, home: torch.Tensor) -> torch.Tensor:
    if tensor is None or tensor.shape != home.shape:
        now = "None" if tensor is None else f"a tensor of shape {tuple(tensor.shape)}"
        raise JobError(
            f"{name} had shape {tuple(home.shape)} when training began and is {now} now; "
            "it must keep its shape"
        )
    return tensor


@contextmanager
def _counting_on_gpu(optimizer: Optimizer) -> Iterator[None]:
    """Within the context, an optimizer uses the step counts of a GPU where they are: in the
    replica. Otherwise PyTorch would read each of them, and wait for the GPU.
    """
    groups = [
        group
        for group in groups_of(optimizer)
        if group.get("capturable") is False
        and not group.get("fused")
        and any(parameter.is_cuda for parameter in group["params"])
    ]
    for group in groups:
        group["capturable"] = True
    try:
        yield
    finally:
        for group in groups:
            group["capturable"] = False


def _is_fused_in_half(group: Mapping[str, Any]) -> bool:
    """True if a parameter group is updated by a fused kernel in 16 bits."""
    halves = (torch.bfloat16, torch.float16)
    return bool(group.get("fused")) and any(each.dtype in halves for each in group["params"])
