"""Loops of the library whose steps are those of a run.

Every worker runs them over all steps. What differs from the library's own:

    FitLoop.on_advance_start   enters an epoch in its middle, where the run is
    FitLoop.run                ends the run after the last step
    EpochLoop.reset            keeps the counts with which an epoch is entered
    EpochLoop.advance          a step begins: the state of the Trainer becomes part of the run's
    Optimization.run           nothing for all but the last micro-batch of a step: then all of it

What comes between two steps, such as callbacks, validation and files, every worker does alike. A
worker that replaces another one runs the script from its start, and enters the loops at the newest
step.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch.loops.fit_loop import RestartStage, _FitLoop
from lightning.pytorch.loops.optimization.automatic import _AutomaticOptimization
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop

from holdfast.integrations.lightning.live import Live


def replace(trainer: Any) -> None:
    """Replace the loops of a Trainer that has not begun."""
    library = trainer.fit_loop
    loop = FitLoop(trainer, library.min_epochs, library.max_epochs)
    steps = library.epoch_loop
    loop.epoch_loop = EpochLoop(trainer, steps.min_steps, steps.max_steps)
    loop.epoch_loop.automatic_optimization = Optimization(trainer)
    trainer.fit_loop = loop


class FitLoop(_FitLoop):  # type: ignore[misc]  # it has no types here
    """Loop over the epochs."""

    def run(self) -> None:
        """Run the epochs, and end the run."""
        super().run()
        _live(self).finish()

    def on_advance_start(self) -> None:
        """Begin an epoch, unless it is entered in its middle."""
        if _live(self).is_entering:
            self._restart_stage = RestartStage.RESTARTED_MID_EPOCH
        super().on_advance_start()


class EpochLoop(_TrainingEpochLoop):  # type: ignore[misc]
    """Loop over the micro-batches of an epoch."""

    def reset(self) -> None:
        """Begin to count, unless an epoch is entered with the counts of the run."""
        if not _live(self).is_entering:
            super().reset()

    def advance(self, data_fetcher: Any) -> None:
        """Run a micro-batch; with the first one of a step, the step begins."""
        if self.batch_progress.current.ready % self.trainer.accumulate_grad_batches == 0:
            _live(self).begin_step()
        super().advance(data_fetcher)


class Optimization(_AutomaticOptimization):  # type: ignore[misc]
    """The part of a micro-batch that trains."""

    def run(self, _optimizer: Any, batch_idx: int, _kwargs: Any) -> dict[str, Any]:
        """Train a step with its last micro-batch; returns its loss, else nothing."""
        progress = self.optim_progress.optimizer
        if batch_idx % self.trainer.accumulate_grad_batches == 0:
            progress.zero_grad.increment_by(1)
        if self.trainer.fit_loop._should_accumulate():
            return {}
        progress.step.increment_ready()
        loss = _live(self).advance(batch_idx)
        progress.step.increment_completed()
        return {"loss": loss}


def _live(loop: Any) -> Live:
    live: Live = loop.trainer.live
    return live
