"""Starts a control process in each of three ways, and prints what each has said and how it ended.

Arguments: a folder for logs.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path

from holdfast.launch.child import Child
from holdfast.launch.fork_client import ForkServer
from holdfast.launch.spawn import spawn

MODULE = "probes.main"
TIMEOUT_S = 60


def start(log, forks, status=0):
    memory = os.memfd_create("memory")
    os.write(memory, b"in memory")
    options = {"text": "--two words", "memory": memory, "status": status}
    child = Child.start(MODULE, options, log, [memory], forks)
    os.close(memory)
    return child


def said(folder, way, forks):
    """What a process says, whether it was executed, and how three of them end."""
    log = folder / way
    log.write_text("before\n")
    child = start(log, forks)
    assert child.await_end(TIMEOUT_S)
    lines = log.read_text().splitlines()
    statuses = [child.status]
    failed = start(log, forks, status=3)
    failed.close(TIMEOUT_S)
    killed = start(log, forks, status=-1)
    killed.kill()
    for each in (child, failed, killed):
        each.close(TIMEOUT_S)
    statuses += [failed.status, killed.status]
    found = json.loads(lines[1])
    return {
        "was executed": lines[2] == "True",
        "found": found,
        "log": [lines[0], *lines[3:]],
        "statuses": statuses,
    }


def main():
    folder = Path(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: print("handled"))
    signal.signal(signal.SIGUSR1, lambda *_: print("handled"))
    unrelated = os.open(os.devnull, os.O_RDONLY)
    print("written before the forks, and once")
    spawned = spawn(MODULE, is_command=True)
    ways = {"executed": said(folder, "executed", None), "forked": said(folder, "forked", spawned)}
    waits = threading.Event()
    threading.Thread(target=waits.wait, daemon=True).start()
    ways["threads"] = said(folder, "threads", spawned)
    with ForkServer(spawned) as server:
        while not server.is_ready():
            pass
        ways["lent"] = said(folder, "lent", server)
        last = start(folder / "last", server, status=-1)
        server.process.kill()
        assert last.await_end(TIMEOUT_S)
        ways["died with it"] = [last.status, last.ended_with_fork_server]
        ways["after it"] = said(folder, "after", server)
        last.close()
    waits.set()
    os.close(unrelated)
    print(json.dumps(ways))


main()
