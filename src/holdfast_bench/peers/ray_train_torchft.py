"""`holdfast_bench.peers.torchft_ddp` in Ray Train: Ray replaces a lost replica group."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import ray.train
from ray.train.v2.torch.torchft_config import TorchftConfig

from holdfast_bench.peers.ray_train import cluster_options, fit

TUNED: Final = {
    "min_replicas": 1,
    "heartbeat_timeout_ms": 500,
    "quorum_tick_ms": 10,
    "join_timeout_ms": 1000,
}
"""Of the lighthouse; the same as for torchft alone."""


def train_loop(config: dict[str, Any]) -> None:
    """Train in a worker of Ray."""
    from holdfast_bench.peers.torchft_ddp import train

    train(config["workload"], Path(config["dir"]), ray.train.get_context().get_world_rank())


def main() -> None:
    """Train until killed."""
    config = TorchftConfig(lighthouse_kwargs=TUNED, backend="gloo")
    fit(cluster_options(__doc__), train_loop, config)


if __name__ == "__main__":
    main()
