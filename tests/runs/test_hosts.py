"""Runs on several hosts: agents that join by a token, and workers that meet over TCP.

Here the hosts are agents on one machine. Each has its own shared memory, fork server and run
directory, so they share nothing but the processor.
"""

import contextlib
import json
import os
import random
import re
import signal
import socket
from pathlib import Path

import psutil
import pytest

from conftest import (
    events_of,
    holdfast_processes,
    needs_gpu,
    own_loopback_address,
    sampled,
    wait_until,
)
from holdfast.checkpoint.store import CheckpointStore
from holdfast.core.failures import LEFT_STATUS
from holdfast.record.run_record import RunRecord

pytestmark = pytest.mark.slow

JOB = ["digits", "shards=8"]
FAULTY = f"{Path(__file__).with_name('faulty_tasks.py')}:main"
PACED = Path(__file__).with_name("paced_tasks.py")


@pytest.fixture
def begin(command, tmp_path):
    """Begin a run on hosts: `begin(hosts, key=value, …) -> (coordinator, agents, join)`. The agents
    of all of them join, or of the first `joining`;
    options of the coordinator may follow.
    """

    def run(hosts, *keys, joining=None, job=JOB):
        address = own_loopback_address()
        where = ["--hosts", hosts, "--address", address, "--run", "run"]
        first = command("coordinator", *job, *keys, *where)
        token = tmp_path / "run" / "secrets" / "join.token"
        wait_until(token.exists)
        join = ["agent", "--join", f"{address}:50051", "--token-file", token]
        agents = [
            command(*join, "--run", f"host-{number}") for number in range(2, (joining or hosts) + 1)
        ]
        return first, agents, join

    return run


def result_of(tmp_path):
    return json.loads((tmp_path / "run" / "result.json").read_text())


@pytest.fixture
def alone(command, tmp_path):
    """The weights of the same job on one host: `alone(key, …) -> sha256`."""

    def run(*keys, job=JOB):
        assert command("train", *job, *keys, "--run", "alone").wait(120) == 0
        return json.loads((tmp_path / "alone" / "result.json").read_text())["weights_sha256"]

    return run


