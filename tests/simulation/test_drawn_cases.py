"""Drawing, shrinking and comparing of the exactness fuzzer; its runs are in tests/runs."""

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.step.plan import plan_step
from holdfast.errors import JobError
from holdfast.job import load as job_load
from holdfast_bench.exactness import case as cases
from holdfast_bench.exactness import shrink as shrinking
from holdfast_bench.exactness.case import Case, Configuration, Kill, Recipe
from holdfast_bench.exactness.draw import draw, is_possible
from holdfast_bench.exactness.outcome import CaseOutcome, problem
from holdfast_bench.exactness.runner import job_of

SEEDS = st.integers(0, 100_000)
FEW = settings(max_examples=30, deadline=None)
STEP = {"loss": 1.0, "norm": 2.0, "lr": 0.1, "epoch": 0, "samples": 8, "logged": {}}


@FEW
@given(seed=SEEDS)
def test_what_is_drawn_can_run(seed):
    drawn = draw(seed)
    assert is_possible(drawn)
    assert drawn == draw(seed)
    assert drawn.configurations


@FEW
@given(seed=SEEDS)
def test_every_configuration_is_a_valid_job(seed, tmp_path_factory):
    drawn = draw(seed)
    for made in drawn.configurations:
        job = job_load.check(job_of(drawn.recipe, made, tmp_path_factory.getbasetemp()), "drawn")
        plan = plan_step(job.shards, job.workers, job.shards_per_worker)
        assert plan.num_shards == drawn.recipe.shards
        assert cases.recipe_of(json.loads(json.dumps(job.params["recipe"]))) == drawn.recipe


def test_every_value_is_drawn():
    recipes = [draw(seed).recipe for seed in range(1000)]
    for name in (
        "model",
        "optimizer",
        "implementation",
        "dtype",
        "data",
        "schedule",
        "scheduler",
        "evaluate",
    ):
        drawn = {getattr(recipe, name) for recipe in recipes}
        assert drawn == set(cases.values_of(getattr(cases, LITERALS[name]))), name
    assert {part for recipe in recipes for part in recipe.parts} == set(cases.values_of(cases.Part))
    assert any(recipe.shards > recipe.batch for recipe in recipes)
    assert any(recipe.samples % recipe.batch for recipe in recipes)


LITERALS = {
    "model": "Model",
    "optimizer": "Optimizer",
    "implementation": "Implementation",
    "dtype": "DType",
    "data": "Data",
    "schedule": "Schedule",
    "scheduler": "Scheduler",
    "evaluate": "Evaluate",
}


@FEW
@given(seed=SEEDS)
def test_a_specification_comes_back_as_the_same_case(seed, tmp_path_factory):
    drawn, path = draw(seed), tmp_path_factory.mktemp("case") / "case.yaml"
    path.write_text(cases.dump(drawn))
    assert cases.load(path) == drawn


