"""The state of a search: folded from its record, and what it decides."""

import json

import pytest

from holdfast.core.tuning.rungs import StopRule
from holdfast.core.tuning.search import (
    Asked,
    Ended,
    Evaluated,
    Opened,
    SearchPlan,
    SearchState,
    Started,
    Stopping,
    parsed,
    plain,
)


def plan(**keys):
    known = {"trials": 4, "at_once": 2, "goal": "max", "epochs": 9, "strict": False, "every": None}
    return SearchPlan(**{**known, "stop": StopRule(), **keys})


def lines_of(number, *values, status="finished", error="", ends=True):
    """The lines of a trial with a value per epoch."""
    yield Asked(trial=number, values={"batch": number})
    yield Started(trial=number)
    for epoch, value in enumerate(values, 1):
        yield Evaluated(trial=number, epoch=epoch, value=value)
    if ends:
        yield Ended(trial=number, status=status, error=error)


@pytest.mark.parametrize(
    "line",
    [
        Opened(),
        Asked(trial=0, values={"optimizer.lr": 0.1}),
        Started(trial=0),
        Evaluated(trial=0, epoch=1, value=None),
        Stopping(trial=0, reason="poor"),
        Ended(trial=0, status="stopped", steps=3, weights_sha256="ab"),
    ],
)
def test_a_line_is_read_back_as_it_was_written(line):
    name, fields = plain(line)
    assert parsed(json.loads(json.dumps({"event": name, **fields}))) == line


def test_lines_of_other_versions_are_skipped():
    assert parsed({"event": "forked"}) is None
    assert parsed({"event": "asked"}) is None
    assert parsed({}) is None


def test_the_best_trial_is_the_first_of_equals_that_has_not_failed():
    ends = [(0.5,), (0.9,), (0.9,)]
    lines = [line for n, values in enumerate(ends) for line in lines_of(n, *values)]
    lines += lines_of(3, 1.0, status="failed")
    assert SearchState(plan(), lines).best.number == 1
    assert SearchState(plan(goal="min"), lines).best.number == 0
    assert SearchState(plan()).best is None


def test_the_value_of_a_trial_is_its_best_finite_one():
    (trial,) = SearchState(plan(), lines_of(0, None, 0.7, 0.2)).trials
    assert (trial.value("max"), trial.value("min"), trial.epoch) == (0.7, 0.2, 3)


def test_trials_are_asked_up_to_their_number():
    state = SearchState(plan(trials=2), [*lines_of(0, 0.1, ends=False)])
    assert state.next_trial() == 1
    for line in lines_of(1, 0.1):
        state.apply(line)
    assert state.next_trial() is None
    assert [trial.number for trial in state.open] == [0]


def test_strict_waits_for_the_trials_that_a_trial_knows():
    state = SearchState(plan(strict=True), [*lines_of(0, 0.1, ends=False), *lines_of(1, 0.2)])
    assert state.next_trial() is None
    state.apply(Ended(trial=0, status="finished"))
    assert state.next_trial() == 2
    assert [trial.number for trial in state.known_to(2)] == [0]
    assert [trial.number for trial in SearchState(plan(), lines_of(0, 0.1)).known_to(2)] == [0]


def test_strict_stop_rules_compare_with_the_known_trials():
    asha = StopRule(name="asha")
    lines = [*lines_of(0, 0.5), *lines_of(1, 0.9, ends=False), *lines_of(2, 0.6, ends=False)]
    assert SearchState(plan(strict=True, stop=asha), lines).reason_to_stop(2) == ""
    assert SearchState(plan(stop=asha), lines).reason_to_stop(2) != ""


def test_nothing_is_asked_after_the_last_evaluation():
    asha = StopRule(name="asha", min_epochs=2)
    lines = [*lines_of(0, 0.5, 0.5), *lines_of(1, 0.1, 0.1, ends=False)]
    assert SearchState(plan(stop=asha, epochs=2), lines).reason_to_stop(1) == ""
    assert SearchState(plan(stop=asha, epochs=3), lines).reason_to_stop(1) != ""


def test_three_failures_alike_end_a_search():
    def failed(number, error, *values):
        return lines_of(number, *values, status="failed", error=error)

    alike = [line for n in range(3) for line in failed(n, "no")]
    state = SearchState(plan(), alike)
    assert (state.same_failures(), state.next_trial()) == ("no", None)
    others = [*failed(0, "no"), *failed(1, "never"), *failed(2, "no")]
    assert SearchState(plan(), others).same_failures() == ""
    again = SearchState(plan(), [*alike, Opened()])
    assert (again.same_failures(), again.next_trial()) == ("", 3)
    worked = [*failed(0, "no"), *failed(1, "no", 0.1), *failed(2, "no")]
    assert SearchState(plan(), worked).next_trial() == 3


def test_starts_count_until_a_trial_gets_further():
    lines = [*lines_of(0, ends=False), Started(trial=0)]
    state = SearchState(plan(), lines)
    assert state.trials[0].starts == 2
    state.apply(Evaluated(trial=0, epoch=1, value=0.1))
    assert state.trials[0].starts == 1
    state.apply(Opened())
    assert state.trials[0].starts == 0
