"""What someone sees who captures the packets between two hosts."""

import re
import struct
import sys

import pytest

from conftest import events_of, wait_until
from namespaces import namespaces

pytestmark = [pytest.mark.slow, pytest.mark.full]

GRADIENT = 12.078431
TASK = f"""
import torch
from torch.utils.data import TensorDataset

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.values = torch.nn.Parameter(torch.zeros(100_000))

def main(session):
    model, _ = session.attach(Model, lambda p: torch.optim.SGD(p, lr=0.1))
    data = TensorDataset(torch.zeros(64, 1), torch.zeros(64))
    for shard in session.shards(data, epochs=1):
        session.backward((model.values * {GRADIENT}).sum())
"""
CAPTURE = """
import socket, sys
packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
packets.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
with open(sys.argv[1], "wb", 0) as file:
    file.write(b"capturing")
    while True:
        file.write(packets.recv(1 << 17)[66:])  # after the headers of Ethernet, IP and TCP
"""


@pytest.mark.parametrize("network", ["tls", "trusted"])
def test_gradients_are_seen_on_a_trusted_network_only_and_messages_nowhere(tmp_path, network):
    shared, captured = tmp_path / "shared", tmp_path / "captured"
    shared.mkdir()
    (shared / "task.py").write_text(TASK)
    run = shared / "run"
    job = [f"{shared}/task.py:main", "workers=2", "batch=8", "shards=8", f"network={network}"]
    with namespaces(tmp_path, 2) as hosts:
        capture = hosts.run(2, sys.executable, "-c", CAPTURE, captured)
        wait_until(lambda: captured.exists() and captured.stat().st_size)
        where = ["--hosts", 2, "--address", hosts.address(1), "--run", run]
        first = hosts.start(1, "coordinator", *job, *where)
        token = run / "secrets" / "join.token"
        wait_until(token.exists)
        join = ["--join", f"{hosts.address(1)}:50051", "--token-file", token]
        agent = hosts.start(2, "agent", *join)
        assert first.wait(240) == 0, hosts.output(1)
        assert agent.wait(60) == 0, hosts.output(2)
        capture.kill()
        capture.wait()
    content = captured.read_bytes()
    assert len(content) > 800_000, "the gradients have crossed the link"
    assert (struct.pack("<f", GRADIENT) * 50 in content) == (network == "trusted")
    (name,) = [event["host"] for event in events_of(run, "host-joined")]
    secrets = token.read_text().split(".")
    for text in (name, str(run), "generation", "capacity", "values", "hostname", *secrets[1:3]):
        is_seen = re.search(text.encode(), content) is not None
        assert not is_seen or (text == "values" and network == "trusted"), text