@pytest.mark.parametrize(
    "text", ["recipe: {model: mpl}\nconfigurations: []", "recipe: {wide: 3}", "[", "{}"]
)
def test_what_is_no_case_is_refused(tmp_path, text):
    path = tmp_path / "case.yaml"
    path.write_text(text)
    with pytest.raises(JobError, match=r"case\.yaml describes no case"):
        cases.load(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(JobError, match="No such file"):
        cases.load(tmp_path / "none.yaml")


@FEW
@given(seed=SEEDS)
def test_candidates_are_plainer_and_can_run(seed):
    drawn = draw(seed)
    for plainer in shrinking.candidates(drawn):
        assert is_possible(plainer)
        assert amount(plainer) < amount(drawn)


def amount(value, default=None):
    """How much there is to a case: what is no default, and how far numbers are from theirs."""
    if dataclasses.is_dataclass(value):
        return sum(
            1 + amount(getattr(value, field.name), field.default)
            for field in dataclasses.fields(value)
            if field.name in {"recipe", "configurations"}
            or getattr(value, field.name) != field.default
        )
    if isinstance(value, tuple):
        return len(value) + sum(map(amount, value))
    return abs(value - (default or 0)) if isinstance(value, int) else 0


@FEW
@given(seed=SEEDS)
def test_a_case_shrinks_to_what_its_failure_needs(seed):
    """Here one part of the network, and more than one worker."""
    drawn = draw(seed)
    needs = dataclasses.replace(
        drawn,
        recipe=dataclasses.replace(drawn.recipe, parts=("rebound", "tied")),
        configurations=(*drawn.configurations, Configuration(workers=2, shards_per_worker=None)),
    )
    if drawn.recipe.shards < 2:
        return

    def fails(case):
        return "rebound" in case.recipe.parts and any(c.workers > 1 for c in case.configurations)

    least = shrinking.shrink(needs, fails, 300)
    assert least.recipe == Recipe(seed=drawn.recipe.seed, parts=("rebound",))
    assert [made.workers for made in least.configurations] == [2]


def test_a_case_whose_kill_matters_keeps_it():
    kill = Kill(rank=1, step=3, calls=4000)
    case = Case(
        recipe=Recipe(model="lstm", length=4, dropout=0.5, clip_norm=0.3),
        configurations=(
            Configuration(workers=3),
            Configuration(workers=3, policy="shrink", kills=(Kill(step=None, calls=7), kill)),
        ),
    )
    least = shrinking.shrink(
        case, lambda case: any(k.calls > 100 for c in case.configurations for k in c.kills), 300
    )
    assert least.recipe == Recipe()
    assert len(least.configurations) == 1
    (left,) = least.configurations[0].kills
    assert (left.rank, left.step) == (1, 0)
    assert 100 < left.calls <= 200


def test_shrinking_looks_at_no_more_cases_than_it_may():
    looked = []
    shrinking.shrink(draw(3), lambda case: bool(looked.append(case)), 5)
    assert len(looked) == 5


def outcome(**changes):
    fields = {"weights": "abc", "steps": {1: STEP, 2: STEP}, "evaluations": {2: {"right": 0.5}}}
    return CaseOutcome(**(fields | changes))


FAILED = outcome(error="WorkerFailed", message="rank 1 raised", weights="", steps={})
REFUSED = outcome(error="JobError", message="parameter 3 is odd", weights="", steps={})


@pytest.mark.parametrize(
    ("reference", "other", "words"),
    [
        (outcome(), outcome(), ""),
        (outcome(), outcome(weights="xyz"), "other weights than the reference"),
        (
            outcome(),
            outcome(weights="xyz", steps={1: STEP, 2: STEP | {"norm": 2.1}}),
            "other weights than the reference; step 2 is the first to differ (norm 2.0 → 2.1)",
        ),
        (
            outcome(),
            outcome(steps={1: STEP}),
            (
                "the same weights and other metrics; step 2 is the first to differ (loss 1.0 → "
                "None, norm 2.0 → None, lr 0.1 → None, epoch 0 → None, samples 8 → None, "
                "logged {} → None)"
            ),
        ),
        (outcome(), outcome(evaluations={}), "the same weights and other evaluations"),
        (
            outcome(),
            outcome(other_failures=("rank 1 raised KeyError",)),
            "the same weights, but a worker was lost: rank 1 raised KeyError",
        ),
        (outcome(), FAILED, "WorkerFailed: rank 1 raised; the reference: finished"),
        (FAILED, FAILED, "the reference failed with WorkerFailed: rank 1 raised"),
        (REFUSED, outcome(error="JobError", message="parameter 12 is odd", steps={}), ""),
        (REFUSED, outcome(), "finished; the reference: JobError: parameter 3 is odd"),
    ],
)
def test_two_outcomes_are_compared_in_words(reference, other, words):
    assert problem(reference, other) == words


def test_an_outcome_is_read_from_an_answer_and_metrics():
    line = STEP | {"step": 1, "seconds": 0.1, "phases": {}}
    answer = {"status": "finished", "weights_sha256": "abc"}
    exited = {"event": "worker-exited", "rank": 0, "unexpected": True}
    killed = exited | {"cause": "was killed by SIGKILL", "status": -9}
    read = CaseOutcome.of(
        answer,
        [line, {"step": 1, "evaluation": {"right": 1.0}}],
        [
            {"event": "run-started"},
            killed,
            killed | {"rank": 1, "unexpected": False},
            killed | {"rank": 3},
            exited | {"cause": "raised KeyError", "status": 1, "rank": 2},
            exited | {"cause": "hung: it did nothing", "status": -9, "rank": 4},
        ],
        kills=1,
    )
    assert read == CaseOutcome(
        weights="abc",
        steps={1: STEP | {"skipped": None, "scale": None}},
        evaluations={1: {"right": 1.0}},
        kills=1,
        other_failures=(
            "rank 3 was killed by SIGKILL",
            "rank 2 raised KeyError",
            "rank 4 hung: it did nothing",
        ),
    )
    stopped = CaseOutcome.of({"status": "stopped"}, [], [], kills=0)
    assert (stopped.error, stopped.weights) == ("stopped", "")
