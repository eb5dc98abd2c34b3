"""HDF5, Parquet and TFRecord: the same samples from each, completely or not at all."""

import gzip
import io
import random
import struct
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import Library, needs_library
from holdfast.data.catalog import build
from holdfast.data.formats import tfrecord
from holdfast.data.images import split
from holdfast.errors import JobError
from holdfast.job.data import Records

pytestmark = needs_library("google_crc32c", "h5py", "pyarrow")

crc32c = Library("google_crc32c")
h5py = Library("h5py")
parquet = Library("pyarrow.parquet")
pyarrow = Library("pyarrow")

KINDS = ["hdf5", "parquet", "tfrecord"]

SIZE = 40
IMAGES = np.random.default_rng(0).integers(256, size=(SIZE, 6, 5, 3), dtype=np.uint8)
LABELS = np.arange(SIZE) % 4


def png(image):
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def example(features):
    """A `tf.train.Example` of bytes, whole numbers or floats by name."""
    message = tfrecord._example_class()()
    for name, value in features.items():
        entry = message.features.feature.add()
        entry.key = name
        if isinstance(value, bytes):
            entry.value.bytes_list.value.append(value)
        elif np.asarray(value).dtype.kind == "f":
            entry.value.float_list.value.extend(np.ravel(value).tolist())
        else:
            entry.value.int64_list.value.extend(np.ravel(value).tolist())
    return message.SerializeToString()


def framed(record):
    def masked(data):
        crc = crc32c.value(data)
        return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(record))
    return length + masked(length) + record + masked(record)


def listed(values):
    """Lists of lists, as deep as `values`, for Parquet."""
    kind = pyarrow.from_numpy_dtype(values.dtype)
    for _ in values.shape[1:]:
        kind = pyarrow.list_(kind)
    return pyarrow.array(values.tolist(), kind)


def write(path, kind, **columns):
    """One file of `kind`; a column is an array, or a list of bytes."""
    if kind == "hdf5":
        with h5py.File(path, "w") as file:
            for name, values in columns.items():
                file.create_dataset(name, data=values, chunks=True, compression="gzip")
    elif kind == "parquet":
        table = {
            name: pyarrow.array(values) if isinstance(values, list) else listed(values)
            for name, values in columns.items()
        }
        parquet.write_table(pyarrow.table(table), path, write_page_checksum=True)
    else:
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        path.write_bytes(b"".join(framed(example(row)) for row in rows))
    return path


def records(kind, path, **keys):
    keys = {"features": "x", "labels": "y", "classes": 4, **keys}
    return build(Records(name=kind, path=path, **keys))


def everything(splits):
    """The images of both parts, in the order in which they were stored, and their labels."""
    rows = np.concatenate(split(SIZE, "all"))
    parts = [
        part.batch(np.arange(len(part)), torch.Generator())
        for part in (splits.training, splits.test)
    ]
    return (torch.cat(values)[np.argsort(rows)].numpy() for values in zip(*parts, strict=True))


def standardised(images):
    """What is to come of images [n, channels, height, width]."""
    learned = images[split(SIZE, "all")[0]].astype(np.float64)
    mean, deviation = (f(learned, (0, 2, 3), keepdims=True) for f in (np.mean, np.std))
    return ((images - mean) / deviation).astype(np.float32)


