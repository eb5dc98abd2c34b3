"""Parquet: features in a column, or in several columns of numbers, and labels in another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.data.formats.extra import library
from holdfast.data.formats.pictures import all_decoded
from holdfast.data.images import Pixels, checked_labels
from holdfast.data.source import BLOCK, Blocks, images_of
from holdfast.errors import JobError
from holdfast.job.data import Records


def blocks(path: Path, spec: Records) -> Blocks:
    """The samples of one file.

    Raises:
        JobError: It is damaged, or does not contain what `spec` says.
    """
    arrow = library("pyarrow")
    parquet = library("pyarrow.parquet")
    features = (spec.features,) if isinstance(spec.features, str) else spec.features
    names = [*features, spec.labels]
    where = f"{path}: {', '.join(features)}"
    row = 0
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            missing = [name for name in names if name not in file.schema_arrow.names]
            if missing:
                there = ", ".join(file.schema_arrow.names)
                raise JobError(f"{path} has no column {missing[0]}; it has {there}")
            for batch in file.iter_batches(BLOCK, columns=names):
                columns = [_filled(batch.column(name), f"{path}: {name}") for name in names]
                yield (
                    _features(arrow, columns[:-1], spec, where, row),
                    checked_labels(_numbers(columns[-1]), spec.classes, f"{path}: {spec.labels}"),
                )
                row += len(batch)
    except (OSError, ValueError, arrow.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise JobError(f"{path} is damaged or not a Parquet file: {reason}; replace it") from None


def _features(arrow: Any, columns: list[Any], spec: Records, where: str, row: int) -> Pixels:
    """The images in some columns of neighbouring rows, the first of which is `row`."""
    if len(columns) > 1:
        values = np.stack([_numbers(column) for column in columns], axis=1)
        return images_of(values, spec.shape, spec.layout, where)
    column = columns[0]
    if arrow.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
        column = _filled(column.field("bytes"), where)  # how the Hugging Face hub stores images
    if arrow.types.is_binary(column.type) or arrow.types.is_large_binary(column.type):
        return all_decoded(column.to_pylist(), spec.height, where, row)
    return images_of(_unnested(arrow, column, where), spec.shape, spec.layout, where)


def _unnested(arrow: Any, column: Any, where: str) -> npt.NDArray[Any]:
    """A column of numbers, lists of numbers, lists of such lists … as one array."""
    types = arrow.types
    compute = library("pyarrow.compute")
    dimensions = [len(column)]
    while (
        types.is_list(column.type)
        or types.is_large_list(column.type)
        or types.is_fixed_size_list(column.type)
    ):
        lengths = np.unique(_numbers(compute.list_value_length(column)))
        if len(lengths) != 1:
            raise JobError(
                f"{where}: lists of {lengths[0]} and of {lengths[-1]} numbers; "
                "give them the same length"
            )
        dimensions.append(int(lengths[0]))
        column = _filled(column.flatten(), where)
    return _numbers(column).reshape(dimensions)


def _filled(column: Any, where: str) -> Any:
    if column.null_count:
        raise JobError(f"{where}: {column.null_count} cells are empty; fill or remove them")
    return column


def _numbers(column: Any) -> npt.NDArray[Any]:
    numbers: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return numbers
