"""Collector: sends the checkpoints of this host to the coordinator's, which has no agent.

A thread offers the newest checkpoint and sends it if the coordinator says so; mostly another host
is sending it already. So no worker and no agent waits for it. If the coordinator moves to another
host, that one is offered the newest; while it is on this host, nothing is sent. At the end of the
run this host stays until the coordinator has the newest checkpoint: another host may be lost while
it sends it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import grpc

from holdfast.checkpoint import names
from holdfast.checkpoint.held import held
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.transfer import newest_described, pieces
from holdfast.errors import CheckpointError
from holdfast.wire.checkpoint_service import (
    CheckpointMessage,
    CheckpointService,
    OfferedMessage,
    OfferResult,
    transfer_timeout_s,
)
from holdfast.wire.coordinator_channel import CoordinatorChannel, answer_of
from holdfast.wire.tls import Credentials

INTERVAL_S: Final = 0.3
"""Interval at which the checkpoints are looked at."""
OFFER_TIMEOUT_S: Final = 5.0
"""Time that an answer to an offer may take; at the end, that the coordinator may be away."""
MAX_DELAY_S: Final = 10.0
_DONE: Final = (OfferResult.STORED, OfferResult.NO_SPACE)


class Collector:
    """Works until it is closed.

    Args:
        run_dir: The run's directory on this host.
        address: Returns the present address of the coordinator's gRPC service; empty while this
            host coordinates the run.
        credentials: The agent's.
    """

    def __init__(
        self, run_dir: Path, address: Callable[[], str], credentials: Credentials | None
    ) -> None:
        self._run_dir = run_dir
        self._address = address
        self._credentials = credentials
        self._store = CheckpointStore.of_run(run_dir)
        self._newest: tuple[str, CheckpointMessage] | None = None  # with its name
        self._settled = ""  # the newest one that needs not be offered again
        self._failures = 0  # in a row
        self._target = ""  # the address of the coordinator that these are about
        self._finishing = threading.Event()
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._work, name="collector", daemon=True)
        self._thread.start()

    def finish(self, is_stopped: Callable[[], bool]) -> None:
        """Wait until the coordinator has the newest checkpoint, cannot take it, or is gone.

        Args:
            is_stopped: Says when to wait no longer.
        """
        self._finishing.set()
        while self._thread.is_alive() and not is_stopped():
            self._thread.join(INTERVAL_S)

    def close(self) -> None:
        """End it at once; a checkpoint that was under way is lost."""
        self._abandoned.set()
        self._finishing.set()
        self._thread.join(OFFER_TIMEOUT_S + 1)

    def _work(self) -> None:
        with CoordinatorChannel(lambda: self._target, self._credentials) as channel:
            while not self._finishing.wait(self._delay_s()):
                self._offer_newest(channel)
            self._offer_last(channel)

    def _offer_last(self, channel: CoordinatorChannel) -> None:
        """Offer the newest checkpoint until the coordinator has it, cannot take it, or is gone."""
        self._settled = ""
        self._newest = None  # one of the same step may have replaced it
        began = heard_at = time.monotonic()
        while not self._abandoned.is_set():
            asked = self._target
            if (result := self._offer_newest(channel)) in _DONE:
                return
            now = time.monotonic()
            # One that the run has moved to meanwhile may take as long to answer.
            heard_at = heard_at if result is None and asked == self._target else now
            if now > min(heard_at + OFFER_TIMEOUT_S, began + self._limit_s()):
                return
            self._abandoned.wait(self._delay_s())

    def _offer_newest(self, channel: CoordinatorChannel) -> OfferResult | None:
        """Offer the newest checkpoint, and send it if it is asked for; None if that failed."""
        if (address := self._address()) != self._target:  # of what that one has, nothing is known
            self._target = address
            self._settled = ""
            self._failures = 0
        if not address:
            return OfferResult.STORED
        service = CheckpointService(channel.get())
        try:
            newest = self._look()
            if newest is None or newest[0] == self._settled:
                return OfferResult.STORED
            name, checkpoint = newest
            result = self._answer(service.offer.future(checkpoint, timeout=OFFER_TIMEOUT_S))
            if result is OfferResult.SEND:
                result = self._send(service, name, checkpoint)
        except (grpc.RpcError, grpc.FutureCancelledError):
            return None
        except (CheckpointError, OSError):  # it was deleted or quarantined meanwhile
            self._newest = None
            return None
        if result is OfferResult.STORED:
            self._settled = name
        return result

    def _look(self) -> tuple[str, CheckpointMessage] | None:
        """The newest checkpoint, and its name."""
        # The manifest is read only if another checkpoint than the last time is the newest.
        committed = self._store.committed()
        if not committed or self._newest is None or committed[0] != self._newest[0]:
            found = newest_described(self._store)
            self._newest = None if found is None else (names.checkpoint_name(found.step), found)
        return self._newest

    def _send(
        self, service: CheckpointService, name: str, checkpoint: CheckpointMessage
    ) -> OfferResult:
        # Counted at once, so that whatever ends the call makes the next one wait longer.
        self._failures += 1
        with held(self._run_dir, name) as store:
            call = service.send.future(
                self._pieces(store, name, checkpoint),
                timeout=transfer_timeout_s(checkpoint.size_bytes),
            )
            result = self._answer(call)
        self._failures = 0
        return result

    def _answer(self, call: grpc.Future[OfferedMessage]) -> OfferResult:
        """Answer of the coordinator, if it is of use."""
        return answer_of(call, self._is_over).result

    def _is_over(self) -> bool:
        return self._abandoned.is_set() or self._address() != self._target

    def _pieces(
        self, store: CheckpointStore, name: str, checkpoint: CheckpointMessage
    ) -> Iterator[bytes]:
        """The stream of a checkpoint. It ends early, and so is refused, if that is damaged."""
        try:
            yield from pieces(store, checkpoint)
        except CheckpointError:
            self._settled = name  # retention reports it; another host has it, or the next one
        except OSError:
            return

    def _limit_s(self) -> float:
        return transfer_timeout_s(self._newest[1].size_bytes if self._newest else 0)

    def _delay_s(self) -> float:
        """Pause before the next offer, seconds: longer each time that sending has failed."""
        return float(min(INTERVAL_S * 2**self._failures, MAX_DELAY_S))
