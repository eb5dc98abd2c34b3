"""An agent of another host, as a process of its own, whose coordinator moves."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import grpc
import pytest

from conftest import own_loopback_address, wait_until
from holdfast.coordinator.authority import Authority
from holdfast.core.protocol import DesiredState, Stage
from holdfast.job import load
from holdfast.linux.files import replace_synced
from holdfast.rundir.json_lines import EventLog
from holdfast.rundir.run_directory import COORDINATOR_ADDRESS, RunDirectory
from holdfast.runs.hosts.endpoint import Interface
from holdfast.runs.hosts.hosts import HostState
from holdfast.runs.hosts.local import LocalHosts
from holdfast.runs.process_exits import ProcessExits
from holdfast.wire.rpc import OPTIONS, DesiredStateMessage, handlers, server_credentials
from holdfast.wire.tls import HostCredentials, Role

pytestmark = pytest.mark.slow


@contextmanager
def coordinator(authority, *, ends):
    """A coordinator that hosts reach while the block runs; it says that the run is over, or keeps
    silent. Yields its address, and the statuses that have come.
    """
    heard = []
    over = threading.Event()

    def attend(messages, _context):
        for message in messages:
            heard.append(message)
            if ends:
                yield DesiredStateMessage(desired=DesiredState(generation=1, stage=Stage.END))
        over.wait(60)

    server = grpc.server(ThreadPoolExecutor(4), options=OPTIONS)
    server.add_generic_rpc_handlers((handlers(*[attend] * 5),))
    credentials = server_credentials(authority.coordinator)
    address = own_loopback_address()
    port = server.add_secure_port(f"{address}:0", credentials)
    server.start()
    try:
        yield f"{address}:{port}", heard
    finally:
        over.set()
        server.stop(None).wait()


def test_an_agent_follows_its_coordinator_and_names_its_node(forks, tmp_path):
    (tmp_path / "authority").mkdir()
    authority = Authority.create(tmp_path / "authority")
    credentials = HostCredentials(agent=authority.issue("h2-1", Role.AGENT))
    interface = Interface(address=own_loopback_address(), credentials=credentials)
    job = load.check(
        {"workers": 2, "hosts": 2, "data": {"name": "digits"}, "network": "trusted"}, where="test"
    )
    with (
        coordinator(authority, ends=False) as (first, heard_by_first),
        coordinator(authority, ends=True) as (second, heard_by_second),
        RunDirectory(tmp_path / "run", job, resume=False) as directory,
        EventLog(directory.path / "events.jsonl") as log,
    ):
        exits = ProcessExits(job.restarts, log)
        hosts = LocalHosts(directory, "a1", log, exits, forks, None, interface, node="h2:50052")
        with closing(hosts), closing(hosts.start_host("h2-1", first)) as host:
            wait_until(lambda: heard_by_first or host.state() is HostState.LOST)
            # The first one keeps its connection, so only the file can tell the agent.
            replace_synced(directory.path / COORDINATOR_ADDRESS, second.encode())
            wait_until(lambda: host.state() in (HostState.LEFT, HostState.LOST))
            assert host.state() is HostState.LEFT, (directory.logs / "agent.log").read_text()
    for heard in (heard_by_first, heard_by_second):
        assert {(each.status.host, each.node) for each in heard} == {("h2-1", "h2:50052")}
