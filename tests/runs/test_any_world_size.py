"""A checkpoint that any number of workers have saved is continued by any other number of them."""

import itertools

import pytest

from conftest import back_to, sampled
from holdfast.checkpoint.store import CheckpointStore

pytestmark = pytest.mark.slow

SAVING = {"checkpoint": {"every_steps": 4, "keep": 9, "busy": "wait"}}
WORLDS = list(itertools.product(range(1, 5), repeat=2))


def roots_of(run):
    store = CheckpointStore.of_run(run)
    return {name: store.manifest(name).root for name in store.committed()}


@pytest.mark.parametrize(("before", "after"), sampled(WORLDS, WORLDS.index((2, 3))))
def test_other_workers_continue_with_the_same_tensors_and_samples(
    train, command_line, tmp_path, before, after
):
    run = tmp_path / "run"
    whole = train(run_dir=run, workers=before, **SAVING)
    roots = roots_of(run)
    assert len(roots) == 3
    back_to(run, 4)
    resumed = train(run_dir=run, workers=after, resume=True, **SAVING)
    assert resumed["weights_sha256"] == whole["weights_sha256"]
    assert roots_of(run) == roots
    status, report, _ = command_line("audit", str(run))
    assert status == 0, report
