"""LossCurve: draws the loss of a run that has ended."""

from __future__ import annotations

from pathlib import Path

from holdfast.record.sink import Ending, Sink
from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import METRICS


class LossCurve(Sink):
    """Draws `loss.png` from `metrics.jsonl`.

    Args:
        run_dir: The run's directory.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    def close(self, ending: Ending | None) -> None:
        """Draw the losses of all steps, and the accuracy if there is one."""
        if ending is not None and ending.result.get("steps"):  # a script may keep its own files
            draw(self._run_dir / METRICS, self._run_dir / "loss.png")


def draw(metrics: Path, picture: Path) -> None:
    """Draw the losses in `metrics` (`metrics.jsonl`), and the accuracy if there is one."""
    entries = list(json_lines.read(metrics))
    steps = [(line["step"], line["loss"]) for line in entries if "loss" in line]
    from matplotlib.figure import Figure  # only the end of a run pays for the import

    accuracy = [
        (line["step"], line["evaluation"]["accuracy"])
        for line in entries
        if "accuracy" in line.get("evaluation", {})
    ]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*steps, strict=True), linewidth=1, label="training loss")
    axes.set(xlabel="step", ylabel="loss", yscale="log")
    axes.grid(visible=True, alpha=0.3)
    if accuracy:
        right = axes.twinx()
        right.plot(*zip(*accuracy, strict=True), color="tab:orange", label="test accuracy")
        right.set(ylabel="accuracy", ylim=(0, 1.02))
    figure.legend(loc="outside upper center", ncols=2)
    figure.savefig(picture, dpi=120)
