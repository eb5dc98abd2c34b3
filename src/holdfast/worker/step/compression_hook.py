"""Compression hooks: what DistributedDataParallel sends in place of its buckets.

    every worker         encodes the part of each other worker                 (all-to-all)
    owner of a part      adds up that of all workers by rank, encodes the sum  (all-gather)
    every worker         takes what the sums decode to

So a value is encoded twice. What is lost both times is the error of the worker that encodes, which
adds it in the next step; see `collectives.compression.feedback`. The errors are in the memory of
the worker. A step before a checkpoint is sent whole, so no checkpoint lacks them.

DDP divides its buckets again after the first step of a worker's life. What is encoded together
must not change then, or a resumed run would differ from one that was not interrupted: so messages
are not of buckets, but of packets, which are fixed sets of parameters. A packet is sent as soon as
DDP has filled all buckets that have some of it.

Collectives of gloo begin in the same order on all workers. The backward pass begins all of them;
those of a packet run while it computes the gradients of the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.futures import Future

from holdfast.arena.memory import Phase
from holdfast.arena.worker_status import WorkerStatus
from holdfast.collectives.compression.codec import PIECE, Codec, size_of, spans
from holdfast.collectives.compression.codecs import codec_of
from holdfast.errors import JobError
from holdfast.job.settings import CompressionSettings

_MIB: Final = 1 << 20
_DEFAULT_CAP_MIB: Final = 25.0
"""Size of a bucket of DDP, unless the job says otherwise."""


class CompressionHook(Protocol):
    """Averages the gradients of a step over the workers, bucket by bucket."""

    def begin(self, scale: int, *, is_whole: bool) -> bool:
        """Begin a backward pass; returns whether all of it is sent as it is.

        Args:
            scale: Factor on its gradients.
            is_whole: True to send all of them as they are, if the hook can.
        """
        ...

    def reduce(self, bucket: GradBucket) -> Future[torch.Tensor]:
        """The mean of a bucket, which all workers call in the same order.

        Raises:
            JobError: Its gradient is sparse.
            RuntimeError: Another worker is lost.
        """
        ...

    def end(self, *, is_finite: bool) -> None:
        """Keep what the step has not sent; if it is not finite, what was kept before."""
        ...


def compression_hook(
    settings: CompressionSettings,
    parameters: Sequence[nn.Parameter],
    cap_mib: float | None,
    status: WorkerStatus,
) -> CompressionHook | None:
    """The hook for a job; None if it does not compress, or there is one worker.

    Args:
        settings: Settings of the compression.
        parameters: Parameters that get a gradient.
        cap_mib: Size of a bucket; None for DDP's default.
        status: Gets the times of this worker.
    """
    if not settings.is_on or dist.get_world_size() == 1:
        return None
    codec = codec_of(settings)
    if codec is None:
        return _PowerSgd(settings, status)
    cap_bytes = _MIB * (_DEFAULT_CAP_MIB if cap_mib is None else cap_mib)
    packets = [
        _Packet(each, codec, status, keeps_error=settings.error_feedback)
        for each in _divided(parameters, cap_bytes)
    ]
    return _Encoding(settings.method, packets)


def _divided(parameters: Sequence[nn.Parameter], cap_bytes: float) -> list[list[nn.Parameter]]:
    """The parameters of each packet, of equal dtype, in the order in which gradients come."""
    packets: list[list[nn.Parameter]] = []
    newest: dict[torch.dtype, list[nn.Parameter]] = {}
    for each in reversed(parameters):
        packet = newest.get(each.dtype)
        if packet is None or sum(p.nbytes for p in packet) + each.nbytes > cap_bytes:
            packet = newest[each.dtype] = []
            packets.append(packet)
        packet.append(each)
    return packets


class _Encoding:
    """Implements `CompressionHook` by a codec.

    Args:
        method: Its name.
        packets: All parameters.
    """

    def __init__(self, method: str, packets: Sequence[_Packet]) -> None:
        self._method = method
        self._packets = packets
        self._scale = 1
        self._is_whole = True
        self._num_sent = 0
        self._gradients: dict[torch.Tensor, torch.Tensor] = {}
        self._results: list[tuple[Future[torch.Tensor], torch.Tensor]] = []

    def begin(self, scale: int, *, is_whole: bool) -> bool:
        """Implements `CompressionHook.begin`."""
        self._scale = scale
        self._is_whole = is_whole
        self._num_sent = 0
        self._gradients = {}
        self._results = []
        return is_whole

    def reduce(self, bucket: GradBucket) -> Future[torch.Tensor]:
        """Implements `CompressionHook.reduce`: all buckets are complete with the last one."""
        buffer = _dense_buffer(bucket, self._method)
        at = 0
        for each in bucket.parameters():
            size = _real(each.detach()).numel()
            self._gradients[each] = buffer[at : at + size]
            at += size
        result = Future[torch.Tensor](devices=None if buffer.is_cpu else [buffer.device])
        self._results.append((result, buffer))
        packets = self._packets
        while self._num_sent < len(packets) and packets[self._num_sent].is_in(self._gradients):
            packets[self._num_sent].send(self._gradients, self._scale, is_whole=self._is_whole)
            if self._num_sent:  # its messages have arrived while the next packet was computed
                packets[self._num_sent - 1].add_up()
            self._num_sent += 1
        if self._num_sent == len(packets):
            self._finish()
        return result

    def _finish(self) -> None:
        self._packets[-1].add_up()
        for each in self._packets:
            each.finish(self._gradients)
        for result, buffer in self._results:
            result.set_result(buffer)
        self._results = []

    def end(self, *, is_finite: bool) -> None:
        """Implements `CompressionHook.end`."""
        if is_finite:
            for each in self._packets:
                each.keep_error(self._scale)


class _Packet:
    """Parameters whose gradients are encoded as one vector.

    The vector has an equal part for each worker; zeros fill up the last ones. Once a part is
    encoded, what its message lacks is in its place: the vector becomes the error of the step.

    Args:
        parameters: The parameters, of equal dtype.
        codec: Encodes messages.
        status: Gets the times of this worker.
        keeps_error: True to add what messages lack in the next step.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        codec: Codec,
        status: WorkerStatus,
        *,
        keeps_error: bool,
    ) -> None:
        self._parameters = parameters
        self._codec = codec
        self._status = status
        self._rank = dist.get_rank()
        values = [_real(each.detach()) for each in parameters]
        self._sizes = [each.numel() for each in values]
        num_parts = dist.get_world_size()
        part = max(1, -(-sum(self._sizes) // num_parts))
        dtype = torch.promote_types(values[0].dtype, torch.float32)
        self._vector = values[0].new_zeros(num_parts, part, dtype=dtype)
        self._error = torch.zeros_like(self._vector) if keeps_error else None
        message_bytes = size_of(codec, part)
        self._messages = values[0].new_zeros(num_parts, message_bytes, dtype=torch.uint8)
        self._received = torch.zeros_like(self._messages)
        self._piece = values[0].new_empty(min(PIECE, part), dtype=torch.float32)
        self._is_whole = True
        self._work: dist.Work | None = None

    def is_in(self, gradients: Mapping[torch.Tensor, torch.Tensor]) -> bool:
        """True if all gradients are there."""
        return all(each in gradients for each in self._parameters)

    def send(
        self, gradients: Mapping[torch.Tensor, torch.Tensor], scale: int, *, is_whole: bool
    ) -> None:
        """Begin to send each other worker its part."""
        self._is_whole = is_whole
        *places, rest = self._split(self._vector)
        for each, place in zip(self._parameters, places, strict=True):
            place.copy_(gradients[each])
        rest.zero_()
        # The sum of all workers is the mean then. Errors are kept without the scale of the loss.
        self._vector.div_(len(self._vector))
        if self._error is not None:
            self._vector.add_(self._error, alpha=scale)
        if is_whole:
            self._work = dist.all_reduce(self._vector, async_op=True)
            return
        for rank, part in enumerate(self._vector):
            if rank != self._rank:
                self._encode(part, self._messages[rank])
        self._work = dist.all_to_all_single(self._received, self._messages, async_op=True)

    def add_up(self) -> None:
        """Add up the own part, and begin to send the sum to all."""
        if self._is_whole:
            return
        self._wait()
        total = self._vector[self._rank]
        own_part = total.clone()
        total.zero_()
        # By rank, so the bits do not depend on which worker adds. The own part lacks nothing.
        for rank, message in enumerate(self._received):
            if rank == self._rank:
                total.add_(own_part)
                continue
            for piece, values in self._decoded(message):
                total[piece].add_(values)
        self._encode(total, self._messages[0])
        self._work = dist.all_gather(list(self._received), self._messages[0], async_op=True)

    def finish(self, gradients: Mapping[torch.Tensor, torch.Tensor]) -> None:
        """Write the mean of all workers to the gradients."""
        self._wait()
        mean = self._vector
        if not self._is_whole:
            mean = torch.empty_like(self._vector)
            for part, message in zip(mean, self._received, strict=True):
                for piece, values in self._decoded(message):
                    part[piece].copy_(values)
        for each, place in zip(self._parameters, self._split(mean), strict=False):
            gradients[each].copy_(place)

    def keep_error(self, scale: int) -> None:
        """Add in the next step what the messages of this one lack."""
        if self._error is None:
            return
        if self._is_whole:
            self._error.zero_()
        else:
            # The vector has become the error; the memory of the old one is the next vector.
            self._error, self._vector = self._vector.div_(scale), self._error

    def _split(self, vector: torch.Tensor) -> Sequence[torch.Tensor]:
        """The elements of each parameter, and those that fill up the last parts."""
        return torch.split(vector.view(-1), [*self._sizes, vector.numel() - sum(self._sizes)])

    def _encode(self, part: torch.Tensor, message: torch.Tensor) -> None:
        """Encode a part, and keep what the message lacks."""
        for piece, place in spans(self._codec, range(len(part))):
            self._codec.encode(part[piece].float(), message[place])
        if self._error is not None:
            for piece, values in self._decoded(message):
                part[piece].sub_(values)

    def _decoded(self, message: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        """The elements of a message, piece by piece; each until the next one."""
        for piece, place in spans(self._codec, range(self._vector.shape[1])):
            values = self._piece[: piece.stop - piece.start]
            self._codec.decode(message[place], values)
            yield piece, values

    def _wait(self) -> None:
        assert self._work is not None, "nothing was sent"
        before = self._status.enter(Phase.WAIT_REDUCE)
        self._work.wait()
        self._status.enter(before)


class _PowerSgd:
    """Implements `CompressionHook` by PyTorch's PowerSGD.

    Its state is in no checkpoint, and it sends no step whole but the first ones of each life of the
    workers: it starts again when a run is resumed, or its workers restart.

    Args:
        settings: Settings of the compression.
        status: Gets the times of this worker.
    """

    def __init__(self, settings: CompressionSettings, status: WorkerStatus) -> None:
        self._status = status
        # DDP divides its buckets again after the first step.
        self._state = powerSGD_hook.PowerSGDState(
            None,
            settings.rank,
            max(2, settings.warmup_steps),
            use_error_feedback=settings.error_feedback,
        )

    def begin(self, scale: int, *, is_whole: bool) -> bool:  # noqa: ARG002
        """Implements `CompressionHook.begin`: nothing is sent whole."""
        return False

    def reduce(self, bucket: GradBucket) -> Future[torch.Tensor]:
        """Implements `CompressionHook.reduce`."""
        _dense_buffer(bucket, "powersgd")
        result = powerSGD_hook.powerSGD_hook(self._state, bucket)
        # Between the collectives of a bucket, PyTorch keeps a thread of gloo waiting. Those of two
        # buckets would wait forever.
        if dist.get_backend() == "gloo":
            before = self._status.enter(Phase.WAIT_REDUCE)
            result.wait()
            self._status.enter(before)
        return result

    def end(self, *, is_finite: bool) -> None:
        """Implements `CompressionHook.end`."""
        if not is_finite:  # nor is anything that it keeps
            self._state.error_dict.clear()
            self._state.p_memory_dict.clear()
            self._state.q_memory_dict.clear()


def _dense_buffer(bucket: GradBucket, method: str) -> torch.Tensor:
    """The buffer of a bucket.

    Raises:
        JobError: It is sparse.
    """
    buffer: torch.Tensor = bucket.buffer()
    if buffer.is_sparse:
        raise JobError(
            f"compression={method} does not support sparse gradients; set compression=none, or "
            "build the layer with sparse=False"
        )
    return buffer


def _real(values: torch.Tensor) -> torch.Tensor:
    """The values, those of complex numbers as two each."""
    return torch.view_as_real(values) if values.is_complex() else values
