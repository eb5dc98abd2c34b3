"""The command line as a whole: what it says before any command runs."""

import sys

import pytest

from holdfast.cli import app
from holdfast.cli.app import command
from holdfast.cli.commands import COMMANDS


def run(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["holdfast", *words])
    with pytest.raises(SystemExit) as ended:
        app.run(None)
    printed = capsys.readouterr()
    return ended.value.code, printed.out, printed.err


def test_options_of_a_script_may_have_any_name(monkeypatch, capsys):
    _, _, err = run(monkeypatch, capsys, "run", "absent.py", "--restarts", "3")
    assert "script 'absent.py'" in err


@pytest.mark.parametrize("name", COMMANDS)
def test_the_first_line_of_help_is_that_of_the_command(name):
    first, _, _ = (command(name).help or "").partition("\n\n")
    assert COMMANDS[name].help == " ".join(first.split())
    assert command(name).name == name


def test_help_names_every_command(monkeypatch, capsys):
    status, out, _ = run(monkeypatch, capsys, "-h")
    assert status == 0
    assert [word for word in COMMANDS if word not in out] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "No such command 'trian'. Did you mean 'train'"),
        (["checkpoint", "verfy"], "No such command 'verfy'. Did you mean 'verify'"),
        (["train", "--dryrun"], "No such option: --dryrun"),
        (["--bogus"], "No such option: --bogus"),
    ],
)
def test_a_wrong_word_is_a_mistake_of_the_command_line(monkeypatch, capsys, words, message):
    status, _, err = run(monkeypatch, capsys, *words)
    assert status == 2
    assert message in " ".join(err.replace("│", " ").split())
