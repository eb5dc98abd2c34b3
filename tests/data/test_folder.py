"""Image folders: pictures of any kind are read, or an error names the file."""

import io
import random

import numpy as np
import pytest
import torch
from PIL import Image

from holdfast.data.catalog import build
from holdfast.data.formats.pictures import decoded
from holdfast.errors import JobError
from holdfast.job.data import ImageFolder

RED, BLUE = (200, 10, 10), (10, 10, 200)


def folder(path, **keys):
    return build(ImageFolder(name="image-folder", path=path, height=8, augment=False, **keys))


def save(path, picture, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, **options)


def plain(colour, size=(8, 8)):
    return Image.new("RGB", size, colour)


@pytest.fixture
def split_folder(tmp_path):
    """`train` and `test` with a red and a blue class, 6 and 2 images each."""
    for part, count in (("train", 6), ("test", 2)):
        for number in range(count):
            save(tmp_path / part / "red" / f"{number}.png", plain(RED))
            save(tmp_path / part / "blue" / f"{number}.JPG", plain(BLUE), format="JPEG")
    return tmp_path


def test_classes_are_the_sorted_names_and_parts_are_those_of_the_folder(split_folder):
    found = folder(split_folder)
    assert (len(found.training), len(found.test)) == (12, 4)
    assert (found.shape, found.classes) == ((3, 8, 8), 2)
    x, y = found.test.batch(np.arange(4), torch.Generator())
    assert y.tolist() == [0, 0, 1, 1]
    red = x[:, 0].mean((1, 2))
    assert red[0] < 0 < red[2]


def test_without_parts_a_tenth_is_kept_for_the_test(tmp_path):
    for number in range(20):
        save(tmp_path / "red" / f"{number}.png", plain(RED))
        save(tmp_path / "blue" / f"{number}.png", plain(BLUE))
    found = folder(tmp_path)
    assert (len(found.training), len(found.test)) == (36, 4)


def encoded(picture, kind, **options):
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def test_pictures_of_every_mode_become_rgb():
    grey = Image.new("L", (8, 8), 77)
    palette = plain(RED).convert("P", palette=Image.Palette.ADAPTIVE)
    clear = Image.new("RGBA", (8, 8), (*RED, 128))
    deep = Image.fromarray(np.full((8, 8), 77 * 256 + 5, np.uint16))
    for picture, colour in [(grey, (77,) * 3), (palette, RED), (clear, RED), (deep, (77,) * 3)]:
        assert decoded(encoded(picture, "PNG"), 4, "x")[:, 2, 2].tolist() == list(colour)


def test_a_picture_is_rotated_according_to_its_exif_data():
    """Orientation 6: the camera was turned, so what is stored left is meant to be above."""
    stored = Image.new("RGB", (16, 16), BLUE)
    stored.paste(RED, (0, 0, 8, 16))
    exif = Image.Exif()
    exif[0x0112] = 6
    found = decoded(encoded(stored, "JPEG", exif=exif, quality=95), 16, "x")
    assert found[0, 0].mean() > 150
    assert found[0, 15].mean() < 50


@pytest.mark.parametrize("size", [(32, 8), (8, 32)])
def test_a_long_picture_is_cropped_to_its_centre(size):
    picture = Image.new("RGB", size, BLUE)
    middle = (size[0] // 2 - 4, size[1] // 2 - 4)
    picture.paste(RED, (*middle, middle[0] + 8, middle[1] + 8))
    found = decoded(encoded(picture, "PNG"), 8, "x")
    assert (found.transpose(1, 2, 0) == RED).all()


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_picture_truncated_at_any_byte_is_an_error_that_names_it(kind):
    noise = np.random.default_rng(0).integers(256, size=(9, 9, 3), dtype=np.uint8)
    whole = encoded(Image.fromarray(noise), kind)
    for kept in range(len(whole)):
        with pytest.raises(JobError, match=r"my picture is damaged or not a PNG or JPEG: .*; "):
            decoded(whole[:kept], 8, "my picture")


def test_a_flipped_bit_in_a_png_is_an_error():
    noise = np.random.default_rng(0).integers(256, size=(9, 9, 3), dtype=np.uint8)
    whole = encoded(Image.fromarray(noise), "PNG")
    draw = random.Random(0)
    for _ in range(100):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        with pytest.raises(JobError, match="my picture is damaged"):
            decoded(bytes(damaged), 8, "my picture")


def damage(root):
    (root / "train" / "red" / "3.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing more")


def be_of_another_format(root):
    save(root / "train" / "red" / "3.png", plain(RED), format="GIF")


def bring_another_kind(root):
    (root / "train" / "red" / "notes.txt").write_text("why is this here?")


def have_an_empty_class(root):
    (root / "train" / "green").mkdir()


def have_a_class_in_the_test_alone(root):
    save(root / "test" / "green" / "0.png", plain(RED))


def put_a_file_next_to_the_classes(root):
    save(root / "train" / "stray.png", plain(RED))


def lose_the_test(root):
    (root / "test").rename(root / ".test")


def have_one_class(root):
    (root / "train" / "red").rename(root / "train" / ".red")


FAULTS = [
    (damage, r"red/3\.png is damaged"),
    (be_of_another_format, r"red/3\.png is damaged or not a PNG or JPEG"),
    (bring_another_kind, r"notes\.txt is not a \.png or \.jpg file"),
    (have_an_empty_class, "green contains no images"),
    (have_a_class_in_the_test_alone, "test/green is a class that is missing in train/"),
    (put_a_file_next_to_the_classes, r"stray\.png is not a folder, but is in a folder of classes"),
    (lose_the_test, "has only train/"),
    (have_one_class, "has 1 class folders and needs at least 2"),
]


@pytest.mark.parametrize(
    ("fault", "message"), FAULTS, ids=lambda part: getattr(part, "__name__", "")
)
def test_a_wrong_layout_is_refused_by_name(split_folder, fault, message):
    fault(split_folder)
    with pytest.raises(JobError, match=message) as caught:
        folder(split_folder)
    assert "\n" not in str(caught.value)


def test_hidden_files_are_ignored(split_folder):
    (split_folder / "train" / "red" / ".DS_Store").write_bytes(b"x")
    assert len(folder(split_folder).training) == 12


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(JobError, match=r"nowhere: No such file or directory; set data\.path"):
        folder(tmp_path / "nowhere")


def test_an_empty_part_is_refused(split_folder):
    for file in (split_folder / "test").rglob("*.*"):
        file.unlink()
    for kind in ("red", "blue"):
        (split_folder / "test" / kind).rmdir()
    with pytest.raises(JobError, match="test has no class folders"):
        folder(split_folder)
