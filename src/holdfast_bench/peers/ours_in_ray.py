"""The workloads of `holdfast_bench.workloads` in Ray Train's TorchTrainer, with holdfast.

Each training process logs its steps as `holdfast_bench.launch` reads them.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast_bench.workloads import WORKLOADS, RandomDataset, job_keys

if TYPE_CHECKING:
    from holdfast.worker.session import Session

STEPS: Final = 10_000


def train(session: Session) -> None:
    """Run one training process."""
    from holdfast.rundir.json_lines import JsonLines

    params = session.job.params
    group = session._member.group  # other users need no rank
    workload = WORKLOADS[params["workload"]]()
    model, _ = session.attach(workload.model, workload.optimizer)
    data = RandomDataset(workload, session.job.batch * STEPS)
    began = time.monotonic()
    with JsonLines(Path(params["dir"]) / f"rank-{group.rank}.jsonl") as log:

        def log_step() -> None:
            world = len(session._member.group.members)
            now = time.monotonic()
            log.write(pid=os.getpid(), step=session.step, world=world, began=began, ended=now)

        session.on_commit(log_step)
        for shard in session.shards(data, epochs=1):
            began = time.monotonic()
            session.backward(workload.loss(model, shard.batch))


def main() -> None:
    """Train until killed."""
    from holdfast.integrations.ray_train import train_loop
    from holdfast_bench.peers.ray_train import cluster_options, fit

    options = cluster_options(__doc__)
    job = job_keys(options.workload, options.workers, STEPS)
    job |= {"params": {"workload": options.workload, "dir": str(options.dir)}}
    fit(options, train_loop(train, job))


if __name__ == "__main__":
    main()
