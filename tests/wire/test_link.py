"""Links and channels to a coordinator that moves, over real sockets."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import grpc
import pytest

from conftest import wait_until
from holdfast.core.protocol import DesiredState, Stage, Status
from holdfast.errors import JobError
from holdfast.wire.coordinator_channel import CoordinatorChannel, answer_of
from holdfast.wire.link import CoordinatorLink
from holdfast.wire.rpc import (
    OPTIONS,
    DesiredStateMessage,
    FetchJobMessage,
    JobMessage,
    Service,
    StatusMessage,
    handlers,
)


class Coordinator:
    """A coordinator that takes statuses. One that hangs keeps its connections and says nothing."""

    def __init__(self, folder, number, *, hangs=False, refuses=False):
        self.address = f"unix:{os.path.relpath(folder)}/{number}.sock"
        self.number, self._hangs, self._refuses = number, hangs, refuses
        self.heard, self.num_streams = [], 0
        self.over = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(4), options=OPTIONS)
        answers = [self._attend, self._attend, self._fetch_job, self._fetch_job, self._fetch_job]
        self._server.add_generic_rpc_handlers((handlers(*answers),))
        self._server.add_insecure_port(self.address)
        self._server.start()

    def close(self):
        self.over.set()
        self._server.stop(None).wait()

    def _attend(self, messages, context):
        self.num_streams += 1
        for message in messages:
            self.heard.append(message.status.number)
            if self._refuses:
                context.abort(grpc.StatusCode.PERMISSION_DENIED, "you are not of this run")
            if not self._hangs:
                desired = DesiredState(generation=self.number, stage=Stage.IDLE)
                yield DesiredStateMessage(desired=desired)

    def _fetch_job(self, _message, context):
        if self._hangs:
            context.add_callback(self.over.set)
            assert self.over.wait(60)
        return JobMessage(
            run=f"run-{self.number}", run_id=16 * "a", job="", code="", code_sha256=""
        )


@pytest.fixture
def begin(tmp_path):
    """Begin a coordinator: `begin(number, hangs=False, refuses=False)`."""
    begun = []

    def run(number, **does):
        begun.append(Coordinator(tmp_path, number, **does))
        return begun[-1]

    yield run
    for each in begun:
        each.close()


def link_to(address):
    return closing(CoordinatorLink(address, lambda channel: Service(channel).attend))


def status(number):
    return StatusMessage(status=Status(host="a", number=number, capacity=1))


def await_answer_of(coordinator, link):
    """Wait until the newest answer is that of a coordinator."""

    def is_there():
        message = link.receive()
        return message is not None and message.desired.generation == coordinator.number

    wait_until(is_there)


def test_a_redirected_link_leaves_a_coordinator_that_hangs_and_repeats_the_newest_message(begin):
    first, second = begin(1, hangs=True), begin(2)
    with link_to(first.address) as link:
        link.send(status(1))
        link.send(status(2))
        wait_until(lambda: first.heard[-1:] == [2])
        link.redirect(second.address)
        await_answer_of(second, link)
        assert second.heard == [2]
        assert (link.address, link.broken_s) == (second.address, 0)
        link.send(status(3))
        wait_until(lambda: second.heard == [2, 3])
    assert 3 not in first.heard


def test_a_link_is_redirected_while_nobody_listens_and_back_again(begin, tmp_path):
    first = begin(1)
    with link_to(first.address) as link:
        link.send(status(1))
        await_answer_of(first, link)
        link.redirect(f"unix:{os.path.relpath(tmp_path)}/nobody")
        wait_until(lambda: link.broken_s > 0)
        link.send(status(2))
        link.redirect(first.address)
        await_answer_of(first, link)
        assert (first.heard, link.broken_s) == ([1, 2], 0)


def test_a_redirect_to_the_same_address_changes_nothing(begin):
    first = begin(1)
    with link_to(first.address) as link:
        link.send(status(1))
        await_answer_of(first, link)
        link.redirect(first.address)
        link.send(status(2))
        await_answer_of(first, link)
        assert (first.heard, first.num_streams, link.broken_s) == ([1, 2], 1, 0)


def test_a_refusal_names_the_coordinator_that_the_link_was_redirected_to(begin):
    first, second = begin(1, hangs=True), begin(2, refuses=True)
    with link_to(first.address) as link:
        link.send(status(1))
        link.redirect(second.address)
        with pytest.raises(JobError, match=rf"{second.address} refuses this agent: you are not of"):
            wait_until(link.receive)


def test_a_link_that_is_closed_while_it_is_redirected_ends(begin):
    first, second = begin(1), begin(2, hangs=True)
    before = set(threading.enumerate())
    for turn in range(10):
        with link_to(first.address) as link:
            of_link = {each for each in threading.enumerate() if each.name == "holdfast-link"}
            link.send(status(turn))
            is_closed = threading.Event()

            def redirect(link=link, is_closed=is_closed):
                while not is_closed.wait(0.001):
                    link.redirect(second.address)
                    link.redirect(first.address)

            redirecting = threading.Thread(target=redirect)
            redirecting.start()
            if turn % 2:
                wait_until(lambda turn=turn: turn in first.heard + second.heard)
        is_closed.set()
        redirecting.join()
        assert of_link - before
        assert not any(each.is_alive() for each in of_link - before)


def test_a_channel_follows_the_address_and_ends_the_calls_to_the_one_before(begin):
    first, second = begin(1, hangs=True), begin(2)
    address = first.address
    with CoordinatorChannel(lambda: address, None) as channel:
        opened = channel.get()
        call = Service(opened).fetch_job.future(FetchJobMessage())
        assert channel.get() is opened
        address = second.address
        assert Service(channel.get()).fetch_job(FetchJobMessage()).run == "run-2"
        with pytest.raises(grpc.RpcError, match="Channel closed"):
            call.result()


def test_a_call_whose_answer_is_of_no_use_is_cancelled_and_others_are_awaited(begin):
    first, second = begin(1, hangs=True), begin(2)
    for coordinator in (first, second):
        with CoordinatorChannel(lambda each=coordinator: each.address, None) as channel:
            call = Service(channel.get()).fetch_job.future(FetchJobMessage())
            if coordinator is second:
                assert answer_of(call, lambda: False).run == "run-2"
                continue
            with pytest.raises(grpc.FutureCancelledError):
                answer_of(call, lambda: True)
            assert first.over.wait(60), "the coordinator was not told"
