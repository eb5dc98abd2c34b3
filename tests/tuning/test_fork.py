"""Runs in segments, and runs that begin with another one's checkpoint."""

import pytest

from holdfast import train
from holdfast.checkpoint.manifest import FORKED
from holdfast.checkpoint.names import checkpoint_name
from holdfast.checkpoint.store import CheckpointStore
from holdfast.errors import JobError
from holdfast.job import load
from holdfast.tuning.fork import fork, may_differ

pytestmark = pytest.mark.slow

KEYS = {
    "epochs": 3,
    "workers": 1,
    "model.width": 2,
    "batch": 256,
    "optimizer": {"name": "adamw", "lr": 0.01, "weight_decay": 0.1},
}
STEPS = 6
"""Of an epoch."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return train("digits", KEYS, run_dir=tmp_path_factory.mktemp("run") / "undisturbed")


@pytest.fixture(scope="module")
def donor(tmp_path_factory):
    """A run that has ended early after its first epoch."""
    path = tmp_path_factory.mktemp("run") / "donor"
    result = train("digits", {**KEYS, "stop_after_epochs": 1}, run_dir=path)
    assert (result.status, result.steps) == ("finished", STEPS)
    return result


def forked(donor, path, **keys):
    """The result of a fork of `donor` with other keys."""
    values = {**KEYS, **{key.replace("__", "."): value for key, value in keys.items()}}
    job = load.load("digits", values=values).resolved()
    fork(donor.run_dir, STEPS, path, job)
    return train("digits", values, run_dir=path)


@pytest.mark.full
def test_segments_give_the_weights_of_one_run(undisturbed, tmp_path):
    for epochs in (1, 2):
        values = {**KEYS, "stop_after_epochs": epochs}
        result = train("digits", values, run_dir=tmp_path / "run", resume=epochs > 1)
        assert result.steps == epochs * STEPS
    result = train("digits", KEYS, run_dir=tmp_path / "run", resume=True)
    assert result.weights_sha256 == undisturbed.weights_sha256


def test_a_fork_without_a_difference_has_the_same_weights(undisturbed, donor, tmp_path):
    result = forked(donor, tmp_path / "fork")
    assert (result.steps, result.weights_sha256) == (3 * STEPS, undisturbed.weights_sha256)


def test_a_fork_begins_with_the_donors_state_and_its_own_options(undisturbed, donor, tmp_path):
    lower = forked(donor, tmp_path / "lower", optimizer__lr=0.005)
    plainer = forked(donor, tmp_path / "plainer", optimizer__weight_decay=0.0)
    hashes = {each.weights_sha256 for each in (lower, plainer, undisturbed)}
    assert len(hashes) == 3
    rates = [undisturbed.history["lr"][STEPS:], lower.history["lr"]]
    assert lower.history["step"][0] == STEPS + 1
    assert rates[1] == pytest.approx([rate / 2 for rate in rates[0]])


@pytest.mark.full
def test_a_forks_first_checkpoint_is_the_donors(donor, tmp_path):
    job = load.load("digits", values={**KEYS, "optimizer.lr": 0.02}).resolved()
    fork(donor.run_dir, STEPS, tmp_path / "fork", job)
    name = checkpoint_name(STEPS)
    of_donor = CheckpointStore.of_run(donor.run_dir).manifest(name)
    own = CheckpointStore.of_run(tmp_path / "fork").manifest(name)
    assert own.root == of_donor.root
    assert (own.parent.name, own.parent.root) == (name, of_donor.root)
    assert own.user_state[FORKED]
    train("digits", {**KEYS, "optimizer.lr": 0.02}, run_dir=tmp_path / "fork")
    (newest, *_) = CheckpointStore.of_run(tmp_path / "fork").committed()
    assert FORKED not in CheckpointStore.of_run(tmp_path / "fork").manifest(newest).user_state


def test_what_changes_shapes_or_order_is_refused(donor, tmp_path):
    for keys in ({"batch": 128}, {"model.width": 4}, {"seed": 1}):
        job = load.load("digits", values={**KEYS, **keys}).resolved()
        with pytest.raises(JobError, match="cannot have another"):
            fork(donor.run_dir, STEPS, tmp_path / "fork", job)
    allowed = ("optimizer.lr", "schedule.warmup_steps", "params.x", "clip_norm", "model.dropout")
    assert all(map(may_differ, allowed))
    assert not any(map(may_differ, ("optimizer.name", "model.width", "batch", "epochs")))
