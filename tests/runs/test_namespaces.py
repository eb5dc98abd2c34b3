"""Runs on hosts with networks and disks of their own: network namespaces whose links are cut."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from conftest import events_of, wait_until
from namespaces import namespaces

pytestmark = pytest.mark.slow

PACED = Path(__file__).with_name("paced_tasks.py")


@pytest.fixture
def hosts(tmp_path):
    with namespaces(tmp_path, 2) as made:
        yield made


@pytest.mark.full
def test_a_host_that_is_cut_off_does_not_count_and_joins_again(hosts, tmp_path):
    hurry = tmp_path / "hurry"
    shared = tmp_path / "shared"
    job = [f"{PACED}:main", "shards=4", "batch=20", f"params={{hurry: {hurry}}}"]
    shared.mkdir()
    address = ["--hosts", 2, "--address", hosts.address(1)]
    first = hosts.start(1, "coordinator", *job, "workers=4", *address, "--run", shared / "run")
    token = shared / "run" / "secrets" / "join.token"
    wait_until(token.exists)
    agent = hosts.start(2, "agent", "--join", f"{hosts.address(1)}:50051", "--token-file", token)

    def members():
        return [len(e["members"]) for e in events_of(shared / "run", "generation-started")]

    wait_until((shared / "run" / "events.jsonl").exists)
    wait_until(lambda: members() == [4, 4])
    hosts.cut(2)
    wait_until(lambda: 2 in members())
    hosts.heal(2)
    wait_until(lambda: members()[-2:] == [4, 4] and len(members()) == 5)
    hurry.touch()
    assert first.wait(240) == 0, hosts.output(1)
    assert agent.wait(60) == 0, hosts.output(2)
    alone = hosts.start(1, "train", *job, "workers=2", "--run", shared / "alone")
    assert alone.wait(240) == 0
    several, one = (
        json.loads((shared / name / "result.json").read_text()) for name in ("run", "alone")
    )
    assert several["weights_sha256"] == one["weights_sha256"]
    begun = [event["step"] for event in events_of(shared / "run", "generation-started")]
    assert begun == sorted(begun), "no step was lost"


@pytest.mark.soak
def test_the_lines_of_the_page_about_hosts_train_on_three(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "hosts.md").read_text()
    lines = re.findall(r"^\$ holdfast (.*)$", page, re.MULTILINE)
    first, other = map(shlex.split, lines[:2])
    assert (first[0], other[0]) == ("coordinator", "agent")
    with namespaces(tmp_path, 3) as hosts:
        began = hosts.start(1, *first, "epochs=3")
        token = hosts.disk(1) / "runs" / "three" / "secrets" / "join.token"
        wait_until(token.exists)
        for number in (2, 3):
            shutil.copy(token, hosts.disk(number) / "join.token")
        agents = [hosts.start(number, *other) for number in (2, 3)]
        assert began.wait(240) == 0, hosts.output(1)
        assert [each.wait(60) for each in agents] == [0, 0]
        assert hosts.start(1, "train", "digits", "epochs=3", "--run", "alone").wait(240) == 0
        several, one = (
            json.loads((hosts.disk(1) / path / "result.json").read_text())
            for path in ("runs/three", "alone")
        )
    assert several["weights_sha256"] == one["weights_sha256"]


@pytest.mark.soak
def test_a_link_that_gets_slow_is_named_with_its_host(hosts, tmp_path):
    model = ["model={name: mlp, hidden: [512, 512]}"]
    job = ["digits", *model, "shards=2", "workers=2", "epochs=100"]
    run = tmp_path / "shared" / "run"
    run.parent.mkdir()
    address = ["--hosts", 2, "--address", hosts.address(1)]
    first = hosts.start(1, "coordinator", *job, *address, "--run", run)
    token = run / "secrets" / "join.token"
    wait_until(token.exists)
    agent = hosts.start(2, "agent", "--join", f"{hosts.address(1)}:50051", "--token-file", token)
    metrics = run / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and len(metrics.read_bytes().splitlines()) > 30)
    hosts.slow(2, "10mbit")
    wait_until(lambda: events_of(run, "link-slowed") != [])
    hosts.slow(2, "1gbit")
    wait_until(lambda: events_of(run, "link-recovered") != [])
    named = [event["ranks"] for event in events_of(run, "link-slowed")]
    assert named == [[1]]
    first.terminate()
    assert [each.wait(60) for each in (first, agent)] == [130, 130]
