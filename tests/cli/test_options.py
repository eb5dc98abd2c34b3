"""Small options of the command."""

import re
import sys

import pytest

from holdfast.cli import app


@pytest.fixture
def command(monkeypatch, capsys):
    """Run the command without a fork server: `command(argument, …) -> status, output, errors`."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["holdfast", *arguments])
        with pytest.raises(SystemExit) as end:
            app.run(None)
        captured = capsys.readouterr()
        return end.value.code, captured.out, captured.err

    return run


def test_the_version_is_printed(command):
    status, out, _ = command("--version")
    assert (status, bool(re.fullmatch(r"\d+\.\d+\.\d+\n", out))) == (0, True)


@pytest.mark.parametrize("arguments", [["-h"], ["train", "-h"], ["run", "-h"], ["export", "-h"]])
def test_a_short_option_asks_for_help(command, arguments):
    status, out, _ = command(*arguments)
    assert (status, "Usage" in out) == (0, True)


def test_a_range_of_hosts_is_refused(command):
    status, _, err = command("run", "--nnodes", "1:4", "train.py")
    assert (status, "--nnodes 1:4: use a number" in err) == (2, True)
