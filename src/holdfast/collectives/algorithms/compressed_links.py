"""Compressed links: a range that crosses hosts is encoded before it is sent.

They are for the rounds of `parameter_server`. A member sends each part once, to be added by its
server, and keeps what the message lacks as its error. The server encodes the sum once for all, and
takes what they decode for its own sum, so that all have the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch

from holdfast.collectives.algorithms.network_links import NetworkLinks
from holdfast.collectives.compression.codec import PIECE, Codec, size_of, spans
from holdfast.collectives.exchange import bytes_of
from holdfast.collectives.group import Group
from holdfast.collectives.network import Network
from holdfast.collectives.tcp import Buffers


class CompressedLinks(NetworkLinks):
    """Implements `links.Links`, as NetworkLinks does.

    Args:
        group: The workers.
        network: Its connections.
        vector: The flat vector of this worker.
        codec: Encodes messages.
    """

    def __init__(self, group: Group, network: Network, vector: torch.Tensor, codec: Codec) -> None:
        super().__init__(group, network, vector)
        self._codec = codec
        self._messages: dict[range, _Message] = {}
        self._decoded = torch.empty(PIECE)
        self._error: torch.Tensor | None = None
        self._is_whole = False

    def begin(self, error: torch.Tensor | None, *, is_whole: bool = False) -> None:
        """Begin an all-reduce.

        Args:
            error: Takes what messages lack, where something is sent; as long as the vector. None
                to drop it.
            is_whole: True to send everything as it is.
        """
        self._error = error
        self._is_whole = is_whole
        for message in self._messages.values():
            message.num_encoded = 0

    def _send(self, elements: range, *, add: bool) -> Buffers:
        if self._is_whole:
            return super()._send(elements, add=add)
        if elements not in self._messages:
            self._messages[elements] = _Message(self._codec, elements)
        return self._encoded(self._messages[elements], keeps=not add)

    def _encoded(self, message: _Message, *, keeps: bool) -> Iterator[memoryview]:
        """The pieces of a message, which is encoded on the first way through it.

        Args:
            message: The message.
            keeps: True to keep what is decoded in place of the own elements.
        """
        for number, (piece, place) in enumerate(message.pieces):
            self._group.check_abort()
            data = message.data[place]
            if number == message.num_encoded:
                self._encode(piece, data, keeps=keeps)
                message.num_encoded += 1
            yield bytes_of(data)

    def _encode(self, piece: slice, data: torch.Tensor, *, keeps: bool) -> None:
        values = self._vector[piece]
        self._codec.encode(values.float(), data)
        if self._error is None and not keeps:
            return
        decoded = self._decode(data, len(values))
        if self._error is not None:
            torch.sub(values, decoded, out=self._error[piece])
        if keeps:
            values.copy_(decoded)

    def _replace(self, elements: range) -> Buffers:
        if self._is_whole:
            return super()._replace(elements)
        return self._replace_pieces(elements)

    def _replace_pieces(self, elements: range) -> Buffers:
        received = torch.empty(self._codec.size(PIECE), dtype=torch.uint8)
        for piece, place in spans(self._codec, elements):
            values = self._vector[piece]
            data = received[: place.stop - place.start]
            yield bytes_of(data)
            values.copy_(self._decode(data, len(values)))

    def _add(self, peer: int, elements: range, added: Counter[int], order: int) -> Buffers:
        if self._is_whole:
            return super()._add(peer, elements, added, order)
        return self._add_pieces(elements, added, order)

    def _add_pieces(self, elements: range, added: Counter[int], order: int) -> Buffers:
        received = torch.empty(self._codec.size(PIECE), dtype=torch.uint8)
        for number, (piece, place) in enumerate(spans(self._codec, elements)):
            self._group.check_abort()
            values = self._vector[piece]
            data = received[: place.stop - place.start]
            yield bytes_of(data)
            # In the order of members, not in that of arrival.
            while added[number] < order:
                yield None
            values.add_(self._decode(data, len(values)))
            added[number] += 1

    def _decode(self, data: torch.Tensor, count: int) -> torch.Tensor:
        """The elements of a piece, until the next one is decoded."""
        decoded = self._decoded[:count]
        self._codec.decode(data, decoded)
        return decoded


class _Message:
    """A message, and how much of it is encoded.

    Attributes:
        pieces: Elements of the vector, and bytes of `data`, of each piece.
        data: The message, uint8[n].
        num_encoded: Pieces that are encoded.
    """

    def __init__(self, codec: Codec, elements: range) -> None:
        self.pieces = list(spans(codec, elements))
        self.data = torch.empty(size_of(codec, len(elements)), dtype=torch.uint8)
        self.num_encoded = 0
