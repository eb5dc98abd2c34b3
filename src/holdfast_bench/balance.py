"""Gain of balance on devices of unlike speed, compared with stock DDP.

    bound             the same processes without any exchange: the sum of the devices' speeds
    bound, one pass   the same, but a process computes its shards as one batch
    DDP               stock DDP on gloo, with an equal part of the batch for each, as one batch
    even              holdfast with as many shards for each worker
    proportional      holdfast with as many shards as the speeds say, from a profile
    dynamic           holdfast with as many shards as its own measurements say
    hybrid            holdfast with both
    ddp, dynamic      holdfast with sync=ddp and balance=dynamic

With `--job`, your own job is run under each policy instead, on this machine or with `--on`.

The devices are emulated on this machine's cores, in the same way for every system: `slowed` says
how. Each round runs every system once, one after the other, and the next round in reverse order;
ratios are taken within a round. Every process logs its steps itself.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from holdfast.errors import JobError
from holdfast.launch.fork_client import ForkServer
from holdfast.launch.spawn import WORKER, spawn, worker_environment
from holdfast.runs.hosts.placement import Placement
from holdfast.runs.run import LaunchOptions
from holdfast_bench import own_job
from holdfast_bench.arguments import add_names, add_rounds, count
from holdfast_bench.launch import PeerLaunch, ranks
from holdfast_bench.results.figures import ratio, spread
from holdfast_bench.results.result import Measured
from holdfast_bench.rounds import in_rounds
from holdfast_bench.trial import train
from holdfast_bench.unlike import step_log
from holdfast_bench.unlike.cluster import TFLOPS, Cluster, default_shards
from holdfast_bench.unlike.models import MODELS, Training
from holdfast_bench.unlike.quota import NoQuota, limited_groups
from holdfast_bench.unlike.slowed import MODES, Mode
from holdfast_bench.unlike.step_log import BalanceFigures, measured, plans_of

TASK: Final = "holdfast_bench.unlike.models:train"
CLUSTERS: Final = ("1:1/2", "1:1/4", "4:2:1:1")
DEVICES: Final = "rtx3060,rtx3050,gtx1650,gtx1650"
QUOTA_CLUSTER: Final = "1:1/2"
"""Cluster that is measured once more with a CPU quota, where that is possible."""
WARM_STEPS: Final = 4
"""Steps at the start that are not counted."""
PLAN_STEPS: Final = 16
"""The same for a system that has to find its plan."""
PEER_TIMEOUT_S: Final = 300.0
"""How long processes without holdfast may take."""
BOUND = "bound"
EVEN = "even"
DDP = "DDP"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Settings that all systems are measured with.

    Attributes:
        cluster: The devices.
        workload: What they train.
        shards: Of a step.
        mode: How the devices are emulated.
        steps: How many are counted.
    """

    cluster: Cluster
    workload: str
    shards: int
    mode: Mode
    steps: int

    @property
    def factors(self) -> tuple[float, ...]:
        """Slow-down of each device, as a multiple of a core's time."""
        return self.cluster.factors(self.mode, len(os.sched_getaffinity(0)))


