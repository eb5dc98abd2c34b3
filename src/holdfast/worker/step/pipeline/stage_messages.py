"""Messages between the stages of a pipeline: a few numbers, and tensors with their strides.

    numbers  int64[WORDS]: those of the caller, then dtype, shape and strides of each tensor
    tensors  their elements, one after the other

A send never waits for its receiver, unless many messages to it are under way. Messages of one kind
from one worker arrive in the order in which they were sent. No wait outlives the time limit of the
job, nor a sender that is at a barrier of all workers, where it sends no more.
"""

from __future__ import annotations

import enum
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch

from holdfast.arena.memory import Word
from holdfast.arena.tensors import DTYPES
from holdfast.arena.worker_status import WorkerStatus
from holdfast.collectives.barrier_tags import WorkerTag
from holdfast.collectives.group import Group
from holdfast.errors import HoldfastError, JobError
from holdfast.worker.context import WorkerContext
from holdfast.worker.process_groups.cascade import await_abort, is_connection_error
from holdfast.worker.process_groups.device_messages import backend_on
from holdfast.worker.process_groups.rendezvous import meet

WORDS: Final = 512
_CODES: Final = {dtype: code for code, dtype in enumerate(DTYPES.values())}
_KINDS: Final = tuple(DTYPES.values())

Tensors = Sequence[torch.Tensor | None]


class MessageKind(enum.IntEnum):
    """Content of a message; messages of several kinds may overtake each other."""

    ACTIVATIONS = 1
    GRADIENTS = 2
    SHAPES = 3
    TIED = 4


class StageMessages:
    """Sends and receives for one worker.

    Args:
        worker: The worker.
        device: Device of the tensors that it receives.

    Raises:
        JobError: The port is in use.
    """

    def __init__(self, worker: WorkerContext, device: torch.device) -> None:
        group = worker.group
        job = worker.job
        store = meet(group, worker.agent, job.network, job.port).connect()
        size = len(group.members)
        self._gloo = backend_on(torch.device("cpu"), store, group.member_index, size)
        self._group = group
        self._status = worker.status
        self._device = device
        self._limit = len(group.members) + 1
        self._under_way = defaultdict[tuple[int, MessageKind], deque[list[Any]]](deque)
        self._watch = ReceiveWatch(group, worker.status, job.timeout_s, self._gloo.abort)

    def send(self, to: int, kind: MessageKind, numbers: Sequence[int], tensors: Tensors) -> None:
        """Begin to send.

        Args:
            to: The stage that receives it.
            kind: Content of the message.
            numbers: Numbers of the caller.
            tensors: Tensors, which must not change before they have arrived.

        Raises:
            Aborted: The generation is over.
            JobError: There are too many tensors, or one is of an odd dtype.
        """
        parts = [_described(numbers, tensors)]
        parts += [_elements(each) for each in tensors if each is not None and each.numel()]
        queue = self._under_way[to, kind]
        with self._errors_explained():
            if len(queue) == self._limit:
                self._finish(queue)
            queue.append([(self._gloo.send([part], to, kind), part) for part in parts])

    def receive(
        self, sender: int, kind: MessageKind
    ) -> tuple[list[int], list[torch.Tensor | None]]:
        """Wait for a message; returns its numbers and tensors.

        Raises:
            Aborted: The generation is over.
        """
        before = self._status.begin_wait()
        with self._errors_explained(), self._watch.of(self._group.members[sender]):
            words = torch.empty(WORDS, dtype=torch.int64)
            self._gloo.recv([words], sender, kind).wait()
            numbers, descriptions = _read(words.tolist())
            tensors = list[torch.Tensor | None]()
            for each in descriptions:
                if each is None:
                    tensors.append(None)
                    continue
                dtype, shape, strides = each
                elements = torch.empty(shape, dtype=dtype)
                if elements.numel():
                    self._gloo.recv([elements], sender, kind).wait()
                tensors.append(_strided(elements.to(self._device), strides))
        self._status.enter(before)
        return numbers, tensors

    def finish(self) -> None:
        """Wait until all that was sent has arrived."""
        with self._errors_explained():
            for queue in self._under_way.values():
                while queue:
                    self._finish(queue)

    def _finish(self, queue: deque[list[Any]]) -> None:
        for work, _ in queue.popleft():
            work.wait()

    @contextmanager
    def _errors_explained(self) -> Iterator[None]:
        """Raises: Aborted: A connection broke because the generation is over."""
        try:
            yield
        except RuntimeError as error:
            self._watch.explain()
            if is_connection_error(error):
                await_abort(self._group)
            raise


