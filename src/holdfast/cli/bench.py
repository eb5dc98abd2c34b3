"""`holdfast bench`: measure this machine.

Each benchmark is a module that runs in its own process, which it does not share with the command.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from holdfast.bench.results.measure import measure
from holdfast.cli.arguments import Json
from holdfast.errors import BenchmarkFailed

WIDTH: Final = 170
"""Columns of the widest table; a narrower terminal breaks its lines rather than its words."""

app = typer.Typer(help="Measure holdfast on this machine.", no_args_is_help=True)

Workloads = Annotated[
    str, typer.Option(help="Workloads, with commas: small, large, lm, vit, vit-bf16.")
]
Rounds = Annotated[int, typer.Option(min=1, max=10_000, help="Number of measurements.")]


@app.command()
def wake(
    workers: Annotated[int, typer.Option(min=1, max=64)] = 2,
    rounds: Rounds = 100,
    as_json: Json = False,
) -> None:
    """Measure how fast blocked workers leave their waits."""
    _run("wake", ["--workers", str(workers), "--rounds", str(rounds)], as_json=as_json)


@app.command()
def scaling(
    workloads: Annotated[
        str, typer.Option(help="Workloads: small, large, lm, vit, vit-bf16.")
    ] = "small,large,lm,vit,vit-bf16",
    workers: Annotated[str, typer.Option(help="World sizes to measure.")] = "1,2,4",
    steps: Annotated[int, typer.Option(min=10, help="Number of measured steps.")] = 48,
    rounds: Rounds = 5,
    as_json: Json = False,
) -> None:
    """Measure throughput, compared with stock DDP and independent processes."""
    options = ["--workloads", workloads, "--workers", workers]
    _run("scaling", [*options, "--steps", str(steps), "--rounds", str(rounds)], as_json=as_json)


@app.command()
def overhead(
    workloads: Annotated[
        str, typer.Option(help="Workloads: small, large, lm, vit, vit-bf16.")
    ] = "small,large,lm,vit,vit-bf16",
    workers: Annotated[int, typer.Option(min=2, max=64)] = 2,
    steps: Annotated[int, typer.Option(min=10, help="Number of measured steps.")] = 96,
    rounds: Rounds = 5,
    as_json: Json = False,
) -> None:
    """Measure the cost of verify.recompute and portable numerics."""
    options = ["--workloads", workloads, "--workers", str(workers)]
    _run("overhead", [*options, "--steps", str(steps), "--rounds", str(rounds)], as_json=as_json)


@app.command()
def sinks(
    workloads: Annotated[
        str, typer.Option(help="Workloads, with commas: small, large, lm, vit, vit-bf16.")
    ] = "small",
    workers: Annotated[int, typer.Option(min=1, max=64)] = 2,
    seconds: Annotated[float, typer.Option(min=5, help="Seconds that each run is measured.")] = 60,
    rounds: Rounds = 3,
    as_json: Json = False,
) -> None:
    """Measure the cost of metrics and trackers."""
    options = ["--workloads", workloads, "--workers", str(workers), "--seconds", str(seconds)]
    _run("sinks", [*options, "--rounds", str(rounds)], as_json=as_json)


@app.command()
def balance(
    speeds: Annotated[
        str | None,
        typer.Option(metavar="A:B:…", help="Speeds of the workers' devices, such as 4:2:1:1."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="NAME,…", help="Devices by name: rtx3060, rtx3050, gtx1650."),
    ] = None,
    workloads: Annotated[
        str, typer.Option(help="Workloads, with commas: cnn, resnet18, gpt.")
    ] = "cnn,resnet18,gpt",
    shards: Annotated[
        int | None, typer.Option(min=2, help="Shards per step; by default 8 a worker or more.")
    ] = None,
    mode: Annotated[
        Literal["burn", "pause", "quota"] | None,
        typer.Option(
            help="How slower devices are emulated: burn, pause or quota. By default, burn where "
            "each worker has a core, else pause."
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=4, help="Number of measured steps.")] = 12,
    rounds: Rounds = 1,
    output: Annotated[
        str | None, typer.Option(metavar="DIR", help="Directory for figures: PNG and CSV.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure balance on devices of unlike speed, compared with stock DDP."""
    options = ["--workloads", workloads, "--steps", str(steps), "--rounds", str(rounds)]
    given = {"speeds": speeds, "cluster": cluster, "shards": shards, "mode": mode, "output": output}
    for name, value in given.items():
        options += [f"--{name}", str(value)] if value is not None else []
    _run("balance", options, as_json=as_json)


