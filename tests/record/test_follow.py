"""Files that grow are read line by line, each line once, whatever happens to them meanwhile."""

import dataclasses
import json

import pytest

from holdfast.rundir import json_lines
from holdfast.rundir.follow import (
    MARK_BYTES,
    ByteTail,
    Cursor,
    JsonTail,
    StepCursor,
    StepTail,
    end_of,
)


def test_whole_lines_are_read_and_a_torn_end_is_read_once_it_is_whole(tmp_path):
    path = tmp_path / "log"
    tail = ByteTail(path)
    assert tail.lines() == tail.piece(9) == b""
    path.write_bytes(b"one\ntwo\nthr")
    assert tail.lines() == b"one\ntwo\n"
    assert tail.lines() == tail.piece(9) == b""
    assert tail.cursor == Cursor(position=8, before="one\ntwo\n")
    with path.open("ab") as file:
        file.write(b"ee\nfo")
    assert tail.lines() == b"three\n"
    assert tail.piece(9, is_last=True) == b"fo"


def test_a_long_file_is_read_in_blocks_of_whole_lines(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"1\n22\n4444\n5\nx")
    tail = ByteTail(path)
    assert tail.lines(2) == b"1\n"
    assert tail.lines(1) == b"22\n", "at least a line"
    assert tail.lines(6) == b"4444\n5\n"
    assert tail.lines(6) == b""


def test_a_piece_has_a_limit_and_breaks_only_a_line_that_is_longer(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"1\n22\n" + b"x" * 9 + b"\n")
    tail = ByteTail(path)
    assert tail.piece(4) == b"1\n"
    assert tail.piece(4) == b"22\n"
    assert tail.piece(4) == b"xxxx"
    assert tail.piece(4) == b"xxxx"
    assert tail.piece(4) == b"x\n"


def test_a_cursor_tells_whether_what_was_before_it_is_still_there(tmp_path):
    path = tmp_path / "log"
    assert ByteTail(path).holds(end_of(path))
    path.write_bytes(b"\xff" * MARK_BYTES + b"one\ntwo\n")
    cursor = end_of(path)
    assert len(cursor.before) == MARK_BYTES
    tail = ByteTail(path, cursor)
    assert tail.holds(cursor)
    with path.open("ab") as file:
        file.write(b"three\n")
    assert tail.holds(cursor)
    for other in (b"", b"one\n", b"\xff" * MARK_BYTES + b"one\nTWO\n"):
        path.write_bytes(other)
        assert not tail.holds(cursor)
    path.unlink()
    assert not tail.holds(cursor)


@pytest.mark.parametrize("steps", [range(5, 6), range(5, 100)])
def test_a_file_that_took_the_place_of_another_is_read_from_its_start(tmp_path, steps):
    path = tmp_path / "log"
    write_steps(path, 1, 2, 3, 4)
    tail = JsonTail(path)
    assert len(tail()) == 4
    write_steps(tmp_path / "new", *steps)
    (tmp_path / "new").replace(path)
    assert [line["step"] for line in tail()] == list(steps)
    path.unlink()
    assert tail() == []


def test_a_cursor_is_plain_data_from_which_another_process_continues(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_steps(path, 1, 2, 3, evaluated=[2])
    tail = StepTail(path)
    assert len(tail(1)) == 1
    plain = json.loads(json.dumps(dataclasses.asdict(tail.cursor)))
    cursor = StepCursor(**{**plain, "place": Cursor(**plain["place"])})
    assert cursor == tail.cursor
    assert told(StepTail(path, cursor)) == [(2, "loss"), (2, "evaluation"), (3, "loss")]
    json_lines.forget_after(path, 0)
    write_steps(path, 1, 2, time=1.0)
    assert told(StepTail(path, cursor)) == [(2, "loss")], "the file was cut off meanwhile"


def test_nothing_new_leaves_the_cursor_where_it_is(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_steps(path, 1, 2)
    tail = StepTail(path)
    tail()
    cursor = tail.cursor
    assert tail() == []
    assert tail.cursor == cursor


def test_a_tail_gives_each_line_that_is_appended_once_it_is_whole(tmp_path):
    path = tmp_path / "log"
    assert JsonTail(path)() == json_lines.last(path) == []
    from_the_start = JsonTail(path)
    path.write_text('{"step": 1}\n')
    tail = JsonTail(path, end_of(path))
    with path.open("a") as file:
        for text, expected in [
            ('{"step": 2}\n{"st', [{"step": 2}]),
            ("", []),
            ('ep": 3}\n\n{torn\n{"step": 4}\n', [{"step": 3}, {"step": 4}]),
        ]:
            file.write(text)
            file.flush()
            assert tail() == expected
    assert from_the_start() == json_lines.last(path) == [{"step": step} for step in (1, 2, 3, 4)]


def write_steps(path, *steps, evaluated=(), mode="a", time=0.0):
    with path.open(mode) as file:
        for step in steps:
            file.write(json.dumps({"step": step, "loss": step / 7, "time_unix_s": time}) + "\n")
            if step in evaluated:
                file.write(json.dumps({"step": step, "evaluation": {"score": step}}) + "\n")


def told(tail):
    return [(line["step"], "loss" if "loss" in line else "evaluation") for line in tail()]


@pytest.mark.parametrize("tail_bytes", [60, json_lines.TAIL_BYTES])
@pytest.mark.parametrize("read_between", [True, False])
def test_steps_are_told_once_where_a_restart_shortens_their_file(
    tmp_path, monkeypatch, tail_bytes, read_between
):
    monkeypatch.setattr(json_lines, "TAIL_BYTES", tail_bytes)
    path = tmp_path / "metrics.jsonl"
    tail = StepTail(path)
    assert told(tail) == []
    write_steps(path, 1, 2, 3, 4, evaluated=[3])
    assert told(tail) == [(1, "loss"), (2, "loss"), (3, "loss"), (3, "evaluation"), (4, "loss")]
    json_lines.forget_after(path, 2)
    assert told(tail) == []
    write_steps(path, 3, evaluated=[3], time=1.0)
    if read_between:
        assert told(tail) == []
    write_steps(path, 4, 5, 6, evaluated=[5], time=1.0)
    assert told(tail) == [(5, "loss"), (5, "evaluation"), (6, "loss")]


@pytest.mark.parametrize("tail_bytes", [60, json_lines.TAIL_BYTES])
@pytest.mark.parametrize("step", [6, 8])
def test_steps_of_earlier_attempts_are_not_told(tmp_path, monkeypatch, tail_bytes, step):
    monkeypatch.setattr(json_lines, "TAIL_BYTES", tail_bytes)
    path = tmp_path / "metrics.jsonl"
    write_steps(path, *range(1, 9), evaluated=[3, 6])
    tail = StepTail(path, StepCursor(place=end_of(path)).after(step))
    assert told(tail) == []
    json_lines.forget_after(path, step)
    assert told(tail) == []
    write_steps(path, *range(step + 1, 10), evaluated=[9], time=1.0)
    steps = [(each, "loss") for each in range(step + 1, 10)]
    assert told(tail) == [*steps, (9, "evaluation")]
    with path.open("a") as file:
        file.write('{"step": 10, "lo')
        file.flush()
        assert told(tail) == []
        file.write('ss": 1}\n')
    assert told(tail) == [(10, "loss")]
