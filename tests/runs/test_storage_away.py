"""A run whose storage is away while its workers need a checkpoint waits for it."""

import os
import shutil
import signal

import pytest

from conftest import events_of

pytestmark = pytest.mark.slow

SAVING = {"checkpoint": {"every_steps": 4, "keep": 9, "busy": "wait"}}
RESTARTING = {"on_failure": "restart"}


def lose_all_state(run):
    """Kill a worker of a run that then forks all of them again."""
    os.kill(events_of(run, "worker-started")[0]["pid"], signal.SIGKILL)


@pytest.mark.parametrize("is_unmounted", [False, True])
def test_a_run_waits_for_its_storage(train, reference, tmp_path, is_unmounted):
    run, away = tmp_path / "run", tmp_path / "away"
    storage = run / "checkpoints"
    lost = []

    def take_away_and_bring_back(reached):
        if reached >= 6 and not lost and events_of(run, "checkpoint-committed"):
            storage.rename(away)
            if is_unmounted:
                storage.mkdir()
            lose_all_state(run)
            lost.append(reached)
        elif lost and away.exists() and events_of(run, "storage-awaited"):
            shutil.rmtree(storage, ignore_errors=True)  # what was below the mount point
            away.rename(storage)

    keys = {"workers": 2, "epochs": 10, **RESTARTING, **SAVING}
    result = train(run_dir=run, watch=take_away_and_bring_back, **keys)
    assert result["weights_sha256"] == reference(10)
    started = events_of(run, "generation-started")
    assert [each["step"] >= 4 for each in started] == [False, True]
