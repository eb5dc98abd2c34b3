"""Notify: sends word of a run to addresses that the library Apprise knows.

The job names environment variables, and these hold the addresses: so no secret is in a file, in a
command line, in a log or in a message of ours. Nobody waits for what is under way but the end of
the run, and that not for long.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.errors import JobError
from holdfast.job.spec import Job
from holdfast.observe.lines import EventLog
from holdfast.observe.run_dir import EVENTS

DEADLINE_S: Final = 10.0
"""How long a message may take; then it is given up."""
LIMIT: Final = 16
"""Messages under way at once; a further one is left out, for those before it do not get through."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Sending:
    """A message under way to the address that the variable `name` holds."""

    name: str
    deadline: float
    thread: threading.Thread | None = None
    sent: bool = False


class Notifier:
    """That of one run.

    Args:
        job: Names the variables.
        environment: In which they are.

    Raises:
        JobError: A variable is not set or holds no address, or the library is not there.
    """

    def __init__(self, job: Job, environment: Mapping[str, str]) -> None:
        self._title = f"holdfast: {job.name}"
        self._services = {name: _service(name, environment.get(name)) for name in job.notify}
        self._under_way: list[_Sending] = []

    def send(self, what: str, text: str) -> None:
        """Have word on its way to all, and do not wait.

        Args:
            what: Has become of the run: a word.
            text: What else there is to say.
        """
        if len(self._under_way) < LIMIT:
            self._send_all(what, text)

    def _send_all(self, what: str, text: str) -> None:
        for name, service in self._services.items():
            sending = _Sending(name=name, deadline=time.monotonic() + DEADLINE_S)
            words = (sending, service, f"{self._title} {what}", text)
            sending.thread = threading.Thread(target=_send, args=words, daemon=True)
            sending.thread.start()
            self._under_way.append(sending)

    def settle(self, directory: Path, tell: Callable[[str], None]) -> None:
        """Say which messages did not get through since the last call.

        Args:
            directory: The run's.
            tell: Called with a line for people.
        """
        for sending in list(self._under_way):
            assert sending.thread is not None
            if sending.thread.is_alive() and time.monotonic() < sending.deadline:
                continue
            self._under_way.remove(sending)
            if not sending.sent:
                with suppress(OSError), EventLog(directory / EVENTS) as log:
                    log.event("notification-failed", variable=sending.name)
                tell(
                    f"a notification did not get through; see that the address in {sending.name} "
                    "is right and can be reached"
                )

    def close(
        self, directory: Path, tell: Callable[[str], None], last: tuple[str, str] | None
    ) -> None:
        """Wait for what is under way, and settle it.

        Args:
            directory: The run's.
            tell: Called with a line for people.
            last: What is sent before that, as by `send`, but never left out.
        """
        if last is not None:
            self._send_all(*last)
        for sending in self._under_way:
            assert sending.thread is not None
            sending.thread.join(max(0.0, sending.deadline - time.monotonic()))
        self.settle(directory, tell)


def _service(name: str, address: str | None) -> Any:
    """Whatever takes messages for an address. No error may hold the address."""
    if not address:
        raise JobError(
            f"notify: the environment variable {name} is not set; have it hold an address such as "
            "json://host/path, or take its name out of notify"
        )
    try:
        import apprise  # an extra
    except ImportError:
        raise JobError("notify needs Apprise: pip install 'holdfast[notify]'") from None
    logging.getLogger("apprise").propagate = False  # it tells of addresses
    service = apprise.Apprise()
    if not service.add(address):
        raise JobError(
            f"notify: what {name} holds is no address that Apprise understands; its documentation "
            "lists them all"
        )
    return service


def _send(sending: _Sending, service: Any, title: str, text: str) -> None:
    with suppress(Exception):  # whatever a service's module raises, it may hold the address
        sending.sent = bool(service.notify(title=title, body=text))
