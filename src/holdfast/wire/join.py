"""Join: how a host asks a coordinator to take part in a run, over TLS, and gets its job.

    host ── JoinMessage ─────────────────────▶ coordinator, first port
         ◀─ JoinedMessage or RefusedMessage ──
    host ── gRPC with the certificate ───────▶ coordinator, the port after it
         ◀─ JobMessage: job and sources ──────

One line of JSON each way, so that what reads the messages of strangers is small. The host knows the
coordinator by the digest in its token. It makes its keys itself, and they never leave it. A host
that has taken part before shows its certificate in place of a token.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
import socket
import ssl
import time
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import grpc
from pydantic import Field, TypeAdapter, ValidationError

from holdfast.errors import JobError, ProtocolError
from holdfast.wire.messages import Message
from holdfast.wire.rpc import FetchJobMessage, JobMessage, Service, details_of, open_channel
from holdfast.wire.tls import Credentials, HostCredentials, digest_of, pinned_context
from holdfast.wire.token import Token

MAX_LINE_BYTES: Final = 16 << 10
"""The longest message."""
ANSWER_TIMEOUT_S: Final = 15.0
"""Time that one try may wait for the coordinator's next bytes."""
RETRY_S: Final = 0.2
"""Wait before asking again."""
FETCH_TIMEOUT_S: Final = 60.0
"""Time that the coordinator may take to send the job and its sources."""


class JoinMessage(Message):
    """A host asks to take part in a run.

    Attributes:
        token: The run's; empty from a host that shows the certificate that it has got before.
        hostname: Hostname of the host.
        agent, data: Requests for the certificates of its roles, in PEM.
    """

    token: str = Field(default="", max_length=512)
    hostname: str = Field(max_length=255)
    agent: str = Field(max_length=4096)
    data: str = Field(max_length=4096)


class JoinedMessage(Message):
    """Secrets that an agent of another host must know.

    Attributes:
        name: Its name, never used before in the run.
        attempt: The id of this start of the run.
        authority, agent, data: The certificates of the run's authority and of the host, in PEM.
    """

    kind: Literal["joined"] = "joined"
    name: str
    attempt: str
    authority: str
    agent: str
    data: str


class RefusedMessage(Message):
    """The host is refused.

    Attributes:
        reason: Cause, and what to do, for people.
        is_over: True if the reason is that the run has ended.
    """

    kind: Literal["refused"] = "refused"
    reason: str
    is_over: bool = False


class NoRun(JobError):
    """There is no run to take part in: no coordinator answers, or its run has ended."""


class RunIsOver(NoRun):
    """The coordinator says that its run has ended."""


ANSWERS: Final = TypeAdapter[JoinedMessage | RefusedMessage](
    Annotated[JoinedMessage | RefusedMessage, Field(discriminator="kind")]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Credentials of a host once it has joined.

    Attributes:
        message: The coordinator's answer.
        credentials: Its certificates and keys.
    """

    message: JoinedMessage
    credentials: HostCredentials


def control_address(coordinator: str) -> str:
    """The address of the coordinator's gRPC service, given the one where hosts join."""
    host, _, port = coordinator.rpartition(":")
    return f"{host}:{int(port) + 1}"


def join(
    coordinator: str, token: Token, hostname: str, timeout_s: float, before: Credentials | None
) -> Joined:
    """Ask to take part.

    Args:
        coordinator: Its address and port.
        token: The run's.
        hostname: Hostname of this host.
        timeout_s: Time to try until it answers.
        before: The agent's credentials if this host has taken part before, in place of the token.

    Raises:
        NoRun: It does not answer, or its run has ended.
        JobError: It refuses, or is not the token's.
    """
    from holdfast.wire.certificate_request import new_request  # imports X.509

    # Keys of its own for each time that this host joins; an answer that is lost is asked for again
    # with the same keys, so it is the same.
    agent = new_request()
    data = new_request()
    request = JoinMessage(
        token="" if before else token.text,
        hostname=hostname,
        agent=agent.request,
        data=data.request,
    )
    answer = _answer(coordinator, token, request, before, time.monotonic() + timeout_s)
    if isinstance(answer, RefusedMessage):
        kind = RunIsOver if answer.is_over else JobError
        raise kind(f"the coordinator at {coordinator} refuses this host: {answer.reason}")
    authority = answer.authority
    credentials = HostCredentials(
        agent=Credentials(authority=authority, certificate=answer.agent, key=agent.key),
        data=Credentials(authority=authority, certificate=answer.data, key=data.key),
    )
    return Joined(message=answer, credentials=credentials)


def fetch_job(
    address: str,
    credentials: Credentials | None,
    node: str = "",
    timeout_s: float = FETCH_TIMEOUT_S,
) -> tuple[JobMessage, bytes]:
    """The job of a run, and its packed sources.

    Args:
        address: Address of the coordinator's gRPC service.
        credentials: The agent's.
        node: Defined in `FetchJobMessage`.
        timeout_s: Time that it may take.

    Raises:
        NoRun: The coordinator does not answer.
        ProtocolError: The sources do not match their digest.
    """
    with open_channel(address, credentials) as channel:
        try:
            job = Service(channel).fetch_job(
                FetchJobMessage(node=node), timeout=timeout_s, wait_for_ready=True
            )
        except grpc.RpcError as error:
            raise NoRun(
                f"the coordinator at {address} did not send its job: {details_of(error)}; join "
                "again"
            ) from None
    try:
        code = base64.b64decode(job.code, validate=True)
    except binascii.Error:
        code = b""
    if hashlib.sha256(code).hexdigest() != job.code_sha256:
        raise ProtocolError("the sources of the job do not match their SHA-256; join again")
    return job, code


def _answer(
    coordinator: str,
    token: Token,
    request: JoinMessage,
    before: Credentials | None,
    until: float,
) -> JoinedMessage | RefusedMessage:
    """Ask until there is an answer: the same question, which is answered alike each time."""
    while True:
        try:
            return _ask(coordinator, token, request, pinned_context(before))
        except (OSError, ValidationError) as error:
            if time.monotonic() > until:
                raise NoRun(
                    f"no coordinator answers at {coordinator} ({_in_words(error)}); see whether "
                    "its run continues, and whether the network lets this host reach the port"
                ) from None
        time.sleep(RETRY_S)


def _ask(
    coordinator: str, token: Token, request: JoinMessage, context: ssl.SSLContext
) -> JoinedMessage | RefusedMessage:
    host, _, port = coordinator.rpartition(":")
    address = host.strip("[]"), int(port)
    with (
        socket.create_connection(address, ANSWER_TIMEOUT_S) as plain,
        context.wrap_socket(plain) as connection,
    ):
        # Compared before anything is sent: no other server gets the token.
        certificate = connection.getpeercert(binary_form=True) or b""
        if not secrets.compare_digest(digest_of(certificate), token.coordinator):
            raise JobError(
                f"the coordinator at {coordinator} is not the one that has made this token; take "
                "the token file of its newest start, and see whether another run uses the port"
            )
        connection.sendall(request.model_dump_json().encode() + b"\n")
        with connection.makefile("rb") as answers:
            return ANSWERS.validate_json(answers.readline(MAX_LINE_BYTES))


def _in_words(error: Exception) -> str:
    return str(error.strerror or error) if isinstance(error, OSError) else "no valid answer"
