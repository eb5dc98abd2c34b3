"""Work of each worker of Ray Train: it runs an agent, as rank 0 orders by the board."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any, assert_never

import ray
import ray.train
from ray.exceptions import RayError

from holdfast.clusters.engines.engine import OVER, PLACED, TAKEN_AWAY, Launch
from holdfast.clusters.engines.ray.agent_process import AgentProcess
from holdfast.core.placement.replacing import AgentPlace, PlaceState
from holdfast.errors import EngineError
from holdfast.integrations.ray_train.board import News, Return, StartAgent, StopAgent, TakePart


def follow_orders(board: Any, rank: int) -> None:
    """Do what rank 0 orders until it orders to return. All agents have ended then.

    Args:
        board: The handle of the board.
        rank: Rank of this worker in Ray Train.

    Raises:
        EngineError: Rank 0 is gone.
    """
    agents: dict[str, AgentProcess] = {}
    try:
        while True:
            match ray.get(board.next_order.remote(rank)):
                case StartAgent(launch=launch):
                    agents[launch.name] = _start(board, rank, launch)
                case StopAgent(name=name):
                    agents[name].stop()
                case TakePart():
                    ray.train.report({})
                case Return():
                    return
                case other:
                    assert_never(other)
    except RayError as error:
        raise EngineError(
            f"rank 0 of Ray Train is gone, and with it the run's coordinator: {error}; set "
            "FailureConfig(max_failures=…) to have Ray Train begin again from the last checkpoint"
        ) from None
    finally:
        for agent in agents.values():
            agent.end()


def _start(board: Any, rank: int, launch: Launch) -> AgentProcess:
    agent = AgentProcess(launch.arguments, launch.token)
    host = f"worker {rank} of Ray Train"
    running = AgentPlace(state=PlaceState.RUNNING, host=host)
    board.tell.remote(News(name=launch.name, place=running))
    thread = threading.Thread(
        target=partial(_await_end, board, launch.name, host, agent), name=launch.name, daemon=True
    )
    thread.start()
    return agent


def _await_end(board: Any, name: str, host: str, agent: AgentProcess) -> None:
    status, printed = agent.await_end(_show)
    cause = f"the agent ended with status {status}: {printed}" if status else ""
    ended = AgentPlace(state=PlaceState.ENDED, host=host, cause=cause, succeeded=status == 0)
    board.tell.remote(News(name=name, place=ended))


def _show(line: str) -> None:
    """Print a line where the program with the TorchTrainer sees it."""
    if line not in (PLACED, OVER, TAKEN_AWAY):
        print(line)
