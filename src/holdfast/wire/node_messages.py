"""Consensus: the messages of its nodes over TLS, and those of a coordinator to the node here.

    node ── Envelope: a message of `core.consensus`, or where the coordinator is ──▶ another node
    coordinator ── JournalRequest ─▶ node of this host
                ◀─ JournalAnswer ───

One line of JSON each. A connection between nodes carries messages one way, and may lose them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self

from pydantic import Field, model_validator

from holdfast.core.consensus.messages import (
    AppendEntries,
    ConsensusMessage,
    EntriesAppended,
    RequestVote,
    TimeoutNow,
    Vote,
)
from holdfast.wire.messages import Message

MAX_LINE_BYTES: Final = 64 << 20
"""The longest message: a batch of entries, each of which may name a thousand hosts."""


class Announcement(Message):
    """A leader says where its coordinator is.

    Attributes:
        term: The leader's.
        address: Address and port where hosts join.
    """

    term: int
    address: str = Field(max_length=300)


class Envelope(Message):
    """One message of a node; the other fields are None.

    Attributes:
        sender: The node that has sent it.
    """

    sender: str = Field(max_length=300)
    request_vote: RequestVote | None = None
    vote: Vote | None = None
    append_entries: AppendEntries | None = None
    entries_appended: EntriesAppended | None = None
    timeout_now: TimeoutNow | None = None
    announcement: Announcement | None = None

    @model_validator(mode="after")
    def _check_number(self) -> Self:
        messages = [*(getattr(self, field) for field in _FIELDS.values()), self.announcement]
        if sum(each is not None for each in messages) != 1:
            raise ValueError("an envelope has one message")
        return self

    @property
    def message(self) -> ConsensusMessage | None:
        """The message of `core.consensus`; None if it is no such message."""
        return (
            self.request_vote
            or self.vote
            or self.append_entries
            or self.entries_appended
            or self.timeout_now
        )

    @property
    def line(self) -> bytes:
        """The envelope as it is sent."""
        return self.model_dump_json(exclude_defaults=True).encode() + b"\n"


_FIELDS: Final[Mapping[type[ConsensusMessage], str]] = {
    RequestVote: "request_vote",
    Vote: "vote",
    AppendEntries: "append_entries",
    EntriesAppended: "entries_appended",
    TimeoutNow: "timeout_now",
}


def envelope(sender: str, message: ConsensusMessage) -> Envelope:
    """A message of `core.consensus` with the node that sends it."""
    return Envelope.model_validate({"sender": sender, _FIELDS[type(message)]: message})


class JournalRequest(Message):
    """A coordinator reads the journal, or appends to it.

    Attributes:
        append: The entry to append, encoded; None to read all entries.
        hosts: The node of each host that takes part, by the name of its agent, in the order in
            which they joined, if that has changed.
    """

    append: str | None = None
    hosts: dict[str, str] | None = None


class JournalAnswer(Message):
    """The answer: what was appended is in the logs of a majority.

    Attributes:
        entries: All entries, oldest first, if that was asked.
    """

    entries: tuple[str, ...] = ()
