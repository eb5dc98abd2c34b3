"""Messages of nodes: they arrive as they were sent, and nothing else arrives."""

import json

import pytest
from pydantic import ValidationError

from holdfast.core.consensus.log import ReplicatedEntry
from holdfast.core.consensus.messages import (
    AppendEntries,
    ConsensusMessage,
    EntriesAppended,
    RequestVote,
    TimeoutNow,
    Vote,
)
from holdfast.wire.node_messages import Announcement, Envelope, envelope

ENTRIES = (
    ReplicatedEntry(1),
    ReplicatedEntry(2, payload='{"a":"\\n"}'),
    ReplicatedEntry(3, voters=("a", "b")),
)
MESSAGES = [
    RequestVote(term=3, last_index=2, last_term=1),
    RequestVote(term=3, last_index=2, last_term=1, is_pre=True, is_transfer=True),
    Vote(term=3, is_granted=True),
    Vote(term=3, is_granted=False, is_pre=True),
    AppendEntries(
        term=3, previous_index=2, previous_term=1, entries=ENTRIES, commit_index=2, sent_at=0.1
    ),
    AppendEntries(
        term=3, previous_index=0, previous_term=0, entries=(), commit_index=0, sent_at=1e9 / 3
    ),
    EntriesAppended(term=3, match_index=0, sent_at=0.1),
    TimeoutNow(term=3),
]


def test_the_examples_are_complete():
    assert {type(each) for each in MESSAGES} == {*ConsensusMessage.__args__}


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: type(each).__name__)
def test_a_message_arrives_as_it_was_sent(message):
    line = envelope("node", message).line
    assert line.count(b"\n") == 1
    received = Envelope.model_validate_json(line)
    assert received.sender == "node"
    assert received.message == message
    assert received.announcement is None


def test_an_announcement_arrives_as_it_was_sent():
    announcement = Announcement(term=3, address="host:1")
    received = Envelope.model_validate_json(Envelope(sender="a", announcement=announcement).line)
    assert received.announcement == announcement
    assert received.message is None


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: type(each).__name__)
def test_unknown_fields_are_refused(message):
    sent = json.loads(envelope("node", message).line)
    (field,) = sent.keys() - {"sender"}
    for changed in ({**sent, "extra": 1}, {**sent, field: {**sent[field], "extra": 1}}):
        with pytest.raises(ValidationError, match="extra"):
            Envelope.model_validate_json(json.dumps(changed))


def test_unknown_fields_of_entries_are_refused():
    sent = json.loads(envelope("node", MESSAGES[4]).line)
    sent["append_entries"]["entries"][0]["extra"] = 1
    with pytest.raises(ValidationError, match="extra"):
        Envelope.model_validate_json(json.dumps(sent))


def test_an_envelope_has_one_message():
    with pytest.raises(ValidationError, match="one message"):
        Envelope(sender="a")
    vote = Vote(term=3, is_granted=True)
    with pytest.raises(ValidationError, match="one message"):
        Envelope(sender="a", vote=vote, timeout_now=TimeoutNow(term=3))
    with pytest.raises(ValidationError, match="one message"):
        Envelope(sender="a", vote=vote, announcement=Announcement(term=3, address="host:1"))