def assert_holds(splits, images):
    x, y = everything(splits)
    np.testing.assert_allclose(x, standardised(images), rtol=1e-4, atol=1e-5)
    assert np.array_equal(y, LABELS)
    assert splits.shape == images.shape[1:]
    assert (len(splits.training), len(splits.test)) == (36, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_read_as_they_were_written(tmp_path, kind):
    vectors = np.random.default_rng(1).normal(3, 2, (SIZE, 7)).astype(np.float32)
    found = records(kind, write(tmp_path / "f", kind, x=vectors, y=LABELS))
    assert_holds(found, vectors[:, :, None, None])


@pytest.mark.parametrize("kind", ["hdf5", "parquet"])
def test_image_arrays_are_read_as_they_were_written(tmp_path, kind):
    found = records(kind, write(tmp_path / "f", kind, x=IMAGES, y=LABELS))
    assert_holds(found, IMAGES.transpose(0, 3, 1, 2))
    channels_first = np.ascontiguousarray(IMAGES.transpose(0, 3, 1, 2))
    first = records(kind, write(tmp_path / "g", kind, x=channels_first, y=LABELS), layout="chw")
    assert first.training.fingerprint == found.training.fingerprint


@pytest.mark.parametrize("kind", KINDS)
def test_images_that_are_stored_flat_get_their_shape_from_the_job(tmp_path, kind):
    flat = [image.tobytes() for image in IMAGES] if kind == "tfrecord" else IMAGES.reshape(SIZE, -1)
    found = records(kind, write(tmp_path / "f", kind, x=flat, y=LABELS), shape=(6, 5, 3))
    assert_holds(found, IMAGES.transpose(0, 3, 1, 2))


@pytest.mark.parametrize("kind", ["parquet", "tfrecord"])
def test_encoded_images_are_decoded(tmp_path, kind):
    path = write(tmp_path / "f", kind, x=[png(image[:5]) for image in IMAGES], y=LABELS)
    found = records(kind, path, height=5)
    assert_holds(found, IMAGES[:, :5].transpose(0, 3, 1, 2))
    with pytest.raises(JobError, match=r"encoded images; set data\.height"):
        records(kind, path)


def test_images_as_the_hugging_face_hub_stores_them_are_decoded(tmp_path):
    rows = [{"bytes": png(image[:5]), "path": "x.png"} for image in IMAGES]
    write(tmp_path / "f", "parquet", x=rows, y=LABELS)
    found = records("parquet", tmp_path / "f", height=5)
    assert_holds(found, IMAGES[:, :5].transpose(0, 3, 1, 2))


def test_several_columns_of_numbers_make_a_vector(tmp_path):
    a, b = np.arange(SIZE) * 1.5, np.arange(SIZE) % 7
    found = records(
        "parquet", write(tmp_path / "f", "parquet", a=a, b=b, y=LABELS), features=("a", "b")
    )
    assert_holds(found, np.stack([a, b], 1)[:, :, None, None])


@pytest.mark.parametrize("kind", KINDS)
def test_patterns_name_the_training_and_the_test_files_read_in_order(tmp_path, kind):
    for part in range(2):
        half = slice(part * 20, part * 20 + 20)
        flat = IMAGES[half].reshape(20, -1)
        write(tmp_path / f"train-0000{part}-of-00002.x", kind, x=flat, y=LABELS[half])
    write(tmp_path / "test.x", kind, x=IMAGES[:3].reshape(3, -1), y=LABELS[:3])
    pattern = tmp_path / "train-*.x"
    found = records(kind, pattern, test_path=tmp_path / "test.x")
    assert (len(found.training), len(found.test)) == (40, 3)
    y = found.training.batch(np.arange(40), torch.Generator())[1]
    assert np.array_equal(y.numpy(), LABELS)
    (tmp_path / "train-00001-of-00002.x").unlink()
    with pytest.raises(JobError, match=r"train-00001-of-00002\.x is missing"):
        records(kind, pattern, test_path=tmp_path / "test.x")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(12))
def test_a_file_truncated_anywhere_is_an_error(tmp_path, kind, seed):
    flat = IMAGES.reshape(SIZE, -1)
    path = write(tmp_path / "cut", kind, x=flat, y=LABELS)
    whole = path.read_bytes()
    kept = len(whole) - seed if 0 < seed < 6 else random.Random(seed).randrange(len(whole))
    path.write_bytes(whole[:kept])
    with pytest.raises(JobError, match="cut") as caught:
        records(kind, path)
    assert "\n" not in str(caught.value)


def test_a_compressed_tfrecord_file_truncated_anywhere_is_an_error(tmp_path):
    write(tmp_path / "plain", "tfrecord", x=IMAGES[:, 0, 0], y=LABELS)
    whole = gzip.compress((tmp_path / "plain").read_bytes())
    path = tmp_path / "cut.gz"
    path.write_bytes(whole)
    assert len(records("tfrecord", path).training) == 36
    for kept in range(0, len(whole), 7):
        path.write_bytes(whole[:kept])
        with pytest.raises(JobError, match=r"cut\.gz"):
            records("tfrecord", path)


@pytest.mark.parametrize("seed", range(30))
def test_a_flipped_bit_in_a_tfrecord_file_is_an_error(tmp_path, seed):
    path = write(tmp_path / "f", "tfrecord", x=IMAGES[:, 0, 0], y=LABELS)
    data, draw = bytearray(path.read_bytes()), random.Random(seed)
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)
    with pytest.raises(JobError, match=r"f: record \d+ is damaged or truncated"):
        records("tfrecord", path)


GOLDEN = (
    "0a2c0a110a0178120c120a0a080000c03f000000c00a0a0a017912051a030a01030a0b0a017a12060a040a026869"
)
"""`tf.train.Example` with x: [1.5, -2.0], y: 3 and z: b"hi", as protoc's code for it writes it."""


def test_an_example_written_by_another_library_is_read(tmp_path):
    other = example({"x": [0.0, 0.0], "y": 0})
    (tmp_path / "f").write_bytes(framed(bytes.fromhex(GOLDEN)) + framed(other))
    (tmp_path / "g").write_bytes(framed(bytes.fromhex(GOLDEN)))
    found = records("tfrecord", tmp_path / "f", test_path=tmp_path / "g")
    x, y = found.test.batch(np.arange(1), torch.Generator())
    assert (x.flatten().tolist(), y.tolist()) == ([1.0, -1.0], [3])
    assert example({"x": [1.5, -2.0], "y": 3, "z": b"hi"}).hex() == GOLDEN


def test_the_checksum_of_a_record_is_the_published_one():
    """CRC-32C of 32 zeros, from RFC 3720, appendix B.4."""
    assert crc32c.value(bytes(32)) == 0x8A9136AA


