"""The bill of a fine-tuning job, and which number of hosts is recommended."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.job import load
from holdfast_bench.on_hosts.namespaces import Namespaces
from holdfast_bench.qlora.cost import Link, TimeModel, bill, faster_from, most_samples, recommend
from holdfast_bench.qlora.jobs import Setup
from holdfast_bench.qlora.rows import measured_row, model_row, predicted_row, time_model
from holdfast_bench.qlora.runs import HostTimes

TEN_GBIT = Link(bytes_per_s=10e9 / 8)


def model(**keys):
    known = {"compute_s": 5.5, "batch": 8, "slot_bytes": 13_631_488 * 2, "link": TEN_GBIT}
    return TimeModel(**{**known, **keys})


@pytest.mark.parametrize(
    ("bytes_per_value", "hosts", "sync_ms", "efficiency"),
    [(2, 2, 22, 0.996), (2, 4, 33, 0.994), (2, 8, 38, 0.993),
     (4, 2, 44, 0.992), (4, 4, 66, 0.988), (4, 8, 76, 0.986)],
)  # fmt: skip
def test_the_time_to_synchronize_adapters_of_7b(bytes_per_value, hosts, sync_ms, efficiency):
    each = model(slot_bytes=13_631_488 * bytes_per_value)
    assert round(1e3 * each.sync_s(hosts)) == pytest.approx(sync_ms, abs=1)
    assert each.efficiency(hosts) == pytest.approx(efficiency, abs=6e-4)


def test_the_published_costs_count_one_node_of_several():
    """1.46, 2.80 and 5.50 samples/s at $0.60 an hour."""
    for hosts, rate, per_node, all_nodes in [
        (1, 1.46, 0.114, 0.114), (2, 2.80, 0.060, 0.119), (4, 5.50, 0.030, 0.121),
    ]:  # fmt: skip
        hourly = model(compute_s=hosts * 8 / rate, link=Link(bytes_per_s=1e18))
        samples = 8 * hosts * 1000
        found = bill(hosts, hourly.job_s(hosts, samples), samples, price=0.60)
        assert found.cost_per_1000 == pytest.approx(all_nodes, abs=1e-3)
        assert found.cost_per_1000 / hosts == pytest.approx(per_node, abs=1e-3)


def bills(each, *, samples=10_000, price=0.6):
    return [bill(hosts, each.job_s(hosts, samples), samples, price) for hosts in (1, 2, 4)]


def test_one_host_is_recommended_without_a_deadline():
    found = recommend(model(), bills(model()))
    assert found.bill.hosts == 1
    assert "without a deadline" in found.reason
    assert found.one_host_until is None


def test_a_deadline_asks_for_as_many_hosts_as_it_needs():
    found = recommend(model(), bills(model()), deadline_h=1.0)
    assert found.bill.hosts == 2
    assert bills(model())[0].hours > 1 >= found.bill.hours
    assert found.one_host_until == most_samples(model(), 1, 1.0)


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"deadline_h": 0.1}, "longer than the deadline of 0.1 h"),
        ({"deadline_h": 1.0, "budget": 0.5}, "more than the budget of 0.5"),
    ],
    ids=["no time", "no money"],
)
def test_what_no_number_of_hosts_fits_is_said(limits, says):
    found = recommend(model(), bills(model()), **limits)
    assert found.bill is None
    assert says in found.reason


def test_a_slow_start_of_several_hosts_pays_off_later():
    slow = model(start_s=40, start_of_several_s=90)
    found = faster_from(slow, 2)
    assert slow.job_s(2, found + 16) < slow.job_s(1, found + 16)
    few = (found - 64) // 16 * 16
    assert slow.job_s(2, few) > slow.job_s(1, few)
    assert faster_from(model(link=Link(bytes_per_s=1e5)), 2) is None  # the link takes all


def test_more_hosts_are_predicted_from_the_whole_step_of_one():
    """The local reduction of one host also happens on each of several."""
    setup = Setup(size="small", folder=None, batch=2, length=16, steps=6, rank=16, on="")
    run = HostTimes(
        step_s=[0.10, 0.11, 0.12],
        sync_s=[0.03, 0.03, 0.03],
        wait_s=[0.0, 0.0, 0.0],
        start_s=1.0,
        gpu_utilization=None,
        weights={"gradient_bytes": 400_000},
    )
    alone = measured_row(setup, 1, [run])
    many = predicted_row(setup, 1000, time_model([alone], model_row(setup, TEN_GBIT, run)))
    assert many["step_s"] > alone["step_s"]["median"] == 0.11


models = st.builds(
    model,
    compute_s=st.floats(0.01, 100),
    batch=st.integers(1, 64),
    slot_bytes=st.integers(1, 1 << 30),
    link=st.builds(Link, bytes_per_s=st.floats(1e6, 1e11), latency_s=st.floats(0, 0.1)),
)


@given(models, st.integers(1, 64), st.integers(1, 100_000))
def test_without_a_deadline_and_starts_no_number_of_hosts_is_cheaper_than_one(each, hosts, samples):
    # A last step that is not full costs as much as any other.
    whole = samples * hosts * each.batch
    cost = {n: bill(n, each.job_s(n, whole), whole, 1).cost for n in (1, hosts)}
    assert cost[hosts] >= cost[1] * (1 - 1e-9)


@given(models, st.integers(1, 64), st.floats(0.1, 10))
def test_the_most_samples_that_fit_do_fit(each, hosts, hours):
    most = most_samples(each, hosts, hours)
    if most:
        assert each.job_s(hosts, most) <= hours * 3600 * (1 + 1e-9)
    assert each.job_s(hosts, most + hosts * each.batch) > hours * 3600 * (1 - 1e-9)


def measured(tmp_path, *options):
    job = tmp_path / "job.yaml"
    small = ["--size", "small", "--max-steps", "6", "--seq-length", "16", "--batch-size", "2"]
    command = [sys.executable, "-m", "holdfast", "bench", "qlora", *small, "--write", str(job)]
    done = subprocess.run(
        [*command, *options, "--json"], check=False, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    return [row for row in rows if row["measure"] == "hosts"], rows[-2], load.load(str(job))


@pytest.mark.slow
@pytest.mark.soak
def test_one_host_is_measured_and_more_are_predicted(tmp_path):
    pytest.importorskip("peft")
    (one, many), advice, job = measured(tmp_path, "--hosts", "1,1000")
    assert (one["kind"], many["kind"]) == ("measured", "predicted")
    assert one["cost"] == pytest.approx(0.6 * one["hours"], abs=2e-3)
    assert one["efficiency"] == 1 >= many["efficiency"]
    assert advice["hosts"] == job.hosts == 1
    assert job.task == "qlora"


@pytest.mark.soak
@pytest.mark.skipif(bool(Namespaces.what_is_missing()), reason=Namespaces.what_is_missing())
def test_two_hosts_are_emulated(tmp_path):
    pytest.importorskip("peft")
    (one, two), _, _ = measured(tmp_path, "--hosts", "1,2")
    assert (one["kind"], two["kind"]) == ("measured", "emulated")
    assert two["sync_s"]["median"] > 0
