"""`holdfast hosts setup`: a host with Python and sshd, and nothing else, becomes one of a run."""

import json
import shutil
import subprocess
import sys

import pytest
from ssh_hosts import ssh_hosts

from conftest import events_of
from holdfast.clusters.engines import own_wheel

pytestmark = [pytest.mark.slow, pytest.mark.soak]


@pytest.fixture
def wheels(tmp_path):
    """A folder that stands for the registry of the first host: hosts here reach nothing else."""
    folder, constraints = tmp_path / "wheels", tmp_path / "constraints.txt"
    constraints.write_text(own_wheel.constraints())
    wheel = own_wheel.build(tmp_path)
    words = ["--quiet", "--only-binary=:all:", "-c", constraints, "-d", folder, wheel]
    subprocess.run([sys.executable, "-m", "pip", "download", *words], check=True)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.timeout(900)
def test_bare_hosts_train_after_two_commands(tmp_path, wheels):
    version = own_wheel.version_of_code()
    with ssh_hosts(tmp_path, 3) as hosts:
        said, venv = lambda: hosts.hosts.output(1), hosts.hosts.folder / "venv"
        bare = [f"h{number} python={venv}/bin/python" for number in (2, 3)]
        hosts.file(1, f"h1 python={sys.executable}", *bare)
        set_up = ["hosts", "setup", "hosts"]
        registry = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": wheels}
        try:
            assert hosts.start(1, *set_up, **registry).wait(600) == 0, said()
            assert "h1: ready; nothing changed\n" in said()
            for name in ("h2", "h3"):
                assert f"{name}: ready; {venv} made; holdfast {version}" in said()
            assert said().count("and what it needs sent from here and installed") == 2
            job = ["digits", "epochs=2", "workers=3"]
            train = ["train", *job, "hosts=3", "--on", "ssh:hosts", "--run", "run"]
            assert hosts.start(1, *train).wait(240) == 0, said()
            run = hosts.hosts.disk(1) / "run"
            placed = {each["place"] for each in events_of(run, "agent-placed")}
            assert placed == {"h1", "h2", "h3"}
            assert hosts.start(1, "train", *job, "--run", "alone").wait(240) == 0, said()
            results = [run / "result.json", run.with_name("alone") / "result.json"]
            several, one = (json.loads(each.read_text())["weights_sha256"] for each in results)
            assert several == one
            assert hosts.start(1, *set_up).wait(120) == 0, said()
            assert said().count("ready; nothing changed\n") == 4
        finally:
            for number in (2, 3):
                shutil.rmtree(hosts.hosts.disk(number) / "venv", ignore_errors=True)


def test_a_host_that_cannot_be_made_ready_is_named_and_the_others_are(tmp_path):
    with ssh_hosts(tmp_path, 2) as hosts:
        hosts.file(1, f"h1 python={sys.executable}", "h2 python=python3", "h3")
        assert hosts.start(1, "hosts", "setup", "hosts").wait(120) == 1
        said = hosts.hosts.output(1)
        assert "h1: ready; nothing changed\n" in said
        assert "h2: python=python3 is no environment of its own; name one, such as" in said
        assert "h3: " in said
        assert "Could not resolve hostname h3" in said
        assert "not ready: h2, h3; fix that, and do the same again" in said
