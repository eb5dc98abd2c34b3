"""Systems: the names of what is compared."""

from __future__ import annotations

from typing import Final

OURS: Final = {"holdfast": "defer", "holdfast-wait": "wait"}
"""holdfast, by the job's key `checkpoint.busy`."""
PEERS: Final = (
    "torch",
    "torch-fsync",
    "safetensors",
    "safetensors-fsync",
    "dcp",
    "dcp-thread",
    "dcp-thread-shm",
    "dcp-thread-staged",
    "dcp-process",
)
"""What people use without holdfast; see `savers`."""
UNSYNCED: Final = ("torch", "safetensors")
"""Systems that do not wait for the disk: their saves are finished, but not durable."""
