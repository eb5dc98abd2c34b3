"""History: the events of a run in words, one per line, with its recovery reports."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from holdfast.record import recovery_reports
from holdfast.record.recovery_reports import RecoveryReport

TEMPLATES: Final = {
    "run-started": "run started with {workers} workers at {time}",
    "run-ended": "run {status}",
    "run-failed": "run failed: {message}",
    "stop-requested": "stop requested",
    "scale-requested": "{workers} workers requested",
    "coordinator-started": "coordinator started, process {pid}",
    "coordinator-exited": "coordinator {cause}",
    "coordinator-paused": "coordinator ended: its leadership in etcd was not renewed; it waits",
    "coordinator-moved": "coordinator moved to this host; others reach it at {address}",
    "leave-refused": "this host cannot leave: {reason}",
    "coordinator-recovered": "coordinator recovered; the workers did not wait for it",
    "agent-started": "agent {host} started, process {pid}",
    "host-profiled": "devices ({source}): {devices}; scores {scores}",
    "host-not-profiled": "devices could not be measured, so there are no scores: {reason}",
    "host-log-full": "the logs of {host} take too much here; its own run directory has all of them",
    "host-joined": "host {host} joined from {address}",
    "host-refused": "a host at {address} was refused: {reason}",
    "refusals-counted": "refused in all: {counts}",
    "host-probed": "host {host} fell silent; it accepts connections: {answered}",
    "host-lost": "host {host} does not answer; it is lost with ranks {ranks}",
    "agent-placed": "agent {host} runs on {place}",
    "agent-draining": "the host of agent {host} will be taken away: {place}",
    "agent-ended": "agent {host} ended on {place}: {cause}",
    "agent-exited": "agent {cause}",
    "progress-not-posted": "the status of the TrainJob has no progress: {reason}",
    "fork-server-started": "fork server started, process {pid}",
    "fork-server-exited": "fork server {cause}",
    "worker-started": "rank {rank} started, process {pid}",
    "worker-hung": "rank {rank} hung: it {reason}",
    "worker-stack": "rank {rank} wrote its stacks",
    "worker-observed": "rank {rank} was {doing}",
    "worker-exited": "rank {rank} {cause}",
    "worker-out-of-memory": "rank {rank} had too little memory for {planned} shards of a step; "
    "from now on its limit is {cap}, and the others compute the rest",
    "worker-evicted": "rank {rank} is on standby from step {step} on: {reason}",
    "worker-returned": "rank {rank} returned from standby in step {step}",
    "generation-started": "generation {number} resumed from step {step} with ranks {members}",
    "checkpoint-committed": "checkpoint committed: step {step}",
    "writer-exited": "the writer of checkpoints exited {status}; another one is started",
    "checkpoint-waited": "checkpoint of step {step} waited {seconds} s for the disk",
    "checkpoint-deferred": "checkpoint of step {step} deferred: earlier ones are being written",
    "checkpoint-failed": "checkpoint of step {step} could not be written: {reason}",
    "checkpoint-collected": "checkpoint of step {step} arrived from {sender}",
    "checkpoint-not-collected": "checkpoint of step {step} did not arrive: {reason}",
    "checkpoint-fetched": "checkpoint of step {step} was fetched from the coordinator's host",
    "checkpoint-corrupt": "checkpoint of step {step} is corrupt and was quarantined: {reason}",
    "checkpoint-unreadable": "checkpoint of step {step} cannot be read now: {reason}",
    "backup-completed": "checkpoint of step {step} was copied to {url} in {seconds} s",
    "backup-failed": "the backup failed: {reason}",
    "storage-awaited": "waiting for the storage of checkpoints: {reason}",
    "older-accepted": "the run was resumed without checkpoints newer than step {step}",
    "run-restored": "run restored from {url} at step {step}",
    "retention-failed": "old checkpoints could not be verified and deleted: {reason}",
    "checkpoint-rejected": "rank {rank} rejected {directory}: {reason}",
    "kernels-tested": "results depend on alignment: {alignment_sensitive}; "
    "on batch size: {batch_sensitive}",
    "memory-not-mapped": "rank {rank} cannot map the memory of devices, so workers copy through "
    "that of the host: {reason}",
    "collective-chosen": "gradients are summed by {collective} after step {step}: {reason}",
    "compression-unused": "no gradient is compressed after step {step}: all workers are on one "
    "host, where they add in shared memory",
    "hosts-differ": "hosts differ from step {step} on: {differences}",
    "updates-differ": "ranks {ranks} have other weights than rank {donor} after step {step}; from "
    "now on they take its weights after every step",
    "numerics-changed": "hardware or software changed since step {step}: {changes}",
    "code-changed": "the code changed since step {step}: {before} → {now}",
    "run-extended": "the run was extended to {epochs} epochs, {total_steps} steps in all; the "
    "learning rate after step {step} is {lr:.4g}",
    "plan-changed": "from step {step} on, the workers compute {shards_per_worker} shards",
    "scores-missing": "balance={balance} begins with equal shares: no reliable score of "
    "ranks {ranks}",
    "worker-slowed": "rank {rank} takes {factor} times as long as usual at step {step}: {reason}",
    "worker-recovered": "rank {rank} is as fast as before at step {step}",
    "link-slowed": "gradients of ranks {ranks} arrive {factor} times as late as usual at step "
    "{step}: link",
    "link-recovered": "gradients of ranks {ranks} arrive as before at step {step}",
    "bottleneck-found": "the run is {bottleneck} at step {step}: {text}",
    "keys-adopted": "the code has set {keys}",
    "keys-not-read": "the task has not read {keys} in its first step; remove what has no effect",
    "samples-not-compared": "samples cannot be compared between workers: they differ whenever they "
    "are read, so weights depend on the workers, or hold more than numbers and text; draw random "
    "numbers from the global generators of torch, numpy or Python",
    "weights-loaded": "the run began with the weights in {path}",
    "notification-failed": "a notification to the address in {variable} was not delivered",
    "fault-injected": "fault injected: {kind}",
}
"""The words for each event."""

_ON_HOST: Final = {"host": " (host {})"}
_MORE: Final = {
    "host-profiled": _ON_HOST,
    "host-not-profiled": _ON_HOST,
    "worker-started": _ON_HOST,
    "worker-out-of-memory": _ON_HOST,
    "worker-evicted": _ON_HOST,
    "worker-returned": _ON_HOST,
    "worker-observed": {"waits_for": ", and waited for ranks {}"},
    "checkpoint-committed": _ON_HOST,
    "checkpoint-failed": _ON_HOST | {"directory": "; it would be in {}"},
    "checkpoint-corrupt": _ON_HOST,
    "checkpoint-unreadable": _ON_HOST,
    "checkpoint-rejected": _ON_HOST,
    "checkpoint-fetched": _ON_HOST,
    "retention-failed": _ON_HOST,
    "run-ended": {"steps": ", {} steps"},
    "weights-loaded": {"misfits": "; not loaded: {}"},
    "fault-injected": {"rank": ", rank {}", "step": ", after step {}"},
}
"""Words for fields that only some of these events have."""


def describe(
    events: Iterable[Mapping[str, Any]], recoveries: Iterable[Mapping[str, Any]], logs: Path
) -> Iterator[str]:
    """Events in words, oldest first, each line with the time since the start of the run.

    Args:
        events: The whole events in `events.jsonl`.
        recoveries: The lines of `recoveries.jsonl`; those of another version are left out.
        logs: The directory of the workers' logs.
    """
    found: list[Mapping[str, Any] | RecoveryReport] = [
        *events,
        *recovery_reports.reports_in(recoveries),
    ]
    began_at: float | None = None
    for entry in sorted(found, key=_at):
        if isinstance(entry, RecoveryReport):
            yield recovery_reports.text(entry, logs)
            continue
        if began_at is None or entry["event"] == "run-started":
            began_at = _at(entry)
        yield f"{_since(_at(entry) - began_at)}  {words(entry)}"


def _at(entry: Mapping[str, Any] | RecoveryReport) -> float:
    return entry.time_unix_s if isinstance(entry, RecoveryReport) else float(entry["time_unix_s"])


def _since(seconds: float) -> str:
    whole, part = divmod(max(0.0, seconds), 1)
    return f"{timedelta(seconds=whole)}.{int(1000 * part):03}"


def words(event: Mapping[str, Any]) -> str:
    """An event in words."""
    fields = {name: value for name, value in event.items() if name not in ("event", "time_unix_s")}
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["time_unix_s"]))
    try:
        text = TEMPLATES[event["event"]].format(**fields, time=clock)
    except KeyError:  # an event of another version
        text = f"{event['event']} " + " ".join(f"{k}={json.dumps(v)}" for k, v in fields.items())
    more = _MORE.get(event["event"], {})
    text += "".join(part.format(event[name]) for name, part in more.items() if name in event)
    if event.get("unexpected") is False and event.get("status") != 0:
        text += " (expected)"
    return " ".join(text.split())
