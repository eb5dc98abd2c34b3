"""Saves are measured over whole periods, and every system loads what it has saved."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress

import pytest
import torch
import torch.distributed as dist

from holdfast.linux.files import sync_directory
from holdfast_bench import run
from holdfast_bench.checkpoint import saving
from holdfast_bench.checkpoint.cpu_meter import CpuMeter
from holdfast_bench.checkpoint.disk import forget, raw_block, read_raw, write_raw
from holdfast_bench.checkpoint.runs import WindowRunner
from holdfast_bench.checkpoint.savers import load_into, saver_of
from holdfast_bench.checkpoint.saving import SavingPlan
from holdfast_bench.checkpoint.systems import OURS, PEERS, UNSYNCED
from holdfast_bench.checkpoint.window import NEVER, Save, SaveSchedule, Window, figures


@pytest.mark.parametrize(
    ("every", "first", "last", "due"),
    [(25, 38, 63, 1), (10, 15, 35, 2), (5, 13, 33, 4), (1, 11, 31, 20), (NEVER, 10, 30, 0)],
)
def test_a_window_holds_whole_periods_and_begins_between_two_saves(every, first, last, due):
    schedule = SaveSchedule(every=every, least_steps=20)
    assert (schedule.first, schedule.last, schedule.due) == (first, last, due)
    assert schedule.newest_save <= first
    assert not every or schedule.saves_after(schedule.newest_save)


def save(step, finished, stall=None):
    """Steps take a second each, and the first of them begins at 0."""
    return Save(step=step, taken_unix_s=step, finished_unix_s=finished, stall_s=stall)


def window(every, *saves, steps=20, ended=None):
    schedule = SaveSchedule(every=every, least_steps=steps)
    ended = schedule.last if ended is None else ended
    return Window(schedule=schedule, began_unix_s=schedule.first, ended_unix_s=ended, saves=saves)


def test_the_time_of_a_window_ends_when_its_last_save_is_finished():
    assert window(10, save(10, 12), save(20, 22), save(30, 34)).finished_unix_s == 35
    late = window(10, save(10, 12), save(20, 22), save(30, 39))
    assert late.finished_unix_s == 39
    assert late.step_s == (39 - 15) / 20
    assert [each.step for each in late.made] == [20, 30]


def test_the_age_is_that_of_the_newest_finished_save_at_a_random_moment():
    assert window(10, save(10, 12), save(20, 35)).age_s == pytest.approx((5 + 25) / 2)
    # from 15 to 25 it is 5 to 15 seconds old, then 5 to 15 again
    assert window(10, save(10, 12), save(20, 25), save(30, 35)).age_s == pytest.approx(10)
    assert window(10, save(20, 20)).age_s == pytest.approx(7.5)  # there was none before


def test_saves_are_compared_with_the_same_steps_without_them():
    saves = (save(10, 12), save(20, 22, 0.5), save(30, 34, 1.5))
    without = [window(NEVER, ended=at) for at in (20, 30)]  # a step of 0.5 s and 1 s
    found = figures(window(10, *saves, ended=45), without, lambda begin, end: 2 * (end - begin))
    assert found.overhead == pytest.approx(1.5 / 0.75 - 1)
    assert found.cost_s == pytest.approx(20 * 0.75 / 2)
    assert found.stall_s == pytest.approx(1.0)
    assert found.cpu_s == pytest.approx(2 * 20 * 0.75 / 2)
    assert (found.made, found.due) == (2, 2)


def test_the_processor_time_of_the_machine_is_known_afterwards():
    with CpuMeter() as cpu_s:
        began, began_cpu = time.time(), time.process_time()
        while time.process_time() - began_cpu < 0.3:
            pass
        ended = time.time()
    used = cpu_s(began, ended)
    assert 0.2 < used < (os.cpu_count() or 1) * (ended - began) + 0.2
    assert cpu_s(began, ended) == pytest.approx(
        cpu_s(began, (began + ended) / 2) + cpu_s((began + ended) / 2, ended)
    )


@pytest.mark.parametrize("direct", [True, False])
def test_a_raw_file_has_the_size_of_the_state(direct, tmp_path):
    size = (9 << 20) + 17
    with raw_block() as block:
        write_raw(tmp_path / "raw", size, block)
        first = bytes(block[:100])
        forget(tmp_path)
        read_raw(tmp_path / "raw", block, direct=direct)
    assert (tmp_path / "raw").stat().st_size == size
    assert (tmp_path / "raw").read_bytes()[:100] == first


@pytest.fixture
def lone_group(tmp_path):
    store = (tmp_path / "store").as_uri()
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:Detected an existing checkpoint")
@pytest.mark.parametrize("system", [each for each in PEERS if each != "dcp-process"])
def test_a_peer_loads_what_it_has_saved_even_if_training_goes_on(system, lone_group, tmp_path):
    state = {"model.w": torch.rand(300, 7), "state.0.step": torch.tensor(3.0)}
    save_to = saver_of(system)
    for _ in range(2):
        state["model.w"] += 1
        saved = {name: tensor.clone() for name, tensor in state.items()}
        begun = save_to(state, tmp_path / "checkpoint")
        begun.staged.result()
        for tensor in state.values():
            tensor.add_(1)
        begun.finished.result()
        sync_directory(tmp_path)
        loaded = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        load_into(system, tmp_path / "checkpoint", loaded)
        assert all(torch.equal(loaded[name], saved[name]) for name in state)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--systems", "holdfast,abacus"], "--systems: no system abacus; there are holdfast, "),
        (
            ["--measure", "all"],
            "--measure: no measure all; there are saving, memory, floors, loading",
        ),
        (["--workloads", "chess"], "--workloads: no workload chess; there are small, "),
        (["--every", "5,0"], "argument --every: '5,0' must be numbers above 0"),
        (["--path", "/nowhere/at/all"], "bench checkpoint: "),
    ],
)
def test_a_wrong_option_is_explained_without_a_traceback(options, told, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run", "checkpoint", *options])
    with suppress(SystemExit):
        run.main()
    assert told in capsys.readouterr().err


def check_saving(rows, systems, periods):
    assert [(row["system"], row["every"]) for row in rows] == [
        (system, every) for system in systems for every in periods
    ]
    for row in rows:
        assert row["result"] in (("ok", "deferred") if row["system"] == "holdfast" else ("ok",))
        assert 0 < row["saves"] <= row["due"]
        assert row["stall_ms"]["min"] > 0
        assert ("age_s" in row) == (row["system"] not in UNSYNCED)


@pytest.mark.slow
@pytest.mark.soak
def test_saves_are_measured_next_to_a_peer(forks, tmp_path):
    systems = ["holdfast", "torch-fsync"]
    runner = WindowRunner(workload="small", workers=1, folder=tmp_path, forks=forks)
    plan = SavingPlan(systems=systems, periods=[2], least_steps=2, rounds=1)
    check_saving(saving.rows(runner, plan), systems, [2])
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.soak
def test_a_system_that_fails_is_named_and_the_others_are_measured(forks, tmp_path, capsys):
    runner = WindowRunner(workload="no such", workers=1, folder=tmp_path, forks=forks)
    plan = SavingPlan(systems=["torch"], periods=[2], least_steps=2, rounds=1)
    (row,) = saving.rows(runner, plan)
    assert row["result"] == "failed 1x"
    assert "invalid choice: 'no such'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.soak
def test_all_systems_are_measured_between_floors_and_loads(tmp_path):
    few = ["--workloads", "small", "--workers", "2", "--every", "1", "--steps", "2"]
    few += ["--rounds", "1", "--load-mb", "20", "--path", str(tmp_path)]
    call = [sys.executable, "-m", "holdfast", "bench", "checkpoint", *few, "--json"]
    done = subprocess.run(call, check=False, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    floors, *rest = json.loads(done.stdout)["rows"]
    assert floors["measure"] == "floors"
    assert all(floors[f"{name}_ms"]["min"] > 0 for name in ("write", "read", "direct_read"))
    check_saving([row for row in rest if row["measure"] == "saving"], [*OURS, *PEERS], [1])
    (memory,) = [row for row in rest if row["measure"] == "memory"]
    assert 1 <= memory["every_steps"] <= 60
    loading = {row["system"]: row for row in rest if row["measure"] == "loading"}
    assert list(loading) == ["read", "direct read", "holdfast", "torch", "safetensors", "dcp"]
    assert [name for name, row in loading.items() if row["verified"] == "yes"] == ["holdfast"]
    assert max(loading[raw]["speed_of_raw"] for raw in ("read", "direct read")) == 1
