"""A command whose standard output cannot be written ends with a line at most, no traceback."""

import os
import sys
from pathlib import Path

import pytest

from holdfast.api.background import show
from holdfast.cli import main
from holdfast.cli.main import checked_output
from recorded_run import write_run


@pytest.fixture(params=[-1, 1], ids=["buffered", "line by line"])
def ended(request, monkeypatch, capsys, tmp_path):
    """The status and standard error of a command: `ended(descriptor of its output, word, …)`."""
    write_run(tmp_path / "run")
    monkeypatch.chdir(tmp_path)

    def run(descriptor, *words):
        out = os.fdopen(descriptor, "w", buffering=request.param)
        with out, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "argv", ["holdfast", *words])
            try:
                main.main()
            except SystemExit as end:
                if isinstance(end.code, str):  # as Python itself does
                    return 1, f"{end.code}\n{capsys.readouterr().err}"
                return end.code, capsys.readouterr().err
        raise AssertionError

    return run


def without_reader():
    reader, writer = os.pipe()
    os.close(reader)
    return writer


COMMANDS = pytest.mark.parametrize(
    "words",
    [["--version"], ["-h"], ["events", "run"], ["goodput", "run"], ["audit", "run", "--json"]],
)


@COMMANDS
def test_a_full_disk_is_named(ended, words):
    status, err = ended(os.open("/dev/full", os.O_WRONLY), *words)
    assert (status, err.count("\n")) == (1, 1)
    assert err.startswith("holdfast: standard output: No space left on device; ")


@COMMANDS
def test_a_reader_that_has_gone_is_no_news(ended, words):
    assert ended(without_reader(), *words) == (1, "")


def test_the_error_of_another_file_is_not_taken_for_one_of_the_output(monkeypatch):
    with Path(os.devnull).open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        with pytest.raises(OSError, match="No space left"), checked_output():
            Path("/dev/full").write_text("x")
        assert sys.stdout is out


def test_the_output_of_a_run_ends_with_its_reader(monkeypatch, tmp_path):
    (tmp_path / "output.log").write_text("epoch 1\n")
    with os.fdopen(without_reader(), "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        with pytest.raises(SystemExit) as ended, checked_output():
            show(tmp_path, lambda: False)
    assert ended.value.code == 1
