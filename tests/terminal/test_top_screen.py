"""The screen of a recorded run, without a terminal."""

import subprocess
import sys

import pytest

from holdfast.record.run_record import RunRecord
from holdfast.record.state import RunState, StateName
from holdfast.record.views.run_at import RunAt
from holdfast.views.terminal.lines import ASCII, UTF8, look_of
from holdfast.views.terminal.screen import draw, others_in_words
from recorded_run import GPU, LAST_STEP, NOW, TEXT_JOB, events, write, write_run


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Write a run that runs: `recorded(workers=, gpus=, more=) -> path`."""
    running = RunState(name=StateName.RUNNING)  # though no process holds the directory
    monkeypatch.setattr(RunRecord, "state", lambda *_: running)

    def run(**given):
        write_run(tmp_path / "recorded", **given)
        return tmp_path / "recorded"

    return run


def screen(path, page="run", size=(80, 24), look=UTF8, **more):
    lines = draw(RunAt(record=RunRecord(path), now=NOW), page, size, look, **more)
    assert len(lines) == size[1]
    assert all(line.cell_len <= size[0] for line in lines)
    return [line.plain.rstrip() for line in lines]


def test_a_run_fits_80_columns_and_24_lines(recorded):
    lines = screen(recorded(), others="also running: b")
    for place, begin, end in (
        (0, "holdfast  recorded   ● RUNNING", "up 26 s"),
        (1, "step 40/60 ━━━", " 67 %"),
        (2, "epoch 4.0 of 6", "10 s left"),
        (4, "loss 0.0681  accuracy 64.6 %  goodput 80.0/s, 62.5 % of throughput", "step 500 ms"),
        (5, "failures recovered 1 of 1, 0 steps recomputed", "checkpoint 10, 16 s ago"),
        (7, "▲ Input-bound: waiting for samples takes 41 % of a step. Raise loader.workers.", ""),
        (9, "RANK  HOST     DEVICE    STATE   SHARDS  CPU", "TEMP  DATA  WAIT"),
        (10, "   0  reef-1   CPU       running      4  ████░░░░  54 %", "–  43 %   4 %"),
        (13, "STEP  Data 40 %  Forward 20  Backward 20  Reduce 8  Wait 4", "Other 6"),
        (14, "      D█████", "█"),
        (16, "EVENTS", "recovered in  recomputed"),
        (17, "", "+ host reef-2 joined"),
        (18, "", "1 rank 1 killed by SIGKILL             0.50 s     0 steps"),
        (22, "also running: b", ""),
        (23, "q quit  s stop and checkpoint  r recovery report  e events", "updated 0.75 s ago"),
    ):  # fmt: skip
        assert lines[place].startswith(begin), lines[place]
        assert lines[place].endswith(end), lines[place]
    assert lines[1].index("1", 11) == 11 + int(20 / 60 * 64)  # the failure, in the bar


def test_the_speed_of_a_language_model_is_in_tokens_too(recorded):
    path = recorded()
    (path / "job.yaml").write_text(TEXT_JOB)
    line = screen(path, size=(100, 24))[4]
    assert "goodput 80.0/s, 1,280 tokens/s, 62.5 % of throughput" in line
    assert line.endswith("step 500 ms")


def test_what_a_gpu_uses_is_shown_of_a_gpu(recorded):
    lines = screen(recorded(gpus=[GPU]))
    assert "GPU" in lines[9]
    assert "RTX 3060  running      4  ████░░░░  54 %  5.9/12 71 C" in lines[10]


def test_of_many_workers_the_worst_are_shown_first(recorded):
    lost = {"time_unix_s": 1025.5, "event": "worker-exited", "rank": 7, "status": -9,
            "cause": "was killed by SIGKILL", "error": "", "unexpected": True}  # fmt: skip
    lines = screen(recorded(workers=40, more=[lost]))
    assert lines[10].split()[:4] == ["7", "reef-1", "CPU", "failed"]
    assert lines[11].split()[0] == "39"  # computes longest
    assert lines[14] == "      36 more; these are the worst"
    assert any("! rank 7 killed by SIGKILL" in line for line in lines)


def test_larger_terminals_show_more_and_smaller_ones_less(recorded):
    path = recorded(workers=40)
    wide = screen(path, size=(120, 60))
    assert sum("running" in line for line in wide) > 30
    for size in ((60, 20), (40, 12), (20, 5), (1, 1), (300, 100)):
        screen(path, size=size)


def test_a_terminal_without_utf8_gets_ascii(recorded):
    path = recorded()
    for page in ("run", "events", "report"):
        assert all(line.isascii() for line in screen(path, page, look=ASCII))
    assert screen(path, look=ASCII)[1].startswith("step 40/60 ====")
    assert look_of("ISO-8859-1") is ASCII
    assert look_of("utf-8") is UTF8


def test_a_new_run_is_shown_too(tmp_path):
    (tmp_path / "new").mkdir()
    lines = screen(tmp_path / "new")
    assert lines[0].startswith("holdfast  new   ○ STARTING")
    assert lines[1] == "step 0"
    assert "no failure so far" in lines


def test_text_of_a_run_controls_no_terminal(recorded):
    joined = {"time_unix_s": 1025.0, "event": "host-joined", "host": "\x1b[2J\n\x07", "address": ""}
    path = recorded(more=[joined])
    assert all(line.isprintable() for line in [*screen(path), *screen(path, "events")])


def test_pages_show_all_events_and_the_newest_report(recorded):
    path = recorded()
    lines = screen(path, "events")
    assert lines[2].endswith("host reef-2 joined from 10.0.0.2")
    assert lines[-1].startswith("q quit  esc back")
    lines = screen(path, "report")
    assert lines[2].startswith("── recovery 1, after step 20 ── rank 1 was killed by SIGKILL")
    assert any("rank 0 halted and kept its state" in line for line in lines)


def test_what_is_asked_takes_the_place_of_the_keys(recorded):
    assert screen(recorded(), note="stop? y/n")[-1].startswith("stop? y/n")


def test_a_run_that_has_ended_says_so(recorded, monkeypatch):
    path = recorded()
    monkeypatch.undo()
    ended = {"time_unix_s": 1025.5, "event": "run-ended", "status": "finished", "steps": LAST_STEP}
    write(path / "events.jsonl", [*events(), ended])
    lines = screen(path)
    assert "✓ FINISHED" in lines[0]
    assert lines[0].endswith("ran 26 s")
    assert "useful" in lines[4]
    assert lines[-1].endswith("run finished")
    assert "s stop" not in lines[-1]


def test_other_runs_are_named_in_a_line():
    assert others_in_words([]) == ""
    assert others_in_words(["a", "b", "c", "d", "e"]) == "also running: a, b, c and 2 more"


@pytest.mark.slow
def test_the_screen_loads_neither_torch_nor_charts():
    code = (
        "import sys, holdfast.views.terminal.top; "
        "sys.exit(bool({'torch', 'numpy', 'plotly', 'streamlit', 'matplotlib'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