def run_peers(
    case: Case, groups: tuple[str, ...], *, ddp: bool = False, merges: bool = False
) -> BalanceFigures:
    """Processes without holdfast, under DDP or each for itself; see `peers`."""
    workers = case.cluster.workers
    even = (case.shards // workers,) * workers
    with tempfile.TemporaryDirectory() as folder:
        training = _training(case, groups, WARM_STEPS, folder)
        flags = {"ddp": ddp, "merges": merges}
        commands = ranks(
            "holdfast_bench.unlike.peers",
            workers,
            worker_environment(),
            training=json.dumps(training.as_params()),
            counts=json.dumps(even if ddp else case.cluster.counts(case.shards)),
            **{name: True for name, is_set in flags.items() if is_set},
        )
        with PeerLaunch(commands, Path(folder)) as launch:
            launch.join(PEER_TIMEOUT_S)
        return measured(step_log.read(Path(folder), workers), WARM_STEPS)


def run_holdfast(
    case: Case, groups: tuple[str, ...], forks: ForkServer, warm_steps: int, **keys: Any
) -> BalanceFigures:
    """One run of holdfast, with more keys of the job."""
    workers = case.cluster.workers
    with tempfile.TemporaryDirectory() as folder:
        job = {
            "name": case.workload,
            "task": TASK,
            "params": _training(case, groups, warm_steps, folder).as_params(),
            "batch": MODELS[case.workload].batch_size * case.shards,
            "workers": workers,
            "shards": case.shards,
            "checkpoint": {"every_steps": 0},
        }
        placement = Placement(profile=case.cluster.profile)
        with train({**job, **keys}, LaunchOptions(forks=forks), placement=placement):
            return measured(step_log.read(Path(folder), workers), warm_steps)


def _training(case: Case, groups: tuple[str, ...], warm_steps: int, folder: str) -> Training:
    return Training(
        workload=case.workload,
        steps=warm_steps + case.steps,
        factors=case.factors,
        mode=case.mode,
        groups=groups,
        folder=folder,
    )


def systems(
    case: Case, groups: tuple[str, ...], forks: ForkServer
) -> dict[str, Callable[[], BalanceFigures]]:
    """The compared systems, by name."""
    ours = partial(run_holdfast, case, groups, forks)
    return {
        BOUND: partial(run_peers, case, groups),
        f"{BOUND}, one pass": partial(run_peers, case, groups, merges=True),
        DDP: partial(run_peers, case, groups, ddp=True, merges=True),
        EVEN: partial(ours, WARM_STEPS),
        "proportional": partial(ours, WARM_STEPS, balance="proportional"),
        "dynamic": partial(ours, PLAN_STEPS, balance="dynamic"),
        "hybrid": partial(ours, PLAN_STEPS, balance="hybrid"),
        "ddp, dynamic": partial(ours, PLAN_STEPS, balance="dynamic", sync="ddp"),
    }


def measure(case: Case, forks: ForkServer, rounds: int) -> dict[str, list[BalanceFigures]]:
    """The runs of each system, one a round.

    Raises:
        NoQuota: The devices are to be emulated by quotas, which is not possible here.
    """
    about = f"{case.cluster.name} ({case.mode}), {case.workload}"
    with ExitStack() as stack:
        groups: tuple[str, ...] = ()
        if case.mode == "quota":
            groups = stack.enter_context(limited_groups(case.factors))
        return in_rounds(systems(case, groups, forks), rounds, about, alternates=True)


def rows_of(case: Case, runs: dict[str, list[BalanceFigures]]) -> list[dict[str, Any]]:
    """One row per system."""
    rates = {name: [run.samples_per_s for run in of_one] for name, of_one in runs.items()}
    return [
        {
            **_labels(case),
            "system": name,
            "samples_per_s": spread(rates[name]),
            "gain_over_even": round(ratio(rates[name], rates[EVEN]) - 1, 3),
            "of_ddp": ratio(rates[name], rates[DDP]),
            "efficiency": ratio(rates[name], rates[BOUND]),
            "busy_share": spread([run.busy_share for run in of_one], 3)["median"],
            "imbalance": spread([run.imbalance for run in of_one], 3)["median"],
            "plan": "-".join(map(str, plans_of(of_one[-1].steps)[-1])),
            "plan_steps": max(run.plan_steps for run in of_one),
        }
        for name, of_one in runs.items()
    ]


def _labels(case: Case) -> dict[str, Any]:
    return {
        "cluster": case.cluster.name,
        "mode": case.mode,
        "workload": case.workload,
        "shards": case.shards,
    }


def cases(options: argparse.Namespace) -> list[Case]:
    """The settings that the options ask for.

    Raises:
        JobError: An option holds what it may not.
    """
    workloads = options.workloads
    if options.speeds is not None and options.cluster is not None:
        raise JobError("give --speeds or --cluster, not both")
    given = [] if options.speeds is None else [Cluster.of_speeds(options.speeds)]
    given += [] if options.cluster is None else [Cluster.of_devices(options.cluster)]
    clusters = given or [*map(Cluster.of_speeds, CLUSTERS), Cluster.of_devices(DEVICES)]
    found = [
        _case(cluster, workload, options.mode, options)
        for cluster in clusters
        for workload in workloads
    ]
    if not given and not options.mode:
        found.append(_case(Cluster.of_speeds(QUOTA_CLUSTER), workloads[0], "quota", options))
    return found


def _case(cluster: Cluster, workload: str, mode: Mode | None, options: argparse.Namespace) -> Case:
    shards = options.shards or default_shards(cluster)
    if shards % cluster.workers:
        raise JobError(
            f"DDP needs equal parts: --shards {shards} must be a multiple of {cluster.workers}"
        )
    has_cores = cluster.workers <= len(os.sched_getaffinity(0))
    return Case(
        cluster=cluster,
        workload=workload,
        shards=shards,
        mode=mode or ("burn" if has_cores else "pause"),
        steps=options.steps,
    )


def run_cases(chosen: Sequence[Case], rounds: int) -> list[dict[str, Any]]:
    """The rows of all cases."""
    rows: list[dict[str, Any]] = []
    with ForkServer(spawn(WORKER), [TASK.partition(":")[0]]) as forks:
        for case in chosen:
            try:
                runs = measure(case, forks, rounds)
            except NoQuota as reason:
                rows.append({**_labels(case), "system": f"left out: {reason}"})
                continue
            rows += rows_of(case, runs)
    return rows


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--speeds", metavar="A:B:…", help="Speeds of the workers' devices, such as 4:2:1:1."
    )
    parser.add_argument(
        "--cluster", metavar="NAME,…", help=f"Devices by name: {', '.join(TFLOPS)}."
    )
    add_names(parser, "--workloads", MODELS, "Workloads to train")
    parser.add_argument(
        "--shards", type=count, help="Shards per step; by default 8 a worker or more."
    )
    parser.add_argument(
        "--mode",
        choices=MODES,
        help="How slower devices are emulated; by default burn where each worker has a core, "
        "else pause.",
    )
    parser.add_argument("--steps", type=count, default=12, help="Number of measured steps.")
    add_rounds(parser, 1)
    own = own_job.add_options(parser)
    add_names(own, "--systems", own_job.SYSTEMS, "What is compared")


def run(options: argparse.Namespace) -> Measured:
    """Measure every system in every case.

    Raises:
        JobError: The options contradict each other.
    """
    if options.job:
        own = own_job.of_options(options)
        found = own_job.balance(own, options.systems, options.rounds, options.steps)
        return Measured(rounds=options.rounds, rows=found)
    chosen = cases(options)
    rows = run_cases(chosen, options.rounds)
    return Measured(rounds=options.rounds, rows=rows)
