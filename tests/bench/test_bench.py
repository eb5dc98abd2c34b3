"""The benchmarks measure what they say.

Figures are compared with others of the same minute only: a busy machine is slow at everything.
"""

import json
import shlex
import subprocess
import sys
import tempfile
import time
from contextlib import suppress

import psutil
import pytest

from conftest import wait_until
from holdfast.collectives.algorithms.choice import ALGORITHMS
from holdfast_bench import recovery
from holdfast_bench.on_hosts.namespaces import Namespaces
from holdfast_bench.on_hosts.reducing_host import METHODS
from holdfast_bench.sizes import CHANGES

pytestmark = pytest.mark.slow


@pytest.mark.soak
def test_recovery_is_told_by_what_happened_when_beside_commands_of_others():
    theirs = json.dumps(
        {"summary": {"any_s": {"median": 8.0}, "full_s": {"median": 9.0}, "lost": {"median": 5}}}
    )
    beside = f"other=echo '{theirs}'"
    options = ["--workloads", "small", "--rounds", "1", "--compare", beside, "--json"]
    options += ["--measure", "recovery"]
    broken = {"failing": "false", "missing": "no-such-program", "odd": "echo '{\"summary\": {}}'"}
    options += [word for name in broken for word in ("--compare", f"{name}={broken[name]}")]
    ours, other, *failed = json.loads(bench("recovery", *options))["rows"]
    assert [(row["way"], row["failed"]) for row in failed] == [(name, 1) for name in broken]
    times = [
        ours[f"{name}_s"]["median"] for name in ("announced", "released", "resumed", "committed")
    ]
    assert times == sorted(times)
    announced, *_, committed = times
    assert 0 < announced < 0.5 * committed  # most of a recovery is not its detection
    assert committed < seconds_of(sys.executable, "-c", "import torch")  # which it does not pay
    assert (ours["way"], ours["steps_lost"]) == ("holdfast", 0)
    assert (other["way"], other["steps_lost"]) == ("other", 5)
    assert other["of_holdfast"] == pytest.approx(9.0 / committed, rel=0.01)


def seconds_of(*command):
    began = time.monotonic()
    subprocess.run(command, check=True)
    return time.monotonic() - began


def test_nothing_of_a_command_beside_that_has_ended_goes_on():
    with tempfile.NamedTemporaryFile() as pid:
        theirs = json.dumps({"summary": {"full_s": {"median": 1}, "lost": {"median": 0}}})
        script = f"sleep 1000 > /dev/null & echo $! > {pid.name}; echo '{theirs}'"
        recovery.run_command(shlex.join(["sh", "-c", script]))
        left = int(pid.read())
    wait_until(lambda: not is_alive(left))  # the kernel may take a moment


