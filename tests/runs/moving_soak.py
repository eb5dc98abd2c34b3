"""A soak over hosts: one run that loses processes, links, hosts and its coordinator's host.

    python tests/runs/moving_soak.py --seeds 3      # 100 faults each, on 4 or 5 hosts

Hosts are network namespaces. At most one host is lost at a time, and another one joins in its place
before the next is, so that a majority of the voters is always there. The run must continue after
each fault, never go back to an earlier step, and end with the weights of an undisturbed one. Prints
a line for each fault; the status is 1 if a seed fails.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.rundir import json_lines
from holdfast_bench.on_hosts.namespaces import namespaces

KINDS = {
    "worker": 4,
    "agent": 3,
    "coordinator": 3,
    "host": 3,
    "first": 4,
    "cut": 3,
    "cut first": 2,
    "leave": 2,
    "hand over": 2,
    "scale": 3,
    "first at join": 2,
}
"""How often each kind of fault is drawn."""
PROCESSES = ("worker", "agent", "coordinator")
FIRST_HOSTS = 3
"""Hosts that the run begins with: with fewer, the coordinator's cannot be lost."""
CONTINUES_S = 60.0
"""Time until the next step is committed, after any fault."""
JOINS_S = 150.0
"""Time until a host trains again: one that was fenced soon after it had joined waits up to 60 s."""
STEPS_PER_FAULT = 40
FAST_S = 0.01
SLOW_S = 0.3
"""Time that a shard takes, and while hosts join."""
CUT_OFF = "this host was cut off from most of the others, which continue the run"
"""What the command that has begun the run says at its end."""
FIRST_LEFT = 130
"""Status of the command that has begun the run once its host has left."""
RUN = Path("runs") / "run"

TASK = """
import time
from pathlib import Path

import torch

def main(session):
    pace = Path(session.job.params["pace"])
    torch.manual_seed(1)
    adamw = lambda parameters: torch.optim.AdamW(parameters, lr=0.01)
    model, _ = session.attach(lambda: torch.nn.Linear(4, 1), adamw)
    data = [(torch.full((4,), i / 100), torch.tensor([i / 50])) for i in range(96)]
    for shard in session.shards(data, steps=session.job.params["steps"]):
        time.sleep(float(pace.read_text()))
        inputs, targets = shard.batch
        session.backward(torch.nn.functional.mse_loss(model(inputs), targets))
"""


class Failed(Exception):
    """Something is not as it should be."""


