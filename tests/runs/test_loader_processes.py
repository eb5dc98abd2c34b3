"""Loader processes: what they read is the same, and none of them is left behind."""

from pathlib import Path

import pytest

from conftest import FAILING_TASKS, TASKS, back_to, events_of, sampled, wait_until
from holdfast.errors import HoldfastError, JobError, WorkerFailed
from holdfast.runs.controls import Controls

pytestmark = pytest.mark.slow


@pytest.fixture
def pids(tmp_path):
    """A directory in which all loader processes that read leave their numbers."""
    path = tmp_path / "pids"
    path.mkdir()
    yield path
    # The kernel may take a moment to carry out a death.
    wait_until(lambda: not any(is_alive(file.name) for file in path.iterdir()))


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def own(pids, loaders, **params):
    return {
        "task": f"{TASKS}:augmented",
        "params": {"pids": str(pids), **params},
        "batch": 20,
        "shards": 5,
        "loader": {"workers": loaders},
    }


@pytest.mark.soak
@pytest.mark.parametrize("threads", sampled([1, 2], 1))
def test_the_weights_are_the_same_for_any_number_of_loader_processes(train, pids, threads):
    whole = train(threads_per_worker=threads, **own(pids, 0))["weights_sha256"]
    assert not list(pids.iterdir())
    for workers, loaders in [(1, 1), (1, 3), (2, 2)]:
        before = len(list(pids.iterdir()))
        keys = {"workers": workers, "threads_per_worker": threads, **own(pids, loaders)}
        assert train(**keys)["weights_sha256"] == whole
        assert 1 <= len(list(pids.iterdir())) - before <= workers * loaders


def test_a_run_may_be_resumed_with_other_loader_processes(train, pids, tmp_path):
    run_dir, saving = tmp_path / "run", {"checkpoint": {"every_steps": 2, "keep": 9}}
    whole = train(run_dir=run_dir, **own(pids, 0), **saving)["weights_sha256"]
    back_to(run_dir, 2)
    resumed = train(run_dir=run_dir, resume=True, workers=2, **own(pids, 2), **saving)
    assert resumed["weights_sha256"] == whole


def test_the_death_of_a_worker_ends_its_loader_processes(train, pids):
    with pytest.raises(WorkerFailed, match="was killed by SIGKILL"):
        train(**own(pids, 3, die_at=2))
    assert list(pids.iterdir())


def test_the_death_of_a_loader_process_ends_the_run_in_one_line(train, pids):
    with pytest.raises(HoldfastError, match="a loader process that reads Augmented died") as caught:
        train(workers=2, **own(pids, 2, trouble="die"))
    assert type(caught.value) is HoldfastError
    assert len(str(caught.value).splitlines()) == 1


def test_an_error_of_the_data_set_is_reported_with_its_traceback_once(train, pids):
    message = r"rank 0 raised DataError: reading Augmented failed with ValueError: sample 50 is odd"
    with pytest.raises(WorkerFailed, match=f"^{message}") as caught:
        train(**own(pids, 2, trouble="raise"))
    assert caught.value.__cause__.text.count("Traceback") == 1
    assert 'raise ValueError("sample 50 is odd")' in caught.value.__cause__.text


def test_an_abort_does_not_wait_for_a_loader_process(train, pids, tmp_path):
    controls = Controls()

    def watch(_):
        controls.abort = (pids / "hanging").exists()

    with pytest.raises(HoldfastError, match="the run was aborted"):
        train(
            run_dir=tmp_path / "run", controls=controls, watch=watch, **own(pids, 1, trouble="hang")
        )
    (started,) = [e for e in events_of(tmp_path / "run") if e["event"] == "worker-started"]
    assert not is_alive(started["pid"])


def test_samples_that_cannot_be_sent_are_refused_in_one_line(train):
    with pytest.raises(JobError, match=r"of Locks cannot be sent .* set loader.workers=0$"):
        train(task=f"{FAILING_TASKS}:locked", loader={"workers": 1})
