"""Jobs of the benchmark, and the one that it recommends."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

SMALL: Final = {
    "width": 256, "layers": 4, "heads": 8, "kv_heads": 2, "feedforward": 896, "vocabulary": 32000,
}  # fmt: skip
"""A network for CPUs; without these keys it has the shape of Mistral-7B."""
SIZES: Final[dict[str, dict[str, int]]] = {"small": SMALL, "7b": {}}
HELD_OUT: Final = 0.1
"""Share of a text that is not trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Settings that every run shares.

    Attributes:
        size: Of the network; see `SIZES`.
        folder: Of a model instead; None for random weights.
        batch: Samples of each host and step.
        length: Tokens of a sample.
        steps: Of a run.
        rank: Of the adapters.
        on: Engine that places the hosts, as in `--on`; empty for this machine.
    """

    size: str
    folder: Path | None
    batch: int
    length: int
    steps: int
    rank: int
    on: str

    @property
    def model(self) -> dict[str, Any]:
        """The job's key."""
        shape = {"path": str(self.folder)} if self.folder else SIZES[self.size]
        return {"name": "mistral", **shape, "lora": {"rank": self.rank}}

    def keys(self, hosts: int) -> dict[str, Any]:
        """The keys of the job on some number of hosts: the batch of a host is constant."""
        tokens = self.steps * self.batch * hosts * self.length
        size = round(tokens / (1 - HELD_OUT)) + self.length
        return {
            **self._training(hosts),
            "data": {"name": "synthetic-text", "size": size, "length": self.length},
            "evaluation": {"every_epochs": 1_000_000},
            "checkpoint": {"every_steps": 0},
            "hosts": hosts if self.on else 1,
        }

    def write(self, path: Path, hosts: int) -> None:
        """Write a job for some number of hosts; its text is the user's to name."""
        data = {"name": "text", "path": None, "length": self.length}
        job = {**self._training(hosts), "data": data, "hosts": hosts}
        path.write_text(yaml.safe_dump(job, sort_keys=False), encoding="utf-8")

    def _training(self, hosts: int) -> dict[str, Any]:
        return {
            "task": "qlora",
            "model": self.model,
            "optimizer": {"name": "adamw", "lr": 2e-4},
            "precision": "bf16",
            "batch": self.batch * hosts,
            "workers": hosts,
        }