@dataclass(slots=True)
class Soak:
    """Strikes a run on several hosts at random.

    Args:
        hosts: Namespaces.
        pace: A file with the time that a shard takes, seconds.
        seed: Of all that is drawn.
        faults: How many.
        kinds: Kinds of faults that are drawn, and how often.
        on_failure: Of the job.
    """

    hosts: object
    pace: Path
    seed: int
    faults: int
    kinds: dict
    on_failure: str
    injected: Counter = field(default_factory=Counter)
    commands: dict = field(default_factory=dict)
    _words: list = field(default_factory=list)
    _chance: random.Random = field(init=False)
    _began_at: float = field(default_factory=time.monotonic)
    _steps: int = 0
    _farthest: int = 0
    _is_scaled: bool = False
    _is_settled: bool = True
    _were_cut: set = field(default_factory=set)
    _first_generations: set = field(default_factory=set)

    def __post_init__(self):
        self._chance = random.Random(self.seed)
        self._steps = 100 + STEPS_PER_FAULT * self.faults
        self._words = [
            *("mine.py:main", "shards=6", "batch=24", f"workers={FIRST_HOSTS}"),
            *(f"params.pace={self.pace}", f"params.steps={self._steps}"),
            *("restarts.limit=10000", "checkpoint.every_steps=50"),
            f"on_failure={self.on_failure}",
        ]

    def run(self):
        """Run disturbed and undisturbed, and compare.

        Raises:
            Failed: Something is not as it should be.
        """
        self._begin()
        while sum(self.injected.values()) < self.faults and self._farthest < self._steps - 100:
            kind = self._chance.choices([*self.kinds], [*self.kinds.values()])[0]
            self._train_on(self._chance.randrange(1, 5))
            time.sleep(0.05 * self._chance.random())
            self._strike(kind)
        self._end()

    # The run, from outside.

    def directory(self, number):
        return self.hosts.disk(number) / RUN

    def events(self, number):
        """The events of a host, without those that others have sent to it."""
        path = self.directory(number) / "events.jsonl"
        found = json_lines.read(path) if path.exists() else ()
        return [event for event in found if "shipped" not in event]

    def living(self, number, who):
        """The processes of a host that do something for the run."""
        events = self.events(number)
        ended = {event["pid"] for event in events if event["event"] == f"{who}-exited"}
        started = [event["pid"] for event in events if event["event"] == f"{who}-started"]
        here = self.hosts.processes(number)
        return [pid for pid in started if pid not in ended and pid in here]

    def coordinator(self):
        """The host with the newest coordinator; None if there is none."""
        begun = [
            (
                max(
                    e["time_unix_s"] for e in self.events(n) if e["event"] == "coordinator-started"
                ),
                n,
            )
            for n in self.commands
            if self.living(n, "coordinator")
        ]
        return max(begun)[1] if begun else None

    def steps(self, number):
        """The newest step that a host knows."""
        with suppress(OSError):
            for line in reversed(
                (self.directory(number) / "metrics.jsonl").read_text().splitlines()
            ):
                with suppress(ValueError):
                    entry = json.loads(line)
                    if "loss" in entry:
                        return entry["step"]
        return 0

    def farthest(self):
        return max((self.steps(number) for number in self.commands), default=0)

    def say(self, *words):
        print(f"{time.monotonic() - self._began_at:7.1f} s", *words, flush=True)

    def wait(self, what, happened, timeout_s=CONTINUES_S):
        """Wait until something has happened.

        Raises:
            Failed: It does not, or a command ends.
        """
        deadline = time.monotonic() + timeout_s
        while not happened():
            self._check_commands()
            if time.monotonic() > deadline:
                raise Failed(f"{what} not within {timeout_s:.0f} s")
            time.sleep(0.05)

    def _check_commands(self):
        for number, command in [*self.commands.items()]:
            if command.poll() is None:
                continue
            if number in self._were_cut and CUT_OFF in self.hosts.output(number)[-1000:]:
                self.say(f"host {number} coordinates no longer")
                self._forget(number)
            else:
                raise Failed(f"the command of host {number} has ended: {command.returncode}")

    def _forget(self, number):
        """The host takes part no more."""
        del self.commands[number]
        self._were_cut.discard(number)

    def _train_on(self, steps=2):
        """Wait until so many more steps are committed, on any host."""
        before = self.farthest()
        self.wait("the next step", lambda: self.farthest() >= before + steps)
        self._farthest = self.farthest()
        self._check_generations()

    def _check_generations(self):
        """All generations but the first must resume from the state of a worker."""
        if later := self._from_checkpoint() - self._first_generations:
            raise Failed(f"generations {sorted(later)} went back to a checkpoint")

    def _from_checkpoint(self):
        """Numbers of the generations that began with a checkpoint, or at step 0."""
        started = (
            event
            for number in self.commands
            for event in self.events(number)
            if event["event"] == "generation-started"
        )
        return {event["number"] for event in started if event["from_checkpoint"]}

    def _set_pace(self, pace_s):
        """Let a shard take so long."""
        new = self.pace.with_suffix(".new")
        new.write_text(str(pace_s))
        new.replace(self.pace)

    # Hosts that join.

    def _begin(self):
        self._set_pace(SLOW_S)
        (self.hosts.disk(1) / "mine.py").write_text(TASK)
        most = len(self.hosts.numbers)
        begin = [*self._words, "--hosts", f"{FIRST_HOSTS}:{most}"]
        where = ["--address", self.hosts.address(1), "--run", RUN]
        self.commands[1] = self.hosts.start(1, "coordinator", *begin, *where)
        token = self.directory(1) / "secrets" / "join.token"
        self.wait("a token", token.exists)
        for number in self.hosts.numbers[1:]:
            self._join_with(number, token, f"{self.hosts.address(1)}:50051")
        for number in self.commands:
            self._await_host(number)
        self._set_pace(FAST_S)
        self._first_generations = self._from_checkpoint()
        self.say("the run has begun on", *self.commands)

    def _join_with(self, number, token, address):
        shutil.copy(token, self.hosts.disk(number) / "join.token")
        words = ["--join", address, "--token-file", "join.token"]
        self.commands[number] = self.hosts.start(number, "agent", *words)

    def _join(self, number):
        """Let a host join."""
        first = self._await_coordinator()
        asked = self.hosts.start(first, "token", RUN)
        if asked.wait(CONTINUES_S):
            raise Failed(f"host {first} makes no token")
        folder = self.directory(first) / "secrets"
        self._join_with(number, folder / "join.token", (folder / "address").read_text())

    def _await_host(self, number):
        """Wait until a host trains, and thus may vote."""
        before = self.farthest()

        def trains():
            return number not in self.commands or self.steps(number) > before

        self.wait(f"a step on host {number}", trains, JOINS_S)

    def _settle(self):
        """Wait until all hosts train, so that any of them may be lost."""
        if self._is_settled:
            return
        self._set_pace(SLOW_S)
        while absent := [number for number in self.hosts.numbers if number not in self.commands]:
            for number in absent:
                self._join(number)
            if self._is_scaled:
                self._scale(len(self.hosts.numbers))
            for number in self.hosts.numbers:
                self._await_host(number)
        if self._is_scaled:
            self._scale(len(self.hosts.numbers))
        for number in self.hosts.numbers:
            self._await_host(number)
        self._were_cut.clear()
        self._set_pace(FAST_S)
        self._farthest = self.farthest()
        self._is_settled = True

    # Faults.

    def _strike(self, kind):
        """Inject a fault, and see that the run continues."""
        if kind not in PROCESSES:
            self._settle()
        first = self.coordinator()
        if first is None:
            self._train_on()
            return
        others = [number for number in self.commands if number != first]
        match kind:
            case "worker" | "agent" | "coordinator":
                what = self._kill_process(kind)
            case "host" | "first":
                what = self._kill_host(first if kind == "first" else self._chance.choice(others))
            case "cut" | "cut first":
                what = self._cut(first if kind == "cut first" else self._chance.choice(others))
            case "leave" | "hand over":
                what = self._leave(first if kind == "hand over" else self._chance.choice(others))
            case "first at join":
                what = self._kill_first_at_join(first, self._chance.choice(others))
            case "scale":
                what = self._scale(self._chance.randrange(2, len(self.hosts.numbers) + 1))
        if kind not in (*PROCESSES, "scale") and self._chance.random() < 0.3:
            time.sleep(2 * self._chance.random())
            # On a few hosts these may be all that have the state of the run.
            who = "coordinator" if self._is_scaled else self._chance.choice(PROCESSES)
            what += f", and at once {who} {self._kill_process(who)}"
        self.injected[kind] += 1
        self.say(f"{sum(self.injected.values()):3} {kind}: {what}")
        self._is_settled = kind == "scale"
        self._train_on()
        self._say_if_moved(first)

    def _say_if_moved(self, before):
        if (now := self._await_coordinator()) != before:
            self.say(f"      the coordinator has moved from host {before} to host {now}")

    def _await_coordinator(self):
        """The host with the coordinator, once there is one."""
        found = []
        self.wait("a coordinator", lambda: found.append(self.coordinator()) or found[-1])
        return found[-1]

    def _kill_process(self, who):
        number = self._chance.choice([*self.commands])
        if who == "coordinator":
            number = self.coordinator()
        living = [] if number is None else self.living(number, who)
        if not living:
            return f"none on host {number}"
        pid = self._chance.choice(living)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return f"{pid} on host {number}"

    def _kill_host(self, number):
        while self.hosts.processes(number):
            self.hosts.kill(number)
        self.commands[number].wait()
        self._forget(number)
        is_wiped = self._chance.random() < 0.3
        if is_wiped:
            shutil.rmtree(self.hosts.disk(number))
            self.hosts.disk(number).mkdir()
        return f"host {number}{' and its disk' if is_wiped else ''}"

    def _kill_first_at_join(self, first, other):
        """Kill the coordinator's host while another one joins."""
        self._leave(other)
        self._train_on()
        before = len(self.hosts.output(other))
        self._join(other)
        self.wait("a join", lambda: "joined as" in self.hosts.output(other)[before:])
        time.sleep(4 * self._chance.random())
        return f"{self._kill_host(first)}, while host {other} joined"

    def _cut(self, number):
        cut_s = self._chance.uniform(0.5, 6)
        self._were_cut.add(number)
        self.hosts.cut(number)
        time.sleep(cut_s)
        self.hosts.heal(number)
        return f"host {number} for {cut_s:.1f} s"

    def _leave(self, number):
        asked = self.hosts.start(number, "leave", RUN).wait(CONTINUES_S)
        status = self.commands[number].wait(CONTINUES_S)
        if asked or status not in (0, FIRST_LEFT):
            raise Failed(f"host {number} has not left: {asked}, {status}")
        self._forget(number)
        return f"host {number}"

    def _scale(self, workers):
        deadline = time.monotonic() + JOINS_S
        while self.hosts.start(self._await_coordinator(), "scale", RUN, workers).wait(JOINS_S):
            if time.monotonic() > deadline:
                raise Failed(f"the run is not scaled to {workers}")
        self._is_scaled = workers < len(self.hosts.numbers)
        return f"to {workers} workers"

    def _end(self):
        """Let the run end, and compare its weights.

        Raises:
            Failed: They are not those of an undisturbed run.
        """
        self._settle()
        first = self._await_coordinator()
        self._set_pace(0)
        for number, command in self.commands.items():
            if status := command.wait(JOINS_S):
                raise Failed(f"the command of host {number} ends with status {status}")
        self.say("the run has ended")
        alone = self.hosts.disk(first) / "alone"
        alone.mkdir()
        (alone / "mine.py").write_text(TASK)
        words = [self._words[0].replace("mine", "alone/mine"), *self._words[1:]]
        if self.hosts.start(first, "train", *words, "--run", "alone/run").wait(JOINS_S):
            raise Failed("the undisturbed run fails")
        expected = json.loads((alone / "run" / "result.json").read_text())["weights_sha256"]
        result = json.loads((self.directory(first) / "result.json").read_text())
        if result["weights_sha256"] != expected:
            raise Failed(f"other weights: {result}")
        for number in self.hosts.numbers:
            logs = (self.directory(number) / "logs").glob("*.log")
            texts = [path.read_text(errors="replace") for path in logs]
            if any("Traceback" in text for text in (self.hosts.output(number), *texts)):
                raise Failed(f"a traceback on host {number}")

    def report(self):
        """Print what all hosts have said last."""
        for number in self.hosts.numbers:
            print(f"--- host {number}: its output")
            print("\n".join(self.hosts.output(number).splitlines()[-15:]))
            logs = sorted((self.directory(number) / "logs").glob("*.log"))
            for path in (self.directory(number) / "events.jsonl", *logs):
                if path.exists():
                    lines = path.read_text(errors="replace").splitlines()[-15:]
                    print(f"--- host {number}: {path.name}", *lines, sep="\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--kinds", default=",".join(KINDS))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the namespaces end with the block
    kinds = {kind: KINDS[kind] for kind in options.kinds.split(",")}
    failed = 0
    for seed in range(options.first, options.first + options.seeds):
        folder = Path(tempfile.mkdtemp(prefix=f"moving-{seed}-"))
        problem, told = soak(folder, seed, options.faults, kinds)
        print(f"seed {seed}: {problem or 'ok'}, {told}", flush=True)
        if problem:
            failed += 1
        else:
            shutil.rmtree(folder)
    return int(failed > 0)


def soak(folder, seed, faults, kinds=KINDS):
    """Run one seed; returns what is wrong, or nothing, and what was done."""
    began = time.monotonic()
    with namespaces(folder, 4 + seed % 2) as hosts:
        on_failure = "shrink" if seed // 2 % 2 else "replace"
        storm = Soak(hosts, folder / "pace", seed, faults, kinds, on_failure)
        problem = ""
        try:
            storm.run()
        except (Failed, subprocess.TimeoutExpired) as error:
            problem = f"{error} (in {folder})"
            storm.report()
        told = f"{dict(storm.injected)} in {time.monotonic() - began:.0f} s"
        return problem, told


if __name__ == "__main__":
    sys.exit(main())
