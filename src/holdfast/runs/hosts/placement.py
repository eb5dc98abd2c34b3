"""Placement: the hosts on which a run's workers run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.core.placement.shares import Share
from holdfast.runs.hosts.endpoint import Endpoint

if TYPE_CHECKING:
    from holdfast.clusters.engines.engine import Engine
    from holdfast.hardware.profile_file import Profiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The hosts of a run. None of it can change the result.

    Attributes:
        endpoint: Address at which other hosts join, if there are any.
        engine: Places the agents of the run, all of them; None for agents on this host, and those
            that join it.
        shares: CPUs and GPUs of each worker on this host; none: workers share all of them.
        has_own_host: True if this host has an agent where no engine places them.
        profile: Hardware profiles of the hosts; None: those of the run directory, or measured.
    """

    endpoint: Endpoint | None = None
    engine: Engine | None = None
    shares: tuple[Share, ...] = ()
    has_own_host: bool = True
    profile: Profiles | None = None


THIS_HOST: Final = Placement()
"""All workers on this host, which they share."""
