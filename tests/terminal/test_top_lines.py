"""What `holdfast top` prints in a pipe."""

import json

import pytest

from holdfast.record.run_record import RunRecord
from holdfast.record.state import RunState, StateName
from holdfast.record.views.run_at import RunAt
from holdfast.views.terminal.plain import INTERVAL_S, PlainLines, status_of
from recorded_run import (
    LAST_STEP,
    NOW,
    RECOVERY,
    TEXT_JOB,
    events,
    generation,
    step,
    write,
    write_run,
)


@pytest.fixture
def said(tmp_path, monkeypatch):
    """What is printed as a run grows: `said(more events, now=, steps=, recoveries=) -> lines`,
    without their times.
    """
    path, lines = tmp_path / "recorded", PlainLines()
    write_run(path)
    record = RunRecord(path)
    running = RunState(name=StateName.RUNNING)  # though no process holds the directory
    monkeypatch.setattr(RunRecord, "state", lambda *_: running)

    def grown(*more, now=NOW, steps=0, recoveries=()):
        if more:
            write(path / "events.jsonl", [*events(), *more])
        if steps:
            with (path / "metrics.jsonl").open("a") as file:
                numbers = range(LAST_STEP + 1, LAST_STEP + 1 + steps)
                file.writelines(json.dumps(step(number)) + "\n" for number in numbers)
        write(path / "recoveries.jsonl", [RECOVERY, *recoveries])
        record.refresh()
        return [line[10:] for line in lines.news(RunAt(record=record, now=now))]

    return grown


STATUS = (
    "running  step 40/60  epoch 4.0 of 6  loss 0.0681  accuracy 64.6 %  80.0 samples/s  10 s left"
)
KILLED = {"time_unix_s": 1027.0, "event": "worker-exited", "rank": 0, "status": -9,
          "cause": "was killed by SIGKILL", "error": "", "unexpected": True}  # fmt: skip


def test_a_run_is_said_once_and_again_after_some_seconds(said):
    assert said() == [STATUS]
    assert said(now=NOW + INTERVAL_S - 1, steps=1) == []
    (line,) = said(now=NOW + INTERVAL_S)
    assert line.startswith("running  step 41/60")


@pytest.mark.usefixtures("said")
def test_the_speed_of_a_language_model_is_said_in_tokens_too(tmp_path):
    write_run(tmp_path / "text")
    (tmp_path / "text" / "job.yaml").write_text(TEXT_JOB)
    line = status_of(RunAt(record=RunRecord(tmp_path / "text"), now=NOW))
    assert line == STATUS.replace("samples/s", "samples/s  1,280 tokens/s")


def test_what_happens_is_said_at_once(said):
    said()
    saved = {"time_unix_s": 1027.5, "event": "checkpoint-committed", "step": 40, "directory": ""}
    assert said(KILLED, saved, now=NOW + 1) == [
        "rank 0 was killed by SIGKILL",
        "checkpoint committed: step 40",
    ]
    report = {**RECOVERY, "number": 2, "time_unix_s": 1028.0, "halted": [1]}
    resumed = generation(3, 1028.0, 40)
    (line,) = said(KILLED, saved, resumed, now=NOW + 2, recoveries=[report])
    assert line == (
        "recovery 2: rank 1 killed by SIGKILL; recovered in 0.50 s, 0 steps recomputed, "
        "state kept by rank 1"
    )


def test_the_end_is_the_last_that_is_said(said, monkeypatch):
    said()
    monkeypatch.undo()
    ended = {"time_unix_s": 1027.0, "event": "run-ended", "status": "finished", "steps": LAST_STEP}
    assert said(ended, now=NOW + 2) == [
        "run finished, 40 steps",
        "finished  step 40/60  epoch 4.0 of 6  loss 0.0681  accuracy 64.6 %",
    ]
    assert said(now=NOW + 60) == []
