"""The simulated network: it delays, loses and overtakes, and can be cut in one direction."""

from __future__ import annotations

import random
from dataclasses import dataclass

from holdfast.testing.cluster import Cluster


@dataclass(slots=True, eq=False)
class Link:
    """What lies between the coordinator and an agent.

    Attributes:
        cluster: Says how long a message takes.
        cut_to, cut_from: Whether all messages to the agent, and all from it, get lost.
    """

    cluster: Cluster
    cut_to: bool = False
    cut_from: bool = False

    @property
    def cut(self) -> bool:
        """Whether no connection can be made."""
        return self.cut_to or self.cut_from

    def loses(self, chance: random.Random) -> bool:
        """Whether a message gets lost, of those that are not cut off."""
        return chance.random() < self.cluster.loss

    def delay_s(self, chance: random.Random) -> float:
        """How long a message is under way."""
        late_s = chance.uniform(0, 3) if chance.random() < self.cluster.late else 0.0
        return late_s + self.cluster.delay_s * (0.5 + chance.expovariate(2))
