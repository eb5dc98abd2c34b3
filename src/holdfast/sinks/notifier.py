"""Notifier: sends messages about a run to addresses that the library Apprise knows.

The job names environment variables, and these hold the addresses. So no secret is in a file, in a
command line, in a log or in a message of ours. Only the end of the run waits for messages, for
10 s at most.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.errors import JobError
from holdfast.record import recovery_reports
from holdfast.record.recovery_reports import RecoveryReport
from holdfast.record.sink import Ending, Sink
from holdfast.rundir.run_directory import log_event
from holdfast.sinks.terminal import closing_table
from holdfast.wire.rpc import RunStateMessage

DEADLINE_S: Final = 10.0
"""Most time that a message may take, seconds."""
LIMIT: Final = 16
"""Messages under way at once. A further one is dropped: the address does not answer."""
NOTIFIED_LINES: Final = 3
"""Lines of a recovery report that are sent: the cause, what the other workers did, the time."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Sending:
    """A message under way to the address that the variable `name` holds."""

    name: str
    deadline: float
    thread: threading.Thread | None = None
    sent: bool = False


class Notifier(Sink):
    """Sends the recoveries of a run, and its end.

    Args:
        job: Name of the job.
        variables: Names of the variables.
        environment: The variables' values.
        run_dir: The run's directory.
        tell: Called with a line for people.

    Raises:
        JobError: A variable is not set or holds no address, or the library is not installed.
    """

    def __init__(
        self,
        job: str,
        variables: Sequence[str],
        environment: Mapping[str, str],
        run_dir: Path,
        tell: Callable[[str], None],
    ) -> None:
        self._title = f"holdfast: {job}"
        self._services = {name: _service(name, environment.get(name)) for name in variables}
        self._run_dir = run_dir
        self._tell = tell
        self._under_way: list[_Sending] = []

    def on_progress(self, _: RunStateMessage) -> None:
        """Report messages that could not be sent."""
        self._report_unsent()

    def on_recovery(self, report: RecoveryReport) -> None:
        """Send the head of a report, unless too many messages are under way."""
        if report.outcome in ("recovered", "restarted") and len(self._under_way) < LIMIT:
            text = recovery_reports.text(report, self._run_dir / "logs")
            self._send_all("recovered", "\n".join(text.splitlines()[:NOTIFIED_LINES]))

    def close(self, ending: Ending | None) -> None:
        """Send how the run ended, and wait until everything is sent or too late."""
        if ending is not None:
            text = closing_table(ending.result) if ending.result else ending.error
            self._send_all(ending.status, text)
        for sending in self._under_way:
            assert sending.thread is not None
            sending.thread.join(max(0.0, sending.deadline - time.monotonic()))
        self._report_unsent()

    def _send_all(self, what: str, text: str) -> None:
        for name, service in self._services.items():
            sending = _Sending(name=name, deadline=time.monotonic() + DEADLINE_S)
            words = (sending, service, f"{self._title} {what}", text)
            sending.thread = threading.Thread(target=_send, args=words, daemon=True)
            sending.thread.start()
            self._under_way.append(sending)

    def _report_unsent(self) -> None:
        for sending in list(self._under_way):
            assert sending.thread is not None
            if sending.thread.is_alive() and time.monotonic() < sending.deadline:
                continue
            self._under_way.remove(sending)
            if not sending.sent:
                with suppress(OSError):
                    log_event(self._run_dir, "notification-failed", variable=sending.name)
                self._tell(
                    "holdfast: a notification was not delivered; check that the address in "
                    f"{sending.name} is right and can be reached"
                )


def _service(name: str, address: str | None) -> Any:
    """The service that takes messages for an address. No error may hold the address."""
    if not address:
        raise JobError(
            f"notify: the environment variable {name} is not set; set it to an address such as "
            "json://host/path, or remove it from notify"
        )
    try:
        import apprise  # an extra
    except ImportError:
        raise JobError("notify needs Apprise: pip install 'holdfast[notify]'") from None
    logging.getLogger("apprise").propagate = False  # it logs addresses
    service = apprise.Apprise()
    if not service.add(address):
        raise JobError(
            f"notify: the value of {name} is not an address that Apprise supports; see Apprise's "
            "documentation"
        )
    return service


def _send(sending: _Sending, service: Any, title: str, text: str) -> None:
    with suppress(Exception):  # whatever a service's module raises, it may hold the address
        sending.sent = bool(service.notify(title=title, body=text))
