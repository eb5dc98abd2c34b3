"""Finding: what one check has found on one host, and what to do about it; conclusions of many."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


class Outcome(enum.StrEnum):
    """Meaning of a finding for a run."""

    OK = "ok"
    ADVICE = "advice"
    """A run works, but something costs time, or is about to fail."""
    FAULT = "fault"
    """A run would fail, or not end with the weights of others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one check.

    Attributes:
        check: Name of the check, in a word or two.
        outcome: Meaning for a run.
        found: Finding in words, with values.
        remedy: Words for what to do; empty if that is nothing.
        host: Name of the host; empty for this host.
    """

    check: str
    outcome: Outcome
    found: str
    remedy: str = ""
    host: str = ""

    def as_dict(self) -> dict[str, Any]:
        """It as plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """Conclusion of all checks.

    Attributes:
        findings: Findings of all hosts.
        settings: The commands of a run with what has worked; none if a run would not.
    """

    findings: tuple[Finding, ...]
    settings: tuple[str, ...]


def ok(check: str, found: str) -> Finding:
    """All is well."""
    return Finding(check=check, outcome=Outcome.OK, found=found)


def advice(check: str, found: str, remedy: str) -> Finding:
    """A run works, but `remedy` would make it better."""
    return Finding(check=check, outcome=Outcome.ADVICE, found=found, remedy=remedy)


def fault(check: str, found: str, remedy: str) -> Finding:
    """A run would not work before `remedy`."""
    return Finding(check=check, outcome=Outcome.FAULT, found=found, remedy=remedy)


def would_work(findings: Iterable[Finding]) -> bool:
    """True if no finding is a fault."""
    return all(each.outcome is not Outcome.FAULT for each in findings)
