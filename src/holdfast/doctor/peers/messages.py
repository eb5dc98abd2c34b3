"""Messages between the first host of a check and the others, one line of JSON each."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from holdfast.doctor.finding import Finding
from holdfast.doctor.peers.link import Link
from holdfast.doctor.torch_report import TorchReport
from holdfast.hardware.profile import HostProfile, Name
from holdfast.wire.messages import Message

MAX_TEXT: Final = 1 << 16
"""The longest text in a message, characters."""


class WelcomeMessage(Message):
    """What a host needs for its checks.

    Attributes:
        job: The job, as YAML.
        name: What the host is called in findings.
        key: With which hosts sign datagrams, hexadecimal.
    """

    kind: Literal["welcome"] = "welcome"
    job: str = Field(max_length=MAX_TEXT)
    name: str = Field(max_length=300)
    key: str = Field(pattern="^[0-9a-f]{64}$")


class ProfileMessage(Message):
    """Measure the hardware of a host, instead of checking for a job.

    Attributes:
        name: What the host is called in findings.
        key: With which hosts sign datagrams, hexadecimal.
        path: The directory whose disk is measured; empty for where agents keep theirs.
    """

    kind: Literal["profile"] = "profile"
    name: str = Field(max_length=300)
    key: str = Field(pattern="^[0-9a-f]{64}$")
    path: str = Field(max_length=4096)


class ProfiledMessage(Message):
    """What the hardware of a host reaches.

    Attributes:
        address, port: Where it accepts links.
        host: Its host name.
        profile: What was measured; None if that failed.
        problem: Why it failed; empty if it did not.
    """

    kind: Literal["profiled"] = "profiled"
    address: str = Field(max_length=64)
    port: int = Field(ge=1, le=65535)
    host: Name
    profile: HostProfile | None
    problem: str = Field(max_length=MAX_TEXT)


class ReportMessage(Message):
    """What a host has found on itself.

    Attributes:
        address, port: Where it accepts links.
        versions: Of Python and packages, by name.
        torch: What a process with torch has reported; None if it failed.
        cores: That it can use.
        findings: Of its own checks.
    """

    kind: Literal["report"] = "report"
    address: str = Field(max_length=64)
    port: int = Field(ge=1, le=65535)
    versions: dict[str, str] = Field(max_length=100)
    torch: TorchReport | None
    cores: int = Field(ge=1)
    findings: tuple[Finding, ...] = Field(max_length=100)


class TimeMessage(Message):
    """Asks for the time, and answers; Unix seconds, 0 in the question."""

    kind: Literal["time"] = "time"
    unix_s: float = 0.0


class MeasureMessage(Message):
    """Measure the link to another host.

    Attributes:
        target: What the host is called.
        address, port: Where it accepts links.
    """

    kind: Literal["measure"] = "measure"
    target: str
    address: str
    port: int


class MeasuredMessage(Message):
    """A link, measured."""

    kind: Literal["measured"] = "measured"
    link: Link


class HeardMessage(Message):
    """Asks which hosts' datagrams have arrived, and answers; empty in the question."""

    kind: Literal["heard"] = "heard"
    hosts: tuple[str, ...] = Field(default=(), max_length=256)


class TrialMessage(Message):
    """Take part in a run.

    Attributes:
        coordinator: Its address and port.
        token: With which to join it.
    """

    kind: Literal["trial"] = "trial"
    coordinator: str
    token: str = Field(repr=False)


class TrialEndedMessage(Message):
    """A host's part in the run has ended.

    Attributes:
        problem: Why it failed; empty if it did not.
    """

    kind: Literal["trial-ended"] = "trial-ended"
    problem: str = Field(max_length=MAX_TEXT)


class ConclusionMessage(Message):
    """What all checks have come to.

    Attributes:
        findings: Those of all hosts.
        settings: What works, for each host a command.
    """

    kind: Literal["conclusion"] = "conclusion"
    findings: tuple[Finding, ...]
    settings: tuple[str, ...]


AnyMessage: TypeAlias = (
    WelcomeMessage
    | ProfileMessage
    | ProfiledMessage
    | ReportMessage
    | TimeMessage
    | MeasureMessage
    | MeasuredMessage
    | HeardMessage
    | TrialMessage
    | TrialEndedMessage
    | ConclusionMessage
)
MESSAGES: Final = TypeAdapter[AnyMessage](Annotated[AnyMessage, Field(discriminator="kind")])
