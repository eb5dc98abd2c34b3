"""Balance is measured on emulated devices, which slow every system down in the same way."""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from holdfast.errors import HoldfastError, JobError
from holdfast_bench import balance
from holdfast_bench.unlike.cluster import Cluster, default_shards
from holdfast_bench.unlike.models import GptText
from holdfast_bench.unlike.quota import NoQuota, limited_groups
from holdfast_bench.unlike.slowed import SlowedDevice
from holdfast_bench.unlike.step_log import LoggedStep, imbalance, measured, plans_of

SYSTEMS = [
    "bound",
    "bound, one pass",
    "DDP",
    "even",
    "proportional",
    "dynamic",
    "hybrid",
    "ddp, dynamic",
]


def compute():
    began = time.thread_time()
    while time.thread_time() - began < 0.01:
        sum(range(100))


def test_burning_takes_a_multiple_of_the_cpu_time_of_the_thread():
    device = SlowedDevice(4.0, "burn")
    began = time.thread_time()
    with device.slowed():
        compute()
    with device.slowed():
        pass
    assert time.thread_time() - began == pytest.approx(device.busy_s, rel=0.1)
    assert device.busy_s == pytest.approx(0.04, rel=0.1)


def test_a_pause_takes_no_cpu_time():
    device = SlowedDevice(4.0, "pause")
    began, began_cpu = time.monotonic(), time.thread_time()
    with device.slowed():
        compute()
    with device.slowed():
        pass
    elapsed, computed = time.monotonic() - began, time.thread_time() - began_cpu
    assert computed < 0.5 * elapsed
    assert device.busy_s == pytest.approx(0.04, rel=0.1)


@pytest.mark.parametrize("mode", ["burn", "pause"])
def test_waits_are_not_multiplied(mode):
    device = SlowedDevice(4.0, mode)
    with device.slowed():
        time.sleep(0.02)
    assert device.busy_s < 0.02


def test_nothing_that_is_computed_changes():
    def gradients(device):
        torch.manual_seed(0)
        workload = GptText()
        model = workload.model()
        batch = workload.draw(1, torch.Generator().manual_seed(0))
        with device.slowed():
            workload.loss(model, batch).backward()
        return [parameter.grad for parameter in model.parameters()]

    plain, slow = gradients(SlowedDevice(1.0, "burn")), gradients(SlowedDevice(1.5, "burn"))
    assert all(torch.equal(a, b) for a, b in zip(plain, slow, strict=True))


def test_imbalance_is_how_much_longer_the_busiest_worker_computes_than_the_mean_one():
    assert imbalance([2.0, 2.0]) == 0
    assert imbalance([4.0, 2.0, 1.0, 1.0]) == 1.0


def steps_of(period_s, busy_s, samples, count):
    return [
        LoggedStep(ended_s=period_s * step, busy_s=busy_s, shards=samples, samples=samples)
        for step in range(1, count + 1)
    ]


def test_figures_of_a_run_count_from_the_end_of_its_warm_up():
    slow_start = [LoggedStep(ended_s=-100.0, busy_s=50.0, shards=4, samples=4)]
    fast = slow_start + steps_of(2.0, 1.0, 6, 10)
    slow = slow_start + steps_of(2.0, 2.0, 2, 10)
    found = measured([fast, slow], warm_steps=1)
    assert found.samples_per_s == pytest.approx(4.0)
    assert found.busy_share == pytest.approx(0.75)
    assert found.imbalance == pytest.approx(1 / 3)
    assert found.plan_steps == 1


def test_processes_that_do_not_wait_for_each_other_are_measured_while_all_train():
    fast, slow = steps_of(1.0, 1.0, 3, 30), steps_of(2.0, 2.0, 2, 10)
    assert measured([fast, slow], warm_steps=1).samples_per_s == pytest.approx(3.0 + 1.0)


def test_a_run_that_is_too_short_to_measure_is_an_error():
    with pytest.raises(HoldfastError, match="too few"):
        measured([steps_of(1.0, 1.0, 1, 3), steps_of(1.0, 1.0, 1, 3)], warm_steps=2)


def test_a_named_cluster_has_the_speeds_of_its_devices():
    cluster = Cluster.of_devices("rtx3060,rtx3050,gtx1650,gtx1650")
    assert cluster.speeds == (12.7, 9.1, 3.0, 3.0)
    assert sum(cluster.counts(32)) == 32
    assert cluster.factors("burn", 4) == pytest.approx((1, 12.7 / 9.1, 12.7 / 3, 12.7 / 3))


