"""`holdfast_bench.peers.peer_script` as torchft has it: each process is a replica group.

Needs TORCHFT_LIGHTHOUSE in the environment. A step is logged when torchft has committed it.
"""

import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # its stubs leave it out
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

from holdfast.rundir.json_lines import JsonLines
from holdfast_bench.peers.peer_script import log_step, option_parser, train_step
from holdfast_bench.workloads import WORKLOADS

TIMEOUT: Final = timedelta(seconds=60)
"""Of the manager and of gloo; torchft's default."""


class TolerantDdp(DistributedDataParallel):  # type: ignore[misc]  # mypy does not follow torchft
    """Survives a failed all-reduce.

    The hook of torchft 0.2.0 asserts that the all-reduce has a result, so the survivor exits too.
    Here it gets its own bucket back; the manager has noted the error and discards the step. DDP
    compares the annotations of a hook, so this file must not postpone them.
    """

    @staticmethod
    def _comm_hook(
        state: Manager,
        bucket: dist.GradBucket,  # type: ignore[name-defined]  # its stubs leave it out
    ) -> torch.futures.Future[torch.Tensor]:
        work = state.allreduce(bucket.buffer())
        succeeded = work.wait()
        future = work.get_future()
        result: torch.futures.Future[torch.Tensor] | None = getattr(future, "_fut", future)
        if succeeded and result is not None:
            return result
        discarded: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        discarded.set_result(bucket.buffer())
        return discarded


def main() -> None:
    """Train until killed."""
    parser = option_parser(__doc__)
    parser.add_argument("--replica", type=int, required=True)
    options = parser.parse_args()
    train(options.workload, options.dir, options.replica)


def train(name: str, directory: Path, replica: int) -> None:
    """Train until killed, as one replica group.

    Args:
        name: Of the workload.
        directory: For the log.
        replica: The number of this replica.
    """
    torch.manual_seed(0)
    workload = WORKLOADS[name]()
    model = workload.model()
    plain = workload.optimizer(model.parameters())

    def restore(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        plain.load_state_dict(state["optimizer"])

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=TIMEOUT),
        min_replica_size=1,
        load_state_dict=restore,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": plain.state_dict()},
        replica_id=f"replica_{replica}",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        hostname="127.0.0.1",
        timeout=TIMEOUT,
    )
    ddp = TolerantDdp(manager, model)
    optimizer = Optimizer(manager, plain)
    with JsonLines(directory / f"rank-{replica}.jsonl") as log:
        while True:
            began = time.monotonic()
            step = manager.current_step()
            train_step(workload, ddp, optimizer, replica, step)
            if manager.current_step() > step:
                log_step(log, manager.current_step(), manager.num_participants(), began)


if __name__ == "__main__":
    main()
