"""The training loop of one worker without holdfast, which saves as one of the peers does.

It measures one window after the other; the first rank writes them to a file of JSON once the newest
save has been loaded and compared with what was saved.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from holdfast.errors import HoldfastError
from holdfast.linux.files import replace_synced
from holdfast_bench.checkpoint.disk import sync_file_system
from holdfast_bench.checkpoint.savers import PendingSave, load_into, saver_of
from holdfast_bench.checkpoint.systems import PEERS
from holdfast_bench.checkpoint.window import WARM_STEPS, Save, SaveSchedule, Window
from holdfast_bench.peers.peer_script import join_group, state_of, train_step
from holdfast_bench.workloads import WORKLOADS

NUM_PATHS: Final = 2
"""Checkpoints that are kept."""


@dataclass(slots=True)
class _Pending:
    """The newest save, until it is finished; see `Save`.

    Attributes:
        finished: Gets the moment when it was finished, Unix time, seconds.
    """

    step: int
    taken_unix_s: float
    saving: PendingSave
    finished: Future[float]
    stall_s: float


class _Loop:
    """Trains, and saves on request.

    Args:
        workload, system: Their names.
        folder: Holds the checkpoints.

    Attributes:
        saves: Those that are finished.
    """

    def __init__(self, workload: str, system: str, folder: Path) -> None:
        self._workload = WORKLOADS[workload]()
        self._system = system
        self._folder = folder
        self._rank = dist.get_rank()
        torch.manual_seed(0)
        self._plain = self._workload.model()
        is_alone = dist.get_world_size() == 1
        self._model = self._plain if is_alone else DistributedDataParallel(self._plain)
        self._optimizer = self._workload.optimizer(self._model.parameters())
        self._optimizer.register_step_pre_hook(lambda *_: self._await_staged())
        self._save_to = saver_of(system)
        self._pending: _Pending | None = None
        self._num_steps = 0
        self.saves = list[Save]()

    def train(self) -> None:
        """Train one step."""
        train_step(self._workload, self._model, self._optimizer, self._rank, self._num_steps)
        self._num_steps += 1

    def save(self, step: int) -> None:
        """Save the state after a step, once the save before is finished."""
        taken = time.time()
        self.finish()
        state = state_of(self._plain, self._optimizer)
        saving = self._save_to(state, self._path())
        finished = Future[float]()
        saving.finished.add_done_callback(lambda _: finished.set_result(time.time()))
        self._pending = _Pending(step, taken, saving, finished, time.time() - taken)

    def finish(self) -> None:
        """Wait until the newest save is finished."""
        self._await_staged()
        if (pending := self._pending) is not None:
            pending.saving.finished.result()
            self._pending = None
            self.saves.append(
                Save(
                    step=pending.step,
                    taken_unix_s=pending.taken_unix_s,
                    finished_unix_s=pending.finished.result(),
                    stall_s=pending.stall_s,
                )
            )

    def check(self) -> None:
        """Save, load that, and compare it.

        Raises:
            HoldfastError: It is not what was saved.
        """
        path = self._path()
        self.save(self._num_steps)
        self.finish()
        dist.barrier()  # the first rank may write for all
        state = state_of(self._plain, self._optimizer)
        loaded = {name: torch.empty_like(tensor) for name, tensor in state.items()}
        load_into(self._system, path, loaded)
        if wrong := [name for name in state if not torch.equal(state[name], loaded[name])]:
            raise HoldfastError(f"{self._system} has saved another {wrong[0]} than there was")

    def _await_staged(self) -> None:
        pending = self._pending
        if pending is not None and not pending.saving.staged.done():
            began = time.time()
            pending.saving.staged.result()
            pending.stall_s += time.time() - began

    def _path(self) -> Path:
        return self._folder / f"checkpoint-{len(self.saves) % NUM_PATHS}"


def measure(loop: _Loop, schedule: SaveSchedule, folder: Path) -> Window:
    """Train through a window."""
    sync_file_system(folder)
    dist.barrier()
    num_before = len(loop.saves)
    began = 0.0
    for step in range(schedule.newest_save, schedule.last + 1):
        loop.train()
        if step == schedule.first:
            began = time.time()
        if schedule.saves_after(step):
            loop.save(step)
    ended = time.time()
    loop.finish()
    saves = tuple(loop.saves[num_before:])
    return Window(schedule=schedule, began_unix_s=began, ended_unix_s=ended, saves=saves)


def main() -> None:
    """Train one rank; the ranks meet through a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", choices=WORKLOADS, required=True)
    parser.add_argument("--system", choices=PEERS, required=True)
    parser.add_argument("--every", type=json.loads, required=True, help="A JSON list of periods.")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world-size", type=int, required=True)
    options = parser.parse_args()
    folder = options.result.parent
    torch.set_num_threads(1)
    join_group(folder, options.rank, options.world_size)
    loop = _Loop(options.workload, options.system, folder)
    for _ in range(WARM_STEPS):
        loop.train()
    for _ in range(NUM_PATHS):
        loop.save(WARM_STEPS)
    loop.finish()
    schedules = [SaveSchedule(every=every, least_steps=options.steps) for every in options.every]
    windows = [measure(loop, schedule, folder) for schedule in schedules]
    loop.check()
    if options.rank == 0:
        text = json.dumps([asdict(window) for window in windows])
        replace_synced(options.result, text.encode())
    os._exit(0)  # DCP's process would hold up the exit


if __name__ == "__main__":
    main()
