"""A program with Ray Train code: `python ray_train_script.py STORAGE RESULT [key=number …]`.

It writes to the file RESULT what Ray Train's `Result` has.
"""

import json
import sys
from pathlib import Path

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from holdfast.checkpoint.exports.weights import digest
from holdfast.integrations.ray_train import state_dict, train_loop


def main():
    storage, written, *words = sys.argv[1:]
    keys = {key: int(value) for key, _, value in (word.partition("=") for word in words)}
    ray.init(namespace="test")
    result = TorchTrainer(
        train_loop("digits", {"shards": 6, **keys}),
        scaling_config=ScalingConfig(num_workers=3),
        run_config=RunConfig(
            name="digits", storage_path=storage, failure_config=FailureConfig(max_failures=1)
        ),
    ).fit()
    checkpoints = [metrics for _, metrics in result.best_checkpoints]
    about = {
        "metrics": result.metrics,
        "reported": checkpoints,
        "returned": result.return_value,
        "path": result.path,
        "weights": digest(state_dict(result.checkpoint)),
    }
    Path(written).write_text(json.dumps(about))


if __name__ == "__main__":
    main()
