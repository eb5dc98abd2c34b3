"""`holdfast bench cost`: stored results are priced again, and nothing is measured."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.errors import JobError
from holdfast_bench.cli.suite import app
from holdfast_bench.results.result import Result

STORED = Path(__file__).parent.parent / "report" / "data"
QLORA = STORED / "qlora.json"
SCALING = STORED / "scaling.json"


def cost(*words):
    return CliRunner().invoke(app, ["cost", *map(str, words)])


def rows(*words):
    done = cost(*words, "--json")
    assert done.exit_code == 0, done.output
    return [each["rows"] for each in json.loads(done.output)]


def of_hosts(found):
    return [row for row in found if row["measure"] == "hosts"]


def advice(found):
    return next(row for row in found if row["measure"] == "recommendation")


def test_the_price_of_the_measurement_gives_its_bills_again():
    stored = Result.load(QLORA).rows
    before = advice(stored)
    (found,) = rows(QLORA, "--price", before["price"], "--samples", before["samples"])
    for row, old in zip(of_hosts(found), of_hosts(stored), strict=True):
        for name in ("hosts", "hours", "cost", "efficiency"):
            assert row[name] == pytest.approx(old[name], abs=6e-4), name
    assert advice(found)["hosts"] == before["hosts"]
    assert advice(found)["several_faster_from_samples"] == pytest.approx(
        before["several_faster_from_samples"], rel=0.02
    )


def test_twice_the_price_is_twice_the_cost():
    once, twice = (rows(QLORA, "--price", price)[0] for price in (0.5, 1.0))
    for row, other in zip(of_hosts(once), of_hosts(twice), strict=True):
        assert other["cost"] == pytest.approx(2 * row["cost"], rel=1e-3)
        assert other["hours"] == row["hours"]


def test_a_deadline_asks_for_more_hosts_and_a_budget_for_more_time():
    (found,) = rows(QLORA, "--price", 1)
    alone, *_, most = of_hosts(found)
    between = (alone["hours"] + most["hours"]) / 2
    assert advice(found)["hosts"] == 1
    (hurried,) = rows(QLORA, "--price", 1, "--deadline", between)
    assert advice(hurried)["hosts"] > 1
    (poor,) = rows(QLORA, "--price", 1, "--deadline", between, "--budget", alone["cost"] / 2)
    assert advice(poor)["hosts"] is None
    assert "more than the budget" in advice(poor)["reason"]


def test_every_speed_of_a_scaling_result_has_a_bill():
    stored = Result.load(SCALING).rows
    _, found = rows(QLORA, SCALING, "--price", 3.6, "--samples", 1000, "--deadline", 1)
    assert [row["way"] for row in found] == [row["way"] for row in stored]
    for row in found:
        seconds = 1000 / row["samples_per_s"]["median"]
        assert row["cost"] == row["cost_per_1000"] == pytest.approx(seconds * 0.001, rel=1e-3)
        assert row["in_time"] is True
        assert "in_budget" not in row


def test_bills_are_shown_as_tables():
    done = cost(QLORA, SCALING, "--price", 1)
    assert done.exit_code == 0
    assert "recommendation" in done.output
    assert "holdfast, 8 shards" in done.output


def test_a_result_without_speeds_is_refused():
    done = cost(STORED / "recovery.json", "--price", 1)
    assert isinstance(done.exception, JobError)
    assert "results of recovery have no samples per second" in str(done.exception)


def test_a_job_of_ones_own_is_priced_for_all_of_its_hosts(tmp_path):
    speed = {"median": 10.0, "min": 10.0, "max": 10.0, "values": [10.0]}
    same = {"job": "mine.yaml", "on": "ssh:hosts", "samples_per_s": speed}
    of_hosts = tuple({**same, "hosts": hosts} for hosts in (1, 2))
    Result.load(SCALING).model_copy(update={"rows": of_hosts}).save(tmp_path)
    (found,) = rows(tmp_path / "scaling.json", "--price", 3.6, "--samples", 1000)
    assert [(row["hosts"], row["cost"]) for row in found] == [(1, 0.1), (2, 0.2)]
