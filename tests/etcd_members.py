"""Members of a cluster of etcd: processes of this machine, or of hosts in network namespaces."""

import shutil
import signal
import socket
import subprocess
from contextlib import contextmanager

import pytest

from conftest import wait_until
from holdfast.errors import HoldfastError
from holdfast.job.settings import EtcdSettings
from holdfast.runs.replication.etcd_journal import EtcdClient

ETCD = shutil.which("etcd")
needs_etcd = pytest.mark.skipif(ETCD is None, reason="not installed: etcd (Debian: etcd-server)")


class Members:
    """Three members on loopback addresses, which begin at once.

    Attributes:
        settings: How a run names them.
    """

    def __init__(self, folder):
        peers = free_ports(3)
        clients = free_ports(3)
        urls = [f"http://127.0.0.1:{port}" for port in clients]
        self.settings = EtcdSettings(endpoints=urls)
        peer_urls = [f"http://127.0.0.1:{port}" for port in peers]
        self._folder = folder
        self._processes = [
            self._start(member_command(number, folder, urls[number], peer_urls))
            for number in range(3)
        ]
        self.await_answer()

    def await_answer(self):
        """Wait until they have a leader."""
        wait_until(lambda: answers(self.settings))

    def kill(self, number):
        self._processes[number].kill()

    def send(self, number):
        """Send all of them a signal."""
        for process in self._processes:
            process.send_signal(number)

    def close(self):
        for process in self._processes:
            process.kill()
            process.wait()

    def _start(self, command):
        with (self._folder / "etcd.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)


@contextmanager
def members(folder):
    made = Members(folder)
    try:
        yield made
    finally:
        made.send(signal.SIGCONT)
        made.close()


def member_command(number, folder, url, peer_urls, *options):
    """The command of one member."""
    cluster = ",".join(f"m{at}={each}" for at, each in enumerate(peer_urls))
    return [
        *(ETCD, "--name", f"m{number}", "--data-dir", str(folder / f"m{number}")),
        *("--listen-client-urls", url, "--advertise-client-urls", url),
        *("--listen-peer-urls", peer_urls[number]),
        *("--initial-advertise-peer-urls", peer_urls[number]),
        *("--initial-cluster", cluster, *options),
    ]


def answers(settings):
    """True if the members have a leader."""
    try:
        EtcdClient(settings).ask("kv/txn", {})
    except HoldfastError:
        return False
    return True


def free_ports(count):
    with_ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in with_ports]
    for each in with_ports:
        each.close()
    return ports
