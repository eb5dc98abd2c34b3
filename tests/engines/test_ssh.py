"""Runs on hosts of a file: network namespaces, each with a real sshd."""

import json
import os
import signal
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from ssh_hosts import ssh_hosts

from conftest import events_of, holdfast_processes, metrics_of, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ssh")]

PYTHON = f"python={sys.executable}"
BEGIN_AND_END = ["generation-started", "run-ended"]
REPORTING = Path(__file__).parents[1] / "runs" / "scripts" / "reporting.py"
JOB = ["digits", "shards=6", "workers=3", "hosts=3"]


def run_of(hosts, name="run"):
    return hosts.hosts.disk(1) / name


def weights(hosts, name="run"):
    return json.loads((run_of(hosts, name) / "result.json").read_text())["weights_sha256"]


def alone(hosts, *keys):
    """The weights of the same job on one host."""
    process = hosts.train(1, *JOB[:3], *keys, "--run", "alone")
    assert process.wait(120) == 0, hosts.hosts.output(1)
    return weights(hosts, "alone")


def placed(hosts):
    """The host of each agent, in the order in which they were placed."""
    if not (run_of(hosts) / "events.jsonl").exists():
        return {}
    return {each["host"]: each["place"] for each in events_of(run_of(hosts), "agent-placed")}


