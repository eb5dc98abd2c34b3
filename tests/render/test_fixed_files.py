"""The files that are the same for all jobs fit the objects that are made for a job."""

import yaml
from rendering import rendered

from holdfast.clusters.render.kustomize import GPU_TAINT, MONITORING, POOL, toleration
from holdfast.clusters.render.pods import METRICS_PORT, OF_CONTAINER


def parts(name):
    return list(yaml.safe_load_all(rendered()[f"monitoring/{name}"]))


def test_the_exporter_runs_where_agents_have_gpus():
    spec = parts("dcgm-exporter.yaml")[-1]["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == POOL
    assert [each["key"] for each in spec["tolerations"]] == [GPU_TAINT]
    assert spec["containers"][0]["securityContext"] == OF_CONTAINER


def patches(component):
    """The patches of a component: of the agents' Job, and of its lists."""
    found = yaml.safe_load(rendered()[f"components/{component}/kustomization.yaml"])["patches"]
    return [yaml.safe_load(each["patch"]) for each in found]


def test_a_component_puts_agents_where_the_others_with_gpus_are():
    job, (taint,) = patches("gpu")
    assert job["spec"]["template"]["spec"]["nodeSelector"] == POOL
    assert taint["value"] == toleration(GPU_TAINT)


def test_prometheus_may_reach_the_metrics_of_runs():
    policies = {each["metadata"]["name"]: each for each in parts("network.yaml")}
    assert {each["metadata"]["namespace"] for each in policies.values()} == {MONITORING}
    to_run = policies["prometheus"]["spec"]["egress"][-1]
    assert [each["port"] for each in to_run["ports"]] == [METRICS_PORT]


def test_node_pools_have_the_labels_and_taints_of_agents():
    (pool,) = POOL.items()
    (spot,) = patches("spot")[0]["spec"]["template"]["spec"]["nodeSelector"].items()
    for cloud in ("gke", "eks", "aks"):
        script = rendered()[f"overlays/{cloud}/node-pools.sh"]
        assert "=".join(pool) in script
        assert "=".join(spot) in script
        assert GPU_TAINT in script
