"""Runs without an agent on the coordinator's host: it has their checkpoints all the same."""

import shutil
from contextlib import closing
from socket import gethostname

import pytest
import torch

from conftest import events_of, own_loopback_address
from holdfast.api.attended import Attendance
from holdfast.api.train import run_job
from holdfast.checkpoint.store import CheckpointStore
from holdfast.errors import HoldfastError
from holdfast.job import load
from holdfast.runs.hosts.endpoint import Endpoint
from holdfast.runs.hosts.placement import Placement
from holdfast.runs.run import LaunchOptions
from keys import encryption_key, signing_key
from process_engine import ProcessEngine

pytestmark = pytest.mark.slow

KEYS = {"workers": 2, "shards": 4, "epochs": 4, "checkpoint": {"every_steps": 5, "keep": 2}}


STEPS = 92


@pytest.fixture
def placed(tmp_path):
    """Run the job on two hosts of an engine: `placed(on_event, resume, key=value, …) -> Result`.

    `on_event` is called with each event and the engine.
    """

    def run(on_event=lambda event, engine: None, *, resume=False, **keys):
        with closing(ProcessEngine(tmp_path / "cluster")) as engine:
            endpoint = Endpoint(address=own_loopback_address(), port=50051)
            job = load.load("digits", values={**KEYS, "hosts": 2, **keys})
            return run_job(
                job,
                run_dir=tmp_path / "run",
                resume=resume,
                placement=Placement(engine=engine, endpoint=endpoint),
                attendance=Attendance(on_event=lambda event: on_event(event, engine)),
            )

    return run


@pytest.fixture(scope="module")
def alone(forks, tmp_path_factory):
    """The result of the job on one host."""
    path, job = tmp_path_factory.mktemp("alone") / "run", load.load("digits", values=KEYS)
    return run_job(job, LaunchOptions(forks=forks), run_dir=path, resume=False)


def sealed(folder):
    """Keys of a job whose checkpoints are signed and encrypted."""
    files = {"sign": signing_key(folder / "sign"), "encrypt": encryption_key(folder / "encrypt")}
    return {"checkpoint": {**KEYS["checkpoint"], **{key: str(path) for key, path in files.items()}}}


@pytest.mark.soak
def test_a_host_without_the_key_does_not_begin(placed, tmp_path):
    absent = tmp_path / "absent.key"  # this host needs none, as it has no agent
    with pytest.raises(HoldfastError, match="agents end as soon as"):
        placed(checkpoint={"encrypt": str(absent)})
    refusal = f"checkpoint.encrypt: {absent} cannot be read on host {gethostname()}: No such"
    printed = [log.read_text() for log in (tmp_path / "cluster").glob("*/*.log")]
    assert any(refusal in text for text in printed)  # other engines show the end of it


def collected(tmp_path):
    return [event["step"] for event in events_of(tmp_path / "run", "checkpoint-collected")]


@pytest.mark.soak
@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_run_is_resumed_from_the_coordinators_host_when_no_other_disk_is_left(
    placed, alone, tmp_path, is_sealed
):
    keys = sealed(tmp_path) if is_sealed else {}

    def stop(event, engine):
        if event.kind == "step" and event.step == 30:
            event.stop()

    stopped = placed(stop, **keys)
    assert stopped.status == "stopped"
    store = CheckpointStore.of_run(tmp_path / "run")
    assert store.newest().step == stopped.steps < STEPS
    assert collected(tmp_path) == sorted(set(collected(tmp_path))), "each is sent by one host"
    shutil.rmtree(tmp_path / "cluster")
    result = placed(resume=True, **keys)
    fetched = events_of(tmp_path / "run", "checkpoint-fetched")
    assert [event["step"] for event in fetched] == [stopped.steps] * 2
    begun = [event["step"] for event in events_of(tmp_path / "run", "generation-started")]
    assert begun[-1] == stopped.steps
    assert result.weights_sha256 == alone.weights_sha256
    assert_same_weights(result, alone)
    assert result.checkpoint == tmp_path / "run" / "checkpoints" / f"step-{STEPS:08d}"
    assert not events_of(tmp_path / "run", "checkpoint-not-collected")


def assert_same_weights(result, other):
    weights = other.state_dict()
    assert result.state_dict().keys() == weights.keys()
    assert all(torch.equal(value, weights[name]) for name, value in result.state_dict().items())


@pytest.mark.soak
def test_a_run_that_has_lost_all_hosts_with_their_disks_continues(placed, alone, tmp_path):
    lost = []

    def lose(event, engine):
        if event.kind == "checkpoint-collected" and event.step >= 30 and not lost:
            lost.append(event.step)
            engine.lose_all()

    result = placed(lose)
    assert result.weights_sha256 == alone.weights_sha256
    begun = [event["step"] for event in events_of(tmp_path / "run", "generation-started")]
    assert begun[-1] >= lost[0]
