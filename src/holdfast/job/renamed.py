"""Names of earlier versions, and what each is called now. Messages use this table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

KEYS: Final = MappingProxyType(
    {
        "shares": "shards_per_worker",
        "hang_s": "hang_timeout_s",
        "unlike": "on_numerics_change",
    }
)
"""Keys of a job."""

VALUES: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "on_numerics_change": {"stamp": "record", "refuse": "fail"},
        "kind": {"corrupt": "corrupt-replica", "damage": "corrupt-checkpoint"},
    }
)
"""Words that a key of a job or of a fault may hold."""

OPTIONS: Final = MappingProxyType(
    {
        "--restarts": "--max-restarts",
        "--hang-s": "--hang-timeout-s",
        "--beside": "--compare",
        "--worlds": "--vary-workers",
    }
)
"""Options of the command line."""
