"""KubernetesEngine: agents in pods that exist, each below a `kubectl exec` of this host.

    reserve   the pods with the labels that are ready; each is asked what it has, all at once
    start     kubectl exec --stdin POD -- python3 -m holdfast agent …, in a free pod
    places    the exits of these commands, and what Kubernetes says of the pods

An agent ends with its kubectl: its standard input is closed then. Pods are neither made nor
deleted. One that takes the place of another, with another name, is used once it is ready.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from holdfast.clusters.engines.command_agents import CommandAgents
from holdfast.clusters.engines.engine import Launch, ResourceRequest
from holdfast.clusters.engines.host_facts import HostFacts
from holdfast.clusters.engines.kubernetes.pods import NOISE, PYTHON, Pod, Pods
from holdfast.clusters.engines.own_wheel import version_of_code
from holdfast.core.placement.replacing import AgentPlace
from holdfast.errors import EngineError

WATCH_S: Final = 5.0
"""Interval at which Kubernetes is asked for the pods."""
CHECK_S: Final = 30.0
"""Time that a pod may take to say what it has."""
MAX_CHECKS: Final = 32
"""Pods that are asked at a time."""


class KubernetesEngine(CommandAgents):
    """Places the agents of one run in pods.

    Args:
        where: A selector of labels, and after an @ the namespace, if it is not the current one.

    Raises:
        JobError: It names no pods.
        EngineError: Kubernetes cannot be asked, or has no such pods.
    """

    name = "kubernetes"

    def __init__(self, where: str) -> None:
        selector, _, namespace = where.partition("@")
        self._pods = Pods(selector=selector, namespace=namespace)
        self._seen = self._pods.find()
        if not self._seen:
            raise EngineError(
                f"there are no pods with {where}; see: kubectl get pods --show-labels"
            )
        self.peer = next((pod.address for pod in self._seen if pod.address), "")
        super().__init__(noise=NOISE)
        self._used: set[str] = set()
        self._unfit: set[str] = set()
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="pods", daemon=True)
        self._watcher.start()

    @property
    def num_hosts(self) -> int:
        """Implements `Engine.num_hosts`."""
        return len(self._seen)

    def reserve(self, ask: ResourceRequest) -> str:
        """Implements `Engine.reserve`."""
        check = partial(self._lacks, ask=ask, version=version_of_code())
        pods = self._seen
        with ThreadPoolExecutor(min(len(pods), MAX_CHECKS)) as pool:
            lacking = dict(zip(pods, pool.map(check, pods), strict=True))
        good = [pod.name for pod in pods if not lacking[pod]]
        if len(good) < ask.agents:
            named = "".join(f"; {pod.name} {lacks}" for pod, lacks in lacking.items() if lacks)
            return f"{ask.agents} pods; {len(good)} of {len(pods)} can be used{named}"
        self._unfit = {pod.name for pod in pods if lacking[pod] and not pod.lacks}
        self._used.update(good)
        self.use(good)
        return ""

    def places(self) -> Mapping[str, AgentPlace]:
        """Implements `Engine.places`."""
        seen = self._seen
        ready = [pod.name for pod in seen if not pod.lacks and pod.name not in self._unfit]
        self._used.update(ready)
        self.add(ready)
        lost = self._used - {pod.name for pod in seen if pod.is_running}
        self.lose(dict.fromkeys(lost, "the pod is gone"))
        deadlines = {pod.name: pod.deadline_unix_s for pod in seen}
        self.drain({name: each for name, each in deadlines.items() if each is not None})
        return super().places()

    def close(self) -> None:
        """Implements `Engine.close`."""
        self._closing.set()
        self._watcher.join()
        super().close()

    def words(self, host: str, launch: Launch) -> list[str]:
        """Implements `CommandAgents.words`."""
        return self._pods.command(host, PYTHON, "-m", "holdfast", *launch.arguments)

    def _lacks(self, pod: Pod, ask: ResourceRequest, version: str) -> str:
        """Words for what a pod lacks for an agent; empty if it fits."""
        if pod.lacks:
            return pod.lacks
        words = self._pods.command(pod.name, PYTHON, "-m", "holdfast.clusters.engines.host_facts")
        try:
            done = subprocess.run(
                words, capture_output=True, stdin=subprocess.DEVNULL, timeout=CHECK_S, check=False
            )
            return HostFacts.model_validate_json(done.stdout).lacks(version, ask.needs)
        except subprocess.TimeoutExpired:
            return f"does not answer within {CHECK_S:.0f} s"
        except ValueError:
            said = (done.stderr.decode(errors="replace").strip().splitlines() or ["nothing"])[-1]
            return f"has no holdfast of this version in {PYTHON}: {said}"

    def _watch(self) -> None:
        """Keep the pods up to date, in a thread."""
        while not self._closing.wait(WATCH_S):
            try:
                seen = self._pods.find()
            except EngineError:  # it does not answer: nothing is known
                continue
            if seen != self._seen:
                self._seen = seen
                self.wake()
