"""TrainPlaces: an engine whose places are the workers of Ray Train, which holds them already.

It runs in rank 0. A worker of Ray Train that dies is Ray's to replace, with all the others.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import ray
from ray.exceptions import RayError

from holdfast.clusters.engines.engine import Launch, ResourceRequest
from holdfast.core.placement.replacing import AgentPlace, PlaceState
from holdfast.errors import EngineError
from holdfast.integrations.ray_train.board import StartAgent, StopAgent

END_TIMEOUT_S: Final = 10.0
"""Time that the board may take to answer when the run is over."""


class TrainPlaces:
    """Starts one agent in each worker of Ray Train.

    Args:
        board: The handle of the board.
        workers: Number of workers of Ray Train.
    """

    name = "Ray Train"
    peer = ""

    def __init__(self, board: Any, workers: int) -> None:
        self._board = board
        self.num_hosts = workers
        self._ranks: dict[str, int] = {}
        self._places: dict[str, AgentPlace] = {}
        self._lock = threading.Lock()
        self._failure = ""
        self._changed = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._listener = threading.Thread(target=self._listen, name="ray-train-places", daemon=True)
        self._listener.start()

    def reserve(self, ask: ResourceRequest) -> str:
        """Implements `Engine.reserve`. Ray Train has reserved what its ScalingConfig says."""
        return "" if ask.agents <= self.num_hosts else f"{ask.agents} workers of Ray Train"

    def start(self, launch: Launch) -> None:
        """Implements `Engine.start`."""
        with self._lock:
            taken = {
                self._ranks[name]
                for name, place in self._places.items()
                if place.state is not PlaceState.ENDED
            }
            rank = min(set(range(self.num_hosts)) - taken)
            self._ranks[launch.name] = rank
            self._places[launch.name] = AgentPlace(state=PlaceState.PENDING)
        self._board.order.remote(rank, StartAgent(launch=launch))

    def stop(self, name: str) -> None:
        """Implements `Engine.stop`."""
        self._board.order.remote(self._ranks[name], StopAgent(name=name))

    def places(self) -> Mapping[str, AgentPlace]:
        """Implements `Engine.places`."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._changed)
        if self._failure:
            raise EngineError(f"the workers of Ray Train cannot be reached: {self._failure}")
        with self._lock:
            return dict(self._places)

    def fileno(self) -> int:
        """Implements `Engine.fileno`."""
        return self._changed

    def close(self) -> None:
        """Implements `Engine.close`. The workers end their agents when they return."""
        self._board.tell.remote(None)
        self._listener.join(END_TIMEOUT_S)
        os.close(self._changed)

    def _listen(self) -> None:
        """Take the news, in a thread."""
        try:
            while (news := ray.get(self._board.next_news.remote())) is not None:
                with self._lock:
                    self._places[news.name] = news.place
                os.eventfd_write(self._changed, 1)
        except RayError as error:
            self._failure = str(error).partition("\n")[0]
            os.eventfd_write(self._changed, 1)
