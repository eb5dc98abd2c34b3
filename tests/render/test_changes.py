"""A changed job changes what it should in the rendered files, and nothing else.

The golden tree is what was reviewed: `python tests/render/test_changes.py` writes it again.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from rendering import SHOWN, changed, documents, leaves, planned, rendered, write_all

from holdfast.clusters.render.kustomize import kubernetes
from holdfast.errors import JobError
from holdfast.job import load

FOLDERS = ("base", "rayjob", "trainjob")
"""Each has the job."""
SCRIPTS = {f"overlays/{cloud}/node-pools.sh" for cloud in ("gke", "eks", "aks")}
RAY_REPLICAS = {f"rayjob/rayjob.yaml: {key}" for key in ("replicas", "minReplicas", "maxReplicas")}
GOLDEN = Path(__file__).parent / "golden" / "kubernetes"


def test_the_tree_is_the_one_that_was_reviewed():
    golden = {
        str(path.relative_to(GOLDEN)): path.read_text()
        for path in GOLDEN.rglob("*")
        if path.is_file()
    }
    assert reviewed() == golden


def test_the_job_of_a_folder_is_the_whole_job():
    files = rendered("seed=7")
    for folder in FOLDERS:
        assert load.of_text(files[f"{folder}/job.yaml"], folder).seed == 7


def test_a_job_that_trains_longer_changes_its_own_file_only():
    found = changed(rendered(), rendered("epochs=9"))
    assert found == {f"/{folder}/job.yaml/0/epochs" for folder in FOLDERS}


def test_hosts_that_may_join_later_are_rendered_as_such():
    found = named(changed(rendered(), rendered("max_hosts=5")))
    assert "base/agents.yaml: parallelism" in found
    assert found & RAY_REPLICAS == RAY_REPLICAS - {"rayjob/rayjob.yaml: minReplicas"}
    assert "--hosts 3:5" in rendered("max_hosts=5")["base/coordinator.yaml"]


def test_more_hosts_change_the_number_of_agents_and_what_they_may_use():
    found = changed(rendered(), rendered("workers=8", hosts=4))
    assert named(found) == {
        *everywhere("job.yaml: hosts", "job.yaml: workers", "limits.yaml: hard"),
        "base/coordinator.yaml: command",
        "base/agents.yaml: completions",
        "base/agents.yaml: parallelism",
        "base/limits.yaml: minAvailable",
        *SCRIPTS,
        "idle/idle.yaml: replicas",
        *RAY_REPLICAS,
        "trainjob/limits.yaml: minAvailable",
        "trainjob/runtime.yaml: command",
        "trainjob/runtime.yaml: completions",
        "trainjob/runtime.yaml: numNodes",
        "trainjob/runtime.yaml: parallelism",
        "trainjob/trainjob.yaml: numNodes",
    }


def test_more_gpus_change_what_is_for_gpus_only():
    plan = planned("resources.gpus=1")
    more = kubernetes(replace(plan, gpus=plan.gpus + 1), SHOWN)
    assert named(changed(rendered("resources.gpus=1"), more)) == {
        *everywhere("limits.yaml: hard"),
        "components/gpu/kustomization.yaml: patch",
        "idle/idle.yaml: limits",
        "idle/idle.yaml: requests",
        "overlays/gke/node-pools.sh",
        "rayjob/rayjob.yaml: limits",
        "rayjob/rayjob.yaml: requests",
        "trainjob/runtime.yaml: limits",
        "trainjob/runtime.yaml: requests",
    }


def test_more_memory_changes_requests_and_limits():
    found = changed(rendered(), rendered("resources.memory=4GiB"))
    pods = ("base/agents.yaml", "idle/idle.yaml", "rayjob/rayjob.yaml", "trainjob/runtime.yaml")
    assert named(found) == {
        *everywhere("job.yaml: memory", "limits.yaml: hard", "limits.yaml: limits"),
        "base/coordinator.yaml: sizeLimit",
        *(f"{file}: {key}" for file in pods for key in ("requests", "limits", "sizeLimit")),
    }


def test_another_image_changes_images_only():
    found = changed(rendered(), rendered(image="registry.example/holdfast:0.2.0"))
    assert {path.rpartition("/")[2] for path in found} == {"image"}


def test_another_namespace_changes_namespaces_only():
    before, after = rendered(), rendered(namespace="research")
    found = {path for path in changed(before, after) if not path.startswith("/monitoring/")}
    keys = {path.rpartition("/")[2] for path in found}
    assert keys == {"namespace", "name"}
    named_so = {path for path in found if path.endswith("/name")}
    folders = [*FOLDERS, "idle"]
    assert named_so == {f"/{folder}/namespace.yaml/0/metadata/name" for folder in folders}
    where = leaves(documents(after))
    of_monitoring = changed(before, after) - found
    assert {where[path] for path in of_monitoring} == {"research"}


def test_files_of_the_user_stay(tmp_path):
    write_all(rendered(), tmp_path)
    mine = tmp_path / "overlays" / "mine" / "kustomization.yaml"
    mine.parent.mkdir()
    mine.write_text("resources: [../cpu]\n")
    write_all(rendered("epochs=9"), tmp_path)
    assert mine.read_text() == "resources: [../cpu]\n"
    assert "epochs: 9\n" in (tmp_path / "base" / "job.yaml").read_text()


@pytest.mark.parametrize(
    ("overrides", "options", "message"),
    [
        ([], {"image": "holdfast"}, "--image holdfast can change .* give a tag other than latest"),
        ([], {"image": "holdfast:latest"}, "give a tag other than latest"),
        ([], {"image": "host:5000/holdfast"}, "give a tag other than latest"),
        ([], {"image": "two words:1"}, "is not an image"),
        ([], {"namespace": "My_Space"}, "namespace 'My_Space' is not a name of Kubernetes"),
        ([], {"hosts": 1}, "give --hosts, at least 2"),
        (["resources.memory='0'"], {}, "say what a worker needs, such as resources.memory=4GiB"),
        (["name=" + "n" * 50], {}, "use at most 40 characters"),
        (["task=train.py:main"], {}, "task=train.py:main is relative"),
        (["init_from=before"], {}, "init_from.path=before is relative"),
    ],
)
def test_what_no_cluster_can_run_is_refused(overrides, options, message):
    with pytest.raises(JobError, match=message):
        rendered(*overrides, **options)


def test_a_digest_is_as_good_as_a_tag():
    image = "registry.example:5000/holdfast@sha256:" + "0" * 64
    assert f"image: {image}\n" in rendered(image=image)["base/agents.yaml"]


ABOUT = re.compile(
    r"(hosts|workers|memory|gpus|command|completions|parallelism|hard|minAvailable|requests"
    r"|limits|sizeLimit|patch|numNodes|replicas|minReplicas|maxReplicas)(?=/|$)"
)


def everywhere(*names):
    return {f"{folder}/{name}" for folder in FOLDERS for name in names}


def named(paths):
    """The file of each path, and the key in it that says what it is about; of scripts the file."""
    split = [re.fullmatch(r"/(.*?\.(?:yaml|sh))/(.*)", path).groups() for path in paths]
    return {
        f"{file}: {ABOUT.search(inside)[1]}" if file.endswith(".yaml") else file
        for file, inside in split
    }


def reviewed():
    """The tree but the jobs, which have every key with its default, and monitoring, whose files
    hardly change.
    """
    return {
        path: text
        for path, text in rendered().items()
        if not path.endswith("/job.yaml") and not path.startswith("monitoring/")
    }


if __name__ == "__main__":
    write_all(reviewed(), GOLDEN)
