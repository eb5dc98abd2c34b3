"""`holdfast drill`: a job passes if its weights are the same whatever strikes it, and only then."""

import json
import os
import signal
import subprocess
import sys

import pytest

from conftest import FAILING_TASKS, TASKS, sampled, wait_until
from holdfast.faults.drill import Drill
from holdfast.job import load

pytestmark = pytest.mark.slow

SHORT = ["digits", "epochs=2", "batch=128", "model={name: mlp, hidden: [16]}"]


FAULTS = [
    "kill", "stop", "exit", "raise", "slow", "nan", "flip", "corrupt-replica",
    "coordinator", "agent", "disk-full", "corrupt-checkpoint",
]  # fmt: skip


def drill(*words, cwd):
    command = [sys.executable, "-m", "holdfast", "drill", *words, "--json"]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    return done, json.loads(done.stdout.splitlines()[-1])


def results(report):
    return [(trial["fault"], trial["policy"], trial["passed"]) for trial in report["trials"]]


@pytest.mark.soak
@pytest.mark.parametrize("policy", ["replace", "shrink", "restart"])
def test_a_built_in_job_passes_every_fault(tmp_path, policy):
    check_job_of_ours(tmp_path, policy, FAULTS)


@pytest.mark.soak
def test_a_built_in_job_passes_some_faults(tmp_path):
    few = ["kill", "slow", "corrupt-checkpoint"]
    check_job_of_ours(tmp_path, "shrink", few, "--faults", ",".join(few))


