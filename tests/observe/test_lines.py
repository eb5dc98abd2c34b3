"""Logs survive crashes and full disks, and never end a run."""

from holdfast.observe import lines


def test_what_is_written_is_read_back(tmp_path):
    with lines.JsonLines(tmp_path / "log") as log:
        log.write(step=1, loss=0.5)
        log.write(step=2, loss=0.25)
    assert list(lines.read(tmp_path / "log")) == [
        {"step": 1, "loss": 0.5},
        {"step": 2, "loss": 0.25},
    ]


def test_a_resumed_run_forgets_what_came_after_its_checkpoint(tmp_path):
    path = tmp_path / "log"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 2, "x": 1}\n{"step": 3}\n{"st')
    lines.forget_after(path, 2)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 2, "x": 1}\n'
    lines.forget_after(path, 9)
    assert len(path.read_text().splitlines()) == 3


def test_torn_lines_are_passed_over(tmp_path):
    path = tmp_path / "log"
    path.write_text('{"step": 1}\n{"ste\n[1]\n{"step": 2}\n{"step"')
    assert [entry["step"] for entry in lines.read(path)] == [1, 2]
    lines.forget_after(path, 5)
    assert path.read_text() == '{"step": 1}\n'


def test_a_line_that_cannot_be_written_is_forgiven():
    with lines.JsonLines("/dev/full") as log:
        log.write(step=1)
