"""Diff: how two checkpoints differ, tensor by tensor and field by field. Knows no torch.

Compared is what a run would continue with, and the results so far: not who wrote a checkpoint, and
when.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from holdfast.arena.layout import ITEM_BYTES, Entry
from holdfast.checkpoint import parts
from holdfast.checkpoint.find import manifest_of, unlocked
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.reader import read_state

_VALUES: Final = {
    "F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1",
    "U8": "u1", "BOOL": "u1", "C64": "c8",
}  # fmt: skip
"""numpy's dtype of each dtype but BF16, which numpy has not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDiff:
    """Difference of a tensor that both have.

    Attributes:
        name: The tensor.
        elements: Number of its elements.
        differing: Number of them that have other bits.
        max_abs: The largest absolute difference of two of them; nan if one of them is not finite.
    """

    name: str
    elements: int
    differing: int
    max_abs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDiff:
    """Differences of two checkpoints.

    Attributes:
        compared: Number of tensors that both have, with the same dtype and shape.
        tensors: Tensors of these that differ.
        unlike: Tensors that only one has, or that have another dtype or shape, by name: what each
            of the two has.
        fields: For each section of the manifests, the fields that differ: what each has; None for
            what it has not.
    """

    compared: int
    tensors: tuple[TensorDiff, ...]
    unlike: dict[str, tuple[str, str]]
    fields: dict[str, dict[str, tuple[Any, Any]]]

    @property
    def is_equal(self) -> bool:
        return not (self.tensors or self.unlike or any(self.fields.values()))


def compare(one: Path, other: Path, advance: Callable[[int], None]) -> CheckpointDiff:
    """Compare two checkpoints, each byte of which is verified.

    Args:
        one: The directory of a checkpoint, whose state is held in memory.
        other: Directory of another one.
        advance: Called with the bytes that were read since the last call.

    Raises:
        CheckpointError: One of them is damaged.
        JobError: One of them is encrypted, and no key opens it.
        OSError: One of them cannot be read.
    """
    manifests = manifest_of(one), manifest_of(other)
    mine, others = ({entry.name: entry for entry in _entries(each)} for each in manifests)
    common = {
        name: entry
        for name, entry in mine.items()
        if name in others and _kind(others[name]) == _kind(entry)
    }
    # The first state is held in memory, since tensors may be at other places in the second.
    state = memoryview(bytearray(manifests[0].size_bytes))
    store = unlocked(one, manifests[0])
    for start, end in read_state(store, one.name, manifests[0], lambda lo, hi: state[lo:hi]):
        advance(end - start)
    found = {name: _Compared(entry, others[name], state) for name, entry in common.items()}
    # The second one is compared chunk by chunk while it is read.
    scratch = memoryview(bytearray(parts.CHUNK_BYTES))
    store = unlocked(other, manifests[1])
    for start, end in read_state(
        store, other.name, manifests[1], lambda lo, hi: scratch[: hi - lo]
    ):
        for name, compared in found.items():
            compared.take(others[name], start, scratch[: end - start])
        advance(end - start)
    return CheckpointDiff(
        compared=len(common),
        tensors=tuple(each.result for each in found.values() if each.differing),
        unlike={
            name: (_kind(mine.get(name)), _kind(others.get(name)))
            for name in {**mine, **others}
            if name not in common
        },
        fields=_field_differences(*manifests),
    )


class _Compared:
    """A tensor of one checkpoint, compared with that of the other as it is read.

    Args:
        entry: Its place in the one.
        there: Its place in the other.
        state: The whole state of the one.
    """

    def __init__(self, entry: Entry, there: Entry, state: memoryview) -> None:
        self._entry = entry
        self._bytes = state[entry.offset : entry.end]
        if entry.strides != there.strides:
            # Values at the same index are compared, so they come into the order of the other.
            stored = np.frombuffer(self._bytes, f"V{ITEM_BYTES[entry.dtype]}")
            values = stored.reshape(entry.stored_shape).transpose(np.argsort(entry.dims))
            self._bytes = memoryview(values.transpose(there.dims).tobytes())
        self.differing = 0
        self._max_abs = 0.0

    @property
    def result(self) -> TensorDiff:
        return TensorDiff(
            name=self._entry.name,
            elements=prod(self._entry.shape),
            differing=self.differing,
            max_abs=self._max_abs,
        )

    def take(self, there: Entry, start: int, chunk: memoryview) -> None:
        """Compare what of the tensor is in a chunk.

        Args:
            there: Its place in the other.
            start: Start of the chunk in the state of the other.
            chunk: Its bytes.
        """
        first = max(there.offset, start)
        last = min(there.end, start + len(chunk))
        if first >= last:
            return
        mine = self._bytes[first - there.offset : last - there.offset]
        other = chunk[first - start : last - start]
        # Bits decide, since nan differs from itself and -0.0 equals 0.0.
        if mine == other:
            return
        bits = f"u{ITEM_BYTES[there.dtype]}"
        differ = np.frombuffer(mine, bits) != np.frombuffer(other, bits)
        self.differing += int(np.count_nonzero(differ))
        values = (_values(each, there.dtype)[differ] for each in (mine, other))
        with np.errstate(invalid="ignore"):  # the difference of two infinities
            distance = np.abs(np.subtract(*values))
        self._max_abs = float(np.maximum(self._max_abs, distance.max()))


def _values(data: memoryview, dtype: str) -> npt.NDArray[np.float64 | np.complex128]:
    if dtype == "BF16":  # the upper half of a float32
        return (np.frombuffer(data, "u2").astype("u4") << 16).view("f4").astype("f8")
    return np.frombuffer(data, _VALUES[dtype]).astype("c16" if dtype == "C64" else "f8")


def _entries(manifest: Manifest) -> list[Entry]:
    """The tensors that have a value."""
    return [each for each in manifest.layout.entries if each.name not in manifest.uninitialized]


def _kind(entry: Entry | None) -> str:
    return "none" if entry is None else f"{entry.dtype}{[*entry.shape]}"


def _field_differences(one: Manifest, other: Manifest) -> dict[str, dict[str, tuple[Any, Any]]]:
    return {
        section: _differences(mine, others)
        for (section, mine), others in zip(
            _sections(one).items(), _sections(other).values(), strict=True
        )
    }


def _sections(manifest: Manifest) -> dict[str, dict[str, Any]]:
    """Values that are compared, apart from tensors."""
    plain = manifest.model_dump(mode="json")
    return {
        "job": plain["weights_config"],
        "metrics": {"loss": plain["loss"], **plain["metrics"], "best": plain["best"]},
        "data": {"step": plain["step"], **plain["order"]},
        "state": {"loss_scale": plain["loss_scale"], **plain["state"], **plain["user_state"]},
    }


def _differences(
    one: Mapping[str, Any], other: Mapping[str, Any], prefix: str = ""
) -> dict[str, tuple[Any, Any]]:
    """The values that differ, those in dictionaries and lists by their path."""
    found = dict[str, tuple[Any, Any]]()
    for key in {**one, **other}:
        mine = one.get(key)
        others = other.get(key)
        parts_of_mine = _parts(mine)
        parts_of_others = _parts(others)
        if parts_of_mine is not None and parts_of_others is not None:
            found |= _differences(parts_of_mine, parts_of_others, f"{prefix}{key}.")
        elif mine != others:
            found[prefix + key] = mine, others
    return found


def _parts(value: Any) -> dict[str, Any] | None:
    """Items of a dictionary by key, or of a list by position; None for other values."""
    if isinstance(value, list):
        return {str(place): each for place, each in enumerate(value)}
    return value if isinstance(value, dict) else None