FAULTS = [
    ({"features": "z"}, {}, "z.*x, y"),
    ({"labels": "z"}, {}, "z.*x, y"),
    ({"classes": 3}, {}, r"label 3 is outside 0\.\.2"),
    ({}, {"y": LABELS / 2}, "one integer per sample"),
    ({}, {"x": np.full((SIZE, 2), np.nan)}, "finite"),
    ({}, {"x": np.full((SIZE, 2), 1e300)}, "finite"),
    ({"shape": (2, 2, 2)}, {}, r"does not fit data\.shape=\[2, 2, 2\]"),
    ({"augment": True}, {}, r"data\.augment needs images"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("keys", "columns", "message"), FAULTS)
def test_what_a_file_lacks_is_reported_in_one_line(tmp_path, kind, keys, columns, message):
    path = write(tmp_path / "f", kind, **{"x": np.ones((SIZE, 3)), "y": LABELS, **columns})
    with pytest.raises(JobError, match=message) as caught:
        records(kind, path, **keys)
    assert "\n" not in str(caught.value)


def test_lengths_that_differ_are_refused(tmp_path):
    write(tmp_path / "a", "hdf5", x=np.ones((SIZE, 3)), y=LABELS[:-1])
    with pytest.raises(JobError, match="x has 40 rows and y 39"):
        records("hdf5", tmp_path / "a")
    lists = pyarrow.array([[1.0, 2.0], [1.0]])
    parquet.write_table(pyarrow.table({"x": lists, "y": [0, 1]}), tmp_path / "b")
    with pytest.raises(JobError, match="lists of 1 and of 2 numbers"):
        records("parquet", tmp_path / "b")
    unlike = [example({"x": [1.0] * n, "y": 0}) for n in (1, 2)]
    (tmp_path / "c").write_bytes(b"".join(map(framed, unlike)))
    with pytest.raises(JobError, match="2 kinds of value"):
        records("tfrecord", tmp_path / "c")


def test_samples_of_all_files_must_have_one_shape(tmp_path):
    write(tmp_path / "a.h5", "hdf5", x=np.ones((SIZE, 3)), y=LABELS)
    write(tmp_path / "b.h5", "hdf5", x=np.ones((SIZE, 4)), y=LABELS)
    with pytest.raises(JobError, match=r"float32 \[3, 1, 1\] and of float32 \[4, 1, 1\]"):
        records("hdf5", tmp_path / "*.h5")
    with pytest.raises(JobError, match="give both the same shape"):
        records("hdf5", tmp_path / "a.h5", test_path=tmp_path / "b.h5")


def test_empty_cells_are_refused(tmp_path):
    parquet.write_table(pyarrow.table({"x": [1.0, None], "y": [0, 1]}), tmp_path / "f")
    with pytest.raises(JobError, match="f: x: 1 cells are empty"):
        records("parquet", tmp_path / "f")


@pytest.mark.parametrize("kind", KINDS)
def test_a_pattern_that_matches_nothing_is_an_error(tmp_path, kind):
    with pytest.raises(JobError, match="matches no file"):
        records(kind, tmp_path / "*.none")
    with pytest.raises(JobError, match="is a folder; set a pattern for its files"):
        records(kind, tmp_path)
    path = write(tmp_path / "f", kind, x=np.ones((0, 3)), y=LABELS[:0])
    with pytest.raises(JobError, match="contains no samples"):
        records(kind, path)


@pytest.mark.parametrize(
    ("kind", "module"),
    [("hdf5", "h5py"), ("parquet", "pyarrow"), ("tfrecord", "google_crc32c")],
)
def test_a_missing_library_is_named_with_its_install_command(tmp_path, monkeypatch, kind, module):
    path = write(tmp_path / "f", kind, x=np.ones((SIZE, 3)), y=LABELS)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(JobError) as caught:
        records(kind, path)
    assert str(caught.value) == f"{module} is not installed: pip install 'holdfast[data]'"


def test_an_empty_compressed_file_is_an_error(tmp_path):
    for number in range(2):
        write(tmp_path / f"x-0000{number}-of-00002", "tfrecord", x=IMAGES, y=LABELS)
    for file in tmp_path.glob("x-*"):
        file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
    (tmp_path / "x-00001-of-00002.gz").write_bytes(b"")
    with pytest.raises(JobError, match=r"00001-of-00002\.gz is empty"):
        records("tfrecord", tmp_path / "x-*.gz")


def test_a_virtual_data_set_is_refused(tmp_path):
    write(tmp_path / "part", "hdf5", x=IMAGES, y=LABELS)
    layout = h5py.VirtualLayout(shape=IMAGES.shape, dtype=IMAGES.dtype)
    layout[:] = h5py.VirtualSource(tmp_path / "part", "x", shape=IMAGES.shape)
    with h5py.File(tmp_path / "whole", "w") as file:
        file.create_virtual_dataset("x", layout)
        file["y"] = LABELS
    with pytest.raises(JobError, match="x is a virtual data set"):
        records("hdf5", tmp_path / "whole")
