"""Logs survive crashes and full disks, and never end a run."""

import subprocess
import sys

import pytest

from holdfast.rundir import json_lines


def test_what_is_written_is_read_back(tmp_path):
    with json_lines.JsonLines(tmp_path / "log") as log:
        log.write(step=1, loss=0.5)
        log.write(step=2, loss=0.25)
    assert list(json_lines.read(tmp_path / "log")) == [
        {"step": 1, "loss": 0.5},
        {"step": 2, "loss": 0.25},
    ]


def test_a_log_that_is_not_there_holds_nothing(tmp_path):
    assert list(json_lines.read(tmp_path / "log")) == json_lines.last(tmp_path / "log") == []
    assert json_lines.forget_after(tmp_path / "log", 1) == []


def test_a_resumed_run_forgets_what_came_after_its_checkpoint(tmp_path):
    path = tmp_path / "log"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 2, "x": 1}\n{"step": 3}\n{"st')
    json_lines.forget_after(path, 2)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 2, "x": 1}\n'
    json_lines.forget_after(path, 9)
    assert len(path.read_text().splitlines()) == 3


def test_torn_lines_are_skipped(tmp_path):
    path = tmp_path / "log"
    path.write_text('{"step": 1}\n{"ste\n[1]\n{"step": 2}\n{"step"')
    assert [entry["step"] for entry in json_lines.read(path)] == [1, 2]
    json_lines.forget_after(path, 5)
    assert [entry["step"] for entry in json_lines.read(path)] == [1, 2]
    assert path.read_text().endswith('{"step": 2}\n'), "what was torn at the end is cut"


def test_lines_that_cannot_be_read_are_numbered(tmp_path):
    path = tmp_path / "log"
    assert json_lines.unreadable(path) == []
    path.write_bytes(b'{"step": 1}\nnot JSON\n[1]\n{"step": 2}\n\xff\n{"step"')
    assert json_lines.unreadable(path) == [2, 3, 5]


def test_a_torn_line_damages_no_line_of_the_next_start(tmp_path):
    path = tmp_path / "log"
    path.write_text('{"step": 1}\n{"ste')
    for step in (2, 3):
        with json_lines.JsonLines(path) as log:
            log.write(step=step)
    assert path.read_text() == '{"step": 1}\n{"ste\n{"step": 2}\n{"step": 3}\n'


def test_a_line_that_cannot_be_written_is_dropped():
    with json_lines.JsonLines("/dev/full") as log:
        log.write(step=1)


def test_the_line_after_a_torn_one_is_whole(tmp_path):
    """A limit on the size of files tears a line as a full disk does."""
    program = f"""
import resource, signal
from pathlib import Path
from holdfast.rundir import json_lines as lines
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path({str(tmp_path / "log")!r})
with lines.JsonLines(path) as log:
    log.write(step=1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 5, resource.RLIM_INFINITY))
    log.write(step=2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    log.write(step=3)
print([entry["step"] for entry in lines.read(path)])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[1, 3]\n"


ODD_LINES = ["{}", '{"step": null}', '{"step": "x"}', '{"step": 1e999}', "[" * 99_999]


@pytest.mark.parametrize("odd", ODD_LINES)
def test_a_line_that_is_not_of_a_step_is_skipped(tmp_path, odd):
    path = tmp_path / "log"
    path.write_text('{"step": 1}\n' + odd + '\n{"step": 2}\n{"step": 3}\n')
    assert json_lines.forget_after(path, 2) == [{"step": 2}]
    assert list(json_lines.read(path))[-1] == {"step": 2}
