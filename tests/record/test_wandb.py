"""W&B's offline mode keeps what it is handed, a row per step, also through a resume."""

import struct
from importlib.util import find_spec

import pytest

from holdfast.job import load
from holdfast.rundir.json_lines import EventLog, JsonLines
from holdfast.rundir.run_directory import RunDirectory
from holdfast.sinks.trackers.sender import deliver
from holdfast.sinks.trackers.tracker_sink import senders

pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.skipif(find_spec("wandb") is None, reason="needs wandb"),
]

BLOCK, HEADER = 32 << 10, 7


def records(path):
    """The records of a `.wandb` file: LevelDB's log format, after a header of seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, position, whole = path.read_bytes(), HEADER, b""
    while position + HEADER <= len(content):
        left = BLOCK - position % BLOCK
        if left < HEADER:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, position)
        position += HEADER + length
        whole += content[position - length : position]
        if kind in (1, 4):  # full, or the last part
            yield Record.FromString(whole)
            whole = b""


def rows(path):
    """Step and loss of each row."""
    for record in records(path):
        if record.WhichOneof("record_type") == "history":
            values = {(item.key or item.nested_key[0]): item for item in record.history.item}
            yield record.history.step.num, float(values["train/loss"].value_json)


def test_an_offline_run_has_a_row_per_step_and_the_artifacts(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("WANDB_MODE", "offline")
    job = load.check({"name": "points", "task": "x.py:y", "trackers": ["wandb"]}, where="test")
    with RunDirectory(tmp_path / "run", job, resume=False) as run:
        for steps in (range(1, 200), range(200, 300)):
            with JsonLines(run.path / "metrics.jsonl") as file:
                for step in steps:
                    file.write(step=step, loss=1 / step, samples=20, time_unix_s=100.0 + step)
            with EventLog(run.path / "events.jsonl") as log:
                log.event("run-started", workers=1, pid=1)
                log.event("run-ended", status="finished", steps=steps[-1])
            chosen, _ = senders(job, run.path, {})
            for each in chosen:
                each.start()
            assert deliver(chosen, lambda _: False) == []
    files = sorted((run.path / "wandb").glob("offline-run-*/*.wandb"))
    assert [row for path in files for row in rows(path)] == [
        (step, pytest.approx(1 / step)) for step in range(1, 300)
    ]
    begun = [each.run for each in records(files[0]) if each.WhichOneof("record_type") == "run"]
    assert (begun[0].project, begun[0].display_name) == ("points", "run")
    kinds = {each.WhichOneof("record_type") for each in records(files[1])}
    assert "artifact" in kinds
    assert capfd.readouterr().err == ""