def is_alive(pid):
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def bench(*options):
    command = [sys.executable, "-m", "holdfast", "bench", *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.soak
def test_throughput_is_told_beside_what_ran_in_the_same_round():
    few = ["--workloads", "small", "--workers", "2", "--steps", "10", "--rounds", "1"]
    rows = {row["way"]: row for row in json.loads(bench("scaling", *few, "--json"))["rows"]}
    assert list(rows) == [
        "independent", "independent, default malloc", "one process", "one process, default malloc",
        "DDP", "holdfast, 2 shards", "holdfast, 8 shards", "holdfast, 1 worker of 2 threads",
    ]  # fmt: skip
    ours, ddp = rows["holdfast, 2 shards"], rows["DDP"]
    assert ours["of_ddp"] == pytest.approx(
        ours["samples_per_s"]["median"] / ddp["samples_per_s"]["median"], abs=0.002
    )
    for row in rows.values():
        rate, alone = (each["samples_per_s"] for each in (row, rows["independent"]))
        assert 0 < rate["min"] <= rate["median"] <= rate["max"]
        assert row["of_independent"] == pytest.approx(rate["median"] / alone["median"], abs=0.002)
    assert 0.1 < ours["of_independent"] < 3  # ten steps are few
    assert max(rows[way]["of_best"] for way in ("one process", "DDP")) <= 1
    shares = [value for name, value in ours.items() if name.endswith("_share")]
    assert all(0 <= share <= 1 for share in shares)
    assert sum(shares) == pytest.approx(1, abs=0.05)
    assert ours["compute_share"] > 0


@pytest.mark.soak
def test_a_start_takes_about_as_long_as_that_of_a_plain_process():
    rows = {
        row["way"]: row for row in json.loads(bench("startup", "--rounds", "1", "--json"))["rows"]
    }
    assert list(rows) == ["plain process", "holdfast, 1 worker", "holdfast, 2 workers"]
    assert rows["plain process"]["of_plain"] == 1
    for workers in ("1 worker", "2 workers"):
        assert 0.2 < rows[f"holdfast, {workers}"]["of_plain"] < 5


@pytest.mark.soak
def test_the_thread_time_of_a_step_is_told_beside_that_of_a_plain_one():
    few = ["--shapes", "gpt-2", "--shards", "1,3", "--turns", "1", "--rounds", "1", "--json"]
    one, three = json.loads(bench("host", *few))["rows"]
    assert (one["shards"], three["shards"]) == (1, 3)
    for row in (one, three):
        ours, plain, beyond = (row[f"{name}_ms"]["median"] for name in ("ours", "plain", "beyond"))
        assert beyond == pytest.approx(ours - plain, abs=0.02)
        assert plain > 0
    assert three["plain_ms"]["median"] > one["plain_ms"]["median"]
    more_ms = three["beyond_ms"]["median"] - one["beyond_ms"]["median"]
    assert three["further_shard_ms"] == pytest.approx(more_ms / 2, abs=0.01)


@pytest.mark.soak
@pytest.mark.skipif(bool(Namespaces.what_is_missing()), reason=Namespaces.what_is_missing())
def test_reductions_of_hosts_are_told_beside_gloo_and_a_stream_on_the_same_links():
    few = ["--measure", "reduction", "--hosts", "3", "--workers", "1", "--sizes-kb", "64"]
    found = json.loads(bench("hosts", *few, "--link", "1gbit", "--rounds", "2", "--json"))
    rows = {row["system"]: row for row in found["rows"]}
    ours = ["holdfast", "holdfast, TLS", *ALGORITHMS, *METHODS, "order-free"]
    assert list(rows) == [*ours, "gloo", "stream"]
    assert rows["gloo"]["speed_of_gloo"] == 1
    assert all(row["ms"]["min"] <= row["ms"]["median"] <= row["ms"]["max"] for row in rows.values())
    assert {"time_of_order_free", "of_line"} <= rows["holdfast"].keys()


@pytest.mark.soak
@pytest.mark.skipif(bool(Namespaces.what_is_missing()), reason=Namespaces.what_is_missing())
def test_steps_pause_for_seconds_at_most_while_hosts_and_workers_change():
    rows = json.loads(bench("sizes", "--workloads", "small", "--rounds", "1", "--json"))["rows"]
    assert [row["change"] for row in rows] == list(CHANGES)
    assert all(0 < row["seconds"]["median"] < 60 for row in rows)


@pytest.mark.soak
def test_a_host_that_is_cut_off_is_found_after_the_timeout_and_a_probe():
    few = ["--intervals", "0.5", "--agents", "2", "--seconds", "2", "--json"]
    (row,) = json.loads(bench("heartbeat", *few))["rows"]
    assert row["bytes_per_s"] > 100
    assert row["detection_s"]["min"] > row["timeout_s"] - row["interval_s"]


@pytest.mark.full
def test_a_coordinator_with_many_agents_answers_and_none_is_lost_but_the_one_that_is_killed():
    few = ["--agents", "30", "--seconds", "4", "--json"]
    (row,) = json.loads(bench("control", *few))["rows"]
    assert row["statuses_per_s"] > 30 * 0.8
    assert 0 < row["delay_p50_ms"] <= row["delay_p99_ms"]
    assert row["cpu_per_status_ms"] > 0
    assert (row["lost"], row["broken"], row["lost_then"]) == (0, 0, 0)
    assert 0 < row["worker_exits_s"] < row["host_lost_s"], "a host is lost after its timeout"


@pytest.mark.full
def test_all_reduces_have_the_columns_of_nccl_tests_and_the_right_sums():
    systems = ["tree", *ALGORITHMS, "gloo"]
    few = ["--workers", "3", "--sizes-kb", "65", "--rounds", "2", "--transports", "memory,tls"]
    few += ["--systems", ",".join(systems)]
    found = json.loads(bench("collectives", *few, "--json"))["rows"]
    assert [row["system"] for row in found] == 2 * systems
    assert {row["transport"] for row in found} == {"memory", "tls"}
    for row in found:
        assert (row["workers"], row["size_bytes"], row["wrong"]) == (3, 65 << 10, 0)
        assert row["busbw_gb_per_s"] == pytest.approx(4 / 3 * row["algbw_gb_per_s"], abs=0.002)
        assert 0 < row["time_us"]["min"] <= row["time_us"]["max"]
        assert row["system"] != "gloo" or row["speed_of_gloo"] == 1
