"""Other systems that recover from the loss of a worker, launched as their documentation says.

    torchrun        restarts both workers from the last checkpoint
    torchft         the survivor continues, a relaunched replica joins; also with short timeouts
    Ray Train       restarts both workers from the last checkpoint; with torchft as that does

In the same interpreter, holdfast runs inside of Ray Train.

Each runs in an interpreter of the user's choice, which needs torch and safetensors, and the
system itself. Accelerate is not among them: it has no restarts of its own.
"""

from __future__ import annotations

import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import holdfast
from holdfast.errors import HoldfastError, JobError
from holdfast_bench.launch import PeerLaunch, ProcessSpec, Recovery, recover, signal_worker
from holdfast_bench.peers import peer_script
from holdfast_bench.trial import FAULT_STEP, WORKERS

RECOVERY_TIMEOUT_S: Final = 90.0
"""Longer than the default timeouts of torchft (60 s); others that exceed it take minutes."""
ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
IMPORTABLE: Final = {"PYTHONPATH": str(Path(holdfast.__file__).parent.parent)}
"""The scripts import holdfast's workloads in an interpreter where it is not installed."""
FIND: Final = (
    "import importlib.util, sys\n"
    "print(*(name for name in sys.argv[1:] if not importlib.util.find_spec(name)))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A system to compare with.

    Attributes:
        name: What the rows are called.
        modules: What must be importable.
        commands: What to start, given the interpreter and the options of the script.
    """

    name: str
    modules: tuple[str, ...]
    commands: Callable[[str, Sequence[str]], list[ProcessSpec]]

    @contextmanager
    def launched(self, python: str, workload: str, steps: int) -> Iterator[PeerLaunch]:
        """Run until each worker has done so many steps.

        Raises:
            HoldfastError: The workers did not start, or the launcher has exited.
        """
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            commands = self.commands(python, ["--workload", workload, "--dir", folder])
            with PeerLaunch(commands, Path(folder)) as launch:
                launch.wait_for_steps(steps)
                yield launch

    def recover(
        self,
        python: str,
        workload: str,
        number: signal.Signals,
        chance: random.Random,
        timeout_s: float = RECOVERY_TIMEOUT_S,
    ) -> Recovery:
        """Run once, signal a worker, and time the recovery.

        Raises:
            HoldfastError: The workers did not start, or the launcher has exited.
        """
        with self.launched(python, workload, FAULT_STEP) as launch:
            return recover(launch, signal_worker(number, chance), timeout_s)


def installed(python: str) -> tuple[list[Peer], dict[str, str]]:
    """The peers that an interpreter can import, and why each of the others is left out.

    Raises:
        JobError: It is no interpreter, or lacks what every peer needs.
    """
    modules = ["torch", "safetensors", *(name for peer in PEERS for name in peer.modules)]
    try:
        probe = subprocess.run(
            [python, "-c", FIND, *modules], check=True, capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise JobError(f"--peers-python {python} does not run: {error}") from None
    missing = probe.stdout.split()
    if needed := [name for name in modules[:2] if name in missing]:
        raise JobError(f"--peers-python {python} lacks {' and '.join(needed)}; install it there")
    there = []
    absent = {}
    for peer in PEERS:
        if lacking := [name for name in peer.modules if name in missing]:
            absent[peer.name] = f"{python} has no {lacking[0]}"
            print(f"{peer.name} is left out: {absent[peer.name]}", file=sys.stderr)
        else:
            there.append(peer)
    return there, absent


def torchrun(
    python: str, words: Sequence[str], environment: Mapping[str, str] | None = None
) -> list[ProcessSpec]:
    """The command of torchrun for a script and its options; two workers."""
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(WORKERS)]
    # Without a store of its own for every attempt, some restarts hang.
    reliable = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return [
        ProcessSpec(
            arguments=[python, "-m", *launcher, "--max-restarts", "20", *words],
            environment={**IMPORTABLE, **ONE_THREAD, **reliable, **(environment or {})},
        )
    ]


def _torchrun(python: str, options: Sequence[str]) -> list[ProcessSpec]:
    return torchrun(python, [peer_script.__file__, *options])


def _torchft(python: str, options: Sequence[str], *timeouts: str) -> list[ProcessSpec]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    program = shutil.which("torchft_lighthouse", path=Path(shutil.which(python) or python).parent)
    if program is None:
        raise HoldfastError(f"torchft_lighthouse is not installed next to {python}")
    lighthouse = [program, "--bind", address]
    environment = {**IMPORTABLE, **ONE_THREAD, "TORCHFT_LIGHTHOUSE": f"http://{address}"}
    replica = [python, "-m", "holdfast_bench.peers.torchft_ddp", *options, "--replica"]
    return [
        ProcessSpec(arguments=[*lighthouse, "--min_replicas", "1", *timeouts]),
        *(
            ProcessSpec(arguments=[*replica, str(index)], environment=environment, relaunched=True)
            for index in range(WORKERS)
        ),
    ]


def _torchft_tuned(python: str, options: Sequence[str]) -> list[ProcessSpec]:
    timeouts = ["--heartbeat_timeout_ms", "500", "--quorum_tick_ms", "10"]
    return _torchft(python, options, *timeouts, "--join_timeout_ms", "1000")


def _in_ray(script: str) -> Callable[[str, Sequence[str]], list[ProcessSpec]]:
    """Commands that start a script of this package with Ray."""

    def commands(python: str, options: Sequence[str]) -> list[ProcessSpec]:
        directory = options[-1]
        return [
            ProcessSpec(
                arguments=[
                    python, "-m", f"holdfast_bench.peers.{script}",
                    "--workers", str(WORKERS), *options,
                ],
                environment={**IMPORTABLE, **ONE_THREAD, "XDG_STATE_HOME": directory},
            )
        ]  # fmt: skip

    return commands


TORCHRUN: Final = Peer(name="torchrun", modules=("torch",), commands=_torchrun)
PEERS: Final = (
    TORCHRUN,
    Peer(name="torchft", modules=("torchft",), commands=_torchft),
    Peer(name="torchft tuned", modules=("torchft",), commands=_torchft_tuned),
    Peer(name="Ray Train", modules=("ray",), commands=_in_ray("ray_train")),
    Peer(
        name="Ray Train, torchft",
        modules=("ray", "torchft"),
        commands=_in_ray("ray_train_torchft"),
    ),
    Peer(
        name="holdfast in Ray Train",
        modules=("ray", "grpc", "pydantic"),
        commands=_in_ray("ours_in_ray"),
    ),
)
