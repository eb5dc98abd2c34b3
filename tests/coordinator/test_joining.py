"""Other hosts at a real coordinator: who is let in, who is refused, and that it stays unharmed."""

import os
import random
import socket
import ssl
import threading
import time
from contextlib import contextmanager, suppress

import grpc
import pytest

from conftest import events_of, own_loopback_address, sampled, wait_until
from holdfast.coordinator import tokens
from holdfast.coordinator.authority import Authority, write_secret
from holdfast.core.protocol import Status
from holdfast.errors import JobError
from holdfast.job import load
from holdfast.launch.child import Child
from holdfast.rundir.run_directory import SECRETS, TOKEN, RunDirectory
from holdfast.runs.hosts.endpoint import DEFAULT_PORT, Endpoint, make_secrets, make_token
from holdfast.wire.certificate_request import new_request
from holdfast.wire.join import ANSWERS, JoinMessage, control_address, join
from holdfast.wire.link import CoordinatorLink
from holdfast.wire.rpc import RunRequestMessage, Service, StatusMessage, open_channel
from holdfast.wire.tls import Role, pinned_context
from holdfast.wire.token import Token

pytestmark = pytest.mark.slow


class Coordinator:
    """A coordinator's process, for a run on some hosts."""

    def __init__(self, folder, hosts):
        self.run, self.hosts = folder / "run", hosts
        self.endpoint = Endpoint(address=own_loopback_address(), port=DEFAULT_PORT)
        job = load.check(
            {"workers": hosts, "hosts": hosts, "data": {"name": "digits"}}, where="test"
        )
        with RunDirectory(self.run, job, resume=False):
            make_secrets(self.run, self.endpoint)
            make_token(self.run, hosts - 1)
        self.authority = Authority.load(self.run / SECRETS)
        self.node = self.endpoint.first_node(self.run, "a1", None)
        self.node.start()
        self.start()

    def start(self):
        near, far = socket.socketpair()
        self.node.serve_journal(near)
        options = {
            "run-dir": self.run, "attempt": "a1", "address": f"unix:{self.run}/socket",
            "public": self.endpoint.public, "joining": self.hosts - 1,
            "journal": far.fileno(), "node": self.node.name,
        }  # fmt: skip
        with far:
            log = self.run / "log"
            fds = [far.fileno()]
            self.child = Child.start("holdfast.coordinator.main", options, log, fds)
        wait_until(self.accepts)

    def close(self):
        self.child.close()
        self.node.close()

    def accepts(self):
        with suppress(ConnectionRefusedError), self.connect():
            return True
        return False

    @property
    def token(self):
        return Token.parse((self.run / TOKEN).read_text().strip())

    def new_token(self, uses=1):
        make_token(self.run, uses)
        return self.token

    def join(self, token=None, before=None, timeout_s=20):
        return join(self.endpoint.public, token or self.token, "host", timeout_s, before)

    def refusals(self):
        return [event["reason"] for event in events_of(self.run, "host-refused")]

    @contextmanager
    def attending(self, credentials, host):
        """The link of an agent that has sent one status."""
        address = control_address(self.endpoint.public)
        link = CoordinatorLink(address, lambda channel: Service(channel).attend, credentials)
        link.send(StatusMessage(status=Status(host=host, number=1, capacity=1)))
        yield link
        link.close()

    def connect(self):
        return socket.create_connection((self.endpoint.address, self.endpoint.port), 20)

    def ask(self, line):
        """The answer to one line."""
        with self.connect() as plain, pinned_context(None).wrap_socket(plain) as connection:
            connection.sendall(line)
            with connection.makefile("rb") as answers:
                return answers.readline()


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory):
    made = Coordinator(tmp_path_factory.mktemp("joining"), 50)
    yield made
    assert made.child.status is None, (made.run / "log").read_text()
    made.close()


@pytest.fixture(scope="module")
def joined(coordinator):
    """A host that has joined, whichever tests come first."""
    return coordinator.join(coordinator.new_token(uses=20))


def request(token):
    agent, data = new_request(), new_request()
    return JoinMessage(token=token.text, hostname="h", agent=agent.request, data=data.request)


