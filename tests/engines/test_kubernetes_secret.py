"""A pod fills a Secret, and says what stops it."""

import pytest

from holdfast.clusters.engines.kubernetes import secret
from holdfast.errors import EngineError, JobError
from kubernetes_api import kubernetes_api


@pytest.fixture
def account(tmp_path):
    """The folder of a ServiceAccount."""
    return tmp_path


@pytest.fixture
def api(account):
    """A server with one Secret that is empty."""
    with kubernetes_api(account, {("ns", "join"): {}}) as server:
        yield server


def test_a_key_of_a_secret_is_set_and_others_stay(api, account):
    api.secrets["ns", "join"]["other"] = b"stays"
    for value in (b"first", b"second"):
        secret.put("join", "join.token", value, api.environment, account)
        assert api.secrets == {("ns", "join"): {"join.token": value, "other": b"stays"}}


def test_a_secret_that_does_not_exist_is_named(api, account):
    with pytest.raises(EngineError, match='ns/absent: 404 secrets "absent" not found; check'):
        secret.put("absent", "key", b"value", api.environment, account)


def test_a_token_that_is_refused_is_not_repeated(api, account):
    (account / "token").write_text("of-someone-else")
    with pytest.raises(EngineError, match="401 Unauthorized") as refused:
        secret.put("join", "key", b"value", api.environment, account)
    assert "of-someone-else" not in str(refused.value)


def test_a_server_with_another_certificate_gets_nothing(api, account, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    with kubernetes_api(other, {}) as stranger, pytest.raises(EngineError, match="CERTIFICATE"):
        secret.put("join", "key", b"value", stranger.environment, account)


def test_outside_of_a_pod_there_is_no_secret_to_fill(account):
    with pytest.raises(JobError, match="this is no pod with a ServiceAccount"):
        secret.put("join", "key", b"value", {}, account)
