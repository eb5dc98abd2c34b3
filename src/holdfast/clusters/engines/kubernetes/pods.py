"""Pods that exist: found by their labels, and commands in them, by the user's kubectl.

It is the user's kubectl, so kubeconfig, plugins for credentials and proxies count.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pydantic import AliasPath, BaseModel, Field, ValidationError

from holdfast.errors import EngineError, JobError

ANSWER_S: Final = 30.0
"""Time that Kubernetes may take to answer."""
PYTHON: Final = "python3"
"""In a pod."""
NOISE: Final = "command terminated with exit code"
"""Start of the line that kubectl adds to the output of a command that fails."""
_NAMESPACE: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class _Condition(BaseModel, frozen=True):
    type: str
    status: str


class Pod(BaseModel, frozen=True):
    """A pod.

    Attributes:
        name: Its name.
        deletion: When it is ended, if that has been decided.
        phase: Its phase; empty if it has none yet.
        address: Its IP address.
        conditions: Its conditions.
    """

    name: str = Field(validation_alias=AliasPath("metadata", "name"))
    deletion: datetime | None = Field(
        default=None, validation_alias=AliasPath("metadata", "deletionTimestamp")
    )
    phase: str = Field(default="", validation_alias=AliasPath("status", "phase"))
    address: str = Field(default="", validation_alias=AliasPath("status", "podIP"))
    conditions: tuple[_Condition, ...] = Field(
        default=(), validation_alias=AliasPath("status", "conditions")
    )

    @property
    def is_running(self) -> bool:
        """True if its containers run."""
        return self.phase == "Running"

    @property
    def lacks(self) -> str:
        """Why nothing can be started in it now; empty if it is running and ready."""
        if self.deletion is not None:
            return "is being deleted"
        if not self.is_running:
            return f"is {self.phase.lower() or 'in no known state'}"
        is_ready = any(each.type == "Ready" and each.status == "True" for each in self.conditions)
        return "" if is_ready else "is not ready"

    @property
    def deadline_unix_s(self) -> float | None:
        """Unix time at which it is ended, if that has been decided."""
        return None if self.deletion is None else self.deletion.timestamp()


class _Pods(BaseModel):
    items: list[Pod]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """The pods with some labels.

    Attributes:
        selector: Selector of labels, as `kubectl -l` takes it.
        namespace: By default that of the kubeconfig, or of the pod that this is.
        container: Container of each pod; by default the one that kubectl chooses.
    """

    selector: str
    namespace: str = ""
    container: str = ""

    def __post_init__(self) -> None:
        """Raises: JobError: The selector or the namespace cannot be one."""
        if not self.selector or self.selector.startswith("-"):
            raise JobError(
                f"{self.selector!r} selects no pods; give a label of theirs, such as app=trainer"
            )
        if self.namespace and not _NAMESPACE.fullmatch(self.namespace):
            raise JobError(f"{self.namespace!r} is not a namespace of Kubernetes")

    def find(self) -> list[Pod]:
        """Pods that exist, in the order of their names.

        Raises:
            EngineError: Kubernetes cannot be asked.
        """
        words = ["get", "pods", "--selector", self.selector, "--output=json"]
        done = self._run([*self._kubectl(), *words, f"--request-timeout={ANSWER_S:.0f}s"])
        try:
            found = _Pods.model_validate_json(done).items
        except ValidationError as error:
            raise EngineError(f"kubectl has answered what is no list of pods: {error}") from None
        return sorted(found, key=lambda pod: pod.name)

    def command(self, pod: str, *words: str) -> list[str]:
        """A command of this host that runs one in a pod, and passes its standard input on."""
        chosen = ["--container", self.container] if self.container else []
        return [*self._kubectl(), "exec", "--stdin", "--quiet", pod, *chosen, "--", *words]

    def _kubectl(self) -> list[str]:
        return ["kubectl", *(["--namespace", self.namespace] if self.namespace else [])]

    @staticmethod
    def _run(words: list[str]) -> bytes:
        if shutil.which(words[0]) is None:
            raise EngineError("there is no kubectl on the PATH; install it, with your kubeconfig")
        try:
            done = subprocess.run(words, check=True, capture_output=True, timeout=ANSWER_S + 5)
        except subprocess.CalledProcessError as error:
            reason = " ".join(error.stderr.decode(errors="replace").split())
        except subprocess.TimeoutExpired:
            reason = f"no answer within {ANSWER_S:.0f} s"
        else:
            return done.stdout
        raise EngineError(f"Kubernetes cannot be asked for pods: {reason}; try: kubectl get pods")
