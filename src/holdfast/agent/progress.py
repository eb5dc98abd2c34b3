"""Progress: how far this host's workers have come, read from the arena without disturbing them."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

from holdfast.arena.memory import Arena, Phase, Word
from holdfast.arena.worker_status import WorkerStatus
from holdfast.core.protocol import WorkerProgress


def progress_of(arena: Arena, ranks: Iterable[int]) -> dict[int, WorkerProgress]:
    """The progress of workers, by rank."""
    return {rank: _progress_of(WorkerStatus(arena, rank)) for rank in ranks}


def _progress_of(worker: WorkerStatus) -> WorkerProgress:
    step = worker[Word.COMMITTED]
    loss = worker.loss
    return WorkerProgress(
        step=step,
        total_steps=worker[Word.TOTAL_STEPS],
        epoch=worker[Word.EPOCH],
        epochs=worker[Word.EPOCHS],
        loss=loss if step and isfinite(loss) else None,
        samples=worker[Word.SAMPLES],
        phase=Phase(worker[Word.PHASE]).name.lower(),
        phase_seconds={
            phase.name.lower(): round(seconds, 3)
            for phase, seconds in worker.times().items()
            if seconds
        },
    )
