"""The simulated network: it delays, loses and reorders, and can be cut in one direction."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

LATE_S: Final = 3.0
"""How much later than the others a late message comes at most."""


@dataclass(frozen=True, slots=True)
class SimulatedLink:
    """The network between the coordinator and an agent.

    Attributes:
        delay_s: How long a message is usually under way.
        loss, late: Part of the messages that get lost, and that come up to `LATE_S` late.
        cut_to, cut_from: True if all messages to the agent, and all from it, get lost.
        answers: True if connections are made all the same, as where the agent is starved.
    """

    delay_s: float
    loss: float = 0.0
    late: float = 0.0
    cut_to: bool = False
    cut_from: bool = False
    answers: bool = False

    @property
    def cut(self) -> bool:
        """True if no connection can be made."""
        return (self.cut_to or self.cut_from) and not self.answers

    @property
    def well(self) -> bool:
        """True if all messages arrive, and none is late."""
        return not (self.cut_to or self.cut_from or self.loss or self.late)

    def loses(self, chance: random.Random) -> bool:
        """True if a message gets lost, of those that are not cut off."""
        return self.loss > 0 and chance.random() < self.loss

    def draw_delay_s(self, chance: random.Random) -> float:
        """Latency of a message: half of the usual one, and some more."""
        late_s = chance.uniform(0, LATE_S) if self.late > 0 and chance.random() < self.late else 0.0
        return late_s + self.delay_s * (0.5 + chance.expovariate(2))

    def beat_delay_s(self, sent: float) -> float:
        """Latency of a heartbeat: that of other messages, but without a random draw."""
        return self.delay_s * (0.5 + hash((sent,)) % 2**32 / 2**32)
