"""What a run shows of itself: the same facts on a terminal and in a pipe."""

import io
import os
import subprocess
import sys
from contextlib import closing

import pytest
from rich.console import Console

from holdfast.arena.memory import Arena, Phase, Word
from holdfast.arena.worker_status import WorkerStatus
from holdfast.observe.run_dir import worker_log
from holdfast.observe.tee import Tee
from holdfast.observe.terminal import PLAIN_INTERVAL_S, Pace, RunView


@pytest.fixture
def arena():
    with closing(Arena.create(2)) as arena:
        yield arena


def commit(arena, step, *, of=100, loss=0.5, rank=0):
    arena[rank, Word.TOTAL_STEPS], arena[rank, Word.EPOCHS] = of, 4
    arena[rank, Word.COMMITTED], arena[rank, Word.EPOCH] = step, step * 4 // of
    arena[rank, Word.SAMPLES] = 64 * step
    WorkerStatus(arena, rank).loss = loss


class Watched:
    """A view of a run on a console that keeps what it is given, at a time of our choice."""

    def __init__(self, logs, *, terminal, ranks=()):
        self.text = io.StringIO()
        self.now = 0.0
        console = Console(file=self.text, force_terminal=terminal, width=120)
        self.view = RunView(Tee(logs, ranks), console, clock=lambda: self.now)

    def watch(self, arena, seconds_later):
        self.now += seconds_later
        self.view.watch(arena)


def test_a_pipe_gets_a_line_of_facts_every_few_seconds(arena, tmp_path):
    seen = Watched(tmp_path, terminal=False)
    for _ in range(80):
        seen.watch(arena, 0.125)
    assert seen.text.getvalue() == ""
    for step in range(1, 82):
        commit(arena, step, loss=1 / step)
        seen.watch(arena, 0.125)
    lines = seen.text.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[-1].split("  ") == [
        "epoch 4/4", "step 81/100", "loss 0.0123", "512 samples/s", "0:00:02 left"
    ]  # fmt: skip


def test_progress_continues_where_rank_0_is_lost_and_the_world_has_shrunk(arena, tmp_path):
    seen = Watched(tmp_path, terminal=False)
    for rank in (0, 1):
        arena.enter_generation(rank, 1)
        commit(arena, 20, rank=rank)
    WorkerStatus(arena, 0).enter(Phase.EVALUATE)
    seen.watch(arena, PLAIN_INTERVAL_S)
    arena.enter_generation(1, 2)
    commit(arena, 60, loss=0.25, rank=1)
    seen.watch(arena, PLAIN_INTERVAL_S)
    commit(arena, 40, loss=0.5, rank=1)  # back to a checkpoint
    seen.watch(arena, PLAIN_INTERVAL_S)
    assert [line.split("  ")[1:3] for line in seen.text.getvalue().splitlines()] == [
        ["step 20/100", "loss 0.5000"], ["step 60/100", "loss 0.2500"],
        ["step 40/100", "loss 0.5000"],
    ]  # fmt: skip
    assert "evaluating" not in seen.text.getvalue().splitlines()[-1]


def test_the_furthest_member_is_shown(arena, tmp_path):
    seen = Watched(tmp_path, terminal=False)
    commit(arena, 20, rank=0)
    commit(arena, 21, rank=1)
    seen.watch(arena, PLAIN_INTERVAL_S)
    assert "step 21/100" in seen.text.getvalue()


def test_a_pipe_is_told_of_an_evaluation_once_though_no_step_goes_by(arena, tmp_path):
    seen = Watched(tmp_path, terminal=False)
    commit(arena, 25)
    seen.watch(arena, PLAIN_INTERVAL_S)
    WorkerStatus(arena, 1).enter(Phase.EVALUATE)
    for _ in range(3):
        seen.watch(arena, PLAIN_INTERVAL_S)
    assert seen.text.getvalue().splitlines() == [
        "epoch 2/4  step 25/100  loss 0.5000",
        "epoch 2/4  step 25/100  loss 0.5000  evaluating",
    ]


def test_a_terminal_shows_the_same_facts_beside_a_bar_and_lines_of_workers_above_it(
    arena, tmp_path
):
    seen = Watched(tmp_path, terminal=True, ranks=[1])
    for step in range(1, 51):
        commit(arena, step)
        seen.watch(arena, 0.5)
    worker_log(tmp_path, 1).write_text("\x1b[31mred\x1b[0m [bold]and plain\nlast")
    WorkerStatus(arena, 0).enter(Phase.CHECKPOINT)
    seen.watch(arena, 0.5)
    seen.view.close()
    shown = seen.text.getvalue()
    assert "step 50/100  loss 0.5000  128 samples/s  0:00:25 left  saving a checkpoint" in shown
    first = shown.index("[rank 1] \x1b[31mred\x1b[0m [bold]and plain\n")
    assert shown.index("[rank 1] last\n") > first


def test_the_pace_is_that_of_the_last_half_minute():
    pace = Pace()
    assert pace() is None
    for second in range(100):
        pace.note(second, step=second, samples=10 * second)
    for second in range(100, 160):
        pace.note(second, step=100 + 5 * (second - 100), samples=50 * second)
    assert pace() == (5, 50)


def test_a_run_that_goes_back_to_a_checkpoint_is_measured_from_there():
    pace = Pace()
    for now, step in enumerate((0, 5, 0)):
        pace.note(now, step, 10 * step)
    assert pace() is None
    pace.note(3, 2, 20)
    assert pace() == (2.0, 20.0)


@pytest.mark.slow
def test_a_standard_error_that_nobody_reads_does_not_change_how_a_program_ends():
    program = (
        "from holdfast.observe.terminal import PlainConsole\n"
        "console = PlainConsole(stderr=True)\n"
        "for _ in range(3): console.print('news')"
    )
    ours = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as unread:
        done = subprocess.run([sys.executable, "-c", program], check=False, stderr=unread, env=ours)
    assert done.returncode == 0
