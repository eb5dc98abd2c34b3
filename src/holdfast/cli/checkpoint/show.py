"""`holdfast checkpoint show`: what the manifest of a checkpoint says, for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast.arena.layout import Entry
from holdfast.checkpoint.find import find_checkpoint, manifest_of
from holdfast.checkpoint.manifest import Manifest, Origin
from holdfast.cli.arguments import Json
from holdfast.cli.checkpoint.reading import RunOrCheckpoint, reachable
from holdfast.core.code_version import in_words
from holdfast.record.units import NBSP, count, size
from holdfast.rundir.json_lines import finite
from holdfast.sinks.terminal import closing_table

MAX_WIDTH: Final = 100
"""Longest text of a field that is shown under its own name."""
_IN_WORDS: Final = frozenset(
    {
        "step", "generation", "tensors", "size_bytes", "uninitialized", "state_dicts", "loss",
        "metrics", "best", "order", "parts", "origin", "parent", "signature",
    }
)  # fmt: skip
"""Fields that are shown in words."""
_NOT_SHOWN: Final = frozenset({"weights_config", "state", "user_state", "costs", "hugging_face"})
"""Fields that only a program reads."""


def show(checkpoint: RunOrCheckpoint, as_json: Json = False) -> None:
    """Show what a checkpoint holds: step, tensors, metrics, place in the data, versions."""
    with reachable(checkpoint):
        path = find_checkpoint(checkpoint)
        manifest = manifest_of(path)
    if as_json:
        print(json.dumps(finite({"checkpoint": str(path), **manifest.model_dump(mode="json")})))
        return
    rows = {"checkpoint": str(path), **dict(_in_words(manifest)), **dict(_others(manifest))}
    print(closing_table(rows).replace(NBSP, " "))


def _in_words(manifest: Manifest) -> Iterator[tuple[str, str]]:
    entries = manifest.layout.entries
    yield "step", f"{manifest.step}, written by generation {manifest.generation}"
    yield "made", _origin(manifest.origin)
    if manifest.parent is not None:
        yield "follows", f"{manifest.parent.name}, root {manifest.parent.root}"
    yield "signed", "no" if manifest.signature is None else f"by key {manifest.signature.key}"
    yield "encrypted", "yes" if any(part.encryption for part in manifest.parts) else "no"
    yield "size", f"{size(manifest.size_bytes)} in {count(len(manifest.parts), 'part')}"
    yield "tensors", f"{len(entries)}" + (f"; largest {_largest(entries)}" if entries else "")
    if manifest.uninitialized:
        yield "without a value", ", ".join(manifest.uninitialized)
    modules = [f"{name or 'model'} ({len(keys)})" for name, keys in manifest.state_dicts.items()]
    yield "state dicts", ", ".join(modules)
    yield "loss", "none" if manifest.loss is None else f"{manifest.loss:.6g}"
    if manifest.metrics:
        yield "metrics", ", ".join(f"{name} {value}" for name, value in manifest.metrics.items())
    if manifest.best.value is not None:
        yield "best", f"{manifest.best.value:.6g} after step {manifest.best.step}"
    yield "data", _place(manifest.order, manifest.step)


def _origin(origin: Origin) -> str:
    """Time, host and code of a checkpoint."""
    at = f"{origin.at} on {origin.host}"
    version = in_words(origin.code)
    return f"{at}, {version}" if version else at


def _largest(entries: tuple[Entry, ...]) -> str:
    entry = max(entries, key=lambda entry: entry.size_bytes)
    return f"{entry.name} {entry.dtype}{[*entry.shape]}, {size(entry.size_bytes)}"


def _place(facts: Mapping[str, Any], step: int) -> str:
    """Position in the data after `step` steps."""
    from holdfast.data.loading.order import SampleOrder  # imports numpy

    order = SampleOrder.of_facts(facts)
    if order is None:
        return f"a stream of {facts['stream']}" if "stream" in facts else "none"
    epochs, steps = divmod(step, order.steps_per_epoch)
    return (
        f"{epochs} of {count(order.epochs, 'epoch')} and {steps} of {order.steps_per_epoch} steps; "
        f"{count(order.num_samples, 'sample')} in batches of {order.batch_size}, "
        f"{count(order.num_shards, 'shard')}, seed {order.seed}"
    )


def _others(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """All other fields under their own names, if they say anything; so new ones need nothing."""
    for name in type(manifest).model_fields:
        value = getattr(manifest, name)
        if name in _IN_WORDS | _NOT_SHOWN or value in (None, "", (), {}):
            continue
        text = _text(value)
        yield name.replace("_", " "), text if len(text) <= MAX_WIDTH else f"{text[:MAX_WIDTH]} …"


def _text(value: object) -> str:
    match value:
        case str() | int() | float():
            return str(value)
        case dict():
            return ", ".join(f"{name} {_text(each)}" for name, each in value.items())
        case tuple() | list():
            return ", ".join(map(_text, value))
    return json.dumps(value, default=dict)