def check_job_of_ours(tmp_path, policy, faults, *flags):
    done, report = drill(*SHORT, "--policies", policy, *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (report["status"], report["deterministic"]) == ("passed", None)
    assert results(report) == [(fault, policy, True) for fault in faults]
    seconds = {trial["fault"]: trial["seconds"] for trial in report["trials"]}
    assert seconds["slow"] >= 1  # for so long it is
    fault_free = {round(each["goodput"] * each["seconds"], 6) for each in report["trials"]}
    assert fault_free == {round(report["seconds"], 6)}
    reference = json.loads((tmp_path / report["run_dir"] / "reference" / "result.json").read_text())
    assert reference["weights_sha256"] == report["reference_run"]["weights_sha256"]
    kept = sorted(path.name for path in (tmp_path / report["run_dir"]).iterdir())
    assert kept == ["reference"]  # what has passed is removed


@pytest.mark.soak
def test_a_built_in_job_passes_with_other_numbers_of_workers(tmp_path):
    words = ("--vary-workers", "--faults", "kill", "--policies", "replace", "--seed", "3")
    done, report = drill(*SHORT, "workers=2", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *worlds, fault = report["trials"]
    tried = [(trial["world"]["workers"], trial["world"]["shards_per_worker"]) for trial in worlds]
    assert tried[:2] == [(1, None), (3, None)]
    ((workers, shares),) = tried[2:]
    assert (workers, sum(shares)) == (2, 8)
    assert abs(shares[0] - shares[1]) > 1
    assert (fault["fault"], fault["world"]) == ("kill", None)
    assert "3 workers: the same weights as the reference run\n" in done.stderr
    assert f"2 workers, shards per worker {shares}: the same weights" in done.stderr


@pytest.mark.soak
def test_a_job_whose_weights_depend_on_the_workers_fails(tmp_path):
    job = {"task": f"{TASKS}:counting_workers", "workers": 2, "shards": 4, "batch": 20}
    (tmp_path / "odd.yaml").write_text(json.dumps(job))
    words = ("--vary-workers", "--faults", "kill", "--policies", "replace")
    done, report = drill("odd.yaml", *words, cwd=tmp_path)
    assert done.returncode == 1
    assert (report["status"], report["deterministic"]) == ("failed", True)
    problems = [trial["problem"] for trial in report["trials"]]
    assert problems == ["other weights than the reference run"] * 2 + ["", ""]


@pytest.mark.soak
def test_jobs_with_ddp_are_tried_with_what_fits_them(tmp_path):
    done, report = drill(*SHORT, "sync=ddp", "--faults", "kill,agent", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert results(report) == [("kill", "restart", True), ("agent", "restart", True)]
    done, report = drill(*SHORT, "sync=ddp", "--faults", "nan", cwd=tmp_path)
    assert done.returncode == 2
    assert report["message"].startswith("nan would change the weights with sync=ddp")


@pytest.mark.soak
def test_a_job_that_is_not_deterministic_fails_with_the_reason(tmp_path):
    job = {"task": f"{TASKS}:drawing_from_the_clock", "workers": 2, "shards": 2, "batch": 20}
    (tmp_path / "odd.yaml").write_text(json.dumps(job))
    done, report = drill("odd.yaml", "--faults", "kill", "--policies", "replace", cwd=tmp_path)
    assert done.returncode == 1
    assert (report["status"], report["deterministic"]) == ("failed", False)
    assert len(report["trials"]) == 1


@pytest.mark.soak
def test_a_job_that_skips_steps_itself_passes(tmp_path):
    keys = {"workers": 2, "shards": 2, "batch": 10, "non_finite": "skip"}
    (tmp_path / "odd.yaml").write_text(json.dumps({"task": f"{FAILING_TASKS}:spoilt", **keys}))
    done, report = drill(
        "odd.yaml", "--faults", "kill,agent", "--policies", "replace", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    reference = tmp_path / report["run_dir"] / "reference" / "metrics.jsonl"
    assert any(json.loads(line).get("skipped") for line in reference.read_text().splitlines())
    assert [trial["passed"] for trial in report["trials"]] == [True, True]


@pytest.mark.soak
def test_a_job_of_a_few_steps_is_refused(tmp_path):
    done, report = drill("digits", "epochs=1", "batch=1000", cwd=tmp_path)
    assert done.returncode == 2
    assert report["message"].startswith("the job commits 2 steps; a drill needs at least 8")


@pytest.mark.soak
def test_a_trial_with_other_weights_fails_and_its_run_is_kept(tmp_path):
    job = {"task": f"{TASKS}:changed_by_a_replacement", "workers": 2, "shards": 2, "batch": 20}
    (tmp_path / "odd.yaml").write_text(json.dumps(job))
    done, report = drill("odd.yaml", "--faults", "kill,exit", "--policies", "replace", cwd=tmp_path)
    assert done.returncode == 1
    assert (report["status"], report["deterministic"]) == ("failed", True)
    assert [each["problem"] for each in report["trials"]] == [
        "other weights than the reference run"
    ] * 2
    trial = report["trials"][0]
    assert (tmp_path / trial["run_dir"] / "recoveries.jsonl").exists()
    assert trial["run_dir"] in done.stderr


@pytest.mark.soak
@pytest.mark.parametrize("signals", sampled([1, 2], 1))
def test_a_signal_ends_a_drill_with_the_trials_so_far(tmp_path, signals):
    command = [sys.executable, "-m", "holdfast", "drill", "digits", "epochs=2", "--json"]
    command += ["--run", "drill", "--faults", "kill,stop"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    running = tmp_path / "drill" / "stop-replace" / "metrics.jsonl"
    wait_until(lambda: running.exists() and b"loss" in running.read_bytes())
    for number in (signal.SIGINT, signal.SIGTERM)[:signals]:
        os.kill(process.pid, number)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    report = json.loads(printed.splitlines()[-1])
    assert report["status"] == "stopped"
    assert results(report) == [("kill", "replace", True)]


@pytest.mark.soak
def test_a_report_has_a_form_for_people(tmp_path):
    command = [sys.executable, "-m", "holdfast", "drill", *SHORT]
    command += ["--faults", "kill", "--policies", "replace"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "was killed by SIGKILL (injected fault: kill)" in done.stderr
    assert "kill, replace: the same weights as the reference run\n" in done.stderr
    assert done.stdout.endswith("\n1 of 1 trials ended with the weights of the reference run\n")


@pytest.mark.soak
def test_a_report_says_why_nothing_can_be_judged(tmp_path):
    job = {"task": f"{TASKS}:drawing_from_the_clock", "workers": 2, "shards": 2, "batch": 20}
    (tmp_path / "odd.yaml").write_text(json.dumps(job))
    command = [sys.executable, "-m", "holdfast", "drill", "odd.yaml"]
    command += ["--faults", "kill", "--policies", "replace"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "two fault-free runs of this job end with different weights" in done.stdout
    assert "kill, replace: other weights than the reference run; its run is in" in done.stderr


@pytest.mark.soak
def test_a_signal_between_two_trials_ends_a_drill_too(tmp_path, forks):
    job = load.load("digits", SHORT[1:])
    drilled = Drill(
        job,
        seed=0,
        directory=tmp_path / "drill",
        forks=forks,
        note=lambda trial: os.kill(os.getpid(), signal.SIGTERM),
    )
    report = drilled.run(["kill", "exit"], ["replace"])
    assert report.stopped
    assert [(trial.kind, trial.problem) for trial in report.trials] == [("kill", "")]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize(
    ("words", "message"),
    sampled(
        [
            (
                ["--policies", "shrink", "numerics=fast"],
                (
                    "shrink would change the weights with sync=tree, numerics=fast and "
                    "non_finite=stop; try replace, restart"
                ),
            ),
            (["--faults", "kil"], "--faults: unknown 'kil'; did you mean kill?"),
            (["--policies", "stop"], "--policies: unknown 'stop'; use replace, shrink, restart"),
            (
                ["--faults", "kill,nan", "non_finite=skip"],
                (
                    "nan would change the weights with sync=tree, numerics=exact and "
                    "non_finite=skip; try kill, stop, exit, raise, slow, corrupt-replica, "
                    "coordinator, agent, disk-full, corrupt-checkpoint"
                ),
            ),
            (
                ["--faults", "nan", "parallel.zero=3"],
                (
                    "nan would change the weights with parallel.zero=3, sync=tree, "
                    "numerics=exact and non_finite=stop; try kill, stop, exit, raise, slow, "
                    "coordinator, agent, disk-full, corrupt-checkpoint"
                ),
            ),
            (
                ["--vary-workers", "numerics=fast"],
                (
                    "--vary-workers would change the weights with sync=tree and numerics=fast: "
                    "a worker's shards are one batch there"
                ),
            ),
            (
                ["balance=dynamic", "sync=ddp"],
                (
                    "balance=dynamic would change the weights with sync=ddp and numerics=exact; "
                    "set balance=even"
                ),
            ),
            (
                ["--vary-workers", "workers=1", "shards=1"],
                "--vary-workers needs at least two shards, for two workers",
            ),
            (["--run", "."], ". already exists; name a new directory with --run"),
        ],
        0,
        1,
    ),
)
def test_what_cannot_be_tried_is_refused_in_a_line(tmp_path, words, message):
    done, report = drill("digits", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert report["message"] == message
