"""`holdfast pods`: commands in pods of Kubernetes that exist."""

from __future__ import annotations

import sys
import threading
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.status import STOPPED_STATUS
from holdfast.clusters.engines.kubernetes.pod_commands import PodCommands
from holdfast.clusters.engines.kubernetes.pods import Pods
from holdfast.errors import EngineError, JobError
from holdfast.rundir.run_directory import new_run
from holdfast.tasks import code

app = typer.Typer(help="Commands in pods of Kubernetes that exist.", no_args_is_help=True)


@app.callback()
def pods(
    context: typer.Context,
    selector: Annotated[
        str, typer.Option("--selector", "-l", help="Labels of the pods, such as app=trainer.")
    ] = "",
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Their namespace; default: the current one.")
    ] = "",
    container: Annotated[
        str, typer.Option("--container", "-c", help="Their container; default: that of kubectl.")
    ] = "",
) -> None:
    """Commands in pods of Kubernetes that exist."""
    # Checked when a command needs them: its --help does not.
    context.obj = partial(Pods, selector=selector, namespace=namespace, container=container)


@app.command("run", context_settings={"allow_interspersed_args": False})
def run(
    context: typer.Context,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="What to run.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for logs and results; default: a new one in runs/."),
    ] = None,
) -> None:
    """Run a command in all pods at once, with the .py and .yaml files of this directory.

    It runs in a folder of its own; the files that it writes there are fetched at its end. The exit
    status is that of the worst.
    """
    pods: Pods = context.obj()
    folder = out or new_run("pods")
    if folder.exists():
        raise JobError(f"{folder} exists; name a new folder by --out")
    names = _usable(pods)
    printing = threading.Lock()

    def say(pod: str, line: str) -> None:
        with printing:
            print(f"{pod} | {line}", flush=True)

    packed = code.pack_folder(Path.cwd())
    commands = PodCommands(pods, names, packed, command, folder, say)
    is_interrupted = False
    try:
        commands.wait()
    except KeyboardInterrupt:
        is_interrupted = True
        print("ending the commands in all pods", file=sys.stderr)
        commands.end()
    for name, error in commands.gather().items():
        print(f"holdfast: the results of {name} are lacking: {error}", file=sys.stderr)
    print(f"logs and results: {folder}", file=sys.stderr)
    if is_interrupted:
        raise typer.Exit(STOPPED_STATUS)
    failed = {name: each for name, each in commands.statuses().items() if each[0]}
    for name, (status, lines) in failed.items():
        last = "".join(f"\n  {line}" for line in lines)
        print(f"holdfast: {name} ended with status {status}:{last}", file=sys.stderr)
    if failed:
        raise typer.Exit(max(status for status, _ in failed.values()))


def _usable(pods: Pods) -> list[str]:
    """The names of the pods that are ready; the others are said."""
    found = pods.find()
    for pod in found:
        if pod.lacks:
            print(f"holdfast: {pod.name} {pod.lacks}, and is left out", file=sys.stderr)
    names = [pod.name for pod in found if not pod.lacks]
    if not names:
        raise EngineError(
            f"no pod with {pods.selector} is ready; see: kubectl get pods -l {pods.selector}"
        )
    return names
