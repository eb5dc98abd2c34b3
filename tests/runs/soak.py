"""A soak: one run that loses a worker, an agent or its coordinator every few steps.

    python tests/runs/soak.py --seeds 10      # 1,000 steps and 200 faults each

The run must end with the weights of an undisturbed one, with every sample of an epoch used once,
and with the command and the fork server holding no more than they held near its beginning.
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path

import psutil

from holdfast.faults.target import Target
from holdfast.job import load
from holdfast.launch.fork_client import ForkServer
from holdfast.launch.spawn import WORKER, spawn
from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import RunDirectory
from holdfast.runs.run import LaunchOptions, run

KINDS = {"kill": 10, "stop": 2, "raise": 2, "agent": 3, "coordinator": 3}
"""Of twenty faults, how many are of each kind."""
STEPS_PER_EPOCH = 50
WORKERS = 3
GROWTH_BYTES = 32 << 20
"""What a process may hold in addition: caches of allocators fill up."""


@dataclass(slots=True)
class Holdings:
    """What a process holds."""

    files: int
    threads: int
    memory_bytes: int

    @classmethod
    def of(cls, process):
        with process.oneshot():
            return cls(process.num_fds(), process.num_threads(), process.memory_info().rss)

    @classmethod
    def of_many(cls, many, choose):
        """What `choose` makes of each that was held."""
        return cls(*(choose(found) for found in zip(*map(astuple, many), strict=True)))

    def is_about(self, other):
        """Whether this is no more than that."""
        return (
            self.files <= other.files + 1
            and self.threads <= other.threads + 1
            and self.memory_bytes <= other.memory_bytes + GROWTH_BYTES
        )


@dataclass(slots=True)
class Soak:
    """Strikes a run at random, a given number of times.

    Args:
        directory: The run's.
        orders: Where workers look whether they are to raise.
        seed: Of all that is drawn.
        steps: Of the run.
        faults: How many.
    """

    directory: Path
    orders: Path
    seed: int
    steps: int
    faults: int
    injected: Counter = field(default_factory=Counter)
    held: list = field(default_factory=list)
    _over: bool = False
    _lasting: list = field(default_factory=list)

    def run(self, job, forks):
        """Train; returns the result."""
        thread = threading.Thread(target=self._strike_all)
        with RunDirectory(self.directory, job, resume=False) as directory:
            self._lasting = _lasting()
            thread.start()
            try:
                return run(directory, LaunchOptions(forks=forks))
            finally:
                self._over = True
                thread.join()

    def _strike_all(self):
        chance, target = random.Random(self.seed), Target(self.directory)
        kinds = [kind for kind, weight in KINDS.items() for _ in range(weight)]
        for step in sorted(chance.randrange(1, self.steps - 5) for _ in range(self.faults)):
            while self._committed(target) < step and not self._over:
                time.sleep(0.001)
            time.sleep(chance.random() * 0.03)
            kind = chance.choice(kinds)
            while not self._over and not self._strike(kind, chance):
                time.sleep(0.001)
            self.held.append([Holdings.of(process) for process in self._lasting])

    def _committed(self, target):
        target.look()
        return target.reached

    def _strike(self, kind, chance):
        """Do it, if there is somebody to do it to."""
        if kind == "raise":
            rank = chance.randrange(WORKERS)
            (self.orders / f"raise-{rank}").write_text(f"as planned, {self.injected['raise']}")
        else:
            who = kind if kind in ("agent", "coordinator") else "worker"
            living = self._living(who)
            if not living:
                return False
            number = signal.SIGSTOP if kind == "stop" else signal.SIGKILL
            try:
                os.kill(chance.choice(living), number)
            except ProcessLookupError:
                return False  # it has just died: that is no fault of ours
        self.injected[kind] += 1
        return True

    def _living(self, who):
        events = list(json_lines.read(self.directory / "events.jsonl"))
        ended = {event["pid"] for event in events if event["event"] == f"{who}-exited"}
        started = [event["pid"] for event in events if event["event"] == f"{who}-started"]
        alive = [pid for pid in started if pid not in ended and psutil.pid_exists(pid)]
        return alive[-WORKERS:] if who == "worker" else alive[-1:]


def _lasting():
    """This process, which supervises the run, and its fork server; nothing else runs yet."""
    this = psutil.Process()
    return [this, *(each for each in this.children() if "fork_server" in " ".join(each.cmdline()))]


def job_of(orders, steps):
    """What is trained."""
    return load.check(
        {
            "name": "soak",
            "task": f"{Path(__file__).parent / 'faulty_tasks.py'}:soaked",
            "params": {"orders": str(orders), "epochs": steps // STEPS_PER_EPOCH},
            "batch": 20,
            "shards": 5,
            "workers": WORKERS,
            "clip_norm": 0.3,
            "checkpoint": {"every_steps": 20},
            "restarts": {"limit": 10_000},
        },
        where="soak",
    )


def samples_of(directory):
    """What each step was computed with, and what came of it."""
    entries = [line for line in json_lines.read(directory / "metrics.jsonl") if "loss" in line]
    names = "step", "epoch", "loss", "norm", "samples", "logged"
    return [[entry[name] for name in names] for entry in entries]


def check_each_sample_once(steps):
    """Whether the numbers of every epoch and their squares add up to those of 0 to 999."""
    for epoch in range(len(steps) // STEPS_PER_EPOCH):
        logged = [entry for entry in steps if entry[1] == epoch]
        assert sum(entry[4] for entry in logged) == 1000
        sums = [round(sum(e[4] * e[5][name] for e in logged)) for name in ("number", "square")]
        assert sums == [sum(range(1000)), sum(number**2 for number in range(1000))]


def soak(forks, folder, *, seed, steps, faults):
    """Run disturbed and undisturbed, and compare; returns what was done.

    Raises:
        AssertionError: Something is not as it should be.
    """
    orders = folder / "orders"
    orders.mkdir(parents=True)
    job = job_of(orders, steps)
    with RunDirectory(folder / "undisturbed", job, resume=False) as directory:
        whole = run(directory, LaunchOptions(forks=forks))
    began = time.monotonic()
    storm = Soak(folder / "disturbed", orders, seed, steps, faults)
    broken = storm.run(job, forks)
    assert sum(storm.injected.values()) == faults
    assert broken["weights_sha256"] == whole["weights_sha256"]
    used = samples_of(folder / "disturbed")
    assert used == samples_of(folder / "undisturbed")
    assert len(used) == steps
    check_each_sample_once(used)
    # In the middle of a recovery there is more, or less; what leaks is never less again.
    quarter = faults // 4
    early, last = (
        [Holdings.of_many(held, choose) for held in zip(*part, strict=True)]
        for part, choose in (
            (storm.held[quarter : 2 * quarter], statistics.median),
            (storm.held[-quarter:], min),
        )
    )
    assert all(now.is_about(then) for now, then in zip(last, early, strict=True)), (early, last)
    return {
        "seed": seed,
        "steps": steps,
        "injected": dict(storm.injected),
        "seconds": round(time.monotonic() - began, 1),
        "generations": sum(
            event["event"] == "generation-started"
            for event in json_lines.read(folder / "disturbed" / "events.jsonl")
        ),
        "held_early_and_last": [[asdict(each) for each in held] for held in (early, last)],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--faults", type=int, default=200)
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    server = ForkServer(spawn(WORKER))
    try:
        with server as forks:
            for seed in range(options.first, options.first + options.seeds):
                with tempfile.TemporaryDirectory() as folder:
                    found = soak(
                        forks, Path(folder), seed=seed, steps=options.steps, faults=options.faults
                    )
                print(json.dumps(found), flush=True)
    finally:
        print(server.output().decode(), end="", file=sys.stderr)


if __name__ == "__main__":
    main()
