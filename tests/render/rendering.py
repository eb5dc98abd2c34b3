"""What the tests of rendering share: trees of files, and what kustomize makes of them."""

import subprocess
from pathlib import Path

import yaml

from holdfast.clusters.render.kustomize import kubernetes
from holdfast.clusters.render.objects import write
from holdfast.clusters.render.plan import plan_of
from holdfast.job import load
from kubectl_tool import kubectl

IMAGE = "registry.example/holdfast:0.1.0"
SHOWN = {"rules.yaml": "groups: []\n", "holdfast.json": "{}\n"}
"""In place of the alert rules and the dashboard."""
JOB = ["workers=6", "resources.memory=2GiB", "resources.cpus=2"]


def planned(*overrides, hosts=3, image=IMAGE, namespace=None):
    job = load.load("digits", [*JOB, *overrides, f"hosts={hosts}"]).resolved()
    return plan_of(job, image, namespace, has_metrics=True)


def rendered(*overrides, **options):
    return kubernetes(planned(*overrides, **options), SHOWN)


def built(folder):
    """The objects that kustomize makes of a folder."""
    done = subprocess.run(
        [kubectl(), "kustomize", folder], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def documents(tree):
    """The content of every file of a tree, by its path: of YAML its documents, else its lines."""
    return {
        path: list(yaml.safe_load_all(text)) if path.endswith(".yaml") else text.splitlines()
        for path, text in tree.items()
    }


def leaves(value, path=""):
    """Every value within nested mappings and lists, by its path."""
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, list):
        parts = enumerate(value)
    else:
        return {path: value}
    return {
        key: leaf for name, part in parts for key, leaf in leaves(part, f"{path}/{name}").items()
    }


def changed(before, after):
    """The path of every value in which two trees differ."""
    left, right = leaves(documents(before)), leaves(documents(after))
    return {path for path in left | right if left.get(path) != right.get(path)}


def pods_of(value):
    """Every pod's specification within an object."""
    if isinstance(value, dict):
        if isinstance(value.get("containers"), list) and "restartPolicy" in value:
            yield value
        for part in value.values():
            yield from pods_of(part)
    elif isinstance(value, list):
        for part in value:
            yield from pods_of(part)


def write_all(tree, folder: Path) -> Path:
    write(tree, folder)
    return folder