def words_of(pid):
    """The command line of a process; nothing once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return b""


def steps(hosts):
    path = run_of(hosts) / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def on_hosts(hosts, *keys):
    """Begin the job on three of the hosts, or as many as `keys` say."""
    hosts.file(1, *(f"h{number} {PYTHON}" for number in hosts.hosts.numbers))
    return hosts.train(1, *JOB, *keys, "--on", "ssh:hosts", "--run", "run")


@pytest.mark.full
def test_hosts_of_a_file_train_to_the_weights_of_one(tmp_path):
    with ssh_hosts(tmp_path, 2) as hosts:
        process = on_hosts(hosts, "hosts=2", "workers=2", "epochs=1")
        wait_until(lambda: steps(hosts) > 0)
        words = b"".join(map(words_of, holdfast_processes(str(hosts.folder))))
        assert b"--placed" in words
        assert b"hf1." not in words, "a token is an argument"
        assert process.wait(120) == 0, hosts.hosts.output(1)
        assert sorted(placed(hosts).values()) == ["h1", "h2"]
        wait_until(lambda: holdfast_processes(str(hosts.folder)) == [])
        assert weights(hosts) == alone(hosts, "epochs=1")


def test_what_a_host_lacks_is_named(tmp_path):
    """Before anything is started, and with all hosts in one message."""
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')  # without site-packages
    bare.chmod(0o755)
    with ssh_hosts(tmp_path, 3) as hosts:
        hosts.servers[3].kill()
        hosts.servers[3].wait()
        hosts.file(1, f"h1 python={bare}", "h2 python=/nowhere/python", "h3", "h4", f"h2x {PYTHON}")
        process = hosts.train(1, *JOB, "--on", "ssh:hosts", "--run", "run")
        assert process.wait(60) == 1
        said = hosts.hosts.output(1)
        assert "ssh lacks what the run needs: 3 slots for agents; its hosts have 0" in said
        assert f"h1 has no holdfast of this version: {bare}: " in said
        assert "h2 has no usable Python: " in said
        assert "h3 cannot be reached: ssh: connect to host h3 port 22: Connection refused" in said
        assert "h4 cannot be reached: ssh: Could not resolve hostname h4" in said
        assert not run_of(hosts).exists()
        hosts.file(1, f"h1 {PYTHON}", f"h2 {PYTHON} slots=2")
        needs = ["resources.cpus=1000", "--on", "ssh:hosts", "--run", "run"]
        assert hosts.train(1, *JOB, *needs).wait(60) == 1
        assert "h1 lacks 1000 CPUs for one worker; " in hosts.hosts.output(1)
        assert "h2 lacks 1000 CPUs for one worker; " in hosts.hosts.output(1)


@pytest.mark.full
def test_a_script_runs_on_hosts_of_a_file_and_its_steps_are_known_here(tmp_path):
    with ssh_hosts(tmp_path, 2) as hosts:
        hosts.file(1, f"h1 {PYTHON}", f"h2 {PYTHON}")
        words = ["--nnodes", "2", "--nproc-per-node", "2", "--on", "ssh:hosts", "--run", "run"]
        process = hosts.start(1, "run", *words, REPORTING, tmp_path, "20", "killed")
        assert process.wait(120) == 0, hosts.hosts.output(1)
        assert sorted(placed(hosts).values()) == ["h1", "h2"]
        assert [each["step"] for each in metrics_of(run_of(hosts))] == list(range(1, 21))
        assert "rank 1 was killed by SIGKILL" in hosts.hosts.output(1)
        wait_until(lambda: holdfast_processes(str(hosts.folder)) == [])


SMALL = ["--size", "small", "--max-steps", "6", "--seq-length", "16", "--batch-size", "2"]
ON_EACH = ["--rounds", "1", "--job", "digits", "workers=1", "shards=2"]


def measured(hosts, *words):
    """The rows of a benchmark on two hosts."""
    hosts.file(1, f"h1 {PYTHON}", f"h2 {PYTHON}")
    process = hosts.start(1, "bench", *words, "--on", "ssh:hosts", "--output", "results")
    assert process.wait(240) == 0, hosts.hosts.output(1)
    return json.loads((hosts.hosts.disk(1) / "results" / f"{words[0]}.json").read_text())["rows"]


@pytest.mark.full
@pytest.mark.exec
@pytest.mark.parametrize(
    ("words", "column", "ways"),
    [
        (
            ["balance", "--systems", "even,dynamic", "--steps", "4", *ON_EACH[:4], "hosts=2",
             "workers=2", "shards=4"],
            "system",
            ["even", "dynamic"],
        ),
        (["scaling", "--hosts", "1,2", "--steps", "4", *ON_EACH], "hosts", [1, 2]),
    ],
    ids=["balance", "scaling"],
)  # fmt: skip
def test_a_job_of_ones_own_is_measured_on_hosts(tmp_path, words, column, ways):
    with ssh_hosts(tmp_path, 2) as hosts:
        rows = measured(hosts, *words)
        assert [row[column] for row in rows] == ways
        assert {(row["job"], row["on"]) for row in rows} == {("digits", "ssh:hosts")}


@pytest.mark.full
@pytest.mark.exec
def test_a_job_of_ones_own_recovers_on_hosts_from_the_loss_of_a_worker_and_of_an_agent(tmp_path):
    with ssh_hosts(tmp_path, 2) as hosts:
        worker, agent = measured(hosts, "recovery", "--hosts", "2", *ON_EACH, "epochs=3")
        assert (worker["fault"], agent["fault"]) == ("worker", "agent")
        for row in (worker, agent):
            assert (row["hosts"], row["same_weights"], row["steps_lost"]) == (2, True, 0)
            assert row["committed_s"]["median"] > row["step_s"]["median"] > 0


@pytest.mark.full
@pytest.mark.exec
def test_hosts_that_there_are_train_qlora_and_more_are_predicted(tmp_path):
    pytest.importorskip("peft")
    with ssh_hosts(tmp_path, 2) as hosts:
        rows = measured(hosts, "qlora", *SMALL, "--hosts", "1,2,1000")
        of_hosts = [row for row in rows if row["measure"] == "hosts"]
        kinds = [(row["hosts"], row["kind"]) for row in of_hosts]
        assert kinds == [(1, "measured"), (2, "measured"), (1000, "predicted")]
        assert all(row["cost"] > 0 for row in of_hosts)


def lose_ssh(hosts):
    """Only the ssh of an agent ends, by itself."""
    (pid,) = (
        pid
        for pid in hosts.hosts.processes(1)
        if b"ssh -F " in words_of(pid) and b" -- h2 " in words_of(pid)
    )
    os.kill(pid, signal.SIGKILL)


def lose_host(hosts):
    hosts.hosts.kill(2)


def cut_host(hosts):
    hosts.hosts.cut(2)


@pytest.mark.soak
@pytest.mark.parametrize("lose", [lose_ssh, lose_host, cut_host])
def test_a_lost_host_is_replaced_by_a_free_one(tmp_path, lose):
    with ssh_hosts(tmp_path, 4) as hosts:
        process = on_hosts(hosts, "epochs=25")
        wait_until(lambda: steps(hosts) > 5)
        lose(hosts)
        wait_until(lambda: len(placed(hosts)) == 4)
        assert process.wait(240) == 0, hosts.hosts.output(1)
        assert list(placed(hosts).values())[-1] in ("h2", "h4")
        sizes = [len(each["members"]) for each in events_of(run_of(hosts), "generation-started")]
        assert sizes[-1] == 3
        done = [line["step"] for line in metrics_of(run_of(hosts)) if "loss" in line]
        assert done == sorted(set(done)), "no step was lost"
        assert weights(hosts) == alone(hosts, "epochs=25")


@pytest.mark.soak
def test_a_lost_host_is_used_again_when_there_is_no_other(tmp_path):
    with ssh_hosts(tmp_path, 3) as hosts:
        process = on_hosts(hosts, "epochs=80")
        wait_until(lambda: steps(hosts) > 5)
        lose_host(hosts)
        wait_until(lambda: events_of(run_of(hosts), "agent-ended"))
        before = steps(hosts)
        wait_until(lambda: steps(hosts) > before + 20)  # the others do not wait for it
        hosts.servers[2].wait()
        hosts.serve(2)
        wait_until(lambda: len(placed(hosts)) == 4)
        assert process.wait(240) == 0, hosts.hosts.output(1)
        assert list(placed(hosts).values())[-1] == "h2"


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_agents_end_with_the_run(tmp_path, number):
    with ssh_hosts(tmp_path, 3) as hosts:
        process = on_hosts(hosts, "epochs=1000")
        wait_until(lambda: steps(hosts) > 5)
        (begun,) = events_of(run_of(hosts), "run-started")
        os.kill(begun["pid"], number)
        status = process.wait(60)
        assert status == 130 if number == signal.SIGINT else status != 0
        wait_until(lambda: holdfast_processes(str(hosts.folder)) == [])


def cpus_of_workers(hosts, number):
    """The CPUs of each worker on a host: of the processes that its fork servers have forked."""
    found = []
    for pid in hosts.hosts.processes(number):
        with suppress(OSError):  # it has ended
            parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
            if b"launch.fork_server" in words_of(parent):
                found.append(sorted(os.sched_getaffinity(pid)))
    return sorted(found)


@contextmanager
def on_cpus(cpus):
    """This process, and those that it starts, use these CPUs only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.soak
