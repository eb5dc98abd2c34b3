"""Small options of the command."""

import re

import pytest

from recorded_run import write_run


def test_the_version_is_printed(command_line):
    status, out, _ = command_line("--version")
    assert (status, bool(re.fullmatch(r"\d+\.\d+\.\d+\n", out))) == (0, True)


@pytest.mark.parametrize("arguments", [["-h"], ["train", "-h"], ["run", "-h"], ["export", "-h"]])
def test_a_short_option_asks_for_help(command_line, arguments):
    status, out, _ = command_line(*arguments)
    assert (status, "Usage" in out) == (0, True)


@pytest.mark.parametrize("value", ["4:1", "0:2", "2:", "a", "1:2:3"])
def test_what_is_no_range_of_hosts_is_refused(command_line, value):
    status, _, err = command_line("run", "--nnodes", value, "train.py")
    assert (status, f"--nnodes {value}: give a number of hosts" in err) == (2, True)


def test_a_job_must_be_named(command_line):
    for words in (["train"], ["train", "--resume"], ["train", "--run", "runs/x"]):
        status, _, err = command_line(*words)
        assert (status, "no job is named: give bert, " in err) == (2, True)


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_a_run_directory_is_no_backup(command_line, tmp_path, prefix):
    write_run(tmp_path / "run")
    status, _, err = command_line("train", "--resume", "--from", f"{prefix}{tmp_path}/run")
    assert (status, "is a run directory, not a backup" in err) == (2, True)
    assert f"--run {tmp_path}/run --resume" in err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--from", "{}"], "--from continues a run: add --resume or extend=true"),
        (["--resume", "--dry-run", "--from", "{}"], "--from continues a run"),
        (["--resume", "--from", "{}"], "has no backup of a run"),
        (["workers=1", "--resume", "--from", "{}"], "has no backup of a run"),
        (["extend=true", "--from", "{}"], "has no backup of a run"),
        (["--resume", "--from", "nothing://{}"], "is no store for backups"),
    ],
)
def test_a_run_that_cannot_be_restored_leaves_nothing(command_line, tmp_path, words, reason):
    run_dir = tmp_path / "runs" / "restored"
    words = [word.format(tmp_path / "backup") for word in words]
    status, _, err = command_line("train", *words, "--run", str(run_dir))
    assert (status, reason in err, run_dir.exists()) == (2, True, False), err
