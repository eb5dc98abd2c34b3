"""Performs each step of the Dockerfile in a clean root, and then trains in it without root.

It needs root, debootstrap and a mirror of Debian, and must run in namespaces of its own, so that
nothing that it mounts or starts outlives it:

    unshare --mount --pid --fork --kill-child python tests/containers/clean_root.py FOLDER
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Docker's own default."""
CODENAME = re.compile(r"debian:(\w+)")
TRIAL = ["train", "digits", "epochs=2", "workers=2", "--run", "runs/trial", "--json"]


@dataclass(frozen=True)
class Stage:
    """What a build stage has come to."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = "0:0"
    entrypoint: tuple[str, ...] = ()


class Build:
    """Builds the stages of a Dockerfile below a folder.

    Args:
        folder: For the roots.
        arguments: Build arguments.
        pip: Environment variables for pip, each the path of a file or folder of this host, which is
            shown in every root.
    """

    def __init__(self, folder: Path, arguments: dict[str, str], pip: dict[str, Path]) -> None:
        self._folder, self._arguments, self._pip = folder, arguments, pip
        self._stages: dict[str, Stage] = {}
        self.stage = Stage(folder)

    def perform(self, instruction: str, rest: str) -> None:
        """Perform one instruction."""
        stage = self.stage
        match instruction:
            case "FROM":
                self.stage = self._begin(rest)
            case "ARG":
                name, _, default = rest.partition("=")
                value = self._arguments.get(name, default)
                self.stage = replace(stage, environment={**stage.environment, name: value})
            case "ENV":
                added = dict(word.split("=", 1) for word in shlex.split(rest))
                self.stage = replace(stage, environment={**stage.environment, **added})
            case "RUN":
                self.run(["/bin/sh", "-c", rest])
            case "COPY":
                self._copy(shlex.split(rest))
            case "WORKDIR":
                inside(stage, rest).mkdir(parents=True, exist_ok=True)
                self.stage = replace(stage, folder=rest)
            case "USER":
                self.stage = replace(stage, user=rest)
            case "ENTRYPOINT":
                self.stage = replace(stage, entrypoint=tuple(json.loads(rest)))
            case "EXPOSE" | "CMD":
                pass
            case _:
                raise SystemExit(f"no step for {instruction}; add one here")

    def run(self, command: list[str], *, capture: bool = False) -> str:
        """Run a command in the current stage, as its user."""
        stage = self.stage
        environment = {"PATH": PATH, "HOME": "/tmp", **stage.environment}
        environment |= {name: f"/mnt/{name}" for name in self._pip}
        words = ["chroot", f"--userspec={stage.user}", str(stage.root), "/usr/bin/env", "-i"]
        words += [f"--chdir={stage.folder}"]
        words += [f"{name}={value}" for name, value in environment.items()]
        words += command
        done = subprocess.run(words, check=True, stdout=subprocess.PIPE if capture else None)
        return done.stdout.decode() if capture else ""

    def _begin(self, rest: str) -> Stage:
        source, *named = re.split(r"\s+AS\s+", rest)
        name = named[0] if named else "final"
        root = self._folder / name
        codename = CODENAME.match(source)
        if codename is not None:
            subprocess.run(
                ["debootstrap", "--variant=minbase", codename[1], str(root)],
                check=True, stdout=subprocess.DEVNULL,
            )  # fmt: skip
            before = Stage(root)
        else:
            before = self._stages[source]
            subprocess.run(["cp", "--archive", "--one-file-system", before.root, root], check=True)
        self._mount(root)
        self._stages[name] = replace(before, root=root)
        return self._stages[name]

    def _mount(self, root: Path) -> None:
        shutil.copy("/etc/resolv.conf", root / "etc" / "resolv.conf")
        subprocess.run(["mount", "-t", "proc", "proc", str(root / "proc")], check=True)
        subprocess.run(["mount", "--rbind", "/dev", str(root / "dev")], check=True)
        for name, each in self._pip.items():
            at = root / "mnt" / name
            at.mkdir(exist_ok=True) if each.is_dir() else at.touch()
            subprocess.run(["mount", "--bind", str(each), str(at)], check=True)

    def _copy(self, words: list[str]) -> None:
        option, *paths = words if words[0].startswith("--from=") else ["", *words]
        *sources, target = paths
        base = self._stages[option.removeprefix("--from=")].root if option else ROOT
        to = inside(self.stage, target)
        for each in sources:
            source = base / each.lstrip("/")
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(source, to, symlinks=True, dirs_exist_ok=True, ignore=ignored)
            else:
                shutil.copy(source, to / source.name if to.is_dir() else to)


def inside(stage: Stage, path: str) -> Path:
    """A path of a stage, as seen from outside."""
    return stage.root / str(Path(stage.folder) / path).lstrip("/")


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile, with their lines joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [tuple(line.strip().split(maxsplit=1)) for line in joined.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="for the roots; 3 GB")
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--wheels", type=Path, help="a folder where pip looks for wheels, too")
    parser.add_argument("--certificates", type=Path, help="of authorities, for pip")
    options = parser.parse_args()
    arguments = dict(each.split("=", 1) for each in options.build_arg)
    options.folder.mkdir()
    given = {"PIP_FIND_LINKS": options.wheels, "PIP_CERT": options.certificates}
    pip = {name: path for name, path in given.items() if path is not None}
    build = Build(options.folder.absolute(), arguments, pip)
    for instruction, rest in instructions((ROOT / "Dockerfile").read_text()):
        print(f"--> {instruction} {rest}", flush=True)
        build.perform(instruction, rest)
    assert build.stage.user != "0:0", "the image runs as root"
    print(build.run([*build.stage.entrypoint, "doctor", "--run", "runs/trial"], capture=True))
    print(build.run([*build.stage.entrypoint, *TRIAL], capture=True))


if __name__ == "__main__":
    main()
