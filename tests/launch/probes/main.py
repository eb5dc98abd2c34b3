"""A control process that says how it finds itself; also the entry of a fork server."""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

from holdfast.linux.lifeline import die_with_parent


def warm_up():
    """Nothing is to be imported."""


def main(words):
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", required=True)
    parser.add_argument("--memory", type=int, required=True)
    parser.add_argument("--status", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args(words)
    die_with_parent(options.parent)
    fds = list(Path("/proc/self/fd").iterdir())
    with os.fdopen(options.memory, "rb") as memory:
        memory.seek(0)
        held = memory.read().decode()
    found = {
        "text": options.text,
        "held": held,
        "fds": sorted(int(fd.name) for fd in fds if fd.exists()),
        "environment": dict(os.environ),
        "directory": str(Path.cwd()),
        "stdin": sys.stdin.read(),
        "name": Path("/proc/self/comm").read_text().strip(),
        "leads a session": os.getsid(0) == os.getpid(),
        "parent": os.getppid() == options.parent,
        "handled": [n for n in signal.valid_signals() if callable(signal.getsignal(n))],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    }
    words = Path("/proc/self/cmdline").read_bytes().split(b"\0")
    print(json.dumps(found))
    print(b"holdfast.launch.control" in words)
    sys.stdout.flush()
    print("a warning", file=sys.stderr)
    if options.status < 0:
        time.sleep(60)
    return options.status
