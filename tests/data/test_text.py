"""Text: any bytes are a text; none is skipped and none is used twice."""

from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast.data.formats.text import windows
from holdfast.errors import JobError

TEXT = bytes(range(256)) * 8


def test_targets_follow_their_inputs_and_windows_tile_the_text(tmp_path):
    (tmp_path / "a").write_bytes(TEXT)
    training, _ = windows(tmp_path / "a", 10)
    x, y = training.batch(np.arange(len(training)), torch.Generator())
    assert torch.equal(x[:, 1:], y[:, :-1])
    assert bytes(x.flatten().tolist()) == TEXT[: x.numel()]
    assert int(1843 - x.numel()) <= 10


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path):
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / "b" / "z").write_bytes(b"last " * 40)
    (tmp_path / "b" / "c" / "y").write_bytes(b"first" * 40)
    training, _ = windows(tmp_path / "b", 5)
    x, _ = training.batch(np.arange(1), torch.Generator())
    assert bytes(x[0].tolist()) == b"first"


def test_the_default_text_is_real_and_the_byte_entropy_is_that_of_english():
    training, test = windows(None, 64)
    assert len(training) > 5000
    assert 2.8 < test.byte_entropy < 3.5


@pytest.mark.parametrize("content", [b"", b"short"])
def test_a_text_that_is_too_short_is_refused(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(JobError, match="too few for windows of 64"):
        windows(tmp_path / "a", 64)


def test_all_files_of_a_folder_are_read_whatever_their_content(tmp_path):
    (tmp_path / "a.bin").write_bytes(TEXT)
    (tmp_path / ".hidden").write_bytes(b"hidden ")
    (tmp_path / "empty").write_bytes(b"")
    training, test = windows(tmp_path, 7)
    x, _ = training.batch(np.arange(len(training)), torch.Generator())
    assert bytes(x.flatten().tolist()).startswith(b"hidden \n" + TEXT[:1000])
    assert len(training) + len(test) == (len(TEXT) + 9) // 7


def test_a_device_is_refused():
    with pytest.raises(JobError, match=r"text /dev/zero is not a file or folder; set data\.path"):
        windows(Path("/dev/zero"), 64)


def test_a_file_in_a_folder_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "a").write_bytes(TEXT)
    (tmp_path / "mem").symlink_to("/proc/self/mem")
    with pytest.raises(JobError, match=r"text \S*/mem: Input/output error; set data\.path"):
        windows(tmp_path, 64)


def test_a_missing_text_is_refused_by_name(tmp_path):
    with pytest.raises(JobError, match=r"nowhere: No such file"):
        windows(tmp_path / "nowhere", 64)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere", "No such file"),
        ("part", "a link to another folder"),
        ("link", "Too many levels"),
    ],
)
def test_a_link_that_leads_to_no_text_is_refused_not_skipped(tmp_path, target, message):
    folder = tmp_path / "text"
    (tmp_path / "part").mkdir()
    folder.mkdir()
    (folder / "a").write_bytes(TEXT)
    (folder / "link").symlink_to(target if target == "link" else tmp_path / target)
    with pytest.raises(JobError, match=message):
        windows(folder, 64)
