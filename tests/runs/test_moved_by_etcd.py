"""Runs on two hosts with their journal in etcd, whose coordinator's host is lost."""

import json
import shutil
import signal
import subprocess
import sys
from contextlib import closing

import hurried
import pytest

from conftest import events_of, wait_until
from etcd_members import member_command, needs_etcd
from holdfast.job.settings import EtcdSettings
from namespaces import namespaces

pytestmark = [pytest.mark.slow, pytest.mark.full, needs_etcd]

TASK = hurried.task(pause_s=0.02)


class Cluster:
    """A member of etcd on each of three hosts, over TLS.

    Attributes:
        key: The job key that names them.
    """

    def __init__(self, hosts, folder):
        self._hosts = hosts
        names = ",".join(f"IP:{hosts.address(number)}" for number in hosts.numbers)
        self._certificate = folder / "etcd.pem"
        self._private = folder / "etcd.key"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=etcd"]
        command += ["-keyout", self._private, "-out", self._certificate]
        command += ["-addext", f"subjectAltName={names}"]
        subprocess.run(command, check=True, capture_output=True)
        self._urls = [f"https://{hosts.address(number)}:2379" for number in hosts.numbers]
        peers = [f"http://{hosts.address(number)}:2380" for number in hosts.numbers]
        options = ["--cert-file", self._certificate, "--key-file", self._private]
        options += ["--client-cert-auth", "--trusted-ca-file", self._certificate]
        with (folder / "etcd.log").open("ab") as log:
            self._members = [
                hosts.run(
                    number,
                    *member_command(at, hosts.folder, self._urls[at], peers, *options),
                    output=log,
                )
                for at, number in enumerate(hosts.numbers)
            ]
        files = {"ca": self._certificate, "certificate": self._certificate, "key": self._private}
        self._settings = EtcdSettings(endpoints=self._urls, **files).model_dump_json()
        self.key = f"etcd={self._settings}"
        wait_until(lambda: self._lists_keys(1).returncode == 0)

    def keys(self, number):
        """The keys that a host finds."""
        made = self._lists_keys(number)
        assert made.returncode == 0, made.stderr
        return made.stdout.split()

    def send(self, number):
        """Send all members a signal."""
        for member in self._members:
            member.send_signal(number)

    def close(self):
        self.send(signal.SIGKILL)
        for member in self._members:
            member.wait()

    def _lists_keys(self, number):
        command = self._hosts.command(number, sys.executable, "-c", LIST, self._settings)
        return subprocess.run(command, capture_output=True, text=True, check=False)


LIST = """
import sys
from holdfast.job.settings import EtcdSettings
from holdfast.runs.replication.etcd_journal import EtcdClient, decoded, encoded

etcd = EtcdClient(EtcdSettings.model_validate_json(sys.argv[1]))
below = {"key": encoded("/holdfast/"), "range_end": encoded("/holdfast0"), "keys_only": True}
for each in etcd.ask("kv/range", below).get("kvs", []):
    print(decoded(each["key"]))
"""


class TwoHosts:
    """A run on two hosts; a third one has a member of etcd only."""

    def __init__(self, hosts, cluster, folder):
        self.hosts = hosts
        self.hurry = folder / "hurry"
        self.words = ["mine.py:main", "shards=6", "batch=24", f"params.hurry={self.hurry}"]
        self.words += ["workers=2", "on_failure=shrink", cluster.key]
        for number in (1, 2):
            (hosts.disk(number) / "mine.py").write_text(TASK)
        begin = [*self.words, "--hosts", 2, "--address", hosts.address(1), "--run", "runs/run"]
        self.first = hosts.start(1, "coordinator", *begin)
        token = self.directory(1) / "secrets" / "join.token"
        wait_until(lambda: token.exists() or self.first.poll() is not None)
        assert token.exists(), hosts.output(1)
        shutil.copy(token, hosts.disk(2) / "join.token")
        join = ["--join", f"{hosts.address(1)}:50051", "--token-file", "join.token"]
        self.second = hosts.start(2, "agent", *join)

    def directory(self, number):
        return self.hosts.disk(number) / "runs" / "run"

    def train_on(self, number, steps):
        """Wait until so many more steps are committed on a host."""
        before = self._lines(number)
        wait_until(lambda: self._lines(number) >= before + steps, 120)

    def _lines(self, number):
        path = self.directory(number) / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def check(self, number):
        """The weights of a host are those of a run on one host."""
        alone = ["train", *self.words, "--run", "alone"]
        assert self.hosts.start(2, *alone).wait(120) == 0, self.hosts.output(2)
        expected = json.loads((self.hosts.disk(2) / "alone" / "result.json").read_text())
        result = json.loads((self.directory(number) / "result.json").read_text())
        assert result["weights_sha256"] == expected["weights_sha256"]


@pytest.fixture
def hosts(tmp_path):
    with namespaces(tmp_path, 3) as made:
        yield made


@pytest.fixture
def cluster(hosts, tmp_path):
    with closing(Cluster(hosts, tmp_path)) as made:
        yield made


@pytest.fixture
def run(hosts, cluster, tmp_path):
    return TwoHosts(hosts, cluster, tmp_path)


def test_two_hosts_survive_the_loss_of_the_first_one_its_disk_and_its_etcd(run, hosts, cluster):
    run.train_on(1, 10)
    assert any("/journal/00000001" in key for key in cluster.keys(3))
    hosts.kill(1)
    shutil.rmtree(hosts.disk(1))
    run.first.wait()
    wait_until(lambda: events_of(run.directory(2), "coordinator-moved"))
    run.train_on(2, 10)
    run.hurry.touch()
    assert run.second.wait(120) == 0, hosts.output(2)
    assert cluster.keys(3) == []
    run.check(2)


@pytest.mark.soak
def test_a_run_waits_for_etcd_and_goes_on(run, hosts, cluster):
    run.train_on(1, 10)
    cluster.send(signal.SIGSTOP)
    wait_until(lambda: events_of(run.directory(1), "coordinator-paused"))
    cluster.send(signal.SIGCONT)
    moved = run.directory(2)
    wait_until(
        lambda: (
            len(events_of(run.directory(1), "coordinator-started")) == 2
            or events_of(moved, "coordinator-moved")
        )
    )
    number = 2 if events_of(moved, "coordinator-moved") else 1
    run.train_on(number, 10)
    run.hurry.touch()
    assert run.second.wait(120) == 0, hosts.output(2)
    assert run.first.wait(120) == number - 1, hosts.output(1)
    assert cluster.keys(3) == []
    run.check(number)
