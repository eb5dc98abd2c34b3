"""The exactness fuzzer: it finds nothing in the product, and it finds bugs that are planted."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast_bench.exactness.case import Case, Configuration, Kill, Recipe, dump, load
from holdfast_bench.exactness.datasets import dataset
from holdfast_bench.exactness.draw import draw
from holdfast_bench.exactness.fuzz import (
    NOT_REPRODUCIBLE,
    details,
    examine,
    shrunk,
    specification,
)
from holdfast_bench.exactness.runner import Runner

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # on a busy machine

PLANTED_BUGS = Path(__file__).parent / "planted_bugs"
SEEDS = 50


def test_drawn_jobs_give_the_same_weights_in_every_configuration():
    """Two configurations of a job with much in it; `make soak` has all those of a hundred jobs."""
    case = draw(105)
    case = dataclasses.replace(case, configurations=case.configurations[:2])
    with Runner() as runner:
        report = examine(case, runner)
    assert not report.found, details(report)


@pytest.mark.soak
@pytest.mark.parametrize("plant", ["alignment", "arrival", "buffers", "chance", "scheduler"])
def test_a_planted_bug_is_found(monkeypatch, plant):
    monkeypatch.syspath_prepend(PLANTED_BUGS)
    monkeypatch.setenv("HOLDFAST_BUG", plant)
    with Runner() as runner:
        reports = (examine(draw(seed), runner) for seed in range(SEEDS))
        found = next((report for report in reports if report.found), None)
    assert found is not None
    assert "failed with" not in details(found)  # the bug shows as a difference, not as a crash
    assert NOT_REPRODUCIBLE not in details(found)


def fuzz(*words, cwd):
    command = [sys.executable, "-m", "holdfast_bench.exactness", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.soak
def test_a_seed_is_reported_in_a_line(tmp_path):
    done = fuzz("--seeds", "1", "--first", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith("seed 1: ok, ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.soak
def test_a_case_in_a_file_is_run_with_its_kills_and_its_stop(tmp_path):
    case = Case(
        recipe=Recipe(model="batch_norm", parts=("counter",), dropout=0.5),
        configurations=(
            Configuration(workers=2, kills=(Kill(rank=1, step=1, calls=100),)),
            Configuration(workers=2, shards_per_worker=(4, 0), stop_at=1, resume_workers=3),
        ),
    )
    (tmp_path / "case.yaml").write_text(dump(case))
    done = fuzz("--job", "case.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("case.yaml: ok, 2 configurations, 1 of 1 kills, ")


DROPOUT = Recipe(width=9, dropout=0.5)


@pytest.mark.soak
def test_a_finding_names_configuration_and_step(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(PLANTED_BUGS), prepend=":")
    monkeypatch.setenv("HOLDFAST_BUG", "chance")
    case = Case(recipe=DROPOUT, configurations=(Configuration(workers=2), Configuration()))
    (tmp_path / "case.yaml").write_text(dump(case))
    done = fuzz("--job", "case.yaml", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    told, first, second = done.stdout.splitlines()
    assert told.startswith("case.yaml: FOUND, 2 configurations, ")
    assert first.startswith(
        "  (workers=2): other weights than the reference; step 1 is the first to differ (loss "
    )
    assert second == "  (one worker): as the reference"


@pytest.mark.soak
def test_a_finding_is_shrunk_to_a_case_that_shows_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(PLANTED_BUGS)
    monkeypatch.setenv("HOLDFAST_BUG", "chance")
    case = Case(recipe=DROPOUT, configurations=(Configuration(workers=2, prefetch=1),))
    with Runner() as runner:
        least = shrunk(examine(case, runner), runner)
    (tmp_path / "least.yaml").write_text(specification(least))
    assert load(tmp_path / "least.yaml") == Case(
        recipe=Recipe(dropout=0.5), configurations=(Configuration(workers=2),)
    )


def test_a_seed_keeps_its_sample_order_where_the_module_of_its_data_has_moved():
    names = {dataset(Recipe(data=kind)).fingerprint for kind in ("plain", "augmented")}
    assert names == {f"holdfast.testing.exactness.datasets.Mapped:{Recipe().samples}"}


def test_a_file_that_holds_no_case_is_refused(tmp_path):
    (tmp_path / "case.json").write_text(json.dumps({"recipe": {"model": "large"}}))
    done = fuzz("--job", "case.json", cwd=tmp_path)
    assert done.returncode == 2
    assert "case.json describes no case" in done.stderr
