"""Rendered manifests are what Kubernetes accepts in every version, and have no privileges."""

import re

import kubernetes_validate
import pytest
from rendering import built, documents, pods_of, rendered, write_all

from conftest import sampled

VERSIONS = ("1.29.0", "1.31.0", "1.34.0", "1.37.0")
OVERLAYS = sorted({path.split("/")[1] for path in rendered() if path.startswith("overlays/")})
FOLDERS = [*(f"overlays/{name}" for name in OVERLAYS), "idle", "rayjob", "trainjob", "monitoring"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A rendered tree in a folder."""
    return write_all(rendered(), tmp_path_factory.mktemp("rendered"))


@pytest.fixture(scope="module", params=FOLDERS)
def objects(request, tree):
    """The objects of a folder that users apply."""
    return built(tree / request.param)


@pytest.fixture(scope="module")
def distinct(tree):
    """The objects of all folders, each once; of custom resources the pods and Jobs in them."""
    found = []
    for folder in FOLDERS:
        for each in built(tree / folder):
            is_custom = each["apiVersion"].split("/")[0] in ("ray.io", "trainer.kubeflow.org")
            parts = parts_of(each) if is_custom else [each]
            found += [part for part in parts if part not in found]
    return found


def parts_of(custom):
    """The objects of Kubernetes that an operator makes of a custom resource."""
    metadata = {"name": "part"}
    for job in custom["spec"].get("template", {}).get("spec", {}).get("replicatedJobs", ()):
        spec = job["template"]["spec"]
        yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
    for pod in pods_of(custom):
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod}


@pytest.mark.slow
@pytest.mark.parametrize("version", sampled(VERSIONS, 0, len(VERSIONS) - 1))
def test_objects_are_valid(distinct, version):
    for found in distinct:
        kubernetes_validate.validate(found, version, strict=True)


@pytest.mark.slow
def test_a_misspelt_field_is_found(distinct):
    """The check can fail."""
    job = next(found for found in distinct if found["kind"] == "Job")
    wrong = job | {"spec": {**job["spec"], "completion": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


@pytest.mark.slow
def test_pods_have_no_privileges(objects):
    pods = list(pods_of(objects))
    assert pods
    for pod in pods:
        of_pod = pod["securityContext"]
        assert of_pod["runAsNonRoot"] is True
        assert of_pod["runAsUser"] > 0
        assert of_pod["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert not any("hostPath" in volume for volume in pod["volumes"])
        for container in containers_of(pod):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["readOnlyRootFilesystem"] is True
            assert "privileged" not in context
            assert not any("hostPort" in port for port in container.get("ports", ()))


@pytest.mark.slow
def test_containers_have_limits_and_a_fixed_image(objects):
    for pod in pods_of(objects):
        assert pod["terminationGracePeriodSeconds"] > 0
        for container in containers_of(pod):
            resources = container["resources"]
            assert {"cpu", "memory"} <= set(resources["limits"])
            assert resources["requests"] == resources["limits"]
            name, _, digest = container["image"].partition("@")
            tag = name.rpartition("/")[2].partition(":")[2]
            assert digest or tag not in ("", "latest")


@pytest.mark.slow
def test_no_secret_is_in_plain(objects):
    """A Secret is filled by what knows its content; variables with secrets only name one."""
    for found in objects:
        if found["kind"] == "Secret":
            assert not {"data", "stringData"} & set(found)
    for pod in pods_of(objects):
        for container in containers_of(pod):
            for variable in container["env"]:
                secret = re.search(
                    "token|secret|password|key|webhook", variable["name"], re.IGNORECASE
                )
                is_file = variable["name"].endswith("__FILE")
                assert not (secret and "value" in variable and not is_file), variable


@pytest.mark.slow
def test_the_namespace_refuses_what_is_not_restricted_and_limits_what_is_used(objects):
    kinds = {found["kind"]: found for found in objects}
    if "Deployment" not in kinds:  # those of monitoring are fixed
        assert {"ResourceQuota", "LimitRange", "NetworkPolicy"} <= set(kinds)
        assert "PodDisruptionBudget" in kinds or "RayJob" in kinds  # KubeRay's pods are of no Job
    modes = kinds["Namespace"]["metadata"]["labels"]
    assert modes["pod-security.kubernetes.io/enforce"] == "restricted"


FILL_ONE = {
    "apiGroups": [""],
    "resources": ["secrets"],
    "resourceNames": ["digits-join"],
    "verbs": ["patch"],
}
FIND_PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}


@pytest.mark.slow
def test_rights_are_to_fill_one_secret_and_for_prometheus_to_find_pods(objects):
    assert not any(found["kind"].startswith("ClusterRole") for found in objects)
    kinds = {found["kind"] for found in objects}
    is_bare = bool(kinds & {"RayJob", "Deployment"})
    needed = FIND_PODS if "DaemonSet" in kinds else None if is_bare else FILL_ONE
    given = [rule for found in objects if found["kind"] == "Role" for rule in found["rules"]]
    assert all(rule == needed for rule in given)
    assert bool(given) == (needed is not None)


@pytest.mark.slow
def test_what_is_named_exists(objects):
    """What a pod names is rendered, but passwords and tokens, and mounts have a volume."""
    names = {(found["kind"], found["metadata"]["name"]) for found in objects}
    names |= {("Secret", name) for name in ("grafana", "metrics", "digits-metrics")}
    for pod in pods_of(objects):
        assert ("ServiceAccount", pod["serviceAccountName"]) in names
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for container in containers_of(pod):
            assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes)
        for volume in volumes.values():
            if "configMap" in volume and not volume["configMap"].get("optional"):
                assert ("ConfigMap", volume["configMap"]["name"]) in names
            if "secret" in volume:
                assert ("Secret", volume["secret"]["secretName"]) in names
            if "persistentVolumeClaim" in volume:
                claim = volume["persistentVolumeClaim"]["claimName"]
                assert ("PersistentVolumeClaim", claim) in names


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpu", "gke", "eks", "aks"])
def test_pods_with_gpus_see_their_own_and_others_none(tree, name):
    for pod in pods_of(built(tree / "overlays" / name)):
        trains = pod["serviceAccountName"] == "digits-agent"
        for container in containers_of(pod):
            variables = {each["name"]: each.get("value") for each in container["env"]}
            gpus = container["resources"]["limits"].get("nvidia.com/gpu")
            if trains:
                assert gpus == "2"
                assert "NVIDIA_VISIBLE_DEVICES" not in variables  # the device plugin decides
            else:
                assert (gpus, variables["NVIDIA_VISIBLE_DEVICES"]) == (None, "void")
        assert (pod["nodeSelector"].get("holdfast/pool") == "gpu") is trains
        assert ("nvidia.com/gpu" in {each["key"] for each in pod["tolerations"]}) is trains


@pytest.mark.slow
@pytest.mark.parametrize("name", ["spot", "gke", "eks", "aks"])
def test_only_agents_run_on_spot_nodes(tree, name):
    objects = built(tree / "overlays" / name)
    on_spot = {
        each["metadata"]["name"]: "holdfast/spot" in pod["nodeSelector"]
        and "holdfast/spot" in {each["key"] for each in pod["tolerations"]}
        for each in objects
        for pod in pods_of(each)
    }
    assert on_spot == {"digits-agents": True, "digits-coordinator": False}


@pytest.mark.slow
def test_a_shared_volume_is_added_to_all_pods_by_an_overlay_of_the_user(tree):
    mine = tree / "overlays" / "mine"
    mine.mkdir()
    (mine / "kustomization.yaml").write_text(
        "resources: [../cpu]\ncomponents: [../../components/rwx]\n"
    )
    objects = built(mine)
    for found in objects:
        kubernetes_validate.validate(found, VERSIONS[0], strict=True)
    pods = list(pods_of(objects))
    assert len(pods) == 2
    for pod in pods:
        assert pod["containers"][0]["volumeMounts"][0] == {"name": "data", "mountPath": "/data"}
    claims = {each["metadata"]["name"]: each["spec"] for each in objects if "Claim" in each["kind"]}
    assert claims["digits-data"]["accessModes"] == ["ReadWriteMany"]


def test_a_variable_with_a_secret_names_the_secret():
    tree = rendered("notify=[TEAM_WEBHOOK]")
    (pod,) = pods_of(documents(tree)["base/coordinator.yaml"])
    assert pod["containers"][0]["env"][-1] == {
        "name": "TEAM_WEBHOOK",
        "valueFrom": {"secretKeyRef": {"name": "digits-variables", "key": "TEAM_WEBHOOK"}},
    }


@pytest.mark.parametrize(
    ("key", "variable"),
    [("trackers=[wandb]", "WANDB_API_KEY"), ("backup=s3://bucket/runs", "AWS_ENDPOINT_URL")],
)
def test_credentials_of_trackers_and_of_the_backup_may_be_in_the_secret(key, variable):
    (pod,) = pods_of(documents(rendered(key))["base/coordinator.yaml"])
    entry = {"name": "digits-variables", "key": variable, "optional": True}
    assert pod["containers"][0]["env"][-1]["valueFrom"]["secretKeyRef"] == entry


def containers_of(pod):
    return [*pod.get("initContainers", ()), *pod["containers"]]
