"""From the failure of a worker to the first step that all workers commit after it.

Each run trains with two workers, one of which is killed or stopped at a random moment of a step.
The arena is polled every millisecond, and the run's events are read:

    announced   the agent has detected the failure, and wakes the other workers
    released    all workers have halted, and the resume point is known
    resumed     the replacement has the state and computes
    committed   all workers have committed a step that they started together after the failure
    anyone      one worker alone has committed a step; only other systems allow that

Other systems are measured in the same rounds: those of `holdfast_bench.peers` that are installed
for the interpreter of `--peers-python`, and any command of `--compare`.

With `--job`, your own job recovers on `--hosts` hosts instead, on this machine or with `--on`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from holdfast.launch.child import KILL_TIMEOUT_S
from holdfast_bench import goodput, own_job, own_recovery
from holdfast_bench.arguments import add_names, add_rounds
from holdfast_bench.launch import Recovery
from holdfast_bench.peers.systems import Peer, installed
from holdfast_bench.results.figures import Spread, ratio, spread
from holdfast_bench.results.result import Measured
from holdfast_bench.rounds import attempt, in_rounds
from holdfast_bench.trial import RUN_TIMEOUT_S, WORKERS, LiveRun, injure
from holdfast_bench.workloads import WORKLOADS

SIGNALS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def run_holdfast(workload: str, fault: str, chance: random.Random) -> Recovery:
    """Train, signal one worker, and measure the recovery."""
    return injure(workload, chance, partial(_signal, SIGNALS[fault], chance))


def _signal(number: signal.Signals, chance: random.Random, live: LiveRun) -> Recovery:
    """Signal one of the workers; returns the times of the recovery."""
    rank = chance.randrange(WORKERS)
    generation = live.arena.newest_generation
    recovery = Recovery()
    began = time.monotonic()

    def note(name: str) -> None:
        recovery.seconds[name] = time.monotonic() - began

    os.kill(live.records.pid_of(rank), number)
    live.wait(lambda: live.arena.newest_generation > generation)
    note("announced")
    before = max(live.committed())
    live.wait(lambda: live.newest_start()["number"] > generation)
    note("released")
    live.wait_for_work(rank)
    note("resumed")
    resumed_from = live.newest_start()["step"]
    recovery.lost = max(0, before - resumed_from)
    live.wait(lambda: min(live.committed()) > resumed_from)
    note("committed")
    return recovery


def run_command(command: str) -> Recovery | None:
    """Run a command that measures another system; it prints an object with its `summary`.

    None if it failed: the other measurements continue.
    """
    try:
        summary = json.loads(_printed_by(command).splitlines()[-1])["summary"]
        seconds = {"committed": float(summary["full_s"]["median"])}
        if "any_s" in summary:
            seconds["anyone"] = float(summary["any_s"]["median"])
        return Recovery(seconds=seconds, lost=int(summary["lost"]["median"]))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError, LookupError) as error:
        print(f"{command} failed: {error!r}; its own output is above", file=sys.stderr)
        return None


def _printed_by(command: str) -> str:
    """Standard output of a command; all processes of its session are killed at its end."""
    process = subprocess.Popen(
        shlex.split(command), stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        printed, _ = process.communicate(timeout=RUN_TIMEOUT_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(KILL_TIMEOUT_S)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return printed


def run_peer(
    peer: Peer, python: str, workload: str, fault: str, chance: random.Random
) -> Recovery | None:
    """Run another system once; None if it failed."""
    recover = partial(peer.recover, python, workload, SIGNALS[fault], chance)
    return attempt(recover, peer.name)


def measure(
    workload: str, fault: str, rounds: int, ways: dict[str, Callable[[], Recovery | None]]
) -> list[dict[str, Any]]:
    """A row per system with its times in seconds since the fault; the first one is holdfast."""
    recoveries = in_rounds(ways, rounds, f"{workload}, {fault}")
    return [
        _row(workload, fault, way, tries, recoveries["holdfast"])
        for way, tries in recoveries.items()
    ]


def _row(
    workload: str,
    fault: str,
    way: str,
    tries: Sequence[Recovery | None],
    ours: Sequence[Recovery | None],
) -> dict[str, Any]:
    recoveries = [recovery for recovery in tries if recovery is not None]
    names = dict.fromkeys(name for recovery in recoveries for name in recovery.seconds)
    pairs = [
        (one.seconds["committed"], own.seconds["committed"])
        for one, own in zip(tries, ours, strict=True)
        if one is not None and own is not None and "committed" in one.seconds
    ]
    return {
        "workload": workload,
        "fault": fault,
        "way": way,
        **{f"{name}_s": _spread_of(name, recoveries) for name in names},
        "recovered": f"{sum(_is_whole(each) for each in tries)} of {len(tries)}",
        "steps_lost": max((recovery.lost for recovery in recoveries), default=None),
        "failed": sum(not _is_whole(each) for each in tries),
        "of_holdfast": ratio(*zip(*pairs, strict=True)) if pairs else None,
    }


def _is_whole(recovery: Recovery | None) -> bool:
    """True if all workers have committed a step after the failure."""
    return recovery is not None and "committed" in recovery.seconds


def _spread_of(name: str, recoveries: Sequence[Recovery]) -> Spread:
    return spread([each.seconds[name] for each in recoveries if name in each.seconds], 3)


def goodput_rows(workload: str, python: str | None, peers: Sequence[Peer]) -> list[dict[str, Any]]:
    """A row per system with its goodput at one kill every few seconds."""
    found: dict[str, goodput.Goodput] = {}
    chance = random.Random(0)  # chance, not secrecy
    print(f"{workload}, goodput: holdfast", file=sys.stderr)
    found["holdfast"] = goodput.of_holdfast(workload, chance)
    for peer in peers if python is not None else ():
        print(f"{workload}, goodput: {peer.name}", file=sys.stderr)
        measure_peer = partial(goodput.of_peer, peer, str(python), workload, chance)
        if (share := attempt(measure_peer, peer.name)) is not None:
            found[peer.name] = share
    same = {"measure": "goodput", "workload": workload, "kill_every_s": goodput.EVERY_S}
    return [
        {**same, "way": way, "kills": each.kills, "goodput": round(each.share, 3)}
        for way, each in found.items()
    ]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_names(parser, "--workloads", WORKLOADS, "Workloads to train", "small,large")
    parser.add_argument("--fault", choices=SIGNALS, default="kill", help="Fault to inject.")
    add_rounds(parser, 10)
    parser.add_argument("--seed", type=int, default=0, help="Seed of the moments of faults.")
    add_names(parser, "--measure", ("recovery", "goodput"), "What to measure")
    parser.add_argument(
        "--compare",
        action="append",
        type=_named_command,
        default=[],
        metavar="NAME=COMMAND",
        help="Measure another command in the same rounds; see docs/benchmarks.md.",
    )
    parser.add_argument(
        "--peers-python",
        metavar="PATH",
        help="Interpreter whose torchrun, torchft and Ray Train are also measured.",
    )
    own_job.add_hosts(own_job.add_options(parser), "1")


def _named_command(text: str) -> tuple[str, str]:
    name, equals, command = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError("--compare takes NAME=COMMAND")
    return name, command


def run(options: argparse.Namespace) -> Measured:
    """Measure every workload.

    Raises:
        JobError: The interpreter of the other systems is none, or lacks what all of them need; or
            the job cannot be measured.
    """
    if options.job:
        own = own_recovery.rows(own_job.of_options(options), options.hosts, options.rounds)
        return Measured(rounds=options.rounds, rows=own)
    python = options.peers_python
    peers, absent = installed(python) if python else ([], {})
    rows = []
    for workload in options.workloads:
        chance = random.Random(options.seed)
        same = (workload, options.fault, chance)
        ways: dict[str, Callable[[], Recovery | None]] = {
            "holdfast": partial(run_holdfast, *same),
            **{p.name: partial(run_peer, p, python, *same) for p in peers},
            **{
                name: partial(run_command, command.replace("{workload}", workload))
                for name, command in dict(options.compare).items()
            },
        }
        if "recovery" in options.measure:
            rows += measure(workload, options.fault, options.rounds, ways)
        if "goodput" in options.measure and options.fault == "kill":
            rows += goodput_rows(workload, python, peers)
    return Measured(rounds=options.rounds, absent=absent, rows=rows)
