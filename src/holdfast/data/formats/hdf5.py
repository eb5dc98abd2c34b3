"""HDF5: features and labels in two data sets of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.data.formats.extra import library
from holdfast.data.images import checked_labels
from holdfast.data.source import BLOCK, Blocks, images_of
from holdfast.errors import JobError
from holdfast.job.data import Records


def blocks(path: Path, spec: Records) -> Blocks:
    """The samples of one file.

    Raises:
        JobError: It is damaged, or does not contain what `spec` says.
    """
    h5py = library("h5py")
    if not isinstance(spec.features, str):
        raise JobError("data.features must name one data set of an HDF5 file, not several")
    try:
        with h5py.File(path, "r") as file:
            features, labels = (
                _data_set(h5py, file, name, path) for name in (spec.features, spec.labels)
            )
            if len(features) != len(labels):
                raise JobError(
                    f"{path}: {spec.features} has {len(features)} rows and {spec.labels} "
                    f"{len(labels)}; they must have the same number"
                )
            for start in range(0, len(labels), BLOCK):
                rows = slice(start, start + BLOCK)
                yield (
                    images_of(features[rows], spec.shape, spec.layout, f"{path}: {spec.features}"),
                    checked_labels(labels[rows], spec.classes, f"{path}: {spec.labels}"),
                )
    except (OSError, RuntimeError, KeyError) as error:  # h5py's, for damaged files
        reason = " ".join(str(error).split())
        raise JobError(f"{path} is damaged or not an HDF5 file: {reason}; replace it") from None


def _data_set(h5py: Any, file: Any, name: str, path: Path) -> Any:
    data_set = file.get(name)
    if not isinstance(data_set, h5py.Dataset) or not data_set.shape:
        raise JobError(f"{path} has no data set {name}; it has {', '.join(_names(h5py, file))}")
    if data_set.is_virtual:
        raise JobError(
            f"{path}: {name} is a virtual data set, whose missing parts read as zeros; copy it to "
            "a separate file"
        )
    return data_set


def _names(h5py: Any, file: Any) -> list[str]:
    """The data sets in a file, in all its groups."""
    names: list[str] = []
    file.visititems(
        lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None
    )
    return names or ["none"]
