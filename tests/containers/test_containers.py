"""The Dockerfile and the compose file: linted, restricted, and performed in a clean root."""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml
from clean_root import instructions

from conftest import own_loopback_address, wait_until

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
OURS = ["coordinator", "token", "agent"]

TOP_KEYS = {"name", "services", "networks", "configs", "volumes"}
SERVICE_KEYS = {
    "build", "image", "init", "read_only", "tmpfs", "cap_drop", "security_opt", "command",
    "entrypoint", "volumes", "healthcheck", "depends_on", "networks", "network_mode", "deploy",
    "profiles", "ports", "configs", "environment",
}  # fmt: skip
"""Keys of the Compose specification that this file uses; a misspelt one would have no effect."""


def of(kind):
    dockerfile = instructions((ROOT / "Dockerfile").read_text())
    return [rest for instruction, rest in dockerfile if instruction == kind]


def linter(name):
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"needs {name}")
    return found


def test_the_dockerfile_is_linted():
    subprocess.run([linter("hadolint"), ROOT / "Dockerfile"], check=True)


def test_the_compose_file_satisfies_its_schema():
    """By the schema that dclint carries."""
    done = subprocess.run(
        [linter("dclint"), "--quiet", ROOT / "compose.yaml"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_the_compose_file_has_known_keys_only():
    assert {key for key in COMPOSE if not key.startswith("x-")} <= TOP_KEYS
    for name, service in SERVICES.items():
        assert set(service) <= SERVICE_KEYS, name
        assert not {"networks", "network_mode"} <= set(service), f"{name} has both"


def test_the_image_does_not_run_as_root():
    assert of("USER")[-1] == "10001:10001"


def test_bases_and_images_have_a_version():
    stages = [re.split(r"\s+AS\s+", each) for each in of("FROM")]
    own = {each[1] for each in stages if len(each) > 1}
    images = [each[0] for each in stages if each[0] not in own]
    images += [service["image"] for service in SERVICES.values()]
    assert images
    for image in images:
        assert re.search(r":[\w.-]+$", image), image
        assert not image.endswith(":latest")


def test_only_what_the_build_needs_is_sent_to_it():
    sent = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"
    }
    copied = {
        word for rest in of("COPY") if not rest.startswith("--from") for word in rest.split()[:-1]
    }
    assert sent == copied


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_no_privileges_and_has_limits(name):
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}
    for port in service.get("ports", []):
        assert port.startswith("127.0.0.1:"), "open to other machines"


@pytest.mark.parametrize("name", OURS)
def test_services_of_holdfast_write_to_their_volumes_only(name):
    assert SERVICES[name]["read_only"] is True


def test_agents_do_not_see_the_keys_of_the_run():
    assert not any("runs:" in volume for volume in SERVICES["agent"]["volumes"])


@pytest.mark.parametrize("name", OURS)
def test_the_commands_of_services_exist(name):
    from holdfast.cli.app import command

    service = SERVICES[name]
    if "entrypoint" not in service:
        first, *words = service["command"]
        known = {option for param in command(first).params for option in param.opts}
        assert {word for word in words if word.startswith("--")} <= known


def inside(text, root):
    """A word of the compose file with default values, and paths of a container below `root`."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text).replace("$$", "$")
    return text.replace("/work/", f"{root}/")


@pytest.mark.slow
def test_prometheus_gets_what_it_needs_of_a_coordinator(command, tmp_path):
    """The commands of the services run here, on free ports."""
    for folder in ("runs", "token", "metrics"):
        (tmp_path / folder).mkdir()
    words = [inside(word, tmp_path) for word in SERVICES["coordinator"]["command"]]
    words[words.index("0.0.0.0:9400")] = "0.0.0.0:0"
    command(*words, "--address", own_loopback_address())
    (_, is_healthy) = SERVICES["coordinator"]["healthcheck"]["test"]
    check = ["sh", "-c", inside(is_healthy, tmp_path)]
    wait_until(lambda: subprocess.run(check, check=False).returncode == 0)
    token = SERVICES["token"]
    variables = {name: inside(value, tmp_path) for name, value in token["environment"].items()}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(
        [*token["entrypoint"], *(inside(each, tmp_path) for each in token["command"])],
        env={**os.environ, **variables, "PATH": path}, check=True,
    )  # fmt: skip
    assert (tmp_path / "token" / "join.token").stat().st_mode & 0o777 == 0o600
    scrape = yaml.safe_load(COMPOSE["configs"]["prometheus"]["content"])
    shown = tmp_path / "metrics"
    assert yaml.safe_load((shown / Path(scrape["rule_files"][0]).name).read_text())["groups"]
    assert json.loads((shown / "dashboard.json").read_text())["panels"]
    (job,) = scrape["scrape_configs"]
    bearer = (shown / Path(job["authorization"]["credentials_file"]).name).read_text().strip()
    assert job["static_configs"] == [{"targets": ["coordinator:9400"]}]
    said = re.search(r"metrics: \S+:(\d+)/metrics", (tmp_path / "output-0").read_text())
    request = urllib.request.Request(f"http://127.0.0.1:{said[1]}/metrics")
    request.add_header("Authorization", f"Bearer {bearer}")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert b"holdfast_" in answer.read()


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("debootstrap"), reason="needs root and debootstrap"
)
def test_each_step_of_the_dockerfile_works_in_a_clean_root(tmp_path):
    own = []
    for option, name in (("--wheels", "PIP_FIND_LINKS"), ("--certificates", "PIP_CERT")):
        if os.environ.get(name, "").startswith("/"):
            own += [option, os.environ[name]]
    if "--wheels" in own:  # torch is there
        own += ["--build-arg", "TORCH_INDEX=https://pypi.org/simple"]
    script = Path(__file__).with_name("clean_root.py")
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", sys.executable, script,
         tmp_path / "root", *own],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a run would work" in done.stdout
    assert '"status": "finished"' in done.stdout
