"""Compressed sums: hosts send each other encoded parts of the gradient.

    within each host     every worker adds one part of all vectors of the host     (shared memory)
    between the hosts    each host is the server of a share of every part          (encoded)
    within each host     all workers copy the other parts                          (shared memory)

So a value is encoded twice, whatever the number of hosts: once for its server, and once as a sum.
What both times are lost is the error of the worker that sends, which adds it in the next step.

Source: H. Tang et al., DoubleSqueeze: parallel stochastic gradient descent with double-pass
error-compensated compression, ICML 2019.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from holdfast.collectives.algorithms import hierarchical, parameter_server
from holdfast.collectives.algorithms.host_links import HostLinks
from holdfast.collectives.algorithms.links import Algorithm
from holdfast.collectives.compression.codec import Codec
from holdfast.collectives.compression.codecs import ratio_of
from holdfast.collectives.compression.feedback import ErrorFeedback
from holdfast.collectives.group import Group
from holdfast.collectives.network import Network

BETWEEN_HOSTS: Algorithm = functools.partial(
    hierarchical.all_reduce, between=parameter_server.all_reduce
)


class CompressedVector(Protocol):
    """A range of elements of equal dtype, which the workers of several hosts add."""

    def add_up(self, step: int, error: torch.Tensor | None, *, is_whole: bool) -> None:
        """Make this worker's vector the sum of all.

        Args:
            step: Steps committed.
            error: Zeros, as long as the vector: takes what is not sent. None to drop it.
            is_whole: True to send everything as it is.

        Raises:
            Aborted: The generation is over.
            HoldfastError: It took too long.
        """
        ...

    def undo(self) -> None:
        """Forget the newest step, which does not change the weights."""
        ...

    @property
    def ratio(self) -> float:
        """Factor by which hosts send fewer bytes."""
        ...


class EncodedVector:
    """Implements `CompressedVector` by a codec.

    Args:
        group: The workers.
        network: Its connections.
        vectors: The vector of each worker of this host, in shared memory, by member.
        codec: Encodes what is sent; None to send it as it is.
    """

    def __init__(
        self,
        group: Group,
        network: Network,
        vectors: Mapping[int, torch.Tensor],
        codec: Codec | None,
    ) -> None:
        self._members = range(len(group.members))
        self._vector = vectors[group.member_index]
        self._links = HostLinks(group, network, vectors, codec)
        self._codec = codec

    def add_up(self, step: int, error: torch.Tensor | None, *, is_whole: bool) -> None:  # noqa: ARG002
        """Implements `CompressedVector.add_up`."""
        if self._links.compressed is not None:
            self._links.compressed.begin(error, is_whole=is_whole)
        BETWEEN_HOSTS(self._links, self._members, range(len(self._vector)))

    def undo(self) -> None:
        """Implements `CompressedVector.undo`: nothing of a step is kept here."""

    @property
    def ratio(self) -> float:
        """Implements `CompressedVector.ratio`."""
        return 1.0 if self._codec is None else ratio_of(self._codec, self._vector.element_size())


class CompressedSums:
    """Adds all vectors of the workers of several hosts.

    Args:
        vectors: This worker's vectors, one of each dtype.
        ways: The way in which each of them is added.
        feedback: Keeps what is not sent; None to drop it.
    """

    def __init__(
        self,
        vectors: Sequence[torch.Tensor],
        ways: Sequence[CompressedVector],
        feedback: ErrorFeedback | None,
    ) -> None:
        self._vectors = vectors
        self._ways = ways
        self._feedback = feedback

    def add_up(self, step: int, *, is_whole: bool) -> None:
        """Make this worker's vectors the sums of all; see `CompressedVector.add_up`."""
        errors: Sequence[torch.Tensor | None] = [None] * len(self._ways)
        if self._feedback is not None:
            self._feedback.add(step, self._vectors)
            if not is_whole:
                errors = self._feedback.begin(step)
        for way, error in zip(self._ways, errors, strict=True):
            way.add_up(step, error, is_whole=is_whole)
        if self._feedback is not None:
            self._feedback.end(step, is_whole=is_whole)

    def undo(self, step: int) -> None:
        """Leave all as it was before a step, which does not change the weights."""
        for way in self._ways:
            way.undo()
        if self._feedback is not None:
            self._feedback.undo(step)

    def ratio(self, at: int) -> float:
        """Factor by which hosts send fewer bytes of a vector."""
        return self._ways[at].ratio
