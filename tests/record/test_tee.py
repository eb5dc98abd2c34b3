"""What workers print is shown line by line, with nothing lost and nothing of another run."""

import pytest

from holdfast.rundir.run_directory import worker_log
from holdfast.sinks.tee import READ_BYTES, Tee


def append(tmp_path, rank, data):
    with worker_log(tmp_path, rank).open("ab") as file:
        file.write(data)


def test_lines_come_once_and_a_line_without_an_end_comes_last(tmp_path):
    tee = Tee(tmp_path, [2, 0])
    assert list(tee.lines()) == []
    append(tmp_path, 0, b"one\ntwo\nthr")
    append(tmp_path, 1, b"not asked for\n")
    append(tmp_path, 2, b"other\n")
    assert list(tee.lines()) == ["[rank 0] one", "[rank 0] two", "[rank 2] other"]
    append(tmp_path, 0, b"ee\nfour")
    assert list(tee.lines()) == ["[rank 0] three"]
    append(tmp_path, 0, b"!")
    assert list(tee.last_lines()) == ["[rank 0] four!"]


def test_output_of_an_earlier_start_is_not_shown(tmp_path):
    append(tmp_path, 0, b"long ago\n")
    tee = Tee(tmp_path, [0])
    append(tmp_path, 0, b"now\n")
    assert list(tee.last_lines()) == ["[rank 0] now"]


def test_a_flood_is_taken_in_parts_and_a_line_without_end_is_broken(tmp_path):
    tee = Tee(tmp_path, [0])
    append(tmp_path, 0, b"x" * (3 * READ_BYTES) + b"\nend\n" * READ_BYTES)
    first = list(tee.lines())
    assert sum(map(len, first)) <= 2 * READ_BYTES
    shown = [*first, *tee.last_lines()]
    assert "".join(line.removeprefix("[rank 0] ") for line in shown).count("x") == 3 * READ_BYTES
    assert shown.count("[rank 0] end") == READ_BYTES


@pytest.mark.parametrize(
    ("data", "shown"),
    [(b"1%\r50%\r100%\n", "100%"), (b"windows\r\n", "windows"), (b"\xff\n", "\ufffd")],
)  # fmt: skip
def test_a_line_is_shown_as_it_stands_in_the_end(tmp_path, data, shown):
    tee = Tee(tmp_path, [0])
    append(tmp_path, 0, data)
    assert list(tee.lines()) == [f"[rank 0] {shown}"]
