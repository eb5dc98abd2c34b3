"""Scores of workers: those of the devices that they compute on."""

import json
from dataclasses import replace

import pytest

from conftest import SMALL, events_of
from holdfast.agent.run_context import RunContext
from holdfast.agent.scores import with_devices
from holdfast.core.placement.shares import Share
from holdfast.hardware.profile import Device
from holdfast.job import load
from holdfast.rundir.json_lines import EventLog
from holdfast.rundir.run_directory import EVENTS, PROFILE

CARDS = tuple(Device(name=f"card {score}", score=score) for score in (12.7, 9.1, 3.0))


def context(folder, balance="proportional", **fields):
    job = load.check({**SMALL, "workers": 4}, where="test").model_copy(update={"balance": balance})
    return RunContext(host="a", job=job, directory=folder, attempt="0", **fields)


def scores(run):
    return [run.worker_spec(rank, rank).score for rank in range(4)]


def test_workers_have_the_devices_that_they_choose(tmp_path):
    run = context(tmp_path, devices=CARDS)
    assert scores(run) == [12.7, 9.1, 3.0, 12.7]
    assert run.worker_spec(rank=3, slot=1).score == 9.1, "of a host whose first rank is 2"
    assert scores(context(tmp_path)) == [0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("are_named", [True, False])
def test_a_worker_with_gpus_of_its_own_has_their_score(tmp_path, monkeypatch, are_named):
    """A profile has the GPUs in the order of CUDA, the fastest first; a driver may have another
    one, and so a profile without their UUIDs is by place.
    """
    names = ("GPU-a", "GPU-b", "GPU-c")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-c,GPU-b,GPU-a" if are_named else "GPU-a,GPU-b")
    uuids = names if are_named else ("", "", "")
    cards = [
        {"name": each.name, "score": each.score, "uuid": uuid}
        for each, uuid in zip(CARDS, uuids, strict=True)
    ]
    (tmp_path / PROFILE).write_text(json.dumps({"hosts": {"*": {"devices": cards}}}))
    chosen = ("GPU-b", "GPU-a", "GPU-b", "GPU-a")
    shares = tuple(Share(cpus=(), gpus=(name,)) for name in chosen)
    with EventLog(tmp_path / EVENTS) as log:
        run = with_devices(context(tmp_path, shares=shares), log)
    assert scores(run) == [9.1, 12.7, 9.1, 12.7]
    assert events_of(tmp_path)[0]["scores"] == scores(run), "the dashboard has them by slot"


def test_a_given_profile_counts_and_is_logged(tmp_path):
    cards = [{"name": each.name, "score": each.score} for each in CARDS]
    (tmp_path / PROFILE).write_text(json.dumps({"hosts": {"*": {"devices": cards}}}))
    with EventLog(tmp_path / EVENTS) as log:
        run = with_devices(context(tmp_path), log)
        even = context(tmp_path, "even")
        assert with_devices(even, log) == even, "it needs no scores"
    assert run.devices == CARDS
    [event] = events_of(tmp_path)
    assert event["event"] == "host-profiled"
    assert (event["source"], event["scores"]) == ("given", [12.7, 9.1, 3.0])


def test_a_score_that_is_not_reliable_is_not_used():
    device = Device(name="cpu", score=3.0, unreliable={"bf16": 0.0008})
    assert (device.score_in("bf16"), device.score_in("fp16")) == (0.0, 3.0)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("is_given", [False, True])
def test_without_a_reliable_profile_a_host_measures_itself(tmp_path, is_given):
    if is_given:
        device = {"name": "cpu", "kind": "cpu", "score": 0, "unreliable": {"fp32": 0.0008}}
        (tmp_path / PROFILE).write_text(json.dumps({"hosts": {"*": {"devices": [device]}}}))
    cpu = context(tmp_path)
    cpu = replace(cpu, job=cpu.job.model_copy(update={"device": "cpu"}))
    with EventLog(tmp_path / EVENTS) as log:
        run = with_devices(cpu, log)
    [score] = set(scores(run))
    [event] = events_of(tmp_path)
    if event["event"] == "host-not-profiled":  # it was busy
        assert "do not agree; the host is busy" in event["reason"]
        assert score == 0.0
    else:
        assert (event["event"], event["source"]) == ("host-profiled", "measured")
        assert 0.0 < score != 0.0008
