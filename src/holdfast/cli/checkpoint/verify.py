"""`holdfast checkpoint verify`: compare every byte of checkpoints with its digest."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from holdfast.checkpoint.find import checkpoints_at
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.sealing.keys import SHOWN, fingerprint
from holdfast.checkpoint.sealing.seal import UNSEALED, Seal
from holdfast.checkpoint.store import MANIFEST, CheckpointStore
from holdfast.checkpoint.verify import examine
from holdfast.cli.arguments import Json
from holdfast.cli.checkpoint.reading import reachable, reading
from holdfast.cli.status import FAILED_STATUS
from holdfast.errors import CheckpointError
from holdfast.record.units import NBSP, count, size

PUBLIC_KEY: Final = "--public-key"


class ProblemKind(enum.StrEnum):
    """Problem of a checkpoint, or of a file of it."""

    DAMAGED = "damaged"
    UNREADABLE = "cannot be read now"
    UNSIGNED = "not signed"
    OTHER_KEY = "signed by another key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that is wrong: where, and why."""

    kind: ProblemKind
    file: str
    reason: str

    @property
    def is_damage(self) -> bool:
        return self.kind in (ProblemKind.DAMAGED, ProblemKind.UNREADABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Findings about a checkpoint.

    Attributes:
        name: Its name.
        size_bytes: The size of its state; None if its manifest cannot be read.
        problems: Problems; none, if it is verified.
    """

    name: str
    size_bytes: int | None
    problems: tuple[Problem, ...]


def verify(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|CHECKPOINT",
            help="Directory of a checkpoint, or of a run, all of whose checkpoints are read.",
        ),
    ],
    public_key: Annotated[
        Path | None,
        typer.Option(PUBLIC_KEY, help="PEM file with a key that must have signed them."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare every byte of checkpoints with its digest; changes nothing."""
    seal = UNSEALED if public_key is None else Seal.trusting(public_key, PUBLIC_KEY)
    with reachable(path):
        store, names = checkpoints_at(path)
    found = list[Verified]()
    for name in names:
        found.append(_verified(store, name, seal))
        if not as_json:
            for line in _lines(found[-1]):
                print(line, flush=True)
    failed = any(each.problems for each in found)
    if as_json:
        checkpoints = [asdict(each) for each in found]
        print(json.dumps({"path": str(path), "failed": failed, "checkpoints": checkpoints}))
        raise typer.Exit(FAILED_STATUS if failed else 0)
    if failed:
        raise CheckpointError(_summary(found, public_key))


def _verified(store: CheckpointStore, name: str, seal: Seal) -> Verified:
    size_bytes = _size_bytes(store, name)
    with reading(name, size_bytes) as advance:
        examined = examine(store, name, advance)
    problems = [
        Problem(
            kind=ProblemKind.DAMAGED if each.is_corrupt else ProblemKind.UNREADABLE,
            file=f"{each.location}/{each.file}",
            reason=each.reason,
        )
        for each in examined.damage
    ]
    if examined.manifest is not None:
        problems += _distrusted(examined.manifest, f"{store.location(name)}/{MANIFEST}", seal)
    return Verified(name=name, size_bytes=size_bytes, problems=tuple(problems))


def _distrusted(manifest: Manifest, where: str, seal: Seal) -> Iterator[Problem]:
    """Why the signature of a manifest is not that of the trusted key, if there is one."""
    if seal.trusted is None:
        return
    key = fingerprint(seal.trusted)
    signature = manifest.signature
    if signature is None:
        yield Problem(kind=ProblemKind.UNSIGNED, file=where, reason=f"{where} has no signature")
    elif signature.key != key:
        reason = f"{where} is signed by key {signature.key[:SHOWN]}, not by {key[:SHOWN]}"
        yield Problem(kind=ProblemKind.OTHER_KEY, file=where, reason=reason)
    else:
        try:
            seal.check_signature(manifest, where)
        except CheckpointError as error:
            yield Problem(kind=ProblemKind.DAMAGED, file=where, reason=str(error))


def _size_bytes(store: CheckpointStore, name: str) -> int | None:
    with suppress(CheckpointError, OSError):
        return store.manifest(name).size_bytes
    return None


def _lines(found: Verified) -> Iterator[str]:
    if not found.problems:
        yield f"{found.name}  verified  {size(found.size_bytes).replace(NBSP, ' ')}"
    for each in found.problems:
        yield f"{found.name}  {each.kind}: {each.reason}"


def _summary(found: Sequence[Verified], public_key: Path | None) -> str:
    total = count(len(found), "checkpoint").replace(NBSP, " ")
    whole = [each.name for each in found if not each.problems]
    files = [problem.file for each in found for problem in each.problems if problem.is_damage]
    damaged = [each for each in found if any(problem.is_damage for problem in each.problems)]
    distrusted = [
        each.name for each in found if not all(problem.is_damage for problem in each.problems)
    ]
    said = list[str]()
    if damaged:
        if whole:
            advice = f"a resumed run uses {whole[0]} at the latest; look after the disk"
        else:
            advice = "copy it back from a backup, or look after the disk"
        said.append(f"{len(damaged)} of {total} damaged: {', '.join(files)}; {advice}")
    if distrusted:
        said.append(
            f"{len(distrusted)} of {total} not signed by the key of {PUBLIC_KEY} {public_key}: "
            f"{', '.join(distrusted)}; use them only if you know who wrote them"
        )
    return ". ".join([*said, "Nothing was changed"])