def _described(numbers: Sequence[int], tensors: Tensors) -> torch.Tensor:
    """The numbers of a message.

    Raises:
        JobError: They do not fit.
    """
    words = [len(numbers), *numbers, len(tensors)]
    for each in tensors:
        if each is None:
            words.append(-1)
            continue
        code = _CODES.get(each.dtype)
        if code is None:
            raise JobError(f"a part of the model returns a tensor of {each.dtype}; convert it")
        words += [code, each.dim(), *each.shape, *each.stride()]
    if len(words) > WORDS:
        raise JobError(
            f"a part of the model returns {len(tensors)} tensors, more than a message between "
            "stages can describe; return fewer"
        )
    return torch.tensor(words + [0] * (WORDS - len(words)))


def _read(
    words: Sequence[int],
) -> tuple[list[int], list[tuple[torch.dtype, list[int], list[int]] | None]]:
    """The inverse of `_described`: dtype, shape and strides of each tensor."""
    rest = iter(words)

    def take(number: int) -> list[int]:
        return [next(rest) for _ in range(number)]

    numbers = take(next(rest))
    descriptions = list[tuple[torch.dtype, list[int], list[int]] | None]()
    for _ in range(next(rest)):
        code = next(rest)
        if code < 0:
            descriptions.append(None)
            continue
        dims = next(rest)
        descriptions.append((_KINDS[code], take(dims), take(dims)))
    return numbers, descriptions


def _elements(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()


def _strided(elements: torch.Tensor, strides: list[int]) -> torch.Tensor:
    """Elements in memory with these strides: kernels round by the layout of what they read."""
    if list(elements.stride()) == strides or not elements.numel():
        return elements
    home = torch.empty_strided(
        elements.shape, strides, dtype=elements.dtype, device=elements.device
    )
    first = tuple(slice(1) if stride == 0 else slice(None) for stride in strides)
    home[first].copy_(elements[first])
    return home


LOOK_S: Final = 1.0
"""Interval at which the thread looks."""
LOOKS: Final = 5
"""Times that a sender is seen at a barrier: what it sent before that arrives meanwhile."""


class ReceiveWatch:
    """Ends a receive of gloo that nothing will complete.

    Gloo waits for a message without looking at anything else. A thread looks instead: at how long
    the wait has lasted, and whether the sender waits at a barrier of all workers, because user code
    has taken another way there.

    Args:
        group: The members of its generation.
        status: Status that this worker publishes.
        timeout_s: Limit of a wait, seconds.
        abort: Ends all waits of the library.
    """

    def __init__(
        self, group: Group, status: WorkerStatus, timeout_s: float, abort: Callable[[], object]
    ) -> None:
        self._group = group
        self._status = status
        self._timeout_s = timeout_s
        self._abort = abort
        self._wait: tuple[int, float] | None = None
        self._ended: tuple[int, float] | None = None
        threading.Thread(target=self._look, name="receive-watch", daemon=True).start()

    @contextmanager
    def of(self, sender: int) -> Iterator[None]:
        """A context in which this worker receives from the member of this rank."""
        self._wait = (sender, time.monotonic())
        yield
        self._wait = None

    def explain(self) -> None:
        """Raise the reason for which a receive was ended, if one was.

        Raises:
            Aborted: The generation is over.
            JobError: The sender is at a barrier.
            HoldfastError: It took too long.
        """
        if self._ended is None:
            return
        sender, waited_s = self._ended
        if self._group.is_ahead(sender):
            # The two barriers differ, so all members raise the same error.
            self._group.barrier(WorkerTag.STAGE, self._status[Word.COMMITTED])
        raise HoldfastError(
            f"rank {self._group.rank} waited {waited_s:.0f} s for layers of rank {sender}; raise "
            "timeout_s if a step may take that long"
        )

    def _look(self) -> None:
        watched: object = None
        looks = 0
        while self._ended is None:
            time.sleep(LOOK_S)
            wait = self._wait
            if wait is None:
                continue
            sender, began = wait
            # By looks, not by time: a process that was stopped may find its message a moment later.
            looks = looks + 1 if wait is watched and self._group.is_ahead(sender) else 0
            watched = wait
            waited_s = time.monotonic() - began
            if self._wait is wait and (looks >= LOOKS or waited_s > self._timeout_s):
                self._ended = sender, waited_s
                self._abort()
