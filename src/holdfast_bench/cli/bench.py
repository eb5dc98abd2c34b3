"""`holdfast bench NAME`: one benchmark.

Each benchmark is a module that runs in its own process, which it does not share with the command.
Its options are those of its command here.
"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from holdfast.cli.arguments import Json
from holdfast_bench.cli.run import Output, Quick, run
from holdfast_bench.scenarios.scenario import NAMES as SCENARIO_NAMES

app = typer.Typer(help="Measure holdfast on this machine.", no_args_is_help=True)

Workloads = Annotated[
    str, typer.Option(help="Workloads, with commas: small, large, lm, vit, vit-bf16.")
]
Rounds = Annotated[int, typer.Option(min=1, max=10_000, help="Number of measurements.")]


@app.command()
def wake(
    context: typer.Context,
    workers: Annotated[int, typer.Option(min=1, max=64)] = 2,
    rounds: Rounds = 100,
    quick: Quick = False,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Measure how fast blocked workers leave their waits."""
    run(context)


@app.command()
def scaling(
    context: typer.Context,
    workloads: Annotated[
        str, typer.Option(help="Workloads: small, large, lm, vit, vit-bf16.")
    ] = "small,large,lm,vit,vit-bf16",
    workers: Annotated[str, typer.Option(help="World sizes to measure.")] = "1,2,4",
    steps: Annotated[int, typer.Option(min=10, help="Number of measured steps.")] = 48,
    rounds: Rounds = 5,
    quick: Quick = False,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Measure throughput, compared with stock DDP and independent processes."""
    run(context)


@app.command()
def overhead(
    context: typer.Context,
    workloads: Annotated[
        str, typer.Option(help="Workloads: small, large, lm, vit, vit-bf16.")
    ] = "small,large,lm,vit,vit-bf16",
    workers: Annotated[int, typer.Option(min=2, max=64)] = 2,
    steps: Annotated[int, typer.Option(min=10, help="Number of measured steps.")] = 96,
    rounds: Rounds = 5,
    quick: Quick = False,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Measure the cost of verify.recompute and portable numerics."""
    run(context)


@app.command()
def sinks(
    context: typer.Context,
    workloads: Annotated[
        str, typer.Option(help="Workloads, with commas: small, large, lm, vit, vit-bf16.")
    ] = "small",
    workers: Annotated[int, typer.Option(min=1, max=64)] = 2,
    seconds: Annotated[float, typer.Option(min=5, help="Seconds that each run is measured.")] = 60,
    rounds: Rounds = 3,
    quick: Quick = False,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Measure the cost of metrics and trackers."""
    run(context)


@app.command()
def balance(
    context: typer.Context,
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
    quick: Quick = False,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Measure balance on devices of unlike speed, compared with stock DDP."""
    run(context)


@app.command()
def recovery(
    context: typer.Context,
    workloads: Annotated[
        str, typer.Option(help="Workloads: small, large, lm, vit, vit-bf16.")
    ] = "small,large",
    fault: Annotated[str, typer.Option(help="Fault to inject: kill or stop.")] = "kill",
    measure: Annotated[
        str, typer.Option(help="What to measure: recovery, goodput.")
    ] = "recovery,goodput",
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
    quick: Quick = False,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Measure recovery time: worker failure to the next step with all workers."""
    run(context)


@app.command()
def restart(
    context: typer.Context,
    workloads: Annotated[
        str, typer.Option(help="Workloads: small, large, lm, vit, vit-bf16.")
    ] = "small",
    hosts: Annotated[
        int, typer.Option(min=1, help="Number of hosts; several are network namespaces (root).")
    ] = 1,
    rounds: Rounds = 10,
    quick: Quick = False,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Measure restart time of a DDP job, compared with torchrun."""
    run(context)


@app.command()
def coordinator(
    context: typer.Context,
    workloads: Annotated[
        str, typer.Option(help="Workloads: small, large, lm, vit, vit-bf16.")
    ] = "small,large",
    rounds: Rounds = 10,
    quick: Quick = False,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Measure how a coordinator failure affects steps."""
    run(context)


@app.command()
def hosts(
    context: typer.Context,
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
    quick: Quick = False,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Measure reductions, steps and recoveries of several hosts, which are network namespaces."""
    run(context)


@app.command()
def heartbeat(
    context: typer.Context,
    intervals: Annotated[str, typer.Option(help="Heartbeat intervals, seconds.")] = "0.5,1,2,5",
    agents: Annotated[str, typer.Option(help="Numbers of agents.")] = "1,4,16",
    seconds: Annotated[float, typer.Option(min=1, help="Seconds that each row measures.")] = 20.0,
    quick: Quick = False,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Measure what heartbeats of hosts cost, and how soon they show that a host is cut off."""
    run(context)


@app.command()
def checkpoint(
    context: typer.Context,
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
    path: Annotated[str, typer.Option(metavar="DIR", help="Directory on the measured disk.")] = ".",
    quick: Quick = False,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Measure what checkpoints cost, compared with torch.save, safetensors and DCP."""
    run(context)


@app.command()
def startup(
    context: typer.Context,
    rounds: Rounds = 7,
    quick: Quick = False,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Measure the time to the first step, compared with a plain PyTorch process."""
    run(context)


@app.command()
def qlora(
    context: typer.Context,
    hosts: Annotated[
        str, typer.Option(help="Numbers of hosts; those above 1 are emulated or predicted.")
    ] = "1,2,4",
    size: Annotated[
        Literal["small", "7b"] | None,
        typer.Option(help="Shape of the network; by default 7b with a GPU, else small."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="DIR", help="Model folder; by default random weights.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples of each host and step.")] = 8,
    seq_length: Annotated[int, typer.Option(min=8, help="Tokens of a sample.")] = 512,
    max_steps: Annotated[int, typer.Option(min=6, help="Steps of each run.")] = 100,
    lora_rank: Annotated[int, typer.Option(min=1, help="Rank of the adapters.")] = 16,
    samples: Annotated[
        int, typer.Option(min=1, help="Samples of the job that is priced.")
    ] = 10_000,
    price: Annotated[float, typer.Option(min=0, help="Price of a host per hour.")] = 0.6,
    deadline: Annotated[
        float | None, typer.Option(min=0, help="Hours that the job may take.")
    ] = None,
    budget: Annotated[float | None, typer.Option(min=0, help="What the job may cost.")] = None,
    link_gbit: Annotated[float, typer.Option(min=0.001, help="Rate of each host's link.")] = 10.0,
    latency_us: Annotated[float, typer.Option(min=0, help="Latency of a message.")] = 50.0,
    rounds: Rounds = 1,
    write: Annotated[
        str | None, typer.Option(metavar="FILE", help="Job file for the recommended hosts.")
    ] = None,
    quick: Quick = False,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Measure QLoRA fine-tuning on one host and on several, and what a job costs on each."""
    run(context)


@app.command()
def emulate(
    context: typer.Context,
    hosts: Annotated[str, typer.Option(help="Numbers of emulated hosts.")] = "1,2,4,8,16",
    scaling: Annotated[str, typer.Option(help="Kinds of scaling: weak, strong.")] = "weak,strong",
    parameters: Annotated[
        int, typer.Option(min=1, help="Number of trained parameters.")
    ] = 13_631_488,
    dtype: Annotated[Literal["bf16", "fp32"], typer.Option(help="Their dtype.")] = "bf16",
    compute_s: Annotated[
        float, typer.Option(min=0, help="Compute time of a host's batch, seconds.")
    ] = 5.5,
    spread: Annotated[
        float, typer.Option(min=0, help="Standard deviation of compute times, as a share.")
    ] = 0.01,
    steps: Annotated[int, typer.Option(min=2, help="Number of measured steps.")] = 6,
    link_gbit: Annotated[float, typer.Option(min=0.001, help="Rate of each host's link.")] = 10.0,
    network: Annotated[Literal["tls", "trusted"], typer.Option(help="The job's key.")] = "tls",
    quick: Quick = False,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Measure scaling on hosts whose compute is emulated, and predict larger clusters."""
    run(context)


@app.command()
def timeline(
    context: typer.Context, quick: Quick = False, output: Output = None, as_json: Json = False
) -> None:
    """Record a run without a failure, and with a live recovery and a restart, step by step."""
    run(context)


@app.command()
def scenarios(
    context: typer.Context,
    scenarios: Annotated[
        str, typer.Option(help=f"Scenarios, with commas: {', '.join(SCENARIO_NAMES)}.")
    ] = ",".join(SCENARIO_NAMES),
    quick: Quick = False,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Run failure scenarios and compare what happens with what must; exits 1 if one fails."""
    run(context)
