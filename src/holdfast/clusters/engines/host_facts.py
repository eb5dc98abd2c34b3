"""`python -m holdfast.clusters.engines.host_facts`: host facts as JSON.

The engine runs it on hosts that it has no other knowledge of.
"""

from __future__ import annotations

import os

from pydantic import BaseModel, ConfigDict

from holdfast.clusters.engines.own_wheel import version_of_code
from holdfast.core.placement.shares import Claim, Needs, Shortage, Supply, shortages
from holdfast.hardware.host_supply import supply_here
from holdfast.rundir.claims import claims_here, describe


class HostFacts(BaseModel):
    """Supply of a host.

    Attributes:
        version: Version of holdfast, see `own_wheel`.
        supply: CPUs, GPUs and memory that agents may use.
        claims: Claims of runs.
    """

    model_config = ConfigDict(frozen=True)

    version: str
    supply: Supply
    claims: tuple[Claim, ...]

    @classmethod
    def here(cls) -> HostFacts:
        """Facts about this host."""
        return cls(
            version=version_of_code(),
            supply=supply_here(os.environ),
            claims=tuple(claims_here()),
        )

    def lacks(self, version: str, needs: Needs) -> str:
        """Why the host cannot run agents, in words; nothing if it can.

        Args:
            version: Version of the holdfast that starts them.
            needs: Sum of their needs.
        """
        if self.version != version:
            return f"has holdfast {self.version}, this host {version}"
        lacking = self.shortages(needs)
        return f"lacks {describe(lacking)}" if lacking else ""

    def shortages(self, needs: Needs) -> list[Shortage]:
        """Shortages next to the runs that use the host."""
        return shortages(needs, self.supply, self.claims)


if __name__ == "__main__":
    print(HostFacts.here().model_dump_json())
