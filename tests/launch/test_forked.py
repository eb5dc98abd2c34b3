"""A coordinator or an agent is executed, or forked by the command or by a lent fork server."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ways(tmp_path_factory):
    """What `starter.py` prints."""
    done = subprocess.run(
        [sys.executable, HERE / "starter.py", tmp_path_factory.mktemp("logs")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)])},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    *written, last = done.stdout.splitlines()
    assert written == ["written before the forks, and once"]
    return json.loads(last)


def test_a_process_is_forked_where_that_is_safe(ways):
    executed = {way: said["was executed"] for way, said in ways.items() if "found" in said}
    assert executed == {
        "executed": True, "forked": False, "threads": True, "lent": False, "after it": True,
    }  # fmt: skip


@pytest.mark.parametrize("way", ["executed", "forked", "lent"])
def test_a_process_finds_what_was_asked_for(ways, way):
    found = ways[way]["found"]
    assert (found["text"], found["held"]) == ("--two words", "in memory")
    assert found["fds"] == [0, 1, 2]  # it has closed its own
    assert (found["stdin"], found["name"]) == ("", "holdfast-probes")
    assert (found["leads a session"], found["parent"]) == (True, True)
    assert ways[way]["log"] == ["before", "a warning"]


@pytest.mark.parametrize("way", ["forked", "lent"])
def test_a_fork_finds_the_same_as_a_process_that_is_executed(ways, way):
    assert ways[way]["found"] == {**ways["executed"]["found"], "handled": [], "blocked": []}


@pytest.mark.parametrize("way", ["executed", "forked", "lent"])
def test_the_end_of_a_process_is_known(ways, way):
    assert ways[way]["statuses"] == [0, 3, -signal.SIGKILL]


def test_forks_die_with_the_fork_server(ways):
    assert ways["died with it"] == [-signal.SIGKILL, True]