def test_pauses_leave_cores_for_waits():
    for text in ("1:1", "4:2:1:1", "1:1:1:1:1:1:1:1"):
        cluster = Cluster.of_speeds(text)
        assert sum(1 / factor for factor in cluster.factors("pause", 2)) <= 2 / 1.3 + 1e-9


@pytest.mark.parametrize(
    ("text", "shards"), [("1:1/2", 24), ("1:1/4", 20), ("4:2:1:1", 32), ("1:0.3", 16)]
)
def test_shards_divide_by_the_workers_and_where_possible_by_the_speeds(text, shards):
    assert default_shards(Cluster.of_speeds(text)) == shards


@pytest.mark.parametrize("text", ["1", "1:0", "1:-1", "fast:slow", "1:1/0", ""])
def test_speeds_that_are_none_are_refused(text):
    with pytest.raises(JobError, match="4:2:1:1"):
        Cluster.of_speeds(text)


def test_devices_that_are_not_known_are_refused():
    with pytest.raises(JobError, match="no device abacus; there are rtx3060"):
        Cluster.of_devices("rtx3060,abacus")


@pytest.mark.slow
def test_a_quota_limits_a_process_until_its_group_is_removed():
    spin = "import time; b = time.monotonic()\nwhile time.monotonic() - b < 0.3: pass"
    spin += "\nprint(time.process_time())"
    try:
        with limited_groups([1.0, 10.0]) as (free, limited):
            enter = f"open('{limited}/cgroup.procs', 'w').write('0')\n"
            command = [sys.executable, "-c", enter + spin]
            cpu_s = float(subprocess.run(command, check=True, capture_output=True).stdout)
    except NoQuota as reason:
        pytest.skip(str(reason))
    assert free == ""
    assert cpu_s < 0.2
    assert not Path(limited).exists()


@pytest.mark.soak
@pytest.mark.slow
def test_what_is_even_and_what_is_not_are_measured_on_the_same_devices(forks):
    (case,) = balance.cases(
        options_of(speeds="1:1/3", workloads=["cnn"], shards=4, steps=4, mode="burn")
    )
    ddp = balance.run_peers(case, (), ddp=True, merges=True)
    ours = balance.run_holdfast(case, (), forks, balance.WARM_STEPS, balance="proportional")
    assert plans_of(ddp.steps)[-1] == (2, 2)
    assert plans_of(ours.steps)[-1] == (3, 1)
    assert ddp.imbalance > ours.imbalance
    assert all(0 < each.busy_share <= 1.05 for each in (ddp, ours))


@pytest.mark.slow
@pytest.mark.soak
def test_balance_is_measured_next_to_ddp_and_the_bound():
    few = ["--speeds", "1:1/3", "--workloads", "cnn", "--shards", "4", "--steps", "4"]
    done = bench(*few, "--rounds", "1", "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["system"]: row for row in json.loads(done.stdout)["rows"]}
    assert list(rows) == SYSTEMS
    assert {(row["cluster"], row["workload"], row["shards"]) for row in rows.values()} == {
        ("1:1/3", "cnn", 4)
    }
    assert rows["bound"]["efficiency"] == rows["DDP"]["of_ddp"] == 1
    assert rows["even"]["gain_over_even"] == 0
    assert [rows[name]["plan"] for name in ("bound", "DDP", "proportional")] == [
        "3-1",
        "2-2",
        "3-1",
    ]
    assert rows["even"]["imbalance"] == pytest.approx(0.5, abs=0.15)
    assert rows["proportional"]["imbalance"] < 0.3
    assert all(0 < row["busy_share"] <= 1.05 for row in rows.values())


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"speeds": "1:2", "cluster": "rtx3060,rtx3060"}, "not both"),
        ({"speeds": "1:2", "shards": 5}, "must be a multiple of 2"),
        ({"speeds": "1:2:3:4", "shards": 2}, "must be a multiple of 4"),
    ],
)
def test_options_that_contradict_each_other_are_refused(changed, told):
    with pytest.raises(JobError, match=told):
        balance.cases(options_of(**{"workloads": ["cnn"], "steps": 4, **changed}))


def options_of(**given):
    return argparse.Namespace(**dict.fromkeys(("speeds", "cluster", "shards", "mode")) | given)


@pytest.mark.slow
@pytest.mark.soak
def test_a_wrong_option_is_explained_without_a_traceback():
    done = bench("--speeds", "fast:slow")
    assert done.returncode == 1
    assert done.stderr.startswith("bench balance: speeds 'fast:slow' must be")


def bench(*options):
    command = [sys.executable, "-m", "holdfast", "bench", "balance", *options]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
