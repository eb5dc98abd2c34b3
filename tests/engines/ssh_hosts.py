"""Hosts with a real sshd: network namespaces that know each other's keys."""

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from conftest import wait_until
from namespaces import namespaces

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
SERVER = """
ListenAddress {address}
HostKey {keys}/host
AuthorizedKeysFile {keys}/user.pub
PidFile none
StrictModes no
UsePAM no
SetEnv XDG_STATE_HOME={disk}/state HOLDFAST_TEST={mark} PIP_CONFIG_FILE=/dev/null
"""
CLIENT = """
IdentityFile {keys}/user
UserKnownHostsFile {keys}/known
"""


class SshHosts:
    """Hosts `h1`, `h2` and so on, each with an sshd of its own.

    Args:
        hosts: The namespaces.
        folder: For keys and configurations, which all of them see.
    """

    def __init__(self, hosts, folder):
        self.hosts, self.folder = hosts, folder
        self.servers, self.started = {}, []

    def up(self):
        folder = self.folder
        Path("/run/sshd").mkdir(exist_ok=True)
        (folder / "bin").mkdir(parents=True)
        for name in ("host", "user"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True
            )
        key = (folder / "host.pub").read_text()
        names = ",".join(f"h{number}" for number in self.hosts.numbers)
        (folder / "known").write_text(f"{names} {key}")
        (folder / "config").write_text(CLIENT.format(keys=folder))
        wrapper = folder / "bin" / "ssh"  # ssh finds its configuration by the user, not by HOME
        wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
        wrapper.chmod(0o755)
        for number in self.hosts.numbers:
            self.serve(number)

    def serve(self, number):
        """Start the sshd of a host."""
        config, log = (self.folder / f"sshd-{number}.{end}" for end in ("conf", "log"))
        log.unlink(missing_ok=True)
        config.write_text(
            SERVER.format(
                address=self.hosts.address(number), keys=self.folder, disk=self.hosts.folder,
                mark=self.folder,
            )
        )  # fmt: skip
        self.servers[number] = self.hosts.run(number, SSHD, "-D", "-f", config, "-E", log)
        self.started.append(self.servers[number])
        wait_until(lambda: log.exists() and "Server listening" in log.read_text())

    def train(self, number, *words):
        """Start `holdfast train` on a host."""
        return self.start(number, "train", *words)

    def start(self, number, *words, **environment):
        """Start `holdfast` on a host."""
        given = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "XDG_STATE_HOME": self.hosts.folder / "state",
            **environment,
        }
        pairs = [f"{name}={value}" for name, value in given.items()]
        command = ["env", *pairs, sys.executable, "-m", "holdfast", *words]
        with self.hosts.disk(number).with_suffix(".out").open("ab") as output:
            process = self.hosts.run(number, *command, output=output)
        self.started.append(process)
        return process

    def file(self, number, *lines):
        """Write a hosts file on the disk of a host."""
        path = self.hosts.disk(number) / "hosts"
        path.write_text("".join(f"{line}\n" for line in lines))


@contextmanager
def ssh_hosts(tmp_path, count):
    """Such hosts for one test, which is skipped where there can be none."""
    if SSHD is None:
        pytest.skip("sshd is not installed: apt-get install openssh-server")
    with namespaces(tmp_path, count) as hosts:
        made = SshHosts(hosts, tmp_path / "ssh")
        try:
            made.up()
            yield made
        finally:
            hosts.down()
            for process in made.started:
                process.wait(30)
