"""A fork of the zygote looks like a process that was started by exec."""

import json
import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROBE = """
import json, os, signal, sys
from pathlib import Path

def words_of(name):
    return Path(f"/proc/self/{name}").read_bytes().decode().strip("\\0").split("\\0")


facts = {
    "command line": words_of("cmdline"),
    "words": sys.orig_argv,
    "environment": sorted(words_of("environ")),
    "directory": os.getcwd(),
    "descriptors": sorted(each.name for each in Path("/proc/self/fd").iterdir()),
    "input": sys.stdin.read(),
    "streams": [each.line_buffering for each in (sys.stdout, sys.stderr)],
    "leads a session": os.getsid(0) == os.getpid(),
    "signals": [str(signal.getsignal(each)) for each in (signal.SIGINT, signal.SIGTERM)],
}
os.write(int(os.environ["FACTS"]), json.dumps(facts).encode())
sys.stderr.write("written\\n")
os._exit(7)
"""


@pytest.mark.parametrize("in_session", [True, False])
def test_a_fork_finds_what_an_executed_process_would(zygote, tmp_path, monkeypatch, in_session):
    (tmp_path / "sitecustomize.py").write_text(PROBE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = []
    for is_used in (True, False):
        zygote.is_used = is_used
        reader, other = os.pipe()
        os.dup2(other, writer := 200)
        os.close(other)
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", "train", "--dry-run"],
            input="text", cwd=tmp_path, env={**os.environ, "FACTS": str(writer)}, text=True,
            capture_output=True, pass_fds=[writer], start_new_session=in_session, check=False,
        )  # fmt: skip
        os.close(writer)
        with os.fdopen(reader) as facts:
            found.append((json.load(facts), done.returncode, done.stdout, done.stderr))
    (forked, *end), (executed, *_) = found
    assert {
        key: (forked[key], executed[key]) for key in executed if forked[key] != executed[key]
    } == {}
    assert tuple(end) == (7, "", "written\n")


def test_the_end_of_a_fork_is_that_of_its_process(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import time; print(flush=True); time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    words = [sys.executable, "-m", "holdfast"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM
