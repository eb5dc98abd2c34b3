"""Result: what a run returns; of one that trains, its weights, metrics and figures on disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.checkpoint.find import find_checkpoint
from holdfast.checkpoint.names import checkpoint_name
from holdfast.checkpoint.store import CheckpointStore
from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import METRICS

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a training run.

    Attributes:
        status: `finished`, or `stopped` by a signal; a stopped run can be resumed.
        data: Name of the data set; names of synthetic data begin with `synthetic-`. None if the
            task has its own data.
        steps: Committed steps, over all attempts.
        loss: Mean loss of the last step; None if there was none, or it was not finite.
        metrics: The last evaluation: numbers, or lists of them, by name.
        best: With `evaluation.best`: the best `value` and its `step`.
        samples_per_s: Samples per second in this attempt, without start-up.
        tokens_per_s: The same in tokens, or in bytes without a tokenizer; None if the data of the
            job are no text.
        seconds: Seconds per phase in this attempt, the mean over the workers: `data`, `forward`,
            `backward`, `collect`, `reduce`, `wait` (for other workers) and so on.
        bottleneck: Limit of the run in its last steps, in words; None if it was too short.
        exactness: `bit-exact` if the weights depend on the job only; `order-exact` and the changes,
            if the run was resumed on other hardware or software; or why its numerics are not exact.
        weights_sha256: SHA-256 over all parameters and buffers in name order.
        weights: With a model over frozen weights, where these come from and the bytes of each part:
            `base_bytes` once a host, `replica_bytes` and `gradient_bytes` of each worker.
        run_dir: The run directory.
    """

    status: str
    data: str | None
    steps: int = 0
    loss: float | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    best: dict[str, float] | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    bottleneck: str | None = None
    exactness: str | None = None
    weights_sha256: str | None = None
    weights: dict[str, Any] | None = None
    run_dir: Path

    @property
    def history(self) -> dict[str, list[Any]]:
        """The table of steps, one list per column: `step`, `epoch`, `loss`, `norm`, `lr`,
        `samples`, `seconds`, rank 0's seconds in each phase (`forward_s`, …), and logged values.
        Numbers that are not finite are None. `skipped` is True for steps that changed nothing.
        """
        return json_lines.columns(
            json_lines.step_row(line) for line in self._lines() if "loss" in line
        )

    @property
    def evaluations(self) -> dict[str, list[Any]]:
        """The table of evaluations, one list per column: `step` and each metric."""
        return json_lines.columns(
            {"step": line["step"], **line["evaluation"]}
            for line in self._lines()
            if "evaluation" in line
        )

    @property
    def checkpoint(self) -> Path | None:
        """The newest checkpoint."""
        store = CheckpointStore.of_run(self.run_dir)
        return next((Path(store.location(name)) for name in store.committed()), None)

    @property
    def best_checkpoint(self) -> Path | None:
        """The checkpoint of the best evaluation; None without `evaluation.best`."""
        if self.best is None:
            return None
        store = CheckpointStore.of_run(self.run_dir)
        return Path(store.location(checkpoint_name(int(self.best["step"]))))

    def state_dict(self, of: str | None = None, *, best: bool = False) -> dict[str, Any]:
        """The trained weights and extra state, verified: what `load_state_dict` of a model takes.

        Args:
            of: Name of a registered module, such as an average, or of one of several models.
            best: Take the best checkpoint instead of the newest.

        Raises:
            CheckpointError: The checkpoint is damaged.
            JobError: The run has no such checkpoint, or nothing called `of`.
        """
        from holdfast.checkpoint.exports import weights  # imports torch

        return weights.read_checkpoint(find_checkpoint(self.run_dir, best=best), of)

    def load_into(self, model: nn.Module, of: str | None = None, *, best: bool = False) -> None:
        """Load the trained weights into `model`, all of them; see `state_dict`.

        Raises:
            JobError: `model` has other tensors.
        """
        from holdfast.checkpoint.exports.weights import load_into

        load_into(model, self.state_dict(of, best=best), self.run_dir)

    @property
    def figures(self) -> dict[str, Path]:
        """Plots of the run, by name."""
        return {path.stem: path for path in sorted(self.run_dir.glob("*.png"))}

    def _lines(self) -> Iterator[dict[str, Any]]:
        return json_lines.read(self.run_dir / METRICS)

    def as_dict(self) -> dict[str, Any]:
        """The result as a flat dictionary for JSON; numbers that are not finite are None.

        A metric with the name of another entry gets the prefix `evaluation.`.
        """
        facts = {each.name: getattr(self, each.name) for each in fields(self)}
        results = facts.pop("metrics")
        facts["run_dir"] = str(self.run_dir)
        for name in ("best", "tokens_per_s", "weights"):
            if facts[name] is None:
                del facts[name]
        metrics = {
            f"evaluation.{name}" if name in facts else name: json_lines.finite(value)
            for name, value in results.items()
        }
        return facts | metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptResult:
    """Result of the run of a script.

    Attributes:
        status: `finished`, or `stopped` by a signal.
        workers: Number that ran it.
        steps: Steps that it has made; None if none are known.
        loss: The loss of the last one; None if it is not known.
        restarts: Number of restarts of all of them.
        seconds: Duration.
        run_dir: The run's directory.
    """

    status: str
    workers: int
    steps: int | None
    loss: float | None
    restarts: int
    seconds: float
    run_dir: Path

    def as_dict(self) -> dict[str, Any]:
        """The result as plain data, without what is not known."""
        facts = asdict(self) | {"run_dir": str(self.run_dir)}
        return {name: value for name, value in facts.items() if value is not None}


RunResult = Result | ScriptResult
