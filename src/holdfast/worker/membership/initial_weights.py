"""Initial weights: those of `init_from`, loaded into a model when a run begins."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from holdfast.checkpoint.exports import weights
from holdfast.errors import HoldfastError
from holdfast.job.settings import InitFrom
from holdfast.rundir.json_lines import EventLog
from holdfast.rundir.run_directory import EVENTS


class InitialWeights:
    """Weights that are loaded before the optimizer is built.

    Only a run that begins uses them. A worker that gets its state from a checkpoint or another
    worker needs no file, so an error waits until `begin`.

    Args:
        source: Setting of the job; None leaves the model as its factory has built it.
        model: Takes the weights.
        name: Name of the model, where a run trains several; else empty.
    """

    def __init__(self, source: InitFrom | None, model: nn.Module, name: str = "") -> None:
        self._source = source
        self._digest = ""
        self._error: HoldfastError | None = None
        self._misfits: list[str] = []
        if source is None:
            return
        try:
            loaded = weights.load_weights(source.path)
            if name:
                part = {key: tensor for key, tensor in loaded.items() if key.startswith(f"{name}.")}
                loaded = {key.removeprefix(f"{name}."): tensor for key, tensor in part.items()}
            self._misfits = weights.load_into(model, loaded, source.path, strict=source.strict)
            self._digest = weights.digest(loaded)
        except HoldfastError as error:
            self._error = error

    def begin(self, run_dir: Path | None) -> None:
        """Note that the run begins with them.

        Args:
            run_dir: Directory for a record of them; None if another worker writes it.

        Raises:
            JobError: There are none, or they do not fit.
            CheckpointError: They are in a checkpoint that is damaged.
        """
        if self._error is not None:
            raise self._error
        if self._source is None or run_dir is None:
            return
        with EventLog(run_dir / EVENTS) as log:
            log.event(
                "weights-loaded",
                path=str(self._source.path),
                sha256=self._digest,
                **({"misfits": "; ".join(self._misfits)} if self._misfits else {}),
            )
