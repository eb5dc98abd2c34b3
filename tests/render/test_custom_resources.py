"""Custom resources have the fields that their operators know."""

import pytest
from rendering import documents, pods_of, rendered

from conftest import Library

models = Library("kubeflow_trainer_api.models")

RAYJOB = {
    "entrypoint", "submissionMode", "backoffLimit", "shutdownAfterJobFinishes",
    "ttlSecondsAfterFinished", "submitterPodTemplate", "rayClusterSpec", "activeDeadlineSeconds",
    "clusterSelector", "deletionStrategy", "entrypointNumCpus", "entrypointNumGpus",
    "entrypointResources", "jobId", "managedBy", "metadata", "preRunningDeadlineSeconds",
    "runtimeEnvYAML", "submitterConfig", "suspend",
}  # fmt: skip
CLUSTER = {
    "rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs", "autoscalerOptions",
    "enableInTreeAutoscaling", "gcsFaultToleranceOptions", "headServiceAnnotations", "managedBy",
    "suspend", "upgradeStrategy", "networkPolicy", "tlsOptions",
}  # fmt: skip
HEAD = {
    "rayStartParams", "template", "enableIngress", "headService", "labels", "resources",
    "serviceType",
}  # fmt: skip
WORKERS = {
    "groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template",
    "idleTimeoutSeconds", "labels", "numOfHosts", "resources", "scaleStrategy", "suspend",
}  # fmt: skip
"""The keys of `ray.io/v1` in KubeRay's reference, as there is no schema of it in a package."""

GPUS = ["resources.gpus=1"]


def the(kind, *overrides):
    files = documents(rendered(*overrides))
    (found,) = (each for name in ("rayjob/rayjob.yaml", "trainjob/trainjob.yaml",
                                  "trainjob/runtime.yaml") for each in files[name]
                if each["kind"] == kind)  # fmt: skip
    return found


def test_a_rayjob_has_keys_that_kuberay_knows():
    spec = the("RayJob")["spec"]
    cluster = spec["rayClusterSpec"]
    assert set(spec) <= RAYJOB
    assert set(cluster) <= CLUSTER
    assert set(cluster["headGroupSpec"]) <= HEAD
    for group in cluster["workerGroupSpecs"]:
        assert set(group) <= WORKERS
    for template in (
        spec["submitterPodTemplate"],
        cluster["headGroupSpec"]["template"],
        cluster["workerGroupSpecs"][0]["template"],
    ):
        assert set(template) == {"metadata", "spec"}


def test_a_ray_cluster_has_a_worker_for_each_host_and_a_head_that_trains_nothing():
    cluster = the("RayJob")["spec"]["rayClusterSpec"]
    (group,) = cluster["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (3, 3, 3)
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert cluster["authOptions"] == {"mode": "token"}


@pytest.mark.parametrize("overrides", [[], GPUS])
@pytest.mark.parametrize(
    ("kind", "model"),
    [
        ("TrainJob", "TrainerV1alpha1TrainJob"),
        ("TrainingRuntime", "TrainerV1alpha1TrainingRuntime"),
    ],
)
def test_trainer_reads_all_that_is_written(kind, model, overrides):
    """Its models drop what they do not know."""
    found = the(kind, *overrides)
    assert getattr(models, model).from_dict(found).to_dict() == found
    found["spec"]["unknown"] = 1
    assert getattr(models, model).from_dict(found).to_dict() != found


def test_jobset_reads_all_that_is_written():
    jobset = the("TrainingRuntime")["spec"]["template"]
    jobset |= {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}
    assert models.JobsetV1alpha2JobSet.from_dict(jobset).to_dict() == jobset


def test_agents_of_a_trainjob_join_the_pod_that_jobset_names():
    (pod,) = (
        pod
        for pod in pods_of(the("TrainingRuntime"))
        if "holdfast agent" in str(pod["containers"][0]["command"])
    )
    assert "--join digits-coordinator-0-0.digits:50051 " in pod["containers"][0]["command"][-1]


@pytest.mark.parametrize("kind", ["RayJob", "TrainingRuntime"])
def test_pods_that_train_get_gpus_if_the_job_needs_them(kind):
    def amounts(*overrides):
        return [
            container["resources"]["limits"].get("nvidia.com/gpu")
            for pod in pods_of(the(kind, *overrides))
            if "holdfast/pool" in pod["nodeSelector"]
            for container in pod["containers"]
        ]

    assert amounts() == []
    assert amounts(*GPUS) == ["2"]
