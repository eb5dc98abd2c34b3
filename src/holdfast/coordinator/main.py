"""The process of the coordinator. If it is killed, its successor continues from the journal."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

from holdfast.checkpoint.store import CheckpointStore
from holdfast.coordinator.checkpoints import Checkpoints
from holdfast.coordinator.journal import Journal
from holdfast.coordinator.policy import policy_of
from holdfast.coordinator.server import Server
from holdfast.core.policy import RecoveryPolicy
from holdfast.errors import HoldfastError
from holdfast.job import load
from holdfast.linux.lifeline import die_with_parent, leave_signals_to_parent
from holdfast.observe.lines import EventLog
from holdfast.observe.run_dir import EVENTS


def main() -> int:
    """Serve one run until its end; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--attempt", required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args()
    die_with_parent(options.parent)
    leave_signals_to_parent()
    try:
        job = load.of_run(options.run_dir)
        store = CheckpointStore.of_run(options.run_dir)
        with (
            Journal(options.run_dir / "coordinator.db") as journal,
            EventLog(options.run_dir / EVENTS) as log,
            Checkpoints(store, options.attempt, job.checkpoint.keep, log) as checkpoints,
        ):
            asyncio.run(_serve(policy_of(job), journal, checkpoints, log, options.address))
    except (HoldfastError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return os.EX_OK


async def _serve(
    policy: RecoveryPolicy,
    journal: Journal,
    checkpoints: Checkpoints,
    log: EventLog,
    address: str,
) -> None:
    await Server(policy, journal, checkpoints, log).serve(address)


if __name__ == "__main__":
    raise SystemExit(main())