def line(message):
    return message.model_dump_json().encode() + b"\n"


def test_who_reads_the_token_file_reads_a_whole_token(tmp_path):
    path = tmp_path / "join.token"
    write_secret(path, b"first")
    with path.open("rb") as reader:
        write_secret(path, b"the second")
        assert reader.read() == b"first"
    assert path.read_bytes() == b"the second"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_host_that_has_joined_has_certificates_of_its_roles(joined):
    credentials = joined.credentials
    assert joined.message.name.startswith("host-")
    assert credentials.agent.key != credentials.data.key
    assert "PRIVATE" not in repr(joined) + str(credentials)


def test_an_agent_speaks_for_its_own_host_only(coordinator, joined):
    with (
        coordinator.attending(joined.credentials.agent, "local-1") as link,
        pytest.raises(JobError, match="refuses this agent: a status in the name of another host"),
    ):
        wait_until(lambda: link.receive() is not None)
    assert "a status in the name of another host" in coordinator.refusals()


def test_workers_certificates_are_of_no_use_at_the_coordinator(coordinator, joined):
    with (
        coordinator.attending(joined.credentials.data, joined.message.name) as link,
        pytest.raises(JobError, match="a certificate that is not an agent's"),
    ):
        wait_until(lambda: link.receive() is not None)
    with pytest.raises(JobError, match="a certificate that is not an agent's"):
        coordinator.join(before=joined.credentials.data)


def test_an_agent_of_another_host_commands_nothing(coordinator, joined):
    address = control_address(coordinator.endpoint.public)
    with open_channel(address, joined.credentials.agent) as channel:
        call = Service(channel).watch(iter([RunRequestMessage(stop=True)]), timeout=20)
        with pytest.raises(grpc.RpcError) as error:
            next(call)
    assert error.value.code() == grpc.StatusCode.PERMISSION_DENIED


def test_certificates_of_another_authority_do_not_connect(coordinator, joined, tmp_path):
    stranger = Authority.create(tmp_path).issue(joined.message.name, Role.AGENT)
    address = control_address(coordinator.endpoint.public)
    for credentials in (stranger, stranger.model_copy(
        update={"authority": coordinator.authority.certificate}
    )):  # fmt: skip
        with open_channel(address, credentials) as channel, pytest.raises(grpc.FutureTimeoutError):
            grpc.channel_ready_future(channel).result(0.5)
    with pytest.raises(JobError, match="no coordinator answers"):
        coordinator.join(before=stranger, timeout_s=1)
    wait_until(lambda: any(r.startswith("no TLS of this run") for r in coordinator.refusals()))


def test_a_coordinator_that_is_not_the_tokens_gets_no_token(coordinator, tmp_path):
    other = tokens.issue(tmp_path, Authority.create(tmp_path), time.time())
    with pytest.raises(JobError, match="is not the one that has made this token"):
        coordinator.join(other)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda token: token.text.replace(token.secret, "x" * 43), "an unknown token"),
        (lambda token: token.text.replace(token.run, "ab"), "the token of another run"),
        (lambda token: "hf1.short", "no token"),
    ],
)
def test_a_wrong_token_is_refused(coordinator, change, reason):
    asked = request(coordinator.token)
    answer = coordinator.ask(line(asked.model_copy(update={"token": change(coordinator.token)})))
    assert ANSWERS.validate_json(answer).reason.startswith(f"{reason}; ")
    assert reason in coordinator.refusals()


def test_an_expired_token_is_refused(coordinator):
    folder = coordinator.run / SECRETS
    token = tokens.issue(folder, coordinator.authority, time.time() - tokens.VALID_S - 60)
    with pytest.raises(JobError, match="an expired token; make another one by `holdfast token`"):
        coordinator.join(token)


def test_a_request_without_valid_requests_for_certificates_uses_nothing_up(coordinator):
    token = coordinator.new_token()
    for wrong in ("", "-----BEGIN", new_request().request.replace("A", "B")):
        answer = coordinator.ask(line(request(token).model_copy(update={"agent": wrong})))
        assert ANSWERS.validate_json(answer).kind == "refused"
    again = ANSWERS.validate_json(coordinator.ask(line(request(token))))
    assert again.kind == "joined"


