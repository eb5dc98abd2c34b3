"""The hosts file of `--on ssh:FILE`."""

import pytest

from holdfast.clusters.engines import hosts_file
from holdfast.clusters.engines.open_engine import open_engine
from holdfast.errors import JobError


@pytest.fixture
def hosts(tmp_path):
    def of(text):
        path = tmp_path / "hosts"
        path.write_text(text)
        return hosts_file.read(path)

    return of


def test_a_line_names_a_host_and_its_options(hosts):
    first, second = hosts("# ours\n\nnode-1\nme@10.0.0.2 slots=2 python=/v/bin/python  # big\n")
    assert (first.name, first.python, first.slots) == ("node-1", hosts_file.MADE_PYTHON, 1)
    assert (second.name, second.python, second.slots) == ("me@10.0.0.2", "/v/bin/python", 2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "names no host; write one host a line"),
        ("a\nb\na\n", r"hosts:3: a is there twice; use slots=2"),
        ("a slots=0\n", r"hosts:1: slots: .*a line is HOST \[python=PATH\] \[slots=N\]"),
        ("a slot=2\n", r"hosts:1: slot: Extra inputs are not permitted; a line is HOST"),
        ("-oProxyCommand=x\n", r"hosts:1: name: String should match"),
    ],
)
def test_a_wrong_line_is_named_with_its_number(hosts, text, says):
    with pytest.raises(JobError, match=says):
        hosts(text)


def test_an_engine_without_its_file_says_how_to_name_one():
    with pytest.raises(JobError, match="names the hosts: --on ssh:FILE"):
        open_engine("ssh")
    with pytest.raises(JobError, match="hosts file /nowhere cannot be read"):
        open_engine("ssh:/nowhere")
    with pytest.raises(JobError, match="it uses the job that it runs in"):
        open_engine("slurm:other")
