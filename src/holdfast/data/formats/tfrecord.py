"""TFRecord: files of `tf.train.Example`, read without TensorFlow; every checksum is verified.

A record is its length (8 bytes, little-endian), the masked CRC-32C of the length, its bytes, and
their masked CRC-32C. See tensorflow/core/lib/io/record_writer.h and core/example/example.proto.
The `tfrecord` package reads the same format, but verifies no checksum.

The format has no end mark: a plain file that was truncated between two records looks complete. A
compressed one (.gz) does not, and no part of files named `…-00000-of-00008` may be missing.
"""

from __future__ import annotations

import gzip
import itertools
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from holdfast.data.formats.extra import library
from holdfast.data.formats.pictures import all_decoded
from holdfast.data.images import Labels, Pixels, checked_labels
from holdfast.data.source import BLOCK, Blocks, images_of
from holdfast.errors import JobError
from holdfast.job.data import Records

Value = bytes | npt.NDArray[Any]
"""The value of an example's feature: one string of bytes, or a vector of numbers."""

_MASK: Final = 0xA282EAD8

_MESSAGES: Final = {
    "BytesList": ["value 1 * BYTES"],
    "FloatList": ["value 1 * FLOAT"],
    "Int64List": ["value 1 * INT64"],
    "Feature": ["bytes_list 1 1 BytesList", "float_list 2 1 FloatList", "int64_list 3 1 Int64List"],
    "Entry": ["key 1 1 STRING", "value 2 1 Feature"],
    "Features": ["feature 1 * Entry"],
    "Example": ["features 1 1 Features"],
}
"""The messages of an example: name, number, multiplicity (`*`: repeated) and type of each field. On
the wire a map is a list of entries.
"""


def blocks(path: Path, spec: Records) -> Blocks:
    """The samples of one file.

    Raises:
        JobError: It is damaged, or does not contain what `spec` says.
    """
    if not isinstance(spec.features, str):
        raise JobError("data.features must name one feature of a TFRecord file, not several")
    parse = _parser()
    records = _records(path)
    row = 0
    while block := list(itertools.islice(records, BLOCK)):
        values = list[Value]()
        labels = list[Value]()
        for number, record in enumerate(block, start=row):
            example = parse(record, f"{path}, record {number}")
            values.append(_value(example, spec.features, f"{path}, record {number}"))
            labels.append(_value(example, spec.labels, f"{path}, record {number}"))
        yield (
            _pixels(values, spec, f"{path}: {spec.features}", row),
            _classes(labels, spec.classes, f"{path}: {spec.labels}"),
        )
        row += len(block)


def _records(path: Path) -> Iterator[bytes]:
    """The records of a file.

    Raises:
        JobError: One is damaged or truncated.
    """
    checksum = library("google_crc32c").value
    try:
        if path.suffix == ".gz" and path.stat().st_size == 0:
            raise JobError(f"{path} is empty, so it is not a compressed file; replace it")
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number in itertools.count():
                head = file.read(12)
                if not head:
                    return
                whole = len(head) == 12 and _masked(checksum(head[:8])) == head[8:]
                size = int.from_bytes(head[:8], "little") if whole else 0
                body = file.read(size + 4)
                if not whole or len(body) != size + 4 or _masked(checksum(body[:-4])) != body[-4:]:
                    raise JobError(
                        f"{path}: record {number} is damaged or truncated; replace the file"
                    )
                yield body[:-4]
    except (OSError, EOFError, zlib.error) as error:
        raise JobError(f"{path} cannot be read: {error}; replace it") from None


def _masked(crc: int) -> bytes:
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF)


def _parser() -> Callable[[bytes, str], dict[str, Any]]:
    """A function from a record (and its name in errors) to its features by name."""
    message = library("google.protobuf.message")
    example_class = _example_class()

    def parse(record: bytes, where: str) -> dict[str, Any]:
        try:
            example = example_class.FromString(record)
        except message.DecodeError:
            raise JobError(f"{where} is not a tf.train.Example; replace the file") from None
        return {entry.key: entry.value for entry in example.features.feature}

    return parse


def _example_class() -> Any:
    descriptors = library("google.protobuf.descriptor_pb2")
    field_class = descriptors.FieldDescriptorProto
    file = descriptors.FileDescriptorProto(name="example", package="example", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for label, number, times, kind in map(str.split, fields):
            added = message.field.add(name=label, number=int(number))
            repeated = times == "*"
            added.label = field_class.LABEL_REPEATED if repeated else field_class.LABEL_OPTIONAL
            if kind in _MESSAGES:
                added.type_name = f".example.{kind}"
            else:
                added.type = getattr(field_class, f"TYPE_{kind}")
    pool = library("google.protobuf.descriptor_pool").DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    descriptor = pool.FindMessageTypeByName("example.Example")
    return library("google.protobuf.message_factory").GetMessageClass(descriptor)


def _value(example: dict[str, Any], name: str, where: str) -> Value:
    feature = example.get(name)
    if feature is None:
        raise JobError(f"{where} has no feature {name}; it has {', '.join(sorted(example))}")
    if feature.float_list.value:
        return np.array(feature.float_list.value, np.float32)
    if feature.int64_list.value:
        return np.array(feature.int64_list.value, np.int64)
    if len(feature.bytes_list.value) != 1:
        raise JobError(f"{where}: feature {name} must have exactly one value; remove the record")
    value: bytes = feature.bytes_list.value[0]
    return value


def _pixels(values: list[Value], spec: Records, where: str, row: int) -> Pixels:
    pictures = [value for value in values if isinstance(value, bytes)]
    if len(pictures) == len(values) and spec.shape is None:
        return all_decoded(pictures, spec.height, where, row)
    return images_of(_stacked(values, where), spec.shape, spec.layout, where)


def _classes(values: list[Value], classes: int, where: str) -> Labels:
    numbers = [value for value in values if not isinstance(value, bytes) and len(value) == 1]
    if len(numbers) != len(values):
        raise JobError(f"{where}: labels must be one integer per record; convert them")
    return checked_labels(np.concatenate(numbers), classes, where)


def _stacked(values: list[Value], where: str) -> npt.NDArray[Any]:
    """Equally long vectors, [n, length]; bytes count as numbers from 0 to 255."""
    rows = [np.frombuffer(v, np.uint8) if isinstance(v, bytes) else v for v in values]
    kinds = {(row.dtype.str, row.shape) for row in rows}
    if len(kinds) != 1:
        raise JobError(
            f"{where}: the records have {len(kinds)} kinds of value; give all the same type and "
            "length"
        )
    return np.stack(rows)
