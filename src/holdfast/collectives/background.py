"""Background: a transfer in a thread, while the worker computes what is sent."""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.collectives.tcp import Wake
from holdfast.errors import Aborted


class BackgroundTransfer:
    """One transfer; it begins at once.

    Args:
        transfer: Sends and receives. It is given what wakes it, and what raises once it is to end.

    Attributes:
        computed: Set once the others have computed all that they send, or it has ended.
        over: Set once it has ended.
    """

    def __init__(self, transfer: Callable[[Wake, Callable[[], None]], None]) -> None:
        self.computed = threading.Event()
        self.over = threading.Event()
        self._transfer = transfer
        self._wake = Wake()
        self._is_cancelled = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="exchange", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._transfer(self._wake, self._check)
        except BaseException as error:  # noqa: BLE001  # the worker's thread raises it
            self._error = error
        finally:
            self.computed.set()
            self.over.set()

    def _check(self) -> None:
        if self._is_cancelled:
            raise Aborted("the exchange was cancelled")

    def wake(self) -> None:
        """Have it look again at what there is to send."""
        if not self.over.is_set():
            self._wake.set()

    def result(self) -> None:
        """Raise what has ended it, if that was no success. It is over by now."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """End it, if it is not over, and free what it has."""
        self._is_cancelled = True
        self._wake.set()
        self._thread.join()
        self._wake.close()
