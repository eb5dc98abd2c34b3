"""Runs on one host: shares of workers, refusals and waits. Real runs; the host has two CPUs."""

import json
import os
import re
import signal
from contextlib import closing
from pathlib import Path

import pytest

from conftest import TASKS, events_of, wait_until
from holdfast.api.train import run_job
from holdfast.core.placement.shares import Needs
from holdfast.errors import EngineError, JobError
from holdfast.hardware.host_supply import supply_here
from holdfast.job import load
from holdfast.rundir.claims import HeldClaim, claims_here
from holdfast.runs.hosts.host_claims import claimed_shares
from holdfast.runs.run import LaunchOptions

pytestmark = pytest.mark.slow

no_driver = pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="the driver knows its GPUs")
JOB = {
    "task": f"{TASKS.with_name('share_tasks.py')}:seen",
    "batch": 20,
    "shards": 2,
    "workers": 2,
}


@pytest.fixture(autouse=True)
def two_cpus(tmp_path, monkeypatch):
    """This process and those that it starts may use two CPUs, and claims of their own."""
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("needs two CPUs")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    os.sched_setaffinity(0, sorted(before)[:2])
    yield sorted(before)[:2]
    os.sched_setaffinity(0, before)


@pytest.fixture
def trained(forks, tmp_path):
    """Run the job: `trained(name, key=value, …)` gives its result, and what its workers saw."""

    def run(name, params=None, **keys):
        seen = tmp_path / f"{name}.seen"
        params = {"seen": str(seen), **(params or {})}
        job = load.request({**JOB, **keys, "params": params}, where="test")
        result = run_job(job, LaunchOptions(forks=forks), run_dir=tmp_path / name, resume=False)
        lines = map(json.loads, seen.read_text().splitlines())
        return result, {each["pid"]: each for each in lines}

    return run


@pytest.fixture
def held():
    """A claim of this process on one of the two CPUs."""
    with closing(HeldClaim("other", Needs(workers=1, cpus=1, gpus=0, memory_bytes=0))) as claim:
        claim.begin(supply_here(os.environ))
        yield claim


