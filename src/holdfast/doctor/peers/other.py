"""Other: a host that takes part in a check which another host leads."""

from __future__ import annotations

import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, assert_never

from holdfast.coordinator.authority import write_secret
from holdfast.doctor.disk import home_of
from holdfast.doctor.finding import Conclusion, Finding
from holdfast.doctor.host import examine
from holdfast.doctor.needs import Needs
from holdfast.doctor.peers.first import JOIN_TIMEOUT_S
from holdfast.doctor.peers.line import Line
from holdfast.doctor.peers.link_server import LinkServer
from holdfast.doctor.peers.messages import (
    ConclusionMessage,
    HeardMessage,
    MeasuredMessage,
    MeasureMessage,
    ProfiledMessage,
    ProfileMessage,
    ReportMessage,
    TimeMessage,
    TrialEndedMessage,
    TrialMessage,
    WelcomeMessage,
)
from holdfast.doctor.peers.reports import REPORT_TIMEOUT_S
from holdfast.doctor.torch_report import TorchReport
from holdfast.doctor.versions import installed
from holdfast.errors import HoldfastError, Interrupted, JobError, ProtocolError
from holdfast.hardware.host import profile_here
from holdfast.job import load
from holdfast.job.train_job import TrainJob
from holdfast.launch.spawn import Spawned
from holdfast.linux.cores import usable_cores
from holdfast.runs.hosts import joining_agent
from holdfast.runs.hosts.endpoint import address_towards
from holdfast.runs.hosts.engine_pipe import begin, read_token
from holdfast.wire.join import control_address, join

FIRST_TIMEOUT_S: Final = 60.0
"""How long to try until the first host answers."""
WELCOME_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """How a host takes part.

    Attributes:
        first: The address and port of the first host.
        token_file: A copy of its token file; None if `placed`.
        placed: The name of this part, if an engine has started it. Then its token comes from
            standard input, and it ends when that is closed.
        address: Of this host for the others; empty for that of the route to the first.
        run_dir: The directory that a run would have here.
        say: Tells the user something.
        show: Shows a finding.
    """

    first: str
    token_file: Path | None
    placed: str
    address: str
    run_dir: Path
    say: Callable[[str], None]
    show: Callable[[Finding], None]


def follow(part: Part, forks: Spawned | None) -> Conclusion:
    """Take part in a check until its end.

    Raises:
        JobError: The check cannot be joined.
        HoldfastError: The first host has gone.
        Interrupted: A signal has ended the part of this host.
    """
    address = part.address or _own_address(part.first)
    token, name = read_token(part.token_file), part.placed or socket.gethostname()
    if part.placed:
        begin(_interrupt)
    credentials = join(part.first, token, name, FIRST_TIMEOUT_S, None).credentials
    assert credentials.agent is not None
    assert credentials.data is not None
    line = Line.connect(control_address(part.first), credentials.agent)
    try:
        welcome = line.receive(WELCOME_TIMEOUT_S)
        if not isinstance(welcome, WelcomeMessage | ProfileMessage):
            raise ProtocolError(f"the first host sent a message {welcome.kind}")
        part.say(f"joined the check of {part.first} as {welcome.name}, at {address}")
        with LinkServer(address, credentials.data, bytes.fromhex(welcome.key)) as server:
            if isinstance(welcome, ProfileMessage):
                line.send(_profiled(part, address, server.port, welcome))
            else:
                line.send(_report(part, address, server.port, welcome, forks))
            return _answer(part, line, server, welcome.name, address)
    finally:
        line.close()


def _report(
    part: Part, address: str, port: int, welcome: WelcomeMessage, forks: Spawned | None
) -> ReportMessage:
    """What this host finds on itself."""
    job = load.of_text(welcome.job, "of the first host")
    if not isinstance(job, TrainJob):
        raise ProtocolError("the first host sent a job that does not train")
    workers = -(-job.workers // job.hosts)
    needs = Needs(job=job, workers=workers, run_dir=part.run_dir, ports={}, is_first=False)
    findings, report = list[Finding](), None
    for each in examine(needs, address, forks):
        if isinstance(each, TorchReport):
            report = each
        else:
            part.show(each)
            findings.append(each)
    part.say("done here; the first host compares all hosts once they are")
    return ReportMessage(
        address=address,
        port=port,
        versions=installed(),
        torch=report,
        cores=usable_cores(),
        findings=tuple(findings),
    )


def _profiled(part: Part, address: str, port: int, wanted: ProfileMessage) -> ProfiledMessage:
    """What the hardware of this host reaches."""
    profile, problem = None, ""
    try:
        profile = profile_here(Path(wanted.path) if wanted.path else home_of(part.run_dir))
    except HoldfastError as error:
        problem = str(error)
    return ProfiledMessage(
        address=address, port=port, host=socket.gethostname(), profile=profile, problem=problem
    )


def _answer(part: Part, line: Line, server: LinkServer, name: str, address: str) -> Conclusion:
    """Do what the first host asks for, until it concludes."""
    while True:
        message = line.receive(JOIN_TIMEOUT_S + REPORT_TIMEOUT_S)
        match message:
            case TimeMessage():
                line.send(TimeMessage(unix_s=time.time()))
            case MeasureMessage():
                part.say(f"measuring the link to {message.target}")
                link = server.measure(name, message.target, message.address, message.port)
                line.send(MeasuredMessage(link=link))
            case HeardMessage():
                line.send(HeardMessage(hosts=tuple(sorted(server.heard))))
            case TrialMessage():
                line.send(TrialEndedMessage(problem=_take_part(part, message, address)))
            case ConclusionMessage():
                return Conclusion(findings=message.findings, settings=message.settings)
            case (
                WelcomeMessage()
                | ProfileMessage()
                | ProfiledMessage()
                | ReportMessage()
                | MeasuredMessage()
                | TrialEndedMessage()
            ):
                raise ProtocolError(f"the first host sent a message {message.kind}")
            case _:
                assert_never(message)


def _take_part(part: Part, trial: TrialMessage, address: str) -> str:
    """Take part in the trial run; returns why it failed, empty if it did not."""
    with tempfile.TemporaryDirectory(
        prefix=".holdfast-doctor-", dir=home_of(part.run_dir), ignore_cleanup_errors=True
    ) as folder:
        token, run_dir = Path(folder) / "token", Path(folder) / "run"
        write_secret(token, trial.token.encode())
        try:
            joining_agent.serve(trial.coordinator, token, part.say, address, run_dir)
        except Interrupted:
            raise
        except HoldfastError as error:
            return str(error)
    return ""


def _interrupt() -> None:
    """End this process as Ctrl-C does, with all that it has begun."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


def _own_address(first: str) -> str:
    host, _, port = first.rpartition(":")
    if not (host and port.isdecimal()):
        raise JobError(f"--join {first}: give the address and port that the first host has printed")
    try:
        return address_towards(host, int(port))
    except OSError as error:
        raise JobError(f"{host} cannot be reached: {error.strerror or error}") from None
