"""From the loss of a worker to the first step that the full world has committed after it.

Each run trains with two workers, and at a random moment of a step kills or stops one of them. What
happened when is read from the arena, every millisecond, and from the run's events:

    announced   the agent has found the loss, and every wait of the others ends
    released    all stand still, a replacement too, and know from which step they go on
    resumed     the replacement has its state and computes
    committed   all workers have committed a step since the loss

Commands of others can be measured in the same rounds: see `--beside`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from holdfast.arena.memory import Arena, Phase, Word
from holdfast.bench.figures import ratio, spread
from holdfast.bench.workloads import WORKLOADS
from holdfast.engines import local
from holdfast.engines.controls import Controls
from holdfast.errors import HoldfastError
from holdfast.job import load
from holdfast.observe import lines
from holdfast.observe.run_dir import RunDirectory

WORKERS: Final = 2
FAULT_STEP: Final = 25
LOOK_S: Final = 0.001
RUN_TIMEOUT_S: Final = 300.0
SIGNALS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
AT_WORK: Final = (Phase.DATA, Phase.COMPUTE, Phase.REDUCE, Phase.UPDATE)


@dataclass(slots=True, kw_only=True)
class Recovery:
    """What was seen of one loss: seconds since then, by name, and steps done again."""

    seconds: dict[str, float] = field(default_factory=dict)
    lost: int = 0
    step_s: float = 0.0


def run_holdfast(workload: str, fault: str, chance: random.Random) -> Recovery:
    """Train, strike once, and see."""
    job = load.check(
        {
            "name": workload,
            "task": "holdfast.bench.workloads:BenchTask",
            "params": {"workload": workload, "steps": 10_000},
            "batch": WORKLOADS[workload].batch_size * WORKERS,
            "workers": WORKERS,
            "shards": WORKERS,
            "checkpoint": {"every_steps": 0},
        },
        where="recovery",
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        strike = _Strike(path, SIGNALS[fault], chance)
        with RunDirectory(path, job, resume=False) as directory:
            local.run(job, directory, strike.controls)
        return strike.result()


class _Strike:
    """Waits for the fault's step, strikes, and looks until it is overcome; then stops the run.

    Args:
        run_dir: Where the run leaves its events.
        number: The signal.
        chance: Draws the victim and the moment.
    """

    def __init__(self, run_dir: Path, number: signal.Signals, chance: random.Random) -> None:
        self._run_dir, self._number, self._chance = run_dir, number, chance
        self._thread: threading.Thread | None = None
        self._found = Recovery()
        self.controls = Controls(watch=self._begin)

    def result(self) -> Recovery:
        """What was seen.

        Raises:
            HoldfastError: The run ended before that.
        """
        if self._thread is not None:
            self._thread.join()
        if "committed" not in self._found.seconds:
            raise HoldfastError("the run did not recover in time")
        return self._found

    def _begin(self, arena: Arena) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, args=(arena,))
            self._thread.start()

    def _watch(self, arena: Arena) -> None:
        try:
            self._await(lambda: _least(arena) >= FAULT_STEP)
            before = list(lines.read(self._run_dir / "metrics.jsonl"))[-10:]
            self._found.step_s = statistics.median(line["seconds"] for line in before)
            time.sleep(self._chance.random() * self._found.step_s)
            victim = self._chance.randrange(WORKERS)
            generation, furthest = arena.newest_generation, _furthest(arena)
            began = time.monotonic()
            os.kill(self._pid_of(victim), self._number)
            self._await(lambda: arena.newest_generation > generation)
            self._note("announced", began)
            self._await(lambda: self._events("generation")[-1]["number"] > generation)
            self._note("released", began)
            self._await(lambda: Phase(arena[victim, Word.PHASE]) in AT_WORK)
            self._note("resumed", began)
            self._await(lambda: _least(arena) > furthest)
            self._note("committed", began)
            steps = [line["step"] for line in lines.read(self._run_dir / "metrics.jsonl")]
            self._found.lost = len(steps) - len(set(steps))
        finally:
            self.controls.stop = True

    def _note(self, name: str, began: float) -> None:
        self._found.seconds[name] = time.monotonic() - began

    def _events(self, name: str) -> list[dict[str, Any]]:
        found = lines.read(self._run_dir / "events.jsonl")
        return [event for event in found if event["event"] == name]

    def _pid_of(self, rank: int) -> int:
        started = self._events("worker-started")
        return int(next(event["pid"] for event in started if event["rank"] == rank))

    @staticmethod
    def _await(happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + RUN_TIMEOUT_S
        while not happened():
            if time.monotonic() > deadline:
                raise HoldfastError("what was waited for did not happen")
            time.sleep(LOOK_S)


def _least(arena: Arena) -> int:
    return min(arena[rank, Word.COMMITTED] for rank in range(WORKERS))


def _furthest(arena: Arena) -> int:
    return max(arena[rank, Word.COMMITTED] for rank in range(WORKERS))


def run_beside(command: str) -> Recovery:
    """Run somebody else's measurement once; it prints an object with its `summary`."""
    done = subprocess.run(
        shlex.split(command), stdout=subprocess.PIPE, text=True, check=False, timeout=RUN_TIMEOUT_S
    )
    if done.returncode != 0:
        raise HoldfastError(f"{command} failed; its words are above")
    summary = json.loads(done.stdout.splitlines()[-1])["summary"]
    seconds = {"committed": float(summary["full_s"]["median"])}
    return Recovery(seconds=seconds, lost=int(summary["lost"]["median"]))


def measure(
    workload: str, fault: str, rounds: int, seed: int, beside: dict[str, str]
) -> list[dict[str, Any]]:
    """A row a way of running, its times in seconds since the loss."""
    chance, found = random.Random(seed), dict[str, list[Recovery]]()
    for number in range(rounds):
        print(f"{workload}, {fault}, round {number + 1}", file=sys.stderr)
        found.setdefault("holdfast", []).append(run_holdfast(workload, fault, chance))
        for name, command in beside.items():
            found.setdefault(name, []).append(run_beside(command))
    ours = [recovery.seconds["committed"] for recovery in found["holdfast"]]
    rows = []
    for way, recoveries in found.items():
        names = dict.fromkeys(name for recovery in recoveries for name in recovery.seconds)
        times = {
            name: [recovery.seconds[name] for recovery in recoveries if name in recovery.seconds]
            for name in names
        }
        rows.append(
            {
                "workload": workload,
                "fault": fault,
                "way": way,
                **{f"{name}_s": spread(seconds, 3) for name, seconds in times.items()},
                "steps_lost": max(recovery.lost for recovery in recoveries),
                "of_holdfast": ratio(times["committed"], ours),
            }
        )
    return rows


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", default="small,large")
    parser.add_argument("--fault", choices=SIGNALS, default="kill")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--beside", action="append", default=[], metavar="NAME=COMMAND")
    options = parser.parse_args()
    unknown = set(options.workloads.split(",")) - WORKLOADS.keys()
    if unknown:
        parser.error(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    if not all("=" in each for each in options.beside):
        parser.error("--beside takes NAME=COMMAND")
    beside = dict(each.split("=", 1) for each in options.beside)
    rows = [
        row
        for workload in options.workloads.split(",")
        for row in measure(
            workload,
            options.fault,
            options.rounds,
            options.seed,
            {name: command.replace("{workload}", workload) for name, command in beside.items()},
        )
    ]
    print(json.dumps({"benchmark": "recovery", "rounds": options.rounds, "rows": rows}))


if __name__ == "__main__":
    main()
