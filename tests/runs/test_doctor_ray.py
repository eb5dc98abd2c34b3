"""`holdfast doctor --on ray`: the checks of several hosts, on three real raylets."""

import json

import pytest
import test_ray

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]
cluster = test_ray.cluster


def test_nodes_of_ray_and_every_pair_of_them_are_checked(cluster, command, monkeypatch, tmp_path):
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    checking = command("doctor", "digits", "hosts=3", "workers=3", "--on", "ray", "--json")
    assert checking.wait(300) == 0, (tmp_path / "output-0").read_text()
    told = json.loads((tmp_path / "output-0").read_text().splitlines()[-1])
    assert {each["host"] for each in told["findings"]} == {"", *cluster.nodes}
    assert told["settings"] == ["holdfast train digits hosts=3 workers=3 --on ray"]
