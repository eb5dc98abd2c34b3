"""A host that joins gets the job and its code, or says why not."""

import base64
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from holdfast.errors import JobError, ProtocolError
from holdfast.wire import join
from holdfast.wire.rpc import SERVICE, JobMessage

CODE = b"sources"


@pytest.fixture
def coordinator(tmp_path):
    """Begin a coordinator that gives an answer: `coordinator(bytes) -> address`."""
    server = grpc.server(ThreadPoolExecutor(1))

    def begin(answer):
        method = grpc.unary_unary_rpc_method_handler(lambda *_: answer)
        handlers = grpc.method_handlers_generic_handler(SERVICE, {"FetchJob": method})
        server.add_generic_rpc_handlers((handlers,))
        address = f"unix:{os.path.relpath(tmp_path)}/socket"
        server.add_insecure_port(address)
        server.start()
        return address

    yield begin
    server.stop(None).wait()


def job(sha256):
    code = base64.b64encode(CODE).decode()
    return JobMessage(run="run", run_id=16 * "a", job="name: x", code=code, code_sha256=sha256)


def test_job_and_code_arrive(coordinator):
    sent = job(hashlib.sha256(CODE).hexdigest())
    assert join.fetch_job(coordinator(sent.model_dump_json().encode()), None) == (sent, CODE)


def test_code_that_does_not_match_its_digest_is_refused(coordinator):
    sent = job(hashlib.sha256(b"other").hexdigest())
    with pytest.raises(ProtocolError, match="do not match their SHA-256"):
        join.fetch_job(coordinator(sent.model_dump_json().encode()), None)


def test_an_answer_that_is_no_job_is_refused(coordinator):
    with pytest.raises(JobError, match="did not send its job"):
        join.fetch_job(coordinator(b'{"run": 3}'), None)


def test_a_coordinator_that_does_not_answer_is_named(tmp_path):
    with pytest.raises(join.NoRun, match=r"did not send its job: .*; join again"):
        join.fetch_job(f"unix:{os.path.relpath(tmp_path)}/nobody", None, timeout_s=0.1)
