"""Two results are compared: a slowdown is found, and noise is not."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import JobError
from holdfast_bench.results.conditions import Stopwatch
from holdfast_bench.results.figures import spread
from holdfast_bench.results.result import Result
from holdfast_bench.results.statistics import change
from holdfast_bench.suite.compare import compare

RECORDED = Path(__file__).parent / "data"
"""Two recordings of `holdfast bench startup` with the same code, and one of `emulate`."""


def result(values, benchmark="recovery", column="committed_s", **keys):
    row = {"workload": "small", "fault": "kill", "way": "holdfast", column: spread(values, 6)}
    return Result(
        benchmark=benchmark,
        options=(),
        conditions=Stopwatch().conditions(),
        rows=({**row, **keys},),
    )


def saved(folder, name, *results):
    for each in results:
        each.save(folder / name)
    return folder / name


def slower(recorded, factor):
    """A recording in which everything takes longer."""

    def scaled(cell):
        if not isinstance(cell, dict):
            return cell
        return spread([factor * value for value in cell["values"]], 6)

    rows = tuple({k: scaled(v) for k, v in row.items()} for row in recorded.rows)
    return recorded.model_copy(update={"rows": rows})


def test_two_recordings_of_the_same_code_do_not_differ():
    found = compare(RECORDED / "startup-1.json", RECORDED / "startup-2.json")
    assert found.compared
    assert found.regressions == []


def test_a_planted_slowdown_is_found(tmp_path):
    recorded = Result.load(RECORDED / "emulate.json")
    new = slower(recorded, 1.1).save(tmp_path)
    found = compare(RECORDED / "emulate.json", new)
    assert len(found.regressions) >= 3
    assert all(each.change_percent == pytest.approx(10, abs=3) for each in found.regressions)
    assert {each.outcome for each in found.compared} <= {"worse", "same", "too few"}
    better = compare(new, RECORDED / "emulate.json")
    assert {each.outcome for each in better.compared} == {
        "better" if each.outcome == "worse" else each.outcome for each in found.compared
    }


def test_few_measurements_prove_nothing(tmp_path):
    old = saved(tmp_path, "old", result([1.0, 1.01, 1.02]))
    new = saved(tmp_path, "new", result([2.0, 2.01, 2.02]))
    (only,) = compare(old, new).compared
    assert only.outcome == "too few"


@given(st.integers(0, 10_000))
def test_noise_is_rarely_a_change(seed):
    chance = random.Random(seed)
    old, new = ([1 + 0.02 * chance.gauss(0, 1) for _ in range(7)] for _ in range(2))
    found = change(old, new)
    assert found.low <= found.ratio <= found.high
    assert not (found.is_significant and abs(found.ratio - 1) > 0.05)


def test_other_conditions_are_said(tmp_path):
    old = result([1.0] * 6)
    slow = old.conditions.model_copy(update={"cpu": "another"})
    a = saved(
        tmp_path, "old", old.model_copy(update={"conditions": slow, "options": ("--rounds",)})
    )
    b = saved(tmp_path, "new", old)
    assert [text.split()[1] for text in compare(a, b).differences] == ["processor", "options"]


@pytest.mark.parametrize(
    ("content", "says"),
    [("{}", "is no result of holdfast bench"), ("[", "is no result"), (None, "No such file")],
    ids=["empty", "no JSON", "absent"],
)
def test_what_is_no_result_is_refused(tmp_path, content, says):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(JobError, match=says):
        compare(path, path)


def test_results_without_a_common_row_are_refused(tmp_path):
    old = saved(tmp_path, "old", result([1.0] * 6))
    new = saved(tmp_path, "new", result([1.0] * 6, workload="large"))
    with pytest.raises(JobError, match="no measured row in common"):
        compare(old, new)


@pytest.mark.slow
def test_the_command_exits_with_1_for_a_regression(tmp_path):
    new = slower(Result.load(RECORDED / "emulate.json"), 1.1).save(tmp_path)
    for path, status in ((new, 1), (RECORDED / "emulate.json", 0), (tmp_path / "none.json", 2)):
        command = [sys.executable, "-m", "holdfast", "bench", "compare", "--json"]
        command += [str(RECORDED / "emulate.json"), str(path)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        if status != 2:
            assert json.loads(done.stdout)["differences"] == []