def test_the_same_request_gets_the_same_answer_and_another_one_finds_the_token_used(tmp_path):
    coordinator = Coordinator(tmp_path, 3)
    token = coordinator.new_token()
    wait_until((coordinator.run / "events.jsonl").exists)
    first = coordinator.join(token)
    asked = request(coordinator.new_token())
    names = {ANSWERS.validate_json(coordinator.ask(line(asked))).name for _ in range(3)}
    assert len(names) == 1
    with pytest.raises(JobError, match="a used token"):
        coordinator.join(token)
    coordinator.child.close()  # its successor knows what was used, too
    coordinator.start()
    with pytest.raises(JobError, match="a used token"):
        coordinator.join(token)
    assert ANSWERS.validate_json(coordinator.ask(line(asked))).name in names

    # All hosts of the run are there once their agents have connected.
    joined = [first, coordinator.join(before=first.credentials.agent)]
    assert joined[1].message.name != first.message.name
    third = coordinator.join(coordinator.new_token())
    with pytest.raises(JobError, match="one host more than the 2 that may join; all of"):
        coordinator.join(coordinator.new_token())
    again = coordinator.join(before=third.credentials.agent)
    assert again.message.name not in names
    for _ in range(3):  # its agents have ended before they connected
        again = coordinator.join(before=again.credentials.agent)
    coordinator.close()


def test_messages_of_a_join_that_are_replayed_are_refused(coordinator):
    sent = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as proxy:

        def forward():
            accepted, _ = proxy.accept()
            with accepted, coordinator.connect() as onward:

                def back():
                    with suppress(ConnectionError):  # the host does not wait for a farewell
                        while data := onward.recv(1 << 16):
                            accepted.sendall(data)

                answering = threading.Thread(target=back)
                answering.start()
                with suppress(ConnectionError):
                    while data := accepted.recv(1 << 16):
                        sent.extend(data)
                        onward.sendall(data)
                with suppress(OSError):  # the coordinator may have ended the connection
                    onward.shutdown(socket.SHUT_WR)
                answering.join()

        thread = threading.Thread(target=forward)
        thread.start()
        address = "{}:{}".format(*proxy.getsockname())
        join(address, coordinator.new_token(), "host", 20, None)
        thread.join()
    admitted = len(events_of(coordinator.run, "host-joined"))
    with coordinator.connect() as replayed:
        replayed.sendall(sent)
        while replayed.recv(1 << 16):
            pass
    assert len(events_of(coordinator.run, "host-joined")) == admitted


def test_a_message_that_is_too_long_is_refused(coordinator):
    answer = coordinator.ask(b"x" * (20 << 10) + b"\n")
    assert ANSWERS.validate_json(answer).reason.startswith("a message that is too long")


def test_those_who_connect_and_say_nothing_keep_no_one_out(coordinator, joined):
    silent = [coordinator.connect() for _ in range(200)]
    for each in silent[:50]:
        each.sendall(b"\x16\x03\x01")  # the first bytes of a handshake
    assert coordinator.join(before=joined.credentials.agent)
    for each in silent:
        each.settimeout(20)
        with each, suppress(ConnectionError):
            assert each.recv(1) == b"", "it is closed at the other end"
    assert {"too many connections at once", "no request in time"} <= {*coordinator.refusals()}


@pytest.mark.parametrize("count", sampled([60, 1000], 0))
def test_nonsense_harms_nothing(coordinator, joined, count):
    draw = random.Random(count)
    valid = line(request(coordinator.token))
    for number in range(count):
        text = bytearray(valid)
        for _ in range(draw.choice([1, 5, 50])):
            at = draw.randrange(len(text))
            text[at : at + draw.choice([0, 1, 20])] = os.urandom(draw.choice([0, 1, 20]))
        if number % 2:
            with coordinator.connect() as plain:
                plain.sendall(text)
        else:
            with suppress(ssl.SSLError, ConnectionError):  # it has hung up already
                coordinator.ask(bytes(text) + b"\n")
    assert coordinator.join(before=joined.credentials.agent)
    assert len(coordinator.refusals()) < 50, "each reason is logged once"
