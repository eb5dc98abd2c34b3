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


def test_a_job_must_be_named(command):
    for words in (["train"], ["train", "--resume"], ["train", "--run", "runs/x"]):
        status, _, err = command(*words)
        assert (status, "no job is named: give bert, " in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--from", "{}"], "--from continues a run: add --resume or --extend"),
        (["--resume", "--dry-run", "--from", "{}"], "--from continues a run"),
        (["--resume", "--from", "{}"], "has no backup of a run"),
        (["workers=1", "--resume", "--from", "{}"], "has no backup of a run"),
        (["--resume", "--from", "nothing://{}"], "Protocol not known"),
    ],
)
def test_a_run_that_cannot_be_restored_leaves_nothing(command, tmp_path, words, reason):
    run_dir = tmp_path / "runs" / "restored"
    words = [word.format(tmp_path / "backup") for word in words]
    status, _, err = command("train", *words, "--run", str(run_dir))
    assert (status, reason in err, run_dir.exists()) == (2, True, False), err
