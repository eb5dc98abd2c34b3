"""`holdfast top` in a real terminal, as tmux is one, while a run trains and workers are killed."""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import events_of, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="needs Debian's tmux"),
]
MAX_KILLS = 3
"""Other tests may keep the machine busy when the first failure is shown."""
SHOWN_WITHIN_S = 1.0


class Terminal:
    """A terminal of 80 columns and 24 lines with a shell's command in it."""

    def __init__(self, command, cwd):
        self._tmux = ["tmux", "-L", f"holdfast-test-{secrets.token_hex(4)}", "-f", os.devnull]
        size = ["-x", "80", "-y", "24"]
        self._run("new-session", "-d", *size, "-c", str(cwd), f"{command}; echo left $?; read end")

    def _run(self, *words):
        done = subprocess.run([*self._tmux, *words], capture_output=True, text=True, check=True)
        return done.stdout

    def type(self, key):
        self._run("send-keys", key)

    def lines(self):
        return self._run("capture-pane", "-p").splitlines()

    def text(self):
        return "\n".join(self.lines())

    def shows_events(self):
        """Whether it shows events only: neither the run nor the report of a recovery."""
        text = self.text()
        return "rank" in text and "RANK" not in text and "── recovery" not in text

    def wait_for(self, words):
        wait_until(lambda: words in self.text())

    def pid(self):
        """The process of the command."""
        shell = self._run("list-panes", "-F", "#{pane_pid}").strip()
        return int(Path(f"/proc/{shell}/task/{shell}/children").read_text().split()[0])

    def close(self):
        self._run("kill-server")


@pytest.fixture
def terminal(tmp_path):
    opened = []

    def open_with(*words):
        command = " ".join([f"exec {sys.executable} -m holdfast", *words])
        opened.append(Terminal(f"({command})", tmp_path))
        return opened[-1]

    yield open_with
    for each in opened:
        each.close()


def shown_after_s(top, run, number):
    """Kill rank 1 for the `number`-th time; returns how long after it is logged it is shown."""
    newest = [each for each in events_of(run, "worker-started") if each["rank"] == 1][-1]
    os.kill(newest["pid"], signal.SIGKILL)
    while not any(f"{each} rank 1 killed by SIGKILL" in top.text() for each in ("!", number)):
        time.sleep(0.05)
    seen_at = time.time()
    top.wait_for(f"recovered {number} of {number}")
    return seen_at - events_of(run, "worker-exited")[-1]["time_unix_s"]


@pytest.fixture
def piped(tmp_path):
    """Start `holdfast top` in a pipe: `piped(run) -> Popen`."""
    started = []

    def start(run):
        words = [sys.executable, "-m", "holdfast", "top", str(run)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
        started.append(process)
        return process

    yield start
    for each in started:
        each.kill()
        each.communicate()


def test_a_failure_is_shown_within_a_second_and_keys_work(command, terminal, piped, tmp_path):
    run = tmp_path / "runs" / "shown"
    training = command("train", "digits", "epochs=500", "--run", run)
    wait_until((run / "metrics.jsonl").exists)
    top = terminal("top", str(run))
    top.wait_for("RUNNING")
    assert len(top.lines()) == 24
    lines = piped(run)
    assert "  running  step " in lines.stdout.readline()
    for number in range(1, MAX_KILLS + 1):
        if shown_after_s(top, run, number) < SHOWN_WITHIN_S:
            break
        assert number < MAX_KILLS, "no failure was shown within a second"
    top.type("r")
    top.wait_for(f"── recovery {number}")
    top.type("e")
    wait_until(top.shows_events)
    top.type("Escape")
    top.type("s")
    top.wait_for("y/n")
    top.type("y")
    assert training.wait(60) == 130
    top.wait_for("■ STOPPED")
    assert events_of(run)[-1]["status"] == "stopped"
    top.type("q")
    top.wait_for("left 0")
    assert "STOPPED" not in top.text()  # the terminal is as it was before

    rest, _ = lines.communicate(timeout=60)
    assert lines.returncode == 0
    for words in ("rank 1 was killed by SIGKILL", "recovery 1: ", "run stopped, "):
        assert words in rest
    assert "\x1b" not in rest


def test_the_terminal_is_restored_after_a_signal(terminal, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "events.jsonl").write_text(
        json.dumps({"time_unix_s": 1000.0, "event": "run-started", "workers": 2, "pid": 1}) + "\n"
    )
    top = terminal("top", str(run))
    top.wait_for("FAILED")
    os.kill(top.pid(), signal.SIGTERM)
    top.wait_for("left 0")
    assert "FAILED" not in top.text()
    top.type("h")  # is echoed again
    top.wait_for("h")
