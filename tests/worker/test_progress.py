"""How workers agree on how far a run has come, apart from its tensors."""

import json

import pytest

from holdfast.checkpoint.manifest import Best
from holdfast.worker.progress import Evaluations, Progress
from holdfast.worker.step.commit import RequestFlags, StepOutcome
from holdfast.worker.user_state.user_values import UserValues


def outcome(loss):
    return StepOutcome(loss=loss, logged={}, norm=1.0, skipped=False)


@pytest.fixture
def progress():
    found = Progress(step=6, order={"seed": 1}, saved_step=4, numerics_changes=["a → b"])
    found.evaluations = Evaluations(metrics={"loss": 0.5}, best=Best(value=0.5, step=3))
    found.user = UserValues(state={"count": 6})
    found.user.commit({"groups": [{"lr": 0.1}]})
    found.advance(RequestFlags.SAVE)
    found.settle({"step": 7}, outcome(0.25))
    return found


def sent(progress):
    """What a worker gets that takes over."""
    return Progress.from_donor(json.loads(json.dumps(progress.to_json())))


def test_a_worker_that_takes_over_knows_all_that_its_donor_knows(progress):
    assert sent(progress) == progress


def test_it_gets_the_state_as_it_was_at_the_newest_commit(progress):
    progress.user.state["count"] = 7  # in the code after that
    assert sent(progress).user.state == {"count": 6}


def test_it_asks_again_for_the_evaluations_of_pending_followups(progress):
    progress.evaluations.results, progress.evaluations.calls = [{"loss": 0.4}], 1
    assert sent(progress).evaluations.calls == 0
    progress.followup.pending, progress.followup.calls = False, 1
    assert sent(progress).evaluations.calls == 1


def test_a_commit_begins_new_followups(progress):
    progress.evaluations.best = Best(value=0.3, step=7)
    progress.evaluations.results, progress.followup.pending = [{"loss": 0.3}], False
    progress.advance(RequestFlags.STOP | RequestFlags.SAVE)
    progress.settle({"step": 8}, outcome(0.2))
    assert (progress.step, progress.loss) == (8, 0.2)
    assert progress.followup.pending
    assert (progress.followup.stops, progress.followup.saves) == (True, True)
    assert progress.evaluations.results == []
    assert progress.evaluations.previous_best == Best(value=0.3, step=7)


def test_work_between_two_steps_is_counted(progress):
    before = progress.work_done
    progress.evaluations.results.append({"loss": 0.4})
    evaluated = progress.work_done
    progress.saved_step = 7
    saved = progress.work_done
    progress.followup.pending = False
    assert before < evaluated < saved < progress.work_done


def test_a_worker_that_was_left_behind_catches_up(progress):
    leader = sent(progress)
    leader.evaluations.results = [{"loss": 0.4}]
    leader.evaluations.best = Best(value=0.4, step=7)
    leader.followup.calls, leader.followup.pending, leader.saved_step = 1, False, 7
    progress.catch_up(leader)
    assert progress.work_done == leader.work_done
    assert progress.evaluations.best == Best(value=0.4, step=7)
    assert progress.evaluations.calls == 1  # it need not ask again for what is over


def test_catching_up_keeps_the_place_among_pending_evaluations(progress):
    leader = sent(progress)
    leader.evaluations.results = [{"loss": 0.4}, {"loss": 0.3}]
    progress.evaluations.calls = 1
    progress.catch_up(leader)
    assert (len(progress.evaluations.results), progress.evaluations.calls) == (2, 1)


def test_a_replaced_progress_keeps_the_dictionary_that_user_code_holds(progress):
    held = progress.user.state
    other = sent(progress)
    other.user.state["count"] = 9
    progress.replace(other)
    assert progress.user.state is held
    assert held == {"count": 9}
    assert progress == other
