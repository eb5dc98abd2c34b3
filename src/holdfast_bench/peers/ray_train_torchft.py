"""`holdfast_bench.peers.torchft_ddp` in Ray Train: Ray replaces a lost replica group."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import ray.train
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from ray.train.v2.torch.torchft_config import TorchftConfig

from holdfast_bench.peers.peer_script import option_parser
from holdfast_bench.peers.ray_train import run_config, start_cluster

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
    parser = option_parser(__doc__)
    parser.add_argument("--workers", type=int, required=True)
    options = parser.parse_args()
    start_cluster(options.dir, options.workers)
    TorchTrainer(
        train_loop,
        train_loop_config={"workload": options.workload, "dir": str(options.dir)},
        scaling_config=ScalingConfig(num_workers=options.workers, use_gpu=False),
        torch_config=TorchftConfig(lighthouse_kwargs=TUNED, backend="gloo"),
        run_config=run_config(options.dir),
    ).fit()


if __name__ == "__main__":
    main()
