"""What a run shows of itself: the same facts on a terminal and in a pipe."""

import io
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from holdfast.core.protocol import Stage, WorkerProgress
from holdfast.record.live_state import ProgressRate
from holdfast.record.recovery_reports import RecoveryReport, RootCause
from holdfast.rundir.run_directory import worker_log
from holdfast.sinks.tee import Tee
from holdfast.sinks.terminal import PLAIN_INTERVAL_S, WAIT_S, Terminal
from holdfast.wire.rpc import RunStateMessage


def at(step, *, of=100, loss=0.5, phase="compute"):
    """The progress of a worker."""
    return WorkerProgress(
        step=step,
        total_steps=of,
        epoch=step * 4 // of if of else 0,
        epochs=4 if of else 0,
        loss=loss,
        samples=64 * step,
        phase=phase,
        phase_seconds={},
    )


class Watched:
    """The view of a run on a console that keeps what it is given, at a time of our choice."""

    def __init__(self, logs, *, terminal, ranks=(), tokens=None):
        self.text = io.StringIO()
        self.now = 0.0
        console = Console(file=self.text, force_terminal=terminal, width=120)
        self.view = Terminal(
            Tee(logs, ranks), logs, console, clock=lambda: self.now, tokens_per_sample=tokens
        )

    def see(self, seconds_later, *workers, waiting_for=""):
        """Show the progress of workers, by rank, or of a run in which none trains yet."""
        self.now += seconds_later
        state = RunStateMessage(
            stage=Stage.RUN,
            reason="",
            root_cause=None,
            result=None,
            waiting_for=waiting_for,
            progress=dict(enumerate(workers)),
        )
        self.view.on_progress(state)

    @property
    def lines(self):
        return self.text.getvalue().splitlines()


def test_a_pipe_gets_a_line_of_facts_every_few_seconds(tmp_path):
    seen = Watched(tmp_path, terminal=False)
    for _ in range(40):
        seen.see(0.125)
    for _ in range(40):
        seen.see(0.125, at(0, of=0))
    assert seen.lines == []
    for step in range(1, 82):
        seen.see(0.125, at(step, loss=1 / step))
    assert len(seen.lines) == 3
    assert seen.lines[-1].split("  ") == [
        "epoch 4/4", "step 81/100", "loss 0.0123", "512 samples/s", "0:00:02 left"
    ]  # fmt: skip


def test_each_evaluation_is_a_line_in_a_pipe_and_the_newest_is_on_the_live_line(tmp_path):
    results = {"accuracy": 0.93751, "confusion": [[3, 1], [0, 4]], "error": None, "loss": 2}
    piped = Watched(tmp_path, terminal=False)
    piped.view.on_line({"step": 4, "loss": 1.0})
    piped.view.on_line({"step": 4, "evaluation": results})
    piped.see(0.1, at(5))
    piped.see(0.1, at(6))
    assert piped.lines == ["evaluation after step 4: accuracy 0.9375  loss 2"]
    live = Watched(tmp_path, terminal=True)
    live.see(0.1, at(4))
    live.view.on_line({"step": 4, "evaluation": {"accuracy": 0.5}})
    live.view.on_line({"step": 4, "evaluation": results})
    live.see(0.1, at(5))
    live.view.close()
    assert " left  accuracy 0.9375  loss 2" in live.text.getvalue()


def test_progress_continues_where_the_world_has_shrunk_and_from_a_checkpoint(tmp_path):
    seen = Watched(tmp_path, terminal=False)
    seen.see(PLAIN_INTERVAL_S, at(20, phase="evaluate"), at(20))
    seen.see(PLAIN_INTERVAL_S, at(60, loss=0.25))
    seen.see(PLAIN_INTERVAL_S, at(40))
    assert [line.split("  ")[1:3] for line in seen.lines] == [
        ["step 20/100", "loss 0.5000"], ["step 60/100", "loss 0.2500"],
        ["step 40/100", "loss 0.5000"],
    ]  # fmt: skip
    assert "evaluating" not in seen.lines[-1]


def test_the_furthest_member_is_shown(tmp_path):
    seen = Watched(tmp_path, terminal=False)
    seen.see(PLAIN_INTERVAL_S, at(20), at(21, loss=None))
    assert seen.lines == ["epoch 1/4  step 21/100  loss not finite"]


def test_a_pipe_shows_an_evaluation_once_though_no_step_is_committed(tmp_path):
    seen = Watched(tmp_path, terminal=False)
    seen.see(PLAIN_INTERVAL_S, at(25), at(0))
    for _ in range(3):
        seen.see(PLAIN_INTERVAL_S, at(25), at(0, phase="evaluate"))
    assert seen.lines == [
        "epoch 2/4  step 25/100  loss 0.5000",
        "epoch 2/4  step 25/100  loss 0.5000  evaluating",
    ]


