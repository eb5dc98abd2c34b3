"""Fetch: how a host that has joined a run gets the job and its code."""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Final

import grpc

from holdfast.errors import JobError, ProtocolError
from holdfast.wire.rpc import FetchJobMessage, JobMessage, Service, details_of, open_channel
from holdfast.wire.tls import Credentials

TIMEOUT_S: Final = 60.0


def fetch_job(address: str, credentials: Credentials | None) -> tuple[JobMessage, bytes]:
    """The job of a run, and its packed sources.

    Args:
        address: Address of the coordinator's gRPC service.
        credentials: The agent's.

    Raises:
        JobError: The coordinator does not answer.
        ProtocolError: The sources do not match their digest.
    """
    with open_channel(address, credentials) as channel:
        try:
            job = Service(channel).fetch_job(
                FetchJobMessage(), timeout=TIMEOUT_S, wait_for_ready=True
            )
        except grpc.RpcError as error:
            raise JobError(
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
