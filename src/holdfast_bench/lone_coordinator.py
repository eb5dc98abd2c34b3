"""A coordinator's process for agents that a benchmark plays: no host of its own, no workers."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.job import load
from holdfast.launch.child import Child
from holdfast.rundir.run_directory import TOKEN, RunDirectory
from holdfast.runs.hosts.endpoint import Endpoint, free_port, make_secrets, make_token
from holdfast.wire.token import Token


class LoneCoordinator:
    """A coordinator at loopback, with TLS.

    Args:
        folder: The run directory, which is created.
        keys: Keys of its job.
        joining: Number of hosts that may join.

    Attributes:
        endpoint: Where they join.
        token: With which.
    """

    def __init__(self, folder: Path, keys: Mapping[str, Any], joining: int) -> None:
        self.endpoint = Endpoint(address="127.0.0.1", port=free_port())
        job = load.check({**keys, "data": {"name": "digits"}}, where="bench")
        with RunDirectory(folder, job, resume=False):
            make_secrets(folder, self.endpoint)
            make_token(folder, joining)
        self._node = self.endpoint.first_node(folder, "a1", None)
        self._node.start()
        near, far = socket.socketpair()
        self._node.serve_journal(near)
        options = {
            "run-dir": folder,
            "attempt": "a1",
            "address": f"unix:{folder}/socket",
            "public": self.endpoint.public,
            "joining": joining,
            "journal": far.fileno(),
            "node": self._node.name,
        }
        with far:
            fds = [far.fileno()]
            self._child = Child.start("holdfast.coordinator.main", options, folder / "log", fds)
        self.token = Token.parse((folder / TOKEN).read_text(encoding="ascii").strip())

    def close(self) -> None:
        """End it."""
        self._child.close()
        self._node.close()

    def cpu_s(self) -> float:
        """CPU seconds that it has used."""
        tasks = Path(f"/proc/{self._child.pid}/task").glob("*/schedstat")
        return sum(int(path.read_text(encoding="ascii").split()[0]) for path in tasks) / 1e9
