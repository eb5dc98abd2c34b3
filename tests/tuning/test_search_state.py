"""The state of a search: folded from its record, and what it decides."""

import json

import pytest

from holdfast.core.tuning.rungs import StopRule
from holdfast.core.tuning.search import (
    Asked,
    Ended,
    Evaluated,
    Evolved,
    Opened,
    Paused,
    SearchPlan,
    SearchState,
    Started,
    Stopping,
    parsed,
    plain,
    score,
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
        Paused(trial=0, epoch=2, steps=12),
        Evolved(epoch=2, forks=[{"trial": 2, "parent": 1, "replaces": 0, "values": {}}]),
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


def test_what_a_later_version_adds_to_a_line_is_left_out():
    entry = {"event": "started", "trial": 3, "host": "a", "time": 1.5}
    assert parsed(entry) == Started(trial=3)


def test_a_line_may_leave_out_what_is_not_known():
    ended = parsed({"event": "ended", "trial": 0, "status": "failed"})
    assert (ended.steps, ended.seconds, ended.weights_sha256, ended.error) == (0, None, None, "")


@pytest.mark.parametrize(
    ("value", "of_max", "of_min"),
    [
        (0.5, 0.5, -0.5),
        (-0.5, -0.5, 0.5),
        (None, float("-inf"), float("-inf")),
        (float("nan"), float("-inf"), float("-inf")),
        (float("inf"), float("-inf"), float("-inf")),
    ],
)
def test_a_score_is_the_higher_the_better_and_what_is_not_finite_the_worst(value, of_max, of_min):
    assert (score(value, "max"), score(value, "min")) == (of_max, of_min)


def test_the_curve_of_a_trial_are_its_scores():
    (trial,) = SearchState(plan(), lines_of(0, 0.7, None, 0.2)).trials
    assert trial.curve("max") == [(1, 0.7), (2, float("-inf")), (3, 0.2)]
    assert trial.curve("min") == [(1, -0.7), (2, float("-inf")), (3, -0.2)]


def test_a_trial_without_a_finite_value_has_none_and_is_never_the_best():
    lines = [*lines_of(0, None), *lines_of(1), *lines_of(2, 0.1)]
    state = SearchState(plan(), lines)
    assert [trial.value("max") for trial in state.trials] == [None, None, 0.1]
    assert [trial.epoch for trial in state.trials] == [1, 0, 1]
    assert state.best.number == 2
    assert SearchState(plan(), lines_of(0, None)).best is None


def test_an_open_trial_is_ranked_but_not_yet_the_best():
    lines = [*lines_of(0, 0.1), *lines_of(1, 0.9, ends=False), *lines_of(2, 0.5, status="stopped")]
    state = SearchState(plan(), lines)
    assert [trial.number for trial in state.ranked] == [1, 2, 0]
    assert state.best.number == 2
    lower = SearchState(plan(goal="min"), lines)
    assert [trial.number for trial in lower.ranked] == [0, 2, 1]


def test_a_trial_that_is_stopped_says_why():
    state = SearchState(plan(), [*lines_of(0, 0.1, ends=False), Stopping(trial=0, reason="poor")])
    assert (state.trials[0].stopping, state.open) == ("poor", state.trials)
    state.apply(end := Ended(trial=0, status="stopped", steps=3))
    assert (state.trials[0].ended, state.open) == (end, [])


def test_a_continued_search_forgets_the_starts_of_all_its_trials():
    lines = [*lines_of(0, 0.1, ends=False), *lines_of(1, ends=False), Started(trial=1)]
    state = SearchState(plan(), [Opened(), *lines])
    assert [trial.starts for trial in state.trials] == [1, 2]
    state.apply(Opened())
    assert [trial.starts for trial in state.trials] == [0, 0]
    state.apply(Started(trial=1))
    assert [trial.starts for trial in state.trials] == [0, 1]


def test_only_the_newest_failures_must_be_alike():
    errors = ["other", "no", "no", "no"]
    lines = [
        line
        for number, error in enumerate(errors)
        for line in lines_of(number, status="failed", error=error)
    ]
    assert SearchState(plan(trials=9), lines).same_failures() == "no"
    assert SearchState(plan(trials=9), lines).next_trial() is None
    assert SearchState(plan(trials=9), lines[:-3]).same_failures() == ""
    stopped = lines_of(4, status="stopped")
    again = [line for n in (5, 6) for line in lines_of(n, status="failed", error="no")]
    assert SearchState(plan(trials=9), [*lines, *stopped, *again]).same_failures() == ""


def test_strict_knows_what_ended_up_to_as_many_trials_before_as_run_at_once():
    lines = [line for number in range(4) for line in lines_of(number, 0.1, ends=number != 1)]
    strict = SearchState(plan(trials=9, strict=True), lines)
    assert [trial.number for trial in strict.known_to(4)] == [0, 2]
    assert [trial.number for trial in strict.known_to(5)] == [0, 2, 3]
    free = SearchState(plan(trials=9), lines)
    assert [trial.number for trial in free.known_to(4)] == [0, 2, 3]
    assert [trial.number for trial in free.known_to(3)] == [0, 2]


def test_strict_waits_for_no_trial_that_the_next_one_does_not_know():
    lines = [*lines_of(0, 0.1), *lines_of(1, 0.2, ends=False)]
    state = SearchState(plan(strict=True), lines)
    assert state.next_trial() == 2
    for line in lines_of(2, 0.2):
        state.apply(line)
    assert state.next_trial() is None
    assert SearchState(plan(), lines).next_trial() == 2


@pytest.mark.parametrize(("epoch", "stops"), [(1, True), (2, False), (3, False)])
def test_a_trial_that_searches_its_epochs_is_complete_after_them(epoch, stops):
    state = SearchState(plan(stop=StopRule(name="asha", min_epochs=1)), lines_of(0, *[0.9] * 3))
    state.apply(Asked(trial=1, values={"epochs": 2}))
    state.apply(Evaluated(trial=1, epoch=epoch, value=0.1))
    assert bool(state.reason_to_stop(1)) == stops


def test_the_median_is_that_of_the_trials_that_have_finished():
    median = StopRule(name="median", min_trials=2)
    ends = ["finished", "stopped", "failed", "finished", "finished"]
    lines = [line for n, end in enumerate(ends) for line in lines_of(n, 0.5, status=end)]
    state = SearchState(plan(trials=9, stop=median), [*lines, *lines_of(5, 0.1, ends=False)])
    assert state.reason_to_stop(5) == "below the median of 3 trials until epoch 1"
    one = [*lines_of(0, 0.5), *lines_of(1, 0.5, status="stopped"), *lines_of(2, 0.5, ends=False)]
    state = SearchState(plan(trials=9, stop=median), [*one, *lines_of(3, 0.1, ends=False)])
    assert state.reason_to_stop(3) == ""


def population(*values, trials=2, epochs=5, every=2, goal="max"):
    """A population, each of which has trained for a generation and had these values."""
    state = SearchState(plan(trials=trials, epochs=epochs, every=every, goal=goal))
    for number, value in enumerate(values):
        state.apply(Asked(trial=number, values={"lr": number}))
        train(state, number, 2, value)
    return state


def train(state, number, epoch, value):
    state.apply(Started(trial=number))
    state.apply(Evaluated(trial=number, epoch=epoch, value=value))
    state.apply(Paused(trial=number, epoch=epoch, steps=10 * epoch))


def fork_of(trial, parent, replaces):
    return {"trial": trial, "parent": parent, "replaces": replaces, "values": {"lr": trial}}


def test_a_trial_of_a_population_pauses_at_the_end_of_its_generation():
    state = SearchState(plan(trials=1, epochs=5, every=2), [Asked(trial=0, values={})])
    (trial,) = state.trials
    assert (trial.paused, trial.paused_steps, trial.first_epoch) == (0, 0, 0)
    assert (state.segment_end, state.may_start(trial)) == (2, True)
    train(state, 0, 2, 0.1)
    assert (trial.paused, trial.paused_steps, trial.starts) == (2, 20, 0)
    assert not state.may_start(trial)
    state.apply(Evolved(epoch=2, forks=[]))
    assert (state.generation, state.segment_end, state.may_start(trial)) == (2, 4, True)
    train(state, 0, 4, 0.2)
    state.apply(Evolved(epoch=4, forks=[]))
    assert (state.segment_end, state.may_start(trial)) == (5, True)


def test_without_a_population_a_trial_trains_to_the_end():
    state = SearchState(plan(epochs=9), lines_of(0, 0.1, ends=False))
    assert state.segment_end == 9
    assert state.may_start(state.trials[0])
    assert state.replaced() is None


def test_a_generation_is_complete_once_all_its_trials_are_paused():
    state = population(0.1)
    assert state.replaced() is None  # one is not asked yet
    state.apply(Asked(trial=1, values={}))
    state.apply(Evaluated(trial=1, epoch=2, value=0.9))
    assert state.replaced() is None  # one is not paused yet
    state.apply(Paused(trial=1, epoch=2, steps=20))
    assert state.replaced() == {0: 1}
    state.apply(Stopping(trial=0, reason="the budget is used"))
    assert state.replaced() is None


def test_the_newest_value_decides_who_is_replaced():
    state = population(0.9, 0.5)
    assert state.replaced() == {1: 0}
    assert population(0.9, 0.5, goal="min").replaced() == {0: 1}
    state.apply(Evolved(epoch=2, forks=[]))
    train(state, 0, 4, 0.1)
    train(state, 1, 4, 0.4)
    assert state.replaced() == {0: 1}


def test_trials_that_have_ended_are_no_part_of_a_generation():
    state = population(0.1, 0.5, 0.9, trials=3)
    state.apply(Ended(trial=0, status="failed"))
    assert state.replaced() == {1: 2}
    for number in (1, 2):
        state.apply(Ended(trial=number, status="finished"))
    assert state.replaced() is None


def test_a_fork_begins_where_its_parent_is_paused_and_ends_the_trial_it_replaces():
    state = population(0.1, 0.9)
    state.apply(Evolved(epoch=2, forks=[fork_of(2, parent=1, replaces=0)]))
    replaced, parent, fork = state.trials
    assert replaced.stopping == "replaced by trial 2"
    assert replaced.ended == Ended(trial=0, status="stopped", steps=20)
    assert state.open == [parent, fork]
    assert (fork.number, fork.values, fork.fork.parent) == (2, {"lr": 2}, 1)
    assert (fork.epoch, fork.paused, fork.paused_steps, fork.first_epoch) == (2, 2, 20, 2)
    assert (fork.starts, fork.evaluations) == (0, [])
    assert (parent.fork, parent.first_epoch) == (None, 0)
    assert state.may_start(fork)
    assert state.next_trial() is None
    train(state, 2, 4, 0.5)
    assert fork.epoch == 4
