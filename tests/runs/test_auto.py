"""Numbers that a run finds by itself: `shards: auto`."""

import pytest

from conftest import SMALL, watching
from holdfast.engines.run import LaunchOptions
from holdfast.engines.supervisor import Controls
from holdfast.engines.train import run_job
from holdfast.errors import JobError
from holdfast.job import load

pytestmark = pytest.mark.slow


@pytest.fixture
def train(forks, tmp_path):
    """Train from a request: `train(name, resume, stop_at, key=value, …) -> result`."""

    def run(name, *, resume=False, stop_at=None, **keys):
        request = load.request({**SMALL, "shards": "auto", **keys}, where="test")
        controls, path = Controls(), tmp_path / name

        def watch(step):
            controls.stop |= stop_at is not None and step >= stop_at

        with watching(path, watch):
            options = LaunchOptions(forks=forks, controls=controls)
            return run_job(request, options, run_dir=path, resume=resume)

    return run


def test_a_run_keeps_the_shards_of_its_first_start(train, tmp_path):
    reference = train("reference", workers=2, epochs=4)
    assert load.of_run(reference.run_dir).shards == 2
    stopped = train("run", workers=2, epochs=4, stop_at=1)
    assert stopped.status == "stopped"
    with pytest.raises(JobError, match="at most 2 workers, or start a new run with max_workers=3"):
        train("run", workers=3, epochs=4, resume=True)
    resumed = train("run", workers=1, epochs=4, resume=True)
    assert resumed.weights_sha256 == reference.weights_sha256
    assert load.of_run(resumed.run_dir).shards == 2