@app.command()
def recovery(
    workloads: Annotated[
        str, typer.Option(help="Workloads: small, large, lm, vit, vit-bf16.")
    ] = "small,large",
    fault: Annotated[str, typer.Option(help="Fault to inject: kill or stop.")] = "kill",
    rounds: Rounds = 10,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=COMMAND",
            help="Measure another command in the same rounds; see docs/benchmarks.md.",
        ),
    ] = None,
    peers_python: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Python interpreter whose torchrun, torchft and Ray Train are also measured.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure recovery time: worker failure to the next step with all workers."""
    options = ["--workloads", workloads, "--fault", fault, "--rounds", str(rounds)]
    options += [part for command in compare or () for part in ("--compare", command)]
    options += ["--peers-python", peers_python] if peers_python else []
    _run("recovery", options, as_json=as_json)


@app.command()
def restart(
    workloads: Annotated[
        str, typer.Option(help="Workloads: small, large, lm, vit, vit-bf16.")
    ] = "small",
    hosts: Annotated[
        int, typer.Option(min=1, help="Number of hosts; several are network namespaces (root).")
    ] = 1,
    rounds: Rounds = 10,
    as_json: Json = False,
) -> None:
    """Measure restart time of a DDP job, compared with torchrun."""
    options = ["--workloads", workloads, "--hosts", str(hosts), "--rounds", str(rounds)]
    _run("restart", options, as_json=as_json)


@app.command()
def coordinator(
    workloads: Annotated[
        str, typer.Option(help="Workloads: small, large, lm, vit, vit-bf16.")
    ] = "small,large",
    rounds: Rounds = 10,
    as_json: Json = False,
) -> None:
    """Measure how a coordinator failure affects steps."""
    _run("coordinator", ["--workloads", workloads, "--rounds", str(rounds)], as_json=as_json)


@app.command()
def hosts(
    measure: Annotated[
        str, typer.Option(help="What to measure: reduction, step, recovery.")
    ] = "reduction,step,recovery",
    number: Annotated[str, typer.Option("--hosts", help="Numbers of hosts.")] = "2,3",
    workers: Annotated[str, typer.Option(help="Numbers of workers of each host.")] = "1,2",
    sizes_kb: Annotated[
        str, typer.Option(help="Sizes of the reduced gradient, KiB.")
    ] = "64,1024,16384,262144",
    link: Annotated[
        str, typer.Option(help="Rate of each host's link, such as 1gbit; veth: not limited.")
    ] = "veth",
    workloads: Workloads = "small,large",
    rounds: Rounds = 7,
    as_json: Json = False,
) -> None:
    """Measure reductions, steps and recoveries of several hosts, which are network namespaces."""
    options = ["--measure", measure, "--hosts", number, "--workers", workers]
    options += ["--sizes-kb", sizes_kb, "--link", link, "--workloads", workloads]
    _run("hosts", [*options, "--rounds", str(rounds)], as_json=as_json)


@app.command()
def heartbeat(
    intervals: Annotated[str, typer.Option(help="Heartbeat intervals, seconds.")] = "0.5,1,2,5",
    agents: Annotated[str, typer.Option(help="Numbers of agents.")] = "1,4,16",
    seconds: Annotated[float, typer.Option(min=1, help="Seconds that each row measures.")] = 20.0,
    as_json: Json = False,
) -> None:
    """Measure what heartbeats of hosts cost, and how soon they show that a host is cut off."""
    options = ["--intervals", intervals, "--agents", agents, "--seconds", str(seconds)]
    _run("heartbeat", options, as_json=as_json)


@app.command()
def checkpoint(
    measure: Annotated[
        str, typer.Option(help="What to measure: saving, memory, floors, loading.")
    ] = "saving,memory,floors,loading",
    workloads: Workloads = "large,lm",
    workers: Annotated[str, typer.Option(help="Numbers of workers.")] = "1,2",
    systems: Annotated[
        str | None, typer.Option(metavar="NAME,…", help="Systems to compare; by default all.")
    ] = None,
    every: Annotated[
        str, typer.Option(help="Steps from one save to the next, with commas.")
    ] = "25,10,5,1",
    steps: Annotated[
        int, typer.Option(min=2, help="Measured steps; more where a period is longer.")
    ] = 20,
    load_mb: Annotated[int, typer.Option(min=1, help="Size of the loaded state, MB.")] = 2000,
    rounds: Rounds = 7,
    quick: Annotated[
        bool, typer.Option("--quick", help="One round with 10 steps, saving every 10 and 1.")
    ] = False,
    path: Annotated[str, typer.Option(metavar="DIR", help="Directory on the measured disk.")] = ".",
    as_json: Json = False,
) -> None:
    """Measure what checkpoints cost, compared with torch.save, safetensors and DCP."""
    if quick:
        every, steps, rounds = "10,1", 10, 1
    given = {"measure": measure, "workloads": workloads, "workers": workers, "systems": systems}
    given |= {"every": every, "steps": str(steps), "load-mb": str(load_mb)}
    given |= {"rounds": str(rounds), "path": path}
    options = [word for name, value in given.items() if value for word in (f"--{name}", value)]
    _run("checkpoint", options, as_json=as_json)


@app.command()
def startup(rounds: Rounds = 7, as_json: Json = False) -> None:
    """Measure the time to the first step, compared with a plain PyTorch process."""
    _run("startup", ["--rounds", str(rounds)], as_json=as_json)


def _run(name: str, options: list[str], *, output: str | None = None, as_json: bool) -> None:
    try:
        result = measure(name, options)
    except BenchmarkFailed as failed:
        raise typer.Exit(failed.code) from None
    if output is not None:
        result.save(Path(output))
    if as_json:
        print(result.model_dump_json())
        return
    console = Console()
    console.width = max(console.width, WIDTH)
    for kind in dict.fromkeys(row.get("measure") for row in result.rows):
        console.print(_table([row for row in result.rows if row.get("measure") == kind]))


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(*(name.replace("_", " ") for name in names), box=box.SIMPLE)
    for row in rows:
        table.add_row(*(_cell(row.get(name, "")) for name in names))
    return table


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return f"{value['median']} [{value['min']}-{value['max']}]"
    return str(value)
