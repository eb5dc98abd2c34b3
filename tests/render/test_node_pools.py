"""The scripts of node pools call the tool of their cloud, with sizes that fit the run."""

import ast
import os
import subprocess
import sys

import pytest
from rendering import rendered

SETTINGS = {
    "gke": {"LOCATION": "here", "MACHINE_TYPE": "g2-standard-12", "GPU_TYPE": "nvidia-l4"},
    "eks": {"NODE_ROLE_ARN": "arn:1", "SUBNET": "subnet-1", "INSTANCE_TYPE": "g6.4xlarge"},
    "aks": {"RESOURCE_GROUP": "my group", "VM_SIZE": "Standard_NC4as_T4_v3"},
}
TOOLS = {"gke": "gcloud", "eks": "aws", "aks": "az"}


@pytest.fixture
def run(tmp_path):
    """Run the script of a cloud with a stand-in for its tool; returns the words of each call."""

    def run(cloud, *overrides, **environment):
        tool, calls = tmp_path / TOOLS[cloud], tmp_path / "calls"
        tool.write_text(
            f"#!{sys.executable}\nimport sys\n"
            f"with open({str(calls)!r}, 'a') as file: file.write(repr(sys.argv[1:]) + '\\n')\n"
        )
        tool.chmod(0o755)
        done = subprocess.run(
            ["sh", "-c", rendered(*overrides)[f"overlays/{cloud}/node-pools.sh"]],
            env={"PATH": f"{tmp_path}:{os.environ['PATH']}", **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        made = calls.read_text().splitlines() if calls.exists() else []
        return done, [ast.literal_eval(line) for line in made]

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cloud", "lower", "upper"),
    [
        ("gke", "--total-min-nodes=0", "--total-max-nodes={}"),
        ("eks", "--scaling-config=minSize=0,maxSize={},desiredSize=0", None),
        ("aks", "--min-count=0", "--max-count={}"),
    ],
)
def test_pools_have_a_lower_and_an_upper_size(run, cloud, lower, upper):
    done, calls = run(cloud, CLUSTER="mine", **SETTINGS[cloud])
    assert (done.returncode, done.stderr) == (0, "")
    assert len(calls) == 2
    for words in calls:
        assert lower.format(4) in words  # three agents, and one more
        assert upper is None or upper.format(4) in words
        for value in SETTINGS[cloud].values():
            assert any(word == value or value in word.split("=", 1)[-1] for word in words)


@pytest.mark.slow
@pytest.mark.parametrize("cloud", SETTINGS)
def test_a_setting_that_is_missing_is_named(run, cloud):
    done, calls = run(cloud, **SETTINGS[cloud])
    assert (done.returncode != 0, calls) == (True, [])
    assert "CLUSTER: the name of the cluster" in done.stderr
