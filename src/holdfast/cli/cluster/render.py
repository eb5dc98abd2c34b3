"""`holdfast render`: write files with which a cluster manager runs a job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.arguments import JobName, Overrides
from holdfast.cli.cluster.joining import host_range
from holdfast.clusters.render.kustomize import kubernetes as kubernetes_files
from holdfast.clusters.render.objects import write
from holdfast.clusters.render.plan import plan_of
from holdfast.clusters.render.slurm import sbatch
from holdfast.job import load
from holdfast.job.train_job import TrainJob
from holdfast.sinks.prometheus import files

app = typer.Typer(help="Write files with which a cluster manager runs a job.", no_args_is_help=True)

Hosts = Annotated[
    str, typer.Option(help="Hosts of the run; MIN:MAX if it begins with MIN, and more may join.")
]


@app.command("kubernetes")
def kubernetes(
    job: JobName,
    image: Annotated[
        str, typer.Option(help="Container image with holdfast, with a tag or a digest.")
    ],
    out: Annotated[
        Path, typer.Option(help="Folder to write; files of the same names are replaced.")
    ],
    overrides: Overrides = None,
    hosts: Hosts = "2",
    namespace: Annotated[
        str | None, typer.Option(help="Namespace of all objects; default: the name of the job.")
    ] = None,
    monitoring: Annotated[
        bool, typer.Option("--monitoring", help="Add a namespace with Prometheus and Grafana.")
    ] = False,
) -> None:
    """Write a kustomize tree: a base, components, and an overlay for each kind of cluster."""
    plan = plan_of(_job(job, overrides, hosts), image, namespace, has_metrics=monitoring)
    shown = (
        {"rules.yaml": files.alert_rules(), "holdfast.json": files.grafana_dashboard()}
        if monitoring
        else {}
    )
    write(kubernetes_files(plan, shown), out)
    print(f"{out}: apply an overlay, such as: kubectl apply -k {out / 'overlays' / 'cpu'}")


@app.command("slurm")
def slurm(job: JobName, overrides: Overrides = None, hosts: Hosts = "2") -> None:
    """Print a script for sbatch, which is requeued with a checkpoint when it is preempted."""
    chosen = _job(job, overrides, hosts)
    words = [job, *(overrides or [])]
    print(sbatch(chosen, words), end="")


def _job(job: str, overrides: list[str] | None, hosts: str) -> TrainJob:
    counts = [f"{key}={count}" for key, count in host_range("--hosts", hosts).items()]
    return load.load(job, [*(overrides or []), *counts]).resolved()
