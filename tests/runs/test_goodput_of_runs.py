"""The time that known faults cost goes to the right causes."""

from collections import defaultdict
from itertools import pairwise
from statistics import median

import pytest

from conftest import TASKS, sampled
from holdfast.record.goodput import Cause
from holdfast.record.run_record import RunRecord

pytestmark = pytest.mark.slow

RECOVERY = (
    Cause.DETECTION, Cause.NEW_GENERATION, Cause.STATE_TRANSFER, Cause.RECOMPUTED,
)  # fmt: skip
DELAYS = {
    "checkpoint": Cause.CHECKPOINT, "data": Cause.DATA, "compute": Cause.IMBALANCE,
}  # fmt: skip
EVERY_STEPS = 5
FEW = ("kill", "checkpoint", "kill")
MANY = (
    "kill", "data", "kill", "checkpoint", "raise", "kill", "compute", "stop", "kill", "checkpoint",
    "kill", "data", "raise", "kill", "stop", "checkpoint", "kill", "data", "kill", "compute",
)  # fmt: skip


def faults_of(kinds):
    """Faults of these kinds, far enough apart; a checkpoint is delayed where there is one."""
    for number, kind in enumerate(kinds):
        step = (2 + 2 * number) * EVERY_STEPS + 2 * (kind != "checkpoint")
        yield {"kind": kind, "rank": number % 2, "step": step, "seconds": 0.5}


@pytest.mark.parametrize(("kinds", "share"), sampled([(FEW, 0.9), (MANY, 0.95)], 0))
def test_lost_time_goes_to_the_right_causes(train, tmp_path, kinds, share):
    faults = list(faults_of(kinds))
    (tmp_path / "marks").mkdir()
    train(
        run_dir=tmp_path / "run",
        task=f"{TASKS.parent / 'goodput_tasks.py'}:main",
        params={
            "faults": faults, "marks": str(tmp_path / "marks"), "pace_s": 0.02,
            "steps": faults[-1]["step"] + 20,
        },
        batch=18, shards=4, workers=2, hang_timeout_s=1.0, restarts={"limit": 100},
        checkpoint={"every_steps": EVERY_STEPS},
    )  # fmt: skip
    assert len(list((tmp_path / "marks").iterdir())) == len(faults)
    record = RunRecord(tmp_path / "run")
    at, losses = record.steps.columns["at"], record.steps.losses
    gaps = [now - before for before, now in pairwise(at)]
    usual = median(gaps)
    lost, found = defaultdict(float), defaultdict(float)
    for fault in faults:  # in the step after
        kind, row = fault["kind"], fault["step"]
        lost[kind] += gaps[row - 1] - usual
        if kind in DELAYS:
            assert gaps[row - 1] >= fault["seconds"]
            found[kind] += losses[DELAYS[kind]][row]
    goodput = record.goodput()
    recovered = sum(goodput.seconds[cause] for cause in RECOVERY)
    failed = sum(seconds for kind, seconds in lost.items() if kind not in DELAYS)
    right = min(recovered, failed) + sum(min(found[kind], lost[kind]) for kind in DELAYS)
    assert right >= share * sum(lost.values()), (lost, found, goodput)
    whole = record.events[-1]["time_unix_s"] - record.events[0]["time_unix_s"]
    assert sum(goodput.seconds.values()) == pytest.approx(whole)