def steps(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def ended(run_dir):
    """State of a run that is over, as a host's own directory shows it."""
    return RunRecord(run_dir).state().name


def sizes(tmp_path):
    """The world size of each generation."""
    started = events_of(tmp_path / "run", "generation-started")
    return list({event["number"]: len(event["members"]) for event in started}.values())


@pytest.mark.soak
@pytest.mark.parametrize("network", ["tls", "trusted"])
def test_three_hosts_that_join_by_pasted_lines_give_the_weights_of_one(
    begin, alone, tmp_path, network
):
    keys = ["workers=4", "epochs=1", "clip_norm=0.5", f"network={network}"]
    first, agents, _ = begin(3, *keys)
    assert first.wait(120) == 0
    assert [each.wait(60) for each in agents] == [0, 0]
    printed = (tmp_path / "output-0").read_text()
    assert re.search(r"on each of 2 other hosts, .*\n  holdfast agent --join \S+ ", printed)
    assert "chttp2" not in printed, "gRPC's own log"
    assert result_of(tmp_path)["weights_sha256"] == alone("epochs=1", "clip_norm=0.5")
    assert events_of(tmp_path / "run", "host-refused") == []
    generations = events_of(tmp_path / "run", "generation-started")
    assert {tuple(event["members"]) for event in generations} == {(0, 1, 2, 3)}


@pytest.mark.soak
@pytest.mark.parametrize("stops", [False, True])
def test_a_coordinator_without_workers_ends_with_the_checkpoint_of_the_hosts(
    begin, alone, command, tmp_path, stops
):
    keys = ["workers=2", "resources.cpus=1", "epochs=40" if stops else "epochs=3"]
    first, agents, _ = begin(2, *keys, "--no-workers", joining=3)
    if stops:
        wait_until(lambda: steps(tmp_path) > 5)
        first.send_signal(signal.SIGTERM)
    assert first.wait(120) == (130 if stops else 0)
    assert [each.wait(60) for each in agents] == [130 if stops else 0] * 2
    started = {each["host"] for each in events_of(tmp_path / "run", "agent-started")}
    assert len(started) == 2
    assert "local-1" not in started
    newest = CheckpointStore.of_run(tmp_path / "run").newest()
    assert newest.step == result_of(tmp_path)["steps"]
    if not stops:
        assert result_of(tmp_path)["weights_sha256"] == alone("epochs=3")


@pytest.mark.parametrize(
    "on",
    [
        pytest.param("device=cpu", marks=pytest.mark.full),
        pytest.param("device=cpu exchange=staged", marks=pytest.mark.full),
        pytest.param("device=cpu exchange=mapped", marks=pytest.mark.soak),
        pytest.param("device=cpu exchange=nccl network=trusted", marks=pytest.mark.soak),
        pytest.param("device=cuda", marks=needs_gpu),
    ],
)
def test_a_lost_host_is_continued_without_and_another_one_joins(
    begin, command, alone, tmp_path, on
):
    hurry = tmp_path / "hurry"
    job = [f"{PACED}:main", "shards=4", "batch=20", f"params={{hurry: {hurry}}}"]
    first, (agent,), join = begin(2, "workers=4", *on.split(), job=job)
    wait_until(lambda: steps(tmp_path) > 10)
    os.killpg(agent.pid, signal.SIGSTOP)  # the command; its agent and workers are killed
    (lost,) = events_of(tmp_path / "host-2", "agent-started")
    os.kill(lost["pid"], signal.SIGKILL)
    wait_until(lambda: sizes(tmp_path) == [4, 2])
    os.killpg(agent.pid, signal.SIGKILL)
    assert command("token", "run").wait(60) == 0
    command(*join, "--run", "host-2")
    wait_until(lambda: sizes(tmp_path) == [4, 2, 4])
    hurry.touch()
    assert first.wait(120) == 0
    assert result_of(tmp_path)["weights_sha256"] == alone(on.split()[0], job=job)
    begun = [event["step"] for event in events_of(tmp_path / "run", "generation-started")]
    assert begun == sorted(begun), "no step was lost"


@pytest.mark.soak
@pytest.mark.parametrize("place", ["host-2", "run"])
def test_the_report_of_a_hang_has_the_workers_of_all_hosts(begin, tmp_path, place):
    hurry = tmp_path / "hurry"
    job = [f"{PACED}:main", "shards=4", "batch=20", f"params={{hurry: {hurry}}}"]
    first, _, _ = begin(2, "workers=4", job=job)
    wait_until(lambda: steps(tmp_path) > 10)
    # The run's directory has the events of all hosts; those of its own workers come first.
    pids = {e["rank"]: e["pid"] for e in reversed(events_of(tmp_path / place, "worker-started"))}
    rank = max(pids) if place == "host-2" else min(pids)
    os.kill(pids[rank], signal.SIGSTOP)
    reports = tmp_path / "run" / "recoveries.jsonl"
    wait_until(lambda: reports.exists() and reports.read_text().endswith("\n"))
    [report] = map(json.loads, reports.read_text().splitlines())
    hurry.touch()
    assert first.wait(120) == 0
    assert report["causes"][0]["what"].startswith("hung: it was stopped")
    assert report["missing"] == [rank]
    assert [each["rank"] for each in report["whereabouts"]] == [0, 1, 2, 3]
    for each in report["whereabouts"]:
        if each["rank"] != rank:
            assert rank in each["waits_for"]
            assert "gradient" in each["doing"]


@pytest.mark.soak
def test_a_host_of_another_kind_is_refused_and_another_one_takes_its_place(
    command, begin, alone, tmp_path, monkeypatch
):
    first, _, join = begin(2, "workers=2", "epochs=2", joining=1)
    with monkeypatch.context() as odd:
        odd.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
        assert command(*join, "--run", "host-2").wait(120) == 1
    odd_output = (tmp_path / "output-1").read_text()
    assert "is not like the other hosts: its ONEDNN_MAX_CPU_ISA is SSE41, but unset" in odd_output
    assert "numerics=mixed" in odd_output
    assert command("token", "run").wait(60) == 0
    command(*join, "--run", "host-3")
    assert first.wait(120) == 0
    assert result_of(tmp_path)["weights_sha256"] == alone("epochs=2")
    assert len(events_of(tmp_path / "run", "host-refused")) == 1
    assert sizes(tmp_path) == [2]


ALIKE = {"ONEDNN_MAX_CPU_ISA": "SSE41"}
"""Environment of a stand-in for another processor: other products, the same sums of two tensors."""
UNLIKE = {"ATEN_CPU_CAPABILITY": "default"}
"""The same without fused multiplication and addition, so that optimizers compute other bits."""


@pytest.fixture
def begin_mixed(command, begin, monkeypatch):
    """Begin a run on two hosts, of which the second one has another environment."""

    def run(other, *keys, **options):
        first, _, join = begin(2, "numerics=mixed", *keys, joining=1, **options)
        with monkeypatch.context() as odd:
            for name, value in other.items():
                odd.setenv(name, value)
            return first, command(*join, "--run", "host-2")

    return run


@pytest.mark.exec
@pytest.mark.parametrize(
    ("other", "follows"),
    [
        pytest.param(ALIKE, False, marks=pytest.mark.soak),
        pytest.param(UNLIKE, True, marks=pytest.mark.full),
    ],
)
def test_unlike_hosts_train_together_with_equal_replicas(
    begin_mixed, command_line, tmp_path, other, follows
):
    keys = ["workers=2", "epochs=2", "clip_norm=0.5"]
    keys += ["checkpoint.every_steps=1", "checkpoint.busy=wait"]
    first, _ = begin_mixed(other, *keys)
    assert first.wait(120) == 0, (tmp_path / "output-0").read_text()
    said = result_of(tmp_path)["exactness"]
    (name,) = other
    assert said.startswith("every sample once, replicas equal; the bits depend on which host")
    assert name in said
    (differ,) = events_of(tmp_path / "run", "hosts-differ")
    assert f"{name} {other[name]} | unset" in differ["differences"]
    assert len(events_of(tmp_path / "run", "updates-differ")) == follows
    # A checkpoint is committed only if the replicas of all hosts are equal.
    saved = {each["step"] for each in events_of(tmp_path / "run", "checkpoint-committed")}
    assert saved == set(range(1, result_of(tmp_path)["steps"] + 1))
    assert command_line("audit", str(tmp_path / "run"))[0] == 0


@pytest.mark.full
@pytest.mark.exec
@pytest.mark.parametrize("key", ["numerics=mixed", "sync=ddp"])
def test_unlike_hosts_may_round_a_sample_otherwise(begin, command, tmp_path, monkeypatch, key):
    job = [f"{Path(__file__).with_name('unlike_tasks.py')}:main", "batch=8", "shards=8", key]
    first, _, join = begin(2, "workers=2", "epochs=2", joining=1, job=job)
    with monkeypatch.context() as odd:
        odd.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
        odd.setenv("SAMPLES", "larger")
        command(*join, "--run", "host-2")
    assert first.wait(120) == 0, (tmp_path / "output-0").read_text()
    assert result_of(tmp_path)["steps"] == 10


@pytest.mark.soak
@pytest.mark.exec
@pytest.mark.parametrize("other", [ALIKE, UNLIKE])
def test_unlike_hosts_lose_no_step_with_a_worker_and_a_host(
    begin_mixed, command_line, tmp_path, other
):
    hurry = tmp_path / "hurry"
    job = [f"{PACED}:main", "shards=8", "batch=40", f"params={{hurry: {hurry}}}"]
    first, agent = begin_mixed(other, "workers=4", "balance=dynamic", job=job)
    wait_until(lambda: steps(tmp_path) > 10)
    (worker, *_) = [e for e in events_of(tmp_path / "host-2", "worker-started") if e["rank"] == 3]
    os.kill(worker["pid"], signal.SIGKILL)
    wait_until(lambda: sizes(tmp_path)[1:])
    before = steps(tmp_path)
    wait_until(lambda: steps(tmp_path) > before + 5)
    os.killpg(agent.pid, signal.SIGKILL)
    (lost,) = events_of(tmp_path / "host-2", "agent-started")
    os.kill(lost["pid"], signal.SIGKILL)
    wait_until(lambda: sizes(tmp_path)[-1] == 2)
    hurry.touch()
    assert first.wait(120) == 0
    begun = [event["step"] for event in events_of(tmp_path / "run", "generation-started")]
    assert begun == sorted(begun), "no step was lost"
    assert command_line("audit", str(tmp_path / "run"))[0] == 0


@pytest.mark.soak
def test_a_host_that_is_slow_is_not_lost(begin, tmp_path):
    """Its agent sends no heartbeats for a while, but its kernel accepts connections."""
    first, (command,), _ = begin(2, "workers=2", "epochs=8", "heartbeat.timeout_s=1.1")
    wait_until(lambda: steps(tmp_path) > 10)
    (slow,) = events_of(tmp_path / "host-2", "agent-started")
    os.kill(command.pid, signal.SIGSTOP)  # it would end an agent that is stopped
    os.kill(slow["pid"], signal.SIGSTOP)
    wait_until(lambda: len(events_of(tmp_path / "run", "host-probed")) >= 2)
    os.kill(slow["pid"], signal.SIGCONT)
    os.kill(command.pid, signal.SIGCONT)
    assert first.wait(120) == 0
    probed = events_of(tmp_path / "run", "host-probed")
    assert {(event["host"], event["answered"]) for event in probed} == {(slow["host"], True)}
    assert {event["number"] for event in events_of(tmp_path / "run", "generation-started")} == {1}


@pytest.mark.soak
def test_a_host_does_not_mix_two_runs_in_one_directory(begin, command, tmp_path):
    assert command("train", *JOB, "seed=5", "--run", "host-2").wait(120) == 0
    first, (agent,), _ = begin(2, "workers=2")
    assert agent.wait(60) == 2
    assert "host-2 is a run with seed=5, not 0" in (tmp_path / "output-2").read_text()
    first.send_signal(signal.SIGINT)
    wait_until(lambda: "once more to abort" in (tmp_path / "output-1").read_text())
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 130


def test_one_signal_ends_a_run_that_waits_for_hosts(begin, tmp_path):
    first, _, _ = begin(2, "workers=2", joining=1)
    wait_until(lambda: "waiting for" in (tmp_path / "output-0").read_text())
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 130
    said = (tmp_path / "output-0").read_text()
    assert "stopped while the run waited for hosts: no step was under way" in said


ENDLESS = """
import time
import torch

def main(session):
    model, _ = session.attach(lambda: torch.nn.Linear(1, 1), torch.optim.SGD)
    for shard in session.shards([torch.zeros(1)] * 4, steps=2):
        print("computes", flush=True)
        time.sleep(600)
"""


def test_an_aborted_run_ends_on_all_of_its_hosts(begin, tmp_path):
    (tmp_path / "endless.py").write_text(ENDLESS)
    job = ["endless.py:main", "shards=2", "batch=2", "workers=2"]
    first, (agent,), _ = begin(2, job=job)
    log = tmp_path / "run" / "logs" / "rank-0.log"
    wait_until(lambda: log.exists() and "computes" in log.read_text())
    first.send_signal(signal.SIGINT)
    wait_until(lambda: "once more to abort" in (tmp_path / "output-0").read_text())
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 130
    assert agent.wait(60) == 1
    assert "the run has failed: the run was aborted" in (tmp_path / "output-1").read_text()


@pytest.mark.full
def test_one_signal_ends_a_run_that_waits_for_a_lost_host(begin, tmp_path):
    keys = ["workers=2", "sync=ddp", "epochs=2000", "checkpoint.every_steps=10"]
    first, (agent,), _ = begin(2, *keys)
    wait_until(lambda: events_of(tmp_path / "run", "checkpoint-committed"))
    os.killpg(agent.pid, signal.SIGKILL)
    wait_until(lambda: "waiting for 1 more worker" in (tmp_path / "output-0").read_text())
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 130
    said = " ".join((tmp_path / "output-0").read_text().split())
    assert "stopped while the run waited for hosts: no step was under way; resume" in said


@pytest.mark.soak
def test_hosts_without_a_worker_are_refused(command, tmp_path):
    words = ["coordinator", "digits", "workers=2", "--hosts", "3", "--address", "127.0.0.1"]
    assert command(*words).wait(60) == 2
    assert "workers=2 leaves some of hosts=3 without" in (tmp_path / "output-0").read_text()
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("after", sampled([0, 1], 0))
def test_a_port_in_use_is_named_before_anything_is_made(command, tmp_path, after):
    address = own_loopback_address()
    with socket.create_server((address, 50051 + after)):
        words = ["coordinator", "digits", "workers=2", "--hosts", "2", "--address", address]
        assert command(*words).wait(60) == 2
    said = (tmp_path / "output-0").read_text()
    assert f"cannot listen at {address}:{50051 + after}: Address already in use; name" in said
    assert not (tmp_path / "runs").exists()


@pytest.mark.soak
def test_an_agent_tells_a_run_that_was_stopped_from_one_that_is_over(begin, tmp_path):
    """What starts agents again, such as a Job of Kubernetes, goes by the status."""
    first, (agent,), _ = begin(2, "workers=2", "epochs=2000")
    wait_until(lambda: steps(tmp_path) > 10)
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 130
    assert agent.wait(60) == 130
    assert (
        "the run was stopped; join again once it is continued"
        in (tmp_path / "output-1").read_text()
    )
    assert ended(tmp_path / "host-2") == "stopped"


@pytest.mark.soak
def test_a_run_continues_under_nonsense_on_all_of_its_ports(begin, alone, tmp_path):
    first, _, _ = begin(2, "workers=4", "epochs=30")
    wait_until(lambda: steps(tmp_path) > 10)
    processes = set(holdfast_processes(f"HOLDFAST_TEST={tmp_path}"))
    listening = [
        each.laddr
        for each in psutil.net_connections("tcp")
        if each.status == psutil.CONN_LISTEN and each.pid in processes
    ]
    assert len(listening) >= 6, "two of the coordinator, and one of each worker"
    draw, kept = random.Random(0), []
    for number in range(1000):
        try:
            stranger = socket.create_connection(draw.choice(listening), 0.05)
        except TimeoutError:  # a worker that trains accepts none, and its queue is full
            continue
        start = draw.choice([b"", b"\x16\x03\x01\x02\x00\x01", b"PRI * HTTP/2.0", b"holdfast"])
        with contextlib.suppress(ConnectionError):
            stranger.sendall(start + os.urandom(draw.randrange(300)))
        if number % 20:
            stranger.close()
        else:
            kept.append(stranger)  # and say nothing any more
    assert first.poll() is None, "it is still training"
    assert first.wait(240) == 0
    for each in kept:
        each.close()
    assert result_of(tmp_path)["weights_sha256"] == alone("epochs=30")
    assert sizes(tmp_path) == [4], "no worker was disturbed"
    assert len(events_of(tmp_path / "run", "refusals-counted")) == 1


@pytest.mark.soak
@pytest.mark.parametrize("policy", ["replace", "shrink", "restart"])
def test_the_world_continues_smaller_and_grows_again(begin, alone, tmp_path, policy):
    keys = ["epochs=40", "checkpoint.every_steps=20"]
    first, *_ = begin(2, "workers=4", *keys, f"on_failure={policy}")
    wait_until(lambda: steps(tmp_path) > 30)
    (lost,) = events_of(tmp_path / "host-2", "agent-started")
    os.kill(lost["pid"], signal.SIGKILL)
    wait_until(lambda: sizes(tmp_path) == [4, 2, 4], 120)
    assert first.wait(240) == 0
    assert result_of(tmp_path)["weights_sha256"] == alone(*keys)
    begun = events_of(tmp_path / "run", "generation-started")
    loaded = {event["from_checkpoint"] for event in begun if event["number"] > 1}
    assert loaded == {policy == "restart"}


@pytest.mark.parametrize(("workers", "most"), sampled([(2, 0), (4, 0), (4, 1)]))
def test_a_host_without_memory_for_its_shards_leaves_them_to_the_others(
    begin, alone, tmp_path, workers, most
):
    task = f"{Path(__file__).with_name('memory_tasks.py')}:main"
    job = [task, "shards=8", "batch=32", f"workers={workers}"]
    last = workers - 1
    params = {"most": [[last, most]], "since": 2, "steps": 12}
    first, agents, _ = begin(2, job=[*job, f"params={json.dumps(params)}"])
    assert [each.wait(120) for each in (first, *agents)] == [0, 0]
    assert ended(tmp_path / "host-2") == "finished"
    fault_free = json.dumps(params | {"most": []})
    assert result_of(tmp_path)["weights_sha256"] == alone(f"params={fault_free}", job=job)
    (event,) = events_of(tmp_path / "host-2", "worker-out-of-memory")
    assert (event["rank"], event["cap"]) == (last, most)
    assert sizes(tmp_path) == [workers, workers if most else last]


@pytest.mark.soak
def test_a_lost_host_ends_a_run_that_must_stop(begin, tmp_path):
    first, (_, other), _ = begin(3, "workers=3", "epochs=40", "on_failure=stop")
    wait_until(lambda: steps(tmp_path) > 30)
    (lost,) = events_of(tmp_path / "host-2", "agent-started")
    os.kill(lost["pid"], signal.SIGKILL)
    assert first.wait(60) == 1
    printed = " ".join((tmp_path / "output-0").read_text().split())
    assert f"holdfast: {lost['host']} " in printed, printed
    assert other.wait(60) == 1
    assert f"holdfast: the run has failed: {lost['host']} " in (tmp_path / "output-2").read_text()
    assert ended(tmp_path / "host-3") == "failed"


@pytest.mark.soak
def test_an_agent_of_a_coordinator_that_was_killed_is_named_to_the_next_one(
    begin, command, alone, tmp_path
):
    first, (old,), join = begin(2, "workers=2", "epochs=10")
    wait_until(lambda: steps(tmp_path) > 10)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    token = tmp_path / "run" / "secrets" / "join.token"
    token.unlink()
    where = ["--hosts", 2, "--address", join[2].partition(":")[0]]
    again = command("coordinator", "--resume", "--run", "run", *where)
    wait_until(token.exists)
    new = command(*join, "--run", "host-2")
    wait_until(lambda: "in use by" in (tmp_path / "output-3").read_text())
    said = (tmp_path / "output-3").read_text()
    assert f"host-2 is in use by another process, {old.pid} on " in said
    assert "ends ten minutes after its coordinator, or when you end it; this one waits" in said
    old.send_signal(signal.SIGINT)
    assert old.wait(60) == 0
    assert new.wait(120) == 0, (tmp_path / "output-3").read_text()
    assert again.wait(60) == 0
    assert result_of(tmp_path)["weights_sha256"] == alone("epochs=10")


@pytest.mark.parametrize(
    ("words", "message"),
    sampled(
        [
            (["train", *JOB, "hosts=2"], "hosts=2 needs holdfast coordinator"),
            (
                ["agent", "--join", "127.0.0.1:1", "--token-file", "none"],
                "token file none cannot be",
            ),
            (["token", "."], "no run on several hosts"),
            (["coordinator", *JOB, "hosts=1"], "hosts=1 needs no coordinator; run holdfast train"),
            (["coordinator", *JOB, "hosts=3", "workers=2"], "workers=2 leaves some of hosts=3"),
        ],
        0,
        4,
    ),
)
def test_what_several_hosts_cannot_do_yet_is_said(command, tmp_path, words, message):
    assert command(*words).wait(60) == 2
    assert message in (tmp_path / "output-0").read_text()


@pytest.mark.soak
@pytest.mark.parametrize(("hosts", "exchange"), [(2, "arena"), (3, "arena"), (2, "mapped")])
@pytest.mark.parametrize(
    "job",
    [
        ["digits", "model={name: mlp}", "epochs=2"],
        ["digits", "epochs=2"],  # a CNN with batch normalization and dropout
        ["synthetic-text", "epochs=1"],  # a GPT
        ["digits", "model={name: mlp}", "epochs=2", "precision=fp16"],
    ],
    ids=["mlp", "cnn", "gpt", "fp16"],
)
def test_models_have_the_weights_of_one_host_on_several(
    begin, alone, tmp_path, job, hosts, exchange
):
    job = [*job, "shards=6"]
    first, agents, _ = begin(hosts, "workers=6", f"exchange={exchange}", job=job)
    assert [each.wait(200) for each in (first, *agents)] == [0] * hosts
    assert result_of(tmp_path)["weights_sha256"] == alone("workers=1", job=job)


MESSAGES = "holdfast.worker.process_groups.device_messages:ProcessGroupMessages"
EXCHANGE = {"at": f"{MESSAGES}._exchange", "when": "before", "step": 3}


@pytest.fixture
def inject(begin, alone, tmp_path):
    """Run the faulty task on two hosts whose devices send each other sums, and compare it with a
    fault-free run on one: `inject(fault, …) -> ranks that have exited`.
    """

    def run(*faults, workers=3):
        named = [{**each, "mark": str(tmp_path / f"mark-{n}")} for n, each in enumerate(faults)]
        job = [FAULTY, "shards=4", "batch=20", "checkpoint.every_steps=2"]
        keys = [f"workers={workers}", "exchange=nccl", "network=trusted", "device=cpu"]
        first, agents, _ = begin(2, *keys, job=[*job, f"params={json.dumps({'faults': named})}"])
        assert first.wait(120) == 0, (tmp_path / "output-0").read_text()
        assert [each.wait(60) for each in agents] == [0]
        assert all(Path(each["mark"]).exists() for each in named)
        weights = alone("exchange=arena", "params={faults: []}", job=job)
        assert result_of(tmp_path)["weights_sha256"] == weights
        begun = [event["step"] for event in events_of(tmp_path / "run", "generation-started")]
        assert begun[-1] >= faults[0]["step"], "no step was lost"
        exits = events_of(tmp_path / "run", "worker-exited")
        return [(each["rank"], each["status"]) for each in exits if each["status"]]

    return run


@pytest.mark.parametrize(
    ("at", "when", "rank", "which"),
    sampled(
        [
            ("_exchange", "before", 0, 1),  # with its sums sent, and no mean
            ("_exchange", "before", 2, 0),
            ("_exchange", "after", 1, 0),
            ("_exchange", "after", 2, 1),
            ("connect", "before", 1, 0),
            ("_make_backend", "before", 0, 0),
            ("_make_backend", "after", 2, 0),
        ],
        0,
    ),
)
def test_a_death_in_an_exchange_between_devices_changes_nothing(inject, at, when, rank, which):
    step = 3 if at == "_exchange" else 0
    fault = {"at": f"{MESSAGES}.{at}", "when": when, "rank": rank, "step": step, "which": which}
    assert inject({**fault, "how": "kill"}) == [(rank, -signal.SIGKILL)]


@pytest.mark.soak
@pytest.mark.parametrize("workers", [2, 4])
def test_a_worker_that_stops_in_an_exchange_between_devices_is_replaced(inject, workers):
    fault = {**EXCHANGE, "rank": 1, "how": "stop"}
    assert inject(fault, workers=workers) == [(1, -signal.SIGKILL)]


@pytest.mark.soak
def test_a_worker_whose_process_group_does_not_end_ends_itself(inject):
    never_returns = {**EXCHANGE, "rank": 1, "how": "sleep"}
    exits = inject(never_returns, {**EXCHANGE, "rank": 2, "how": "kill"})
    assert sorted(exits) == [(1, LEFT_STATUS), (2, -signal.SIGKILL)]


@pytest.mark.soak
@pytest.mark.parametrize("merges", ["sync=ddp", "sync=ddp network=trusted", "numerics=fast"])
def test_workers_of_all_hosts_share_merged_batches_by_their_speeds(begin, tmp_path, merges):
    tasks = Path(__file__).with_name("balance_tasks.py")
    slow = "params={slow: [0.1, 0.2, 0.4, 0.4]}"
    job = [f"{tasks}:merged", "shards=32", "batch=45", "epochs=6", slow]
    first, _, _ = begin(2, "workers=4", "balance=dynamic", *merges.split(), job=job)
    assert first.wait(120) == 0
    fastest, *_, slowest = events_of(tmp_path / "run", "plan-changed")[-1]["shards_per_worker"]
    assert fastest > 8 > slowest
    exactness = f"not exact: {merges.split()[0]}; balance=dynamic affects the weights"
    assert result_of(tmp_path)["exactness"] == exactness
