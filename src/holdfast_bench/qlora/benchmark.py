"""Measure QLoRA on one host and on several, and what a fine-tuning job costs on each.

Each host has one worker, which trains the adapters of a Mistral network over its frozen base of
4-bit weights. The rows of hosts are

    measured    one host, which is this machine; with `--on`, as many as the engine has
    emulated    several hosts on this machine, at most one for each of its GPUs or cores
    predicted   more hosts than that, from the step of one host, by `holdfast_bench.qlora.cost`

The weights are random unless `--model` names a folder: neither time nor cost depends on them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from holdfast.api.reserve import count_hosts
from holdfast.errors import JobError
from holdfast.linux.supply import usable_cores
from holdfast_bench import own_job
from holdfast_bench.arguments import add_rounds, count, counts
from holdfast_bench.on_hosts.namespaces import Namespaces
from holdfast_bench.qlora.cost import Link
from holdfast_bench.qlora.jobs import SIZES, Setup
from holdfast_bench.qlora.rows import (
    Order,
    Row,
    measured_row,
    model_row,
    predicted_row,
    priced,
    recommendation_row,
    time_model,
)
from holdfast_bench.qlora.runs import HostTimes, run_on
from holdfast_bench.results.result import Measured
from holdfast_bench.rounds import in_rounds


def measure(
    setup: Setup, link: Link, sizes: Sequence[int], rounds: int
) -> dict[int, list[HostTimes]]:
    """Run on each number of hosts that there are, or are devices for here, in turn in each round.

    Raises:
        HoldfastError: A run failed, or the engine cannot be used.
    """
    most = count_hosts(setup.on) if setup.on else torch.cuda.device_count() or usable_cores()
    ways = {str(hosts): partial(run_on, setup, hosts, link) for hosts in sizes if hosts <= most}
    runs = in_rounds(ways, rounds, "hosts")
    return {int(hosts): times for hosts, times in runs.items()}


def rows(
    setup: Setup,
    link: Link,
    order: Order,
    sizes: Sequence[int],
    found: dict[int, list[HostTimes]],
    job_file: Path | None,
) -> list[Row]:
    """A row for each number of hosts, one for the recommendation, and one for the model."""
    about = model_row(setup, link, found[1][0])
    measured = {hosts: measured_row(setup, hosts, runs) for hosts, runs in found.items()}
    model = time_model(list(measured.values()), about)
    of_hosts = [measured.get(hosts) or predicted_row(setup, hosts, model) for hosts in sizes]
    priced_rows, advice = priced(of_hosts, about, order)
    if job_file is not None and advice.bill is not None:
        setup.write(job_file, advice.bill.hosts)
    return [*priced_rows, recommendation_row(order, advice), about]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--hosts",
        type=counts,
        default="1,2,4",
        help="Numbers of hosts; without --on, those above 1 are emulated or predicted.",
    )
    own_job.add_engine(parser)
    parser.add_argument(
        "--size", choices=SIZES, help="Shape of the network; by default 7b with a GPU, else small."
    )
    parser.add_argument(
        "--model", type=Path, metavar="DIR", help="Model folder; by default random weights."
    )
    parser.add_argument(
        "--batch-size", type=count, default=8, help="Samples of each host and step."
    )
    parser.add_argument("--seq-length", type=count, default=512, help="Tokens of a sample.")
    parser.add_argument("--max-steps", type=count, default=100, help="Steps of each run.")
    parser.add_argument("--lora-rank", type=count, default=16, help="Rank of the adapters.")
    parser.add_argument(
        "--samples", type=count, default=10_000, help="Samples of the job that is priced."
    )
    parser.add_argument("--price", type=float, default=0.6, help="Price of a host per hour.")
    parser.add_argument("--deadline", type=float, help="Hours that the job may take.")
    parser.add_argument("--budget", type=float, help="What the job may cost.")
    parser.add_argument("--link-gbit", type=float, default=10.0, help="Rate of each host's link.")
    parser.add_argument("--latency-us", type=float, default=50.0, help="Latency of a message.")
    add_rounds(parser, 1)
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="Job file for the recommended hosts."
    )


def run(options: argparse.Namespace) -> Measured:
    """Measure the numbers of hosts that there are or can be emulated, and predict the others.

    Raises:
        JobError: The model's folder is none.
        HoldfastError: A run failed, or the engine cannot be used.
    """
    config = options.model and options.model / "config.json"
    if config and not config.is_file():  # before it measures anything
        raise JobError(f"--model: {config}: No such file or directory; name a model folder")
    sizes = sorted({1, *options.hosts})
    setup = Setup(
        size=options.size or ("7b" if torch.cuda.is_available() else "small"),
        folder=options.model,
        batch=options.batch_size,
        length=options.seq_length,
        steps=options.max_steps,
        rank=options.lora_rank,
        on=options.on,
    )
    link = Link(bytes_per_s=options.link_gbit * 1e9 / 8, latency_s=options.latency_us / 1e6)
    order = Order(
        samples=options.samples,
        price=options.price,
        deadline_h=options.deadline,
        budget=options.budget,
    )
    found = measure(setup, link, sizes, options.rounds)
    emulates = not setup.on and len(found) > 1
    missing = Namespaces.what_is_missing() if emulates else ""
    return Measured(
        rounds=options.rounds,
        absent={"hosts, which are workers of one host": missing} if missing else {},
        rows=rows(setup, link, order, sizes, found, options.write),
    )
