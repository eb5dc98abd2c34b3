"""TRL's trainers in a run, as that of `holdfast.integrations.transformers`.

    from holdfast.integrations.trl import SFTTrainer      # instead of trl

What they log of a shard, such as its entropy, is averaged over the shards of a step, on all workers
alike. Trainers that keep samples across steps, such as GRPO's, cannot be recovered so; there are
none here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

import trl

from holdfast.integrations.transformers.trainer import LiveTrainer
from holdfast.worker.session import session

_TOKENS: Final = "num_tokens"
_PER_WEIGHT: Final = "shards_per_weight"
"""One, divided by a shard's weight: its mean over a step is the number of shards, divided by their
weight."""


class LoggingTrainer(LiveTrainer):
    """A trainer that collects what it logs from all workers."""

    _metrics: Any
    _total_train_tokens: Any

    def _before_shard(self) -> None:
        self._kept = self._metrics["train"], self._total_train_tokens
        self._metrics["train"] = defaultdict(list)
        self._total_train_tokens = 0

    def _after_shard(self) -> None:
        found = self._metrics["train"]
        found.pop(_TOKENS, None)
        values = {name: sum(each) / len(each) for name, each in found.items() if each}
        values[_TOKENS] = self._total_train_tokens / self._weight if self._weight else 0.0
        values[_PER_WEIGHT] = 1 / self._weight if self._weight else 0.0
        self._metrics["train"], self._total_train_tokens = self._kept
        session().log(**values)

    def _after_step(self, line: Mapping[str, Any]) -> None:
        logged = dict(line["logged"])
        tokens = logged.pop(_TOKENS)
        per_weight = logged.pop(_PER_WEIGHT)
        # Both are means by weight: their quotient is the mean of a shard.
        shards = min(session().job.shards, line["samples"])
        self._total_train_tokens += round(tokens / per_weight * shards) if per_weight else 0
        for name, value in logged.items():
            self._metrics["train"][name].append(value)
        self._metrics["train"][_TOKENS] = [self._total_train_tokens]

    def _captured(self) -> dict[str, Any]:
        metrics = dict(self._metrics["train"])
        return {**super()._captured(), "metrics": metrics, "tokens": self._total_train_tokens}

    def _take(self, saved: dict[str, Any]) -> None:
        super()._take(saved)
        metrics = {name: [*values] for name, values in saved["metrics"].items()}
        self._metrics["train"] = defaultdict(list, metrics)
        self._total_train_tokens = saved["tokens"]


def live(trainer: type[Any]) -> type[Any]:
    """A subclass of one of TRL's trainers that trains in a run."""
    return type(trainer.__name__, (LoggingTrainer, trainer), {"__module__": trainer.__module__})


SFTTrainer = live(trl.SFTTrainer)
DPOTrainer = live(trl.DPOTrainer)
RewardTrainer = live(trl.RewardTrainer)
