"""The best evaluation of a run: which one it was, and when to stop waiting for a better one."""

from __future__ import annotations

import math
from collections.abc import Mapping

from holdfast.checkpoint.manifest import Best
from holdfast.errors import JobError
from holdfast.job.settings import Evaluation


def best_after(best: Best, wish: Evaluation, step: int, results: Mapping[str, float]) -> Best:
    """The best evaluation once `results`, measured after `step` steps, are known.

    Raises:
        JobError: The metric that the job watches is not among them.
    """
    if wish.best is None:
        return best
    if wish.best not in results:
        raise JobError(
            f"evaluation.best={wish.best} is not measured; the evaluation gives "
            f"{', '.join(sorted(results))}"
        )
    value = results[wish.best]
    sign = 1 if wish.goal == "max" else -1
    if sign * value > (-math.inf if best.value is None else sign * best.value):  # NaN never is
        return Best(value=value, step=step)
    return best.model_copy(update={"since": best.since + 1})


def should_stop_early(best: Best, wish: Evaluation) -> bool:
    """Whether a better value has not come for as long as the job is ready to wait."""
    return wish.patience is not None and best.since >= wish.patience
