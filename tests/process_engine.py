"""A stand-in for a cluster manager: an engine whose hosts are folders of this machine.

Each agent is a child process with a state directory of its own, so agents share nothing but the
processor. One that is started in the place of another gets its folder.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress

from holdfast.core.placement.replacing import AgentPlace, PlaceState


class ProcessEngine:
    """Args: folder: Gets a folder for each host."""

    name, peer, num_hosts = "processes", "127.0.0.1", 1

    def __init__(self, folder):
        self._folder = folder
        self._agents = {}  # processes and the numbers of their hosts, by name
        self._changed = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def reserve(self, ask):
        return ""

    def start(self, launch):
        taken = {host for process, host in self._agents.values() if process.poll() is None}
        host = next(number for number in range(1, 100) if number not in taken)
        folder = self._folder / f"host-{host}"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{launch.name}.log").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", *launch.arguments], start_new_session=True,
                stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT,
                env={**os.environ, "XDG_STATE_HOME": str(folder)},
            )  # fmt: skip
        process.stdin.write(launch.token.encode() + b"\n")
        process.stdin.flush()
        self._agents[launch.name] = process, host
        threading.Thread(target=self._await_end, args=[process], daemon=True).start()

    def lose_all(self):
        """Kill all agents, which takes their workers along, and remove the disks of their hosts."""
        for process, _ in self._agents.values():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        while self._folder.exists():  # their workers may write for a moment longer
            shutil.rmtree(self._folder, ignore_errors=True)

    def stop(self, name):
        process, _ = self._agents[name]
        process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def places(self):
        with suppress(BlockingIOError):
            os.eventfd_read(self._changed)
        return {name: self._place(*agent) for name, agent in self._agents.items()}

    @staticmethod
    def _place(process, host):
        status = process.poll()
        if status is None:
            return AgentPlace(state=PlaceState.RUNNING, host=f"host-{host}")
        cause = f"exited with status {status}"
        return AgentPlace(
            state=PlaceState.ENDED, host=f"host-{host}", cause=cause, succeeded=status == 0
        )

    def fileno(self):
        return self._changed

    def close(self):
        for name in self._agents:
            self.stop(name)
        os.close(self._changed)

    def _await_end(self, process):
        ended = os.pidfd_open(process.pid)
        select.select([ended], [], [])
        os.close(ended)
        with suppress(OSError):
            os.eventfd_write(self._changed, 1)