def test_a_terminal_shows_the_same_facts_next_to_a_bar_and_lines_of_workers_above_it(tmp_path):
    seen = Watched(tmp_path, terminal=True, ranks=[1], tokens=16)
    for step in range(1, 51):
        seen.see(0.5, at(step))
    worker_log(tmp_path, 1).write_text("\x1b[31mred\x1b[0m [bold]and plain\nlast")
    seen.see(0.5, at(50, phase="checkpoint"))
    seen.view.close()
    shown = seen.text.getvalue()
    rates = "128 samples/s  2,048 tokens/s"
    assert f"step 50/100  loss 0.5000  {rates}  0:00:25 left  saving a checkpoint" in shown
    first = shown.index("[rank 1] \x1b[31mred\x1b[0m [bold]and plain\n")
    assert shown.index("[rank 1] last\n") > first


@pytest.mark.parametrize("terminal", [False, True])
def test_a_long_wait_is_explained_and_a_short_one_is_not(tmp_path, terminal):
    seen = Watched(tmp_path, terminal=terminal)
    for _ in range(2):
        seen.see(0.0, waiting_for="rank 1 to halt")
        seen.see(WAIT_S / 2, waiting_for="rank 1 to halt")
        seen.see(WAIT_S / 4)
    seen.view.print_lines("so far")
    for _ in range(4):
        seen.see(WAIT_S / 2, waiting_for="1 of 2 workers to join")
    seen.view.close()
    before, after = seen.text.getvalue().split("so far")
    assert "waiting" not in before
    assert "waiting for 1 of 2 workers to join" in after
    assert terminal or after == "\nwaiting for 1 of 2 workers to join\n"


def test_the_pace_is_that_of_the_last_half_minute():
    pace = ProgressRate()
    assert pace() is None
    for second in range(100):
        pace.note(second, step=second, samples=10 * second)
    for second in range(100, 160):
        pace.note(second, step=100 + 5 * (second - 100), samples=50 * second)
    assert pace() == (5, 50)


def test_a_run_that_rolls_back_is_measured_from_there():
    pace = ProgressRate()
    for now, step in enumerate((0, 5, 0)):
        pace.note(now, step, 10 * step)
    assert pace() is None
    pace.note(3, 2, 20)
    assert pace() == (2.0, 20.0)


def test_a_full_disk_is_said_once_with_its_path_and_again_when_it_is_over(tmp_path):
    seen = Watched(tmp_path, terminal=False)
    failed = {
        "event": "checkpoint-failed", "time_unix_s": 0, "reason": "no space", "host": "b",
        "directory": "/data/run/checkpoints/step-00000004",
    }  # fmt: skip
    committed = {"event": "checkpoint-committed", "time_unix_s": 0, "step": 4, "directory": "x"}
    for step in (4, 5, 6):
        seen.view.on_line({**failed, "step": step})
        seen.view.on_line({**committed, "host": "a"})
    for step in (7, 8):
        seen.view.on_line({**committed, "step": step, "host": "b"})
    said, over = seen.lines
    assert said.startswith("checkpoint of step 4 could not be written: no space (host b); it ")
    assert said.endswith("would be in /data/run/checkpoints/step-00000004")
    assert over == "checkpoints are written again (host b)"


def test_how_a_lost_host_joins_again_is_said_once(tmp_path):
    text = io.StringIO()
    console = Console(file=text, width=120)
    view = Terminal(Tee(tmp_path, ()), tmp_path, console, hint="make a token")
    report = RecoveryReport(
        number=1, time_unix_s=0.0, outcome="recovered", step=3, ended=(), halted=(0,),
        causes=(RootCause(who="rank 1", rank=1, what="was killed"),), seconds={}, total_s=0.0,
        checkpoint=None, recomputed_steps=0, recomputed_samples=0,
    )  # fmt: skip
    view.on_recovery(report)
    assert "make a token" not in text.getvalue()
    for _ in range(2):
        view.on_recovery(replace(report, causes=(RootCause(who="host", what="does not answer"),)))
    assert text.getvalue().count("make a token") == 1


@pytest.mark.slow
def test_a_standard_error_without_a_reader_does_not_change_how_a_program_ends():
    program = (
        "from holdfast.sinks.terminal import PlainConsole\n"
        "console = PlainConsole(stderr=True)\n"
        "for _ in range(3): console.print('news')"
    )
    ours = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as unread:
        done = subprocess.run([sys.executable, "-c", program], check=False, stderr=unread, env=ours)
    assert done.returncode == 0
