"""Small options of the command."""

import re

import pytest


def test_the_version_is_printed(command_line):
    status, out, _ = command_line("--version")
    assert (status, bool(re.fullmatch(r"\d+\.\d+\.\d+\n", out))) == (0, True)


@pytest.mark.parametrize("arguments", [["-h"], ["train", "-h"], ["run", "-h"], ["export", "-h"]])
def test_a_short_option_asks_for_help(command_line, arguments):
    status, out, _ = command_line(*arguments)
    assert (status, "Usage" in out) == (0, True)


def test_a_range_of_hosts_is_refused(command_line):
    status, _, err = command_line("run", "--nnodes", "1:4", "train.py")
    assert (status, "--nnodes 1:4: use a number" in err) == (2, True)
