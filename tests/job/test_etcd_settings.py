"""The job key that names a cluster of etcd."""

import pytest

from holdfast.errors import JobError
from holdfast.job import load

KEYS = {"data": {"name": "digits"}, "workers": 2, "hosts": 2}


def test_a_list_of_endpoints_is_enough():
    endpoints = ["https://10.0.0.9:2379", "http://127.0.0.1:2379", "http://[::1]:2379"]
    job = load.check({**KEYS, "etcd": endpoints}, where="test")
    assert job.etcd.endpoints == tuple(endpoints)
    assert load.check(KEYS, where="test").etcd is None


@pytest.mark.parametrize(
    ("etcd", "reason"),
    [
        (["http://10.0.0.9:2379"], "is not encrypted, and the journal has the keys of the run"),
        (["http://etcd:2379"], "have etcd serve https, and name that"),
        (["10.0.0.9:2379"], "10.0.0.9:2379 is no endpoint of etcd; give one such as https://"),
        (["https://10.0.0.9"], "is no endpoint of etcd"),
        (["https://10.0.0.9:2379/v3"], "is no endpoint of etcd"),
        (["https://me:secret@10.0.0.9:2379"], "without a user"),
        ([], "at least 1 item"),
        ({"endpoints": ["https://a:1"], "key": "etcd.key"}, "set etcd.certificate"),
    ],
)
def test_what_would_show_the_keys_or_reach_nothing_is_refused_in_a_line(etcd, reason):
    with pytest.raises(JobError) as error:
        load.check({**KEYS, "etcd": etcd}, where="test")
    assert reason in str(error.value)
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)
