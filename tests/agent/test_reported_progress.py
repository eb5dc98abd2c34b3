"""What an agent reports of its workers' progress, on its way to a command."""

import math
from contextlib import closing

import pytest

from holdfast.arena.memory import Arena, Phase, Word
from holdfast.arena.worker_status import WorkerStatus, progress_of
from holdfast.core.protocol import Stage, Status
from holdfast.wire.rpc import RunStateMessage, StatusMessage


@pytest.fixture
def arena():
    with closing(Arena.create(2)) as arena:
        yield arena


def test_progress_is_what_the_worker_published(arena):
    worker = WorkerStatus(arena, 1)
    worker[Word.COMMITTED], worker[Word.TOTAL_STEPS], worker[Word.SAMPLES] = 7, 10, 448
    worker[Word.EPOCH], worker[Word.EPOCHS], worker.loss = 1, 2, 0.5
    worker.claim()
    worker.enter(Phase.FORWARD)
    worker.enter(Phase.REDUCE)
    found = progress_of(arena, [1])
    assert list(found) == [1]
    assert (found[1].step, found[1].total_steps, found[1].samples) == (7, 10, 448)
    assert (found[1].epoch, found[1].epochs, found[1].loss) == (1, 2, 0.5)
    assert found[1].phase == "reduce"
    assert {"starting", "forward"} >= found[1].phase_seconds.keys()


@pytest.mark.parametrize(("step", "loss"), [(0, 0.5), (1, math.nan), (1, math.inf)])
def test_a_loss_that_is_not_a_number_is_left_out(arena, step, loss):
    worker = WorkerStatus(arena, 0)
    worker[Word.COMMITTED], worker.loss = step, loss
    assert progress_of(arena, [0])[0].loss is None


def test_progress_survives_both_messages(arena):
    found = progress_of(arena, [0, 1])
    status = StatusMessage(status=Status(host="a", number=1, progress=found))
    heard = StatusMessage.model_validate_json(status.model_dump_json())
    state = RunStateMessage(
        stage=Stage.RUN, reason="", root_cause=None, result=None, progress=heard.status.progress
    )
    assert RunStateMessage.model_validate_json(state.model_dump_json()).progress == found