@no_driver
@pytest.mark.soak
def test_workers_keep_to_their_shares_also_in_the_place_of_others(
    trained, tmp_path, two_cpus, monkeypatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5a,7,-1,9")
    mark = tmp_path / "mark"
    mark.touch()
    resources = {"cpus": 1, "gpus": 1}
    result, seen = trained("a", {"mark": str(mark)}, resources=resources, device="cpu")
    first, second, third = seen.values()
    assert sorted([first["cpus"], second["cpus"]]) == [[cpu] for cpu in two_cpus]
    assert {first["gpus"], second["gpus"]} == {"3", "GPU-5a"}
    assert third in [{**died, "pid": third["pid"]} for died in (first, second)]
    plain, seen = trained("b", device="cpu")
    assert [each["cpus"] for each in seen.values()] == [two_cpus] * 2
    assert {each["gpus"] for each in seen.values()} != {"3", "GPU-5a"}
    assert plain.weights_sha256 == result.weights_sha256
    assert claims_here() == []


@no_driver
def test_each_worker_sees_one_instance_of_a_divided_gpu(trained, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-5a,MIG-GPU-5b/7/0")
    _, seen = trained("a", device="cpu")
    assert {each["gpus"] for each in seen.values()} == {"MIG-5a", "MIG-GPU-5b/7/0"}


@no_driver
@pytest.mark.parametrize(
    ("names", "process_groups", "gpus", "expected"),
    [
        ("0,1,2", True, 1, ["0,1", "0,1"]),
        ("0,1,2", False, 1, ["0", "1"]),  # it has no LOCAL_RANK to choose one by
        ("0,1,2,3", True, 2, ["0,1,2,3", "0,1,2,3"]),
        ("0,1,2", True, 0, ["", ""]),
        ("MIG-5a,MIG-5b,MIG-5c", True, 1, ["MIG-5a", "MIG-5b"]),
        ("MIG-5a", True, 0, ["MIG-5a", "MIG-5a"]),
    ],
)
def test_scripts_see_the_gpus_that_they_may_choose(
    monkeypatch, names, process_groups, gpus, expected
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
    script = {"path": "a.py", "process_groups": process_groups}
    job = {"script": script, "workers": 2, "resources": {"gpus": gpus}}
    job = load.check_script(job, where="test")
    with claimed_shares(job, "a", None, is_exclusive=gpus > 0) as shares:
        assert [",".join(share.gpus) for share in shares] == expected


def test_what_does_not_fit_is_refused_with_who_has_it(trained, held, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(EngineError) as refused:
        trained("a", resources={"cpus": 1})
    assert (
        f"1 CPU for each of 2 workers; 1 of 2 is free: run other (pid {os.getpid()}) has 1; wait "
        "for it by --queue"
    ) in str(refused.value)
    for never in ({"cpus": 2}, {"gpus": 1}, {"memory": "90TiB"}):
        with pytest.raises(JobError, match="this host never has what the run needs"):
            trained("a", resources=never)
    assert not (tmp_path / "a").exists()
    result, _ = trained("a")  # without resources it runs, as always
    assert result.status == "finished"


def test_two_jobs_for_two_cpus_run_one_after_the_other(command, tmp_path):
    words = ["train", "digits", "workers=2", "--queue"]
    first = command(*words, "epochs=2000", "--run", "first")
    wait_until((tmp_path / "first" / "metrics.jsonl").exists)
    second = command(*words, "epochs=1", "resources.cpus=1", "--run", "second")
    output = tmp_path / "output-1"
    wait_until(lambda: b"waiting for 1 CPU for each of 2 workers" in output.read_bytes())
    assert re.search(rf"run first \(pid {first.pid}\) has 2", output.read_text())
    assert not (tmp_path / "second").exists()
    first.send_signal(signal.SIGINT)
    assert second.wait(60) == 0, output.read_text()
    assert first.wait(60) == 130
    (ended,) = events_of(tmp_path / "first", "run-ended")
    (begun,) = events_of(tmp_path / "second", "run-started")
    assert ended["time_unix_s"] <= begun["time_unix_s"]
    assert output.read_text().count("holdfast: waiting for") == 1


@pytest.mark.soak
def test_ctrl_c_ends_the_wait(command, tmp_path, held):
    (tmp_path / "script.py").write_text("print('never')")
    process = command("run", "--workers", "2", "--queue", "--run", "run", "script.py")
    output = tmp_path / "output-0"
    wait_until(lambda: b"run other" in output.read_bytes())
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert "stopped while the run waited" in output.read_text()
    assert [each.run for each in claims_here()] == ["other"]
    assert not (tmp_path / "run").exists()


@pytest.mark.soak
def test_a_killed_run_frees_its_claim(command, tmp_path):
    words = ["train", "digits", "workers=2", "resources.cpus=1"]
    first = command(*words, "epochs=2000", "--run", "first")
    wait_until((tmp_path / "first" / "metrics.jsonl").exists)
    (claim,) = claims_here()
    assert (claim.run, claim.pid) == ("first", first.pid)
    first.kill()
    first.wait()
    assert claims_here() == []
    assert command(*words, "epochs=1", "--run", "second").wait(60) == 0


@pytest.mark.soak
def test_a_run_that_waits_in_the_background_is_listed_and_stopped(command, tmp_path, held):
    words = ["train", "digits", "workers=2", "--queue", "--detach", "--run", "later"]
    process = command(*words)
    assert process.wait(60) == 0
    command("runs", "--json").wait(60)
    (row,) = json.loads((tmp_path / "output-1").read_text())
    assert (row["id"], row["state"], row["step"]) == ("later", "waiting", 0)
    command("logs", "later").wait(60)
    assert "waiting for 1 CPU for each of 2 workers" in (tmp_path / "output-2").read_text()
    assert command("stop", "later").wait(60) == 0
    assert (tmp_path / "output-3").read_text() == "stopped before it began\n"
    command("runs", "--json").wait(60)
    assert json.loads((tmp_path / "output-4").read_text()) == []
    assert [each.run for each in claims_here()] == ["other"]
