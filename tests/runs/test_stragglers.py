"""A worker that is much slower leaves for standby and returns, and the weights do not show it."""

import pytest

from conftest import TASKS, events_of

pytestmark = pytest.mark.slow

TASK = f"{TASKS.parent / 'straggler_tasks.py'}:main"


def keys_of(tmp_path, *, slow, cured_at, epochs):
    params = {"slow": slow, "cured_at": cured_at, "epochs": epochs}
    params["cured"] = str(tmp_path / "cured")
    return {"task": TASK, "batch": 64, "shards": 16, "workers": 4, "params": params}


@pytest.fixture(scope="module")
def undisturbed():
    return {}


def test_a_straggler_is_evicted_and_back_within_10_steps_of_its_cure(train, tmp_path):
    keys = keys_of(tmp_path, slow=1, cured_at=40, epochs=20)
    run = train(**keys, balance="dynamic", run_dir=tmp_path / "run")

    (evicted,) = events_of(tmp_path / "run", "worker-evicted")
    (returned,) = events_of(tmp_path / "run", "worker-returned")
    assert (evicted["rank"], returned["rank"]) == (1, 1)
    assert evicted["step"] < 40
    assert returned["step"] - 40 <= 10
    assert run["weights_sha256"]
