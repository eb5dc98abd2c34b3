"""History: the events of a run in words, a line each, with its receipts where they belong."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from holdfast.observe import recovery_reports

WORDS: Final = {
    "run-started": "the run begins, with {workers} workers, at {time}",
    "run-ended": "the run has {status}",
    "run-failed": "the run has failed: {message}",
    "stop-requested": "it was asked to stop",
    "coordinator-started": "a coordinator is started, process {pid}",
    "coordinator-exited": "the coordinator {cause}",
    "coordinator-recovered": "the coordinator is back, and all have gone on without it",
    "agent-started": "agent {host} is started, process {pid}",
    "agent-exited": "the agent {cause}",
    "fork-server-started": "a fork server is started, process {pid}",
    "fork-server-exited": "the fork server {cause}",
    "worker-started": "rank {rank} is started, process {pid}",
    "worker-hung": "rank {rank} hangs: it {reason}",
    "worker-stack": "rank {rank} has written its stacks down",
    "worker-exited": "rank {rank} {cause}",
    "generation-started": "generation {number} goes on from step {step}, ranks {members}",
    "checkpoint-committed": "the checkpoint of step {step} is there",
    "checkpoint-failed": "the checkpoint of step {step} could not be written: {reason}",
    "checkpoint-corrupt": "the checkpoint of step {step} is damaged, set aside: {reason}",
    "checkpoint-unreadable": "the checkpoint of step {step} cannot be read now: {reason}",
    "retention-failed": "old checkpoints could not be verified and deleted: {reason}",
    "checkpoint-rejected": "rank {rank} refuses {directory}: {reason}",
    "kernels-tested": "results depend on alignment: {alignment_sensitive}; "
    "on batch size: {batch_sensitive}",
    "numerics-changed": "other hardware or software than at step {step}: {changes}",
    "notification-failed": "a notification to the address in {variable} did not get through",
    "fault-injected": "struck on purpose: {kind}",
}
"""What is told of an event, by its name."""

_MORE: Final = {
    "run-ended": {"steps": ", with {} steps"},
    "fault-injected": {"rank": ", rank {}", "step": ", after step {}"},
}
"""What is told beside that by fields that not all of them have."""


def told(
    events: Iterable[Mapping[str, Any]], found: Iterable[Mapping[str, Any]], logs: Path
) -> Iterator[str]:
    """What has happened, oldest first, each with the time since the start of the run before it.

    Args:
        events: The lines of `events.jsonl`.
        found: The lines of `recoveries.jsonl`.
        logs: The directory of the workers' logs.
    """
    began_at: float | None = None
    for entry in sorted([*events, *found], key=lambda entry: float(entry["time_unix_s"])):
        now = float(entry["time_unix_s"])
        if began_at is None or entry.get("event") == "run-started":
            began_at = now
        if "event" in entry:
            yield f"{_since(now - began_at)}  {_words(entry)}"
        else:
            yield recovery_reports.text(recovery_reports.ADAPTER.validate_python(entry), logs)


def _since(seconds: float) -> str:
    whole, part = divmod(max(0.0, seconds), 1)
    return f"{timedelta(seconds=whole)}.{int(1000 * part):03}"


def _words(event: Mapping[str, Any]) -> str:
    fields = {name: value for name, value in event.items() if name not in ("event", "time_unix_s")}
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["time_unix_s"]))
    try:
        words = WORDS[event["event"]].format(**fields, time=clock)
    except KeyError:  # one that is of no interest to people, or of another version
        words = f"{event['event']} " + " ".join(f"{k}={json.dumps(v)}" for k, v in fields.items())
    more = _MORE.get(event["event"], {})
    words += "".join(text.format(event[name]) for name, text in more.items() if name in event)
    if event.get("unexpected") is False and event["status"] != 0:
        words += ", which is no loss"
    return " ".join(words.split())
