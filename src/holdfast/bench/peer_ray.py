"""The script of `bench.launched` as Ray Train has it: workers and checkpoints are Ray's."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
import ray.train
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from holdfast.bench.launched import option_parser


def train_loop(config: dict[str, Any]) -> None:
    """What each worker of Ray runs."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from holdfast.bench.launched import EVERY, load, log_step, save, train_step
    from holdfast.bench.workloads import WORKLOADS
    from holdfast.observe.lines import JsonLines

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
    parser = option_parser(__doc__)
    parser.add_argument("--workers", type=int, required=True)
    options = parser.parse_args()
    ray.init(
        num_cpus=options.workers,
        include_dashboard=False,
        _temp_dir=str(options.dir / "ray"),
        runtime_env={
            "env_vars": {name: os.environ[name] for name in ("PYTHONPATH", "OMP_NUM_THREADS")}
        },
    )
    TorchTrainer(
        train_loop,
        train_loop_config={"workload": options.workload, "dir": str(options.dir)},
        scaling_config=ScalingConfig(num_workers=options.workers, use_gpu=False),
        torch_config=TorchConfig(backend="gloo"),
        run_config=RunConfig(
            storage_path=str(options.dir / "results"),
            failure_config=FailureConfig(max_failures=20),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    ).fit()


if __name__ == "__main__":
    main()
