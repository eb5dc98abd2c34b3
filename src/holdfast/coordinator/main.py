"""The process of the coordinator. If it is killed, its successor continues from the journal."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

from holdfast.coordinator.host_files import HostFiles
from holdfast.coordinator.journal import Journal
from holdfast.coordinator.policy import policy_of
from holdfast.coordinator.replicated_journal import ReplicatedJournal
from holdfast.coordinator.service import RunService
from holdfast.core.coordinator import CoordinatorStateMachine
from holdfast.core.debug_log import DebugLog
from holdfast.errors import HoldfastError
from holdfast.job import load
from holdfast.linux.lifeline import die_with_parent, leave_signals_to_parent
from holdfast.rundir.json_lines import EventLog
from holdfast.rundir.run_directory import CRASH_DUMP, DEBUG_LOG, EVENTS, SECRETS


def main(words: Sequence[str]) -> int:
    """Serve one run until its end; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--attempt", required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--public", default="")
    parser.add_argument("--joining", type=int, default=0)
    parser.add_argument("--journal", type=int)
    parser.add_argument("--node", default="")
    parser.add_argument("--moves", type=int, default=0)
    parser.add_argument("--collects", type=int, default=0)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args(words)
    die_with_parent(options.parent)
    leave_signals_to_parent()
    try:
        _serve(options)
    except (HoldfastError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return os.EX_OK


def _journal(options: argparse.Namespace) -> Journal | ReplicatedJournal:
    """The journal of the run."""
    if options.journal is None:
        return Journal(options.run_dir / "coordinator.db")
    return ReplicatedJournal(socket.socket(fileno=options.journal), options.node)


def _serve(options: argparse.Namespace) -> None:
    run_dir = options.run_dir
    public = options.public
    job = load.of_run(run_dir)
    with _journal(options) as journal, EventLog(run_dir / EVENTS) as log:
        admission = checkpoints = None
        lost: list[str] = []
        addresses: dict[str, str] = {}
        if isinstance(journal, ReplicatedJournal):
            from holdfast.coordinator.admission import Admission  # imports X.509

            secrets = run_dir / SECRETS
            joining = options.joining
            admission = Admission(secrets, journal, joining=joining, attempt=options.attempt)
            lost = journal.lost()
            addresses = journal.addresses()
        # Of a script, rank 0 alone writes the steps, on any host.
        collects = options.collects or not job.records_progress
        files = HostFiles(run_dir, log, collects=collects, moves=bool(options.moves))
        if options.collects:
            from holdfast.coordinator.collected_checkpoints import CollectedCheckpoints

            checkpoints = CollectedCheckpoints(run_dir, options.attempt, job.retention, log)

        # With entries in the journal, this coordinator takes over from one that is gone. Its hosts
        # have a few seconds to report: all that takes long on a busy machine is done by now.
        machine = CoordinatorStateMachine(
            policy_of(job), journal.entries(), time.monotonic(), addresses
        )
        debug_log = DebugLog(machine)

        async def serve() -> None:
            service = RunService(debug_log, journal, log, admission, files, checkpoints)
            await service.serve(options.address, public, lost)

        try:
            with checkpoints or nullcontext():
                asyncio.run(serve())
        except Exception as error:
            if not debug_log.error:
                raise
            traceback.print_exc()
            raise HoldfastError(
                f"the coordinator's state machine failed ({debug_log.error}): report this bug "
                f"with {run_dir / 'logs' / CRASH_DUMP}; resume the run from its last checkpoint"
            ) from error
        finally:
            path = run_dir / "logs" / (CRASH_DUMP if debug_log.error else DEBUG_LOG)
            with suppress(OSError):  # the disk is full: it is for debugging only
                path.write_text("\n".join([*debug_log.in_words(), ""]), encoding="utf-8")