def test_two_jobs_for_all_cpus_of_a_host_run_one_after_the_other(tmp_path):
    every = sorted(os.sched_getaffinity(0))
    if len(every) < 2:
        pytest.skip("needs two CPUs")
    two = every[:2]
    job = ["digits", "workers=2", "resources.cpus=1", "--on", "ssh:hosts"]
    with on_cpus(two), ssh_hosts(tmp_path, 2) as hosts:
        hosts.file(1, f"h2 {PYTHON}")
        first = hosts.train(1, *job, "epochs=1000", "--run", "first")
        wait_until(lambda: cpus_of_workers(hosts, 2) == [[cpu] for cpu in two])
        refused = hosts.train(1, *job, "--run", "refused")
        assert refused.wait(60) == 1
        said = hosts.hosts.output(1)
        lacks = "its hosts have 0; h2 lacks 1 CPU for each of 2 workers; 0 of 2 are free: run first"
        assert f"ssh lacks what the run needs: 1 slot for an agent; {lacks} (pid " in said
        second = hosts.train(1, *job, "epochs=1", "--queue", "--run", "second")
        wait_until(lambda: f"waiting for 1 slot for an agent; {lacks}" in hosts.hosts.output(1))
        (begun,) = events_of(run_of(hosts, "first"), "run-started")
        os.kill(begun["pid"], signal.SIGINT)
        assert first.wait(60) == 130
        assert second.wait(120) == 0, hosts.hosts.output(1)
        (ended,) = events_of(run_of(hosts, "first"), "run-ended")
        (begun,) = events_of(run_of(hosts, "second"), "run-started")
        assert ended["time_unix_s"] <= begun["time_unix_s"]


@pytest.mark.soak
def test_a_killed_client_leaves_the_run_alone_and_ctrl_c_stops_it(tmp_path):
    with ssh_hosts(tmp_path, 3) as hosts:

        def said(*words):
            before = len(hosts.hosts.output(1))
            assert hosts.start(1, *words).wait(120) == 0, hosts.hosts.output(1)
            return hosts.hosts.output(1)[before:]

        def state():
            return [each["state"] for each in json.loads(said("runs", "--json"))]

        client = on_hosts(hosts, "epochs=40")
        wait_until(lambda: steps(hosts) > 5)
        client.kill()
        client.wait()
        assert state() == ["running"]
        before = steps(hosts)
        wait_until(lambda: steps(hosts) > before)
        assert "step" in said("logs", "run")
        assert said("stop", "run").startswith("stopped after step ")
        assert state() == ["stopped"]
        wait_until(lambda: holdfast_processes(str(hosts.folder)) == [])

        before, client = steps(hosts), on_hosts(hosts, "epochs=40", "--resume")
        wait_until(lambda: steps(hosts) > before)
        client.send_signal(signal.SIGINT)
        assert client.wait(120) == 130, hosts.hosts.output(1)
        assert state() == ["stopped"]

        client = on_hosts(hosts, "epochs=40", "--resume")
        assert client.wait(240) == 0, hosts.hosts.output(1)
        assert state() == ["finished"]
        done = [line["step"] for line in metrics_of(run_of(hosts)) if "loss" in line]
        assert done == sorted(set(done)), "no step was lost"
        assert weights(hosts) == alone(hosts, "epochs=40")


@pytest.mark.soak
def test_of_two_runs_that_start_at_once_one_waits_where_its_agent_is(tmp_path):
    """Both may have found the host free."""
    every = sorted(os.sched_getaffinity(0))
    if len(every) < 2:
        pytest.skip("needs two CPUs")
    job = ["digits", "workers=2", "resources.cpus=1", "epochs=3", "--on", "ssh:hosts", "--queue"]
    with on_cpus(every[:2]), ssh_hosts(tmp_path, 2) as hosts:
        hosts.file(1, f"h2 {PYTHON}")
        both = [hosts.train(1, *job, "--run", name) for name in ("one", "other")]
        assert [process.wait(200) for process in both] == [0, 0], hosts.hosts.output(1)
        trained = sorted(
            [events_of(run_of(hosts, name), event)[0]["time_unix_s"] for event in BEGIN_AND_END]
            for name in ("one", "other")
        )
        assert trained[0][1] <= trained[1][0]
