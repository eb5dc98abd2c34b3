"""Board: the actor through which the workers of one Ray Train attempt speak with its rank 0.

    rank 0 ── orders ─▶ board ── next_order ─▶ each worker of Ray Train
           ◀─ news ──         ◀─ tell ──────

Ray Train itself lets rank 0 say something to all at once; here it says something to one of them,
and hears of them. The board is an actor of rank 0: they end together, and every call then raises.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from holdfast.clusters.engines.engine import Launch
from holdfast.core.placement.replacing import AgentPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAgent:
    """Start an agent."""

    launch: Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAgent:
    """End an agent."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TakePart:
    """Call `ray.train.report`, which rank 0 does now, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """Return from the training loop."""


Order = StartAgent | StopAgent | TakePart | Return


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """Place of an agent now."""

    name: str
    place: AgentPlace


class Board:
    """The actor.

    Args:
        workers: Number of workers of Ray Train.
    """

    def __init__(self, workers: int) -> None:
        self._orders = [asyncio.Queue[Order]() for _ in range(workers)]
        self._news = asyncio.Queue[News | None]()

    async def order(self, rank: int, order: Order) -> None:
        """Give an order to a worker of Ray Train."""
        self._orders[rank].put_nowait(order)

    async def next_order(self, rank: int) -> Order:
        """The next order for a worker of Ray Train, once there is one."""
        return await self._orders[rank].get()

    async def tell(self, news: News | None) -> None:
        """Tell rank 0 something; None ends its listening."""
        self._news.put_nowait(news)

    async def next_news(self) -> News | None:
        """The next news for rank 0, once there are any."""
        return await self._news.get()
