"""Rows of the benchmark: what steps took, or would take, and what the job costs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast_bench.qlora.cost import (
    Bill,
    Link,
    Recommendation,
    TimeModel,
    bill,
    recommend,
)
from holdfast_bench.results.figures import spread

if TYPE_CHECKING:  # they import torch, which prices do not need
    from holdfast_bench.qlora.jobs import Setup
    from holdfast_bench.qlora.runs import HostTimes

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A job to be priced, and its limits.

    Attributes:
        samples: In all.
        price: Of a host, per hour.
        deadline_h: Hours that it may take; None if it does not matter.
        budget: What it may cost; None if it does not matter.
    """

    samples: int
    price: float
    deadline_h: float | None
    budget: float | None


def time_model(of_hosts: Sequence[Row], sizes: Row) -> TimeModel:
    """The time of steps, from the row of one host and those of several.

    The whole step of one host counts as compute time, because its local reduction also happens on
    each of several hosts, before they use the link. Several hosts take as long to start as those of
    the rows, or as one host if there is no other row.

    Args:
        of_hosts: Row of each number of hosts, ascending from one.
        sizes: Row about the trained model.
    """
    started = [_median(row["start_s"]) for row in of_hosts]
    return TimeModel(
        compute_s=_median(of_hosts[0]["step_s"]),
        batch=sizes["batch"],
        slot_bytes=sizes["gradient_bytes"],
        link=Link(bytes_per_s=sizes["link_gbit"] * 1e9 / 8, latency_s=sizes["latency_us"] / 1e6),
        start_s=started[0],
        start_of_several_s=statistics.median(started[1:] or started),
    )


def measured_row(setup: Setup, hosts: int, runs: Sequence[HostTimes]) -> Row:
    """Row of the measured steps on some number of hosts, a value for each round."""
    step = [statistics.median(run.step_s) for run in runs]
    sync = [statistics.median(run.sync_s) for run in runs]
    rates = [hosts * setup.batch / each for each in step]
    used = [run.gpu_utilization for run in runs if run.gpu_utilization is not None]
    return {
        "measure": "hosts",
        "hosts": hosts,
        "kind": "measured" if hosts == 1 or setup.on else "emulated",
        "step_s": spread(step, 4),
        "sync_s": spread(sync, 4),
        "sync_share": round(statistics.median(sync) / statistics.median(step), 4),
        "samples_per_s": spread(rates, 3),
        "tokens_per_s": spread([rate * setup.length for rate in rates], 1),
        "gpu_utilization": round(statistics.mean(used), 3) if used else None,
        "start_s": spread([run.start_s for run in runs], 1),
    }


def predicted_row(setup: Setup, hosts: int, model: TimeModel) -> Row:
    """Row of the predicted steps on some number of hosts."""
    step_s = model.step_s(hosts)
    sync_s = model.sync_s(hosts)
    rate = model.samples_per_s(hosts)
    return {
        "measure": "hosts",
        "hosts": hosts,
        "kind": "predicted",
        "step_s": round(step_s, 4),
        "sync_s": round(sync_s, 4),
        "sync_share": round(sync_s / step_s, 4),
        "samples_per_s": round(rate, 3),
        "tokens_per_s": round(rate * setup.length, 1),
        "gpu_utilization": None,
        "start_s": round(model.started_s(hosts), 1),
    }


def priced(of_hosts: Sequence[Row], sizes: Row, order: Order) -> tuple[list[Row], Recommendation]:
    """Rows with the bills of a job, and on how many hosts it should run; see `time_model`."""
    model = time_model(of_hosts, sizes)
    bills = [_bill_of(row, order, model) for row in of_hosts]
    advice = recommend(model, bills, deadline_h=order.deadline_h, budget=order.budget)
    rows = [_with_bill(row, of_hosts[0], each) for row, each in zip(of_hosts, bills, strict=True)]
    return rows, advice


def _bill_of(row: Row, order: Order, model: TimeModel) -> Bill:
    """Bill of the job, from the step and the start of a row."""
    steps = model.num_steps(row["hosts"], order.samples)
    job_s = _median(row["start_s"]) + steps * _median(row["step_s"])
    return bill(row["hosts"], job_s, order.samples, order.price)


def _with_bill(row: Row, alone: Row, found: Bill) -> Row:
    """A row with its efficiency, compared with that of one host, and its bill."""
    rate = _median(row["samples_per_s"]) / (row["hosts"] * _median(alone["samples_per_s"]))
    return {**row, "efficiency": round(rate, 3), **columns_of(found)}


def columns_of(found: Bill) -> Row:
    """Columns of a bill."""
    figures = {"hours": found.hours, "cost": found.cost, "cost_per_1000": found.cost_per_1000}
    return {name: float(f"{value:.4g}") for name, value in figures.items()}


def recommendation_row(order: Order, found: Recommendation) -> Row:
    """On how many hosts the job should run, and why."""
    return {
        "measure": "recommendation",
        "samples": order.samples,
        "price": order.price,
        "deadline_h": order.deadline_h,
        "budget": order.budget,
        "hosts": found.bill.hosts if found.bill else None,
        "reason": found.reason,
        "several_faster_from_samples": found.faster_from,
        "one_host_until_samples": found.one_host_until,
    }


def model_row(setup: Setup, link: Link, run: HostTimes) -> Row:
    """Row about the trained model, and the sizes of its parts."""
    return {
        "measure": "model",
        "weights": "random" if setup.folder is None else setup.folder.name,
        "batch": setup.batch,
        "length": setup.length,
        "rank": setup.rank,
        **{name: value for name, value in run.weights.items() if isinstance(value, int)},
        "link_gbit": float(f"{8 * link.bytes_per_s / 1e9:.4g}"),
        "latency_us": round(1e6 * link.latency_s, 1),
    }


def _median(value: Any) -> float:
    return float(value["median"] if isinstance(value, dict) else value)
