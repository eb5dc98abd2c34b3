"""Measure scaling on emulated hosts, fit a time model, and predict larger clusters.

Coordinator, agents, transports, reductions and commits are real; each host is a network namespace
with a shaped link and one worker. Only compute is emulated: the worker sleeps for as long as a step
computes, so that many hosts fit on few cores. The defaults are the time model of QLoRA on
Mistral-7B: 5.5 s a step and bfloat16 adapters.

    weak      every host keeps its batch      speedup = hosts x time of one / time of all
    strong    hosts share one batch           speedup = time of one / time of all

Rows with `measure: emulated` were measured; those with `predicted` come from the model, for
hosts with cores of their own. Each measured size is also predicted from all others:
`error_percent`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, Final

from holdfast.linux.supply import usable_cores
from holdfast_bench.arguments import add_names, count, counts
from holdfast_bench.emulate.model import Sample, TimeModel, fit, held_out, powers_of_two
from holdfast_bench.emulate.runs import Setup, measure
from holdfast_bench.on_hosts.namespaces import Namespaces
from holdfast_bench.results.figures import spread
from holdfast_bench.results.result import Measured

LARGEST: Final = 1024
SCALINGS: Final = ("weak", "strong")

Row = dict[str, Any]


def emulated_rows(
    setup: Setup, scaling: str, measured: Sequence[tuple[Sample, list[float]]], every: list[Sample]
) -> list[Row]:
    """The rows of what was measured with one kind of scaling.

    Args:
        setup: What all runs have in common.
        scaling: `weak` or `strong`.
        measured: The means and the steps of each run, that of one host first.
        every: Those of all runs, from which each is predicted.
    """
    held = dict(
        zip(map(id, every), held_out(every, setup.size_bytes, setup.link_bytes_per_s), strict=True)
    )
    alone = measured[0][0].step_s
    rows = []
    for sample, seconds in measured:
        speedup = _batches(scaling, sample.hosts) * alone / sample.step_s
        predicted = held[id(sample)]
        rows.append(
            {
                "measure": "emulated",
                "scaling": scaling,
                "hosts": sample.hosts,
                "step_s": spread(seconds, 4),
                "sync_s": round(sample.sync_s, 4),
                "sync_share": round(sample.sync_s / sample.step_s, 4),
                "speedup": round(speedup, 3),
                "ideal": sample.hosts,
                "efficiency": round(speedup / sample.hosts, 4),
                **{f"{name}_share": round(share, 4) for name, share in sample.lost.items()},
                "predicted_step_s": None if predicted is None else round(predicted, 4),
                "error_percent": None
                if predicted is None
                else round(100 * (predicted / sample.step_s - 1), 1),
            }
        )
    return rows


def predicted_rows(setup: Setup, scaling: str, alone: Sample, model: TimeModel) -> list[Row]:
    """The rows of what larger clusters would take."""
    own_cores = model.on_own_cores(usable_cores())
    rows = []
    for hosts in powers_of_two(LARGEST):
        compute_s = alone.compute_s / (hosts if scaling == "strong" else 1)
        step_s = own_cores.step_s(hosts, compute_s, setup.spread)
        sync_s = own_cores.sync_s(hosts, compute_s)
        speedup = _batches(scaling, hosts) * alone.step_s / step_s
        rows.append(
            {
                "measure": "predicted",
                "scaling": scaling,
                "hosts": hosts,
                "step_s": round(step_s, 4),
                "sync_s": round(sync_s, 4),
                "sync_share": round(sync_s / step_s, 4),
                "speedup": round(speedup, 3),
                "ideal": hosts,
                "efficiency": round(speedup / hosts, 4),
            }
        )
    return rows


def model_row(setup: Setup, model: TimeModel) -> Row:
    """The fitted model."""
    return {
        "measure": "model",
        "rho_ns_per_byte": round(1e9 * model.rho, 4),
        "alpha_ms": round(1e3 * model.alpha_s, 3),
        "beta_ns_per_byte": round(1e9 * model.beta, 4),
        "gamma_ns_per_byte": round(1e9 * model.gamma, 4),
        "control_ms": round(1e3 * model.control_s, 3),
        "gradient_bytes": model.size_bytes,
        "compute_s": setup.compute_s,
        "link_gbit": setup.link_gbit,
        "network": setup.network,
    }


def _batches(scaling: str, hosts: int) -> int:
    """Batches of one host in a step."""
    return hosts if scaling == "weak" else 1


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--hosts", type=counts, default="1,2,4,8,16", help="Numbers of emulated hosts."
    )
    add_names(parser, "--scaling", SCALINGS, "Kinds of scaling")
    parser.add_argument(
        "--parameters", type=count, default=13_631_488, help="Number of trained parameters."
    )
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16", help="Their dtype.")
    parser.add_argument(
        "--compute-s", type=float, default=5.5, help="Compute time of a host's batch, seconds."
    )
    parser.add_argument(
        "--spread",
        type=float,
        default=0.01,
        help="Standard deviation of compute times, as a share.",
    )
    parser.add_argument("--steps", type=count, default=6, help="Measured steps.")
    parser.add_argument("--link-gbit", type=float, default=10.0, help="Rate of each host's link.")
    parser.add_argument(
        "--network", choices=("tls", "trusted"), default="tls", help="The key of the job."
    )


def run(options: argparse.Namespace) -> Measured:
    """Measure every number of hosts, and predict larger ones."""
    setup = Setup(
        parameters=options.parameters,
        dtype=options.dtype,
        compute_s=options.compute_s,
        spread=options.spread,
        steps=options.steps,
        link_gbit=options.link_gbit,
        network=options.network,
    )
    sizes = sorted({1, *options.hosts})
    found = {
        scaling: [measure(setup, hosts, scaling) for hosts in sizes] for scaling in options.scaling
    }
    every = [sample for measured in found.values() for sample, _ in measured]
    model = fit(every, setup.size_bytes, setup.link_bytes_per_s)
    rows = [model_row(setup, model)]
    for scaling, measured in found.items():
        rows += emulated_rows(setup, scaling, measured, every)
        rows += predicted_rows(setup, scaling, measured[0][0], model)
    missing = Namespaces.what_is_missing()
    absent = {"links: hosts are workers of one host": missing} if missing else {}
    return Measured(absent=absent, rows=rows)
