"""The script of `holdfast_bench.peers.peer_script` in Ray Train, which has workers and saves."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import ray
import ray.train
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from holdfast_bench.peers.peer_script import option_parser

PASSED: Final = ("PYTHONPATH", "OMP_NUM_THREADS", "XDG_STATE_HOME")


def train_loop(config: dict[str, Any]) -> None:
    """Train in a worker of Ray."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from holdfast.rundir.json_lines import JsonLines
    from holdfast_bench.peers.peer_script import EVERY, load, log_step, save, train_step
    from holdfast_bench.workloads import WORKLOADS

    torch.manual_seed(0)
    rank = dist.get_rank()
    workload = WORKLOADS[config["workload"]]()
    model = DistributedDataParallel(workload.model())
    optimizer = workload.optimizer(model.parameters())
    step = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            step = load(Path(folder) / "checkpoint.safetensors", model.module, optimizer)
    with JsonLines(Path(config["dir"]) / f"rank-{rank}.jsonl") as log:
        while True:
            began = time.monotonic()
            train_step(workload, model, optimizer, rank, step)
            step += 1
            log_step(log, step, dist.get_world_size(), began)
            if step % EVERY:
                continue
            if rank == 0:
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder) / "checkpoint.safetensors"
                    save(path, model.module, optimizer, step)
                    saved = Checkpoint.from_directory(folder)
                    ray.train.report({"step": step}, checkpoint=saved)
            else:
                ray.train.report({"step": step})


def main() -> None:
    """Train until killed."""
    fit(cluster_options(__doc__), train_loop, TorchConfig(backend="gloo"))


def cluster_options(description: str | None) -> argparse.Namespace:
    """The options of a script, once a cluster of one node has begun, with a CPU for each worker."""
    parser = option_parser(description)
    parser.add_argument("--workers", type=int, required=True)
    options = parser.parse_args()
    ray.init(
        num_cpus=options.workers,
        include_dashboard=False,
        _temp_dir=str(options.dir / "ray"),
        runtime_env={"env_vars": {name: os.environ[name] for name in PASSED}},
    )
    return options


def fit(options: argparse.Namespace, loop: Any, torch_config: TorchConfig | None = None) -> None:
    """Train until killed; a loop with a configuration of torch gets the options that it needs."""
    given = {"workload": options.workload, "dir": str(options.dir)}
    TorchTrainer(
        loop,
        train_loop_config=given if torch_config else None,
        scaling_config=ScalingConfig(num_workers=options.workers, use_gpu=False),
        torch_config=torch_config,
        run_config=RunConfig(
            storage_path=str(options.dir / "results"),
            failure_config=FailureConfig(max_failures=20),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    ).fit()


if __name__ == "__main__":
    main()
