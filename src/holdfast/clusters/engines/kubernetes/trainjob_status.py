"""TrainJobStatus: tells Kubeflow Trainer how far a run is, for the status of its TrainJob.

    status.trainerStatus ◀─ Trainer's controller ◀─ POST ─ a pod that trains

Trainer gives such pods an address and a token if its feature gate `TrainJobStatus` is on (Trainer
2.2, KEP-2779). Every host posts, as any of them may be lost, and the more rarely the more there
are. A thread does it: no worker and no agent waits for Trainer.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

from holdfast.core.protocol import WorkerProgress
from holdfast.errors import EngineError, JobError
from holdfast.record.live_state import ProgressRate
from holdfast.rundir.json_lines import EventLog

INTERVAL_S: Final = 5.0
"""Between two messages of a run, over all of its hosts."""
MAX_INTERVAL_S: Final = 60.0
"""Between two messages of a host."""
TIMEOUT_S: Final = 5.0
"""Time that the controller may take to answer."""
_URL: Final = "KUBEFLOW_TRAINER_SERVER_URL"
_TOKEN: Final = "KUBEFLOW_TRAINER_SERVER_TOKEN"  # noqa: S105 - the name of a variable
_AUTHORITY: Final = "KUBEFLOW_TRAINER_SERVER_CA_CERT"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerServer:
    """Address at which a TrainJob's status is posted.

    Attributes:
        url: URL of the status.
        token: The file of the pod's token, which Kubernetes renews.
        authority: The file of the certificate that the server's is signed with.
    """

    url: str
    token: Path
    authority: Path

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self | None:
        """The one that the environment of a pod names; None outside of a TrainJob that has one.

        Raises:
            JobError: The environment names it in part only.
        """
        if _URL not in environment:
            return None
        try:
            token, authority = (Path(environment[name]) for name in (_TOKEN, _AUTHORITY))
        except KeyError as error:
            raise JobError(f"{_URL} is set, but {error} is not; unset it, or set both") from None
        return cls(url=environment[_URL], token=token, authority=authority)

    def post(self, status: Mapping[str, Any]) -> None:
        """Post a status.

        Raises:
            EngineError: It is refused, or there is no answer.
        """
        at = urlsplit(self.url)
        try:
            bearer = self.token.read_text(encoding="ascii").strip()
            trusted = ssl.create_default_context(cafile=self.authority)
            connection = http.client.HTTPSConnection(
                at.hostname or "", at.port, timeout=TIMEOUT_S, context=trusted
            )
            try:
                headers = {"Authorization": f"Bearer {bearer}", "Content-Type": "application/json"}
                body = json.dumps({"trainerStatus": status})
                connection.request("POST", at.path, body, headers)
                answer = connection.getresponse()
                answer.read(1 << 16)
            finally:
                connection.close()
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise EngineError(f"{at.hostname} does not answer: {error}") from None
        if answer.status >= http.client.BAD_REQUEST:
            raise EngineError(f"{at.hostname} refuses the progress: {answer.status}")


class TrainJobStatus:
    """Posts the progress of a run from `__enter__` to `__exit__`, which posts the last one.

    Args:
        server: Place of it.
        progress: Returns that of a worker.
        hosts: Hosts of the run.
        log: The run's log of events, which says once why nothing can be posted.
    """

    def __init__(
        self,
        server: TrainerServer,
        progress: Callable[[], WorkerProgress],
        hosts: int,
        log: EventLog,
    ) -> None:
        self._server = server
        self._progress = progress
        self._log = log
        self._interval_s = min(hosts * INTERVAL_S, MAX_INTERVAL_S)
        self._rate = ProgressRate()
        self._has_begun = False
        self._closing = threading.Event()
        self._has_failed = False
        self._thread = threading.Thread(target=self._work, name="trainjob-status", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join(2 * TIMEOUT_S)

    def _work(self) -> None:
        while not self._closing.wait(self._interval_s if self._has_begun else INTERVAL_S):
            self._look()
        self._look()

    def _look(self) -> None:
        progress = self._progress()
        if progress.total_steps:
            self._has_begun = True
            self._rate.note(time.monotonic(), progress.step, progress.samples)
            self._post(status_of(progress, self._left_s(progress)))

    def _left_s(self, progress: WorkerProgress) -> float | None:
        """Estimated time remaining at the recent step rate, seconds; None if that is not known."""
        if progress.step == progress.total_steps:
            return 0.0
        rate = self._rate()
        return (progress.total_steps - progress.step) / rate[0] if rate else None

    def _post(self, status: Mapping[str, Any]) -> None:
        try:
            self._server.post(status)
        except EngineError as error:
            if not self._has_failed:
                self._has_failed = True
                self._log.event("progress-not-posted", reason=str(error))


def status_of(progress: WorkerProgress, left_s: float | None) -> dict[str, Any]:
    """The `trainerStatus` of a TrainJob.

    Args:
        progress: Progress of a worker of the run, which knows its number of steps.
        left_s: The seconds that are left, if they are known.
    """
    left = {} if left_s is None else {"estimatedRemainingSeconds": round(left_s)}
    metrics = {"step": progress.step, "epoch": progress.epoch + 1, "loss": progress.loss}
    return {
        "progressPercentage": 100 * progress.step // progress.total_steps,
        **left,
        "lastUpdatedTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "metrics": [
            {"name": name, "value": f"{value:g}"}
            for name, value in metrics.items()
            if value is not None
        ],
    }
