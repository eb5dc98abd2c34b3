"""The manifest: the record that makes a group of files a checkpoint.

Each worker writes its part into a draft. When all parts are durable, the manifest is added and the
draft is published. So a crash leaves either the whole checkpoint or something that is not called
one. Nothing is ever overwritten.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
from datetime import UTC, datetime
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from holdfast.arena.layout import ITEM_BYTES, Entry, Layout, is_dense
from holdfast.checkpoint import parts
from holdfast.core.code_version import CodeVersion
from holdfast.core.step.loss_scale import LossScale
from holdfast.errors import CheckpointError

FORMAT: Final = 7
_PART: Final = re.compile(r"part-\d{1,9}-of-\d{1,9}\.safetensors", re.ASCII)
_DIGESTS: Final = {
    parts.DigestKind.XXH3: re.compile(r"[0-9a-f]{32}"),
    parts.DigestKind.BLAKE3: re.compile(r"[0-9a-f]{64}"),
}
_TAG: Final = re.compile(r"[0-9a-f]{32}")
_CONTENT: Final = {"root", "state", "user_state", "loss_scale"}


FORKED: Final = "forked"
"""Key in the user state of the first checkpoint of a fork; see `tuning.fork`."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class _Version(BaseModel):
    """Fields of every format."""

    format: int
    versions: dict[str, str] = {}


class Tensor(_Record):
    """The place of a tensor in the state; `strides` as in `arena.layout`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...] = ()

    @property
    def entry(self) -> Entry:
        return Entry(self.name, self.dtype, self.shape, self.offset, strides=self.strides)


class Encryption(_Record):
    """Encryption of a part's chunks; see `checkpoint.sealing.encryption`.

    Attributes:
        key: Name of the key that has wrapped the data key.
        data_key: The wrapped data key, with its nonce and tag.
        tags: The tag of each chunk.
        digests: The digest of each chunk as it is stored.
    """

    key: str = Field(pattern=r"^[0-9a-f]{32}$")
    data_key: str = Field(pattern=r"^[0-9a-f]{120}$")
    tags: tuple[str, ...]
    digests: tuple[str, ...]


class PartFile(_Record):
    """A file with a part of the state.

    Attributes:
        file: Its name.
        size_bytes: Its size.
        first_chunk: The chunk that it begins with.
        digests: The digest of each chunk, of the memory that was written, in plain.
        encryption: Encryption of the chunks; None: they are plain.
    """

    file: str
    size_bytes: int
    first_chunk: int
    digests: tuple[str, ...]
    encryption: Encryption | None = None

    @property
    def chunks(self) -> range:
        """The chunks that it holds."""
        return range(self.first_chunk, self.first_chunk + len(self.digests))

    @property
    def stored_digests(self) -> tuple[str, ...]:
        """The digest of each chunk as it is stored."""
        return self.digests if self.encryption is None else self.encryption.digests


class Signature(_Record):
    """An Ed25519 signature over the digest of a manifest.

    Attributes:
        key: The fingerprint of the public key; see `checkpoint.sealing.keys`.
        value: The signature.
    """

    key: str = Field(pattern=r"^[0-9a-f]{64}$")
    value: str = Field(pattern=r"^[0-9a-f]{128}$")


class Origin(_Record):
    """Origin of a checkpoint.

    Attributes:
        at: Time of its commit: UTC, ISO 8601.
        host: The name of the host.
        code: The user's code.
    """

    at: str
    host: str
    code: CodeVersion

    @classmethod
    def now(cls, code: CodeVersion) -> Self:
        """Origin of a checkpoint that is committed now, on this host."""
        at = datetime.now(UTC).isoformat(timespec="microseconds")
        return cls(at=at, host=socket.gethostname(), code=code)


class Parent(_Record):
    """The checkpoint before another one in a run."""

    name: str
    root: str


class Best(_Record):
    """The best evaluation of a run.

    Attributes:
        value: The metric that the job watches; None before the first evaluation.
        step: Steps committed at that time; retention keeps the checkpoint of this step.
        since: Number of evaluations since then.
    """

    value: float | None = None
    step: int = 0
    since: int = 0

    @property
    def kept_step(self) -> int | None:
        """The step of the checkpoint that retention keeps for it; None if there is none."""
        return None if self.value is None else self.step


class HuggingFaceModel(_Record):
    """A model of the library transformers, or adapters of the library peft, in the trained model.

    Attributes:
        prefix: Prefix of the names of its tensors in the trained model.
        config: Its configuration, as in config.json or adapter_config.json.
        adapter: Name of the adapters in the names of tensors, from peft; None: a whole model.
        keys: The tensor of each key in peft's file of the adapters.
        lost: Why such a file does not have all that is trained; empty if it has.
    """

    prefix: str
    config: dict[str, Any]
    adapter: str | None = None
    keys: dict[str, str] = {}
    lost: str = ""


class Header(_Record):
    """Description of a checkpoint without its files; every worker has all of it.

    Attributes:
        format: Version of the file format.
        step: Steps committed; the cursor of the run.
        generation: The generation that wrote it.
        weights_config: The job's keys that decide the weights.
        tensors: The layout of the state, `size_bytes` long.
        uninitialized: Tensors that have no value yet.
        state_dicts: The state dicts of the model (`""`) and of registered modules, by name: the
            tensor of each key.
        hugging_face: The model of transformers or the adapters of peft, if it is or has one.
        state: `session.state`.
        user_state: State of user code outside its tensors; see `worker.user_state.user_state`.
        loss_scale: The scale of the next step, with `precision: fp16`.
        costs: Cost of a shard and the rest of a step for each rank that was measured, seconds: a
            resumed run plans from them.
        loss: Training loss of the newest step.
        metrics: Results of the newest evaluation.
        best: The best evaluation so far, if the job asks for one.
        evaluates: True if the run stopped before the evaluations after this step were complete: a
            resumed run begins with them.
        order: The data set and its iteration order; see `data.loading.order`.
        versions: Versions of holdfast, torch and Python.
        numerics: Hardware and software that decide the bits; see `worker.checks.numerics`.
        numerics_changes: Changes of `numerics` over all attempts, oldest first.
    """

    format: int = FORMAT
    step: int
    generation: int
    weights_config: dict[str, Any]
    tensors: tuple[Tensor, ...]
    size_bytes: int
    uninitialized: tuple[str, ...]
    state_dicts: dict[str, dict[str, str]]
    hugging_face: HuggingFaceModel | None = None
    state: dict[str, Any]
    user_state: dict[str, Any] = {}
    loss_scale: LossScale | None = None
    costs: tuple[tuple[int, float, float], ...] = ()
    loss: float | None
    metrics: dict[str, Any]
    best: Best = Best()
    evaluates: bool = False
    order: dict[str, Any]
    versions: dict[str, str]
    numerics: dict[str, str] = {}
    numerics_changes: tuple[str, ...] = ()


class Manifest(Header):
    """The record of a checkpoint.

    Attributes:
        digest_kind: Kind of the chunks' digests.
        root: Digest over all chunks; it does not depend on the number of writers, nor on whether
            the checkpoint is encrypted.
        parts: The files, in the order of their chunks.
        origin: Time, host and code of its commit.
        parent: The checkpoint before it; None if it is the first one of its run on this host.
        sha256: Digest of all other fields but the signature.
        signature: Signature of the digest; None: it is not signed.
    """

    digest_kind: parts.DigestKind
    root: str
    parts: tuple[PartFile, ...]
    origin: Origin
    parent: Parent | None
    sha256: str = ""
    signature: Signature | None = None

    @property
    def layout(self) -> Layout:
        return Layout(tuple(each.entry for each in self.tensors), self.size_bytes)

    @property
    def content_sha256(self) -> str:
        """Digest of what is restored from the checkpoint. Hosts that divide the same state among
        other numbers of workers agree on it.
        """
        return hashlib.sha256(self.model_dump_json(include=_CONTENT).encode()).hexdigest()

    def sealed(self) -> Self:
        """Copy of the manifest with its own digest in it."""
        return self.model_copy(update={"sha256": self._digest()})

    @classmethod
    def parse(cls, text: bytes, where: str) -> Self:
        """The manifest in a file, checked against itself.

        Args:
            text: The content of the file.
            where: The file, for messages.

        Raises:
            CheckpointError: It is damaged, was altered, or has another format.
        """
        try:
            # The format first: the fields of another one would only be called invalid.
            stated = _Version.model_validate_json(text)
            if stated.format != FORMAT:
                raise CheckpointError(
                    f"{where} has format {stated.format}, and this version of holdfast reads "
                    f"format {FORMAT}; resume the run with holdfast "
                    f"{stated.versions.get('holdfast', 'of the version that wrote it')}"
                )
            manifest = cls.model_validate_json(text)
        except ValidationError as error:
            raise CheckpointError(
                f"{where} is damaged: {error.error_count()} invalid fields"
            ) from None
        if manifest.sha256 != manifest._digest():
            raise CheckpointError(f"{where} does not match its own digest")
        unknown = [each.dtype for each in manifest.tensors if each.dtype not in ITEM_BYTES]
        if unknown:
            raise CheckpointError(
                f"{where} has a tensor of dtype {unknown[0]!r:.40}, which this version of holdfast "
                "does not know"
            )
        for each in manifest.tensors:
            if each.strides and not is_dense(each.shape, each.strides):
                raise CheckpointError(f"{where} has strides for {each.name:.40} that do not fit it")
        manifest._check_parts(where)
        return manifest

    def _check_parts(self, where: str) -> None:
        """Check that the parts hold every chunk of the state exactly once, in order.

        Raises:
            CheckpointError: They leave a gap, overlap, or are named or digested wrongly.
        """
        names = [part.file for part in self.parts]
        odd = [name for name in names if not _PART.fullmatch(name) or names.count(name) > 1]
        if odd:
            raise CheckpointError(f"{where} names a part {odd[0]!r:.80}")
        # Each part begins where the one before it ends, and the last one ends with the state.
        end = 0
        for part in self.parts:
            if part.first_chunk != end:
                raise CheckpointError(
                    f"{where}: {part.file} begins at chunk {part.first_chunk} of the state, and "
                    f"the parts before it end at chunk {end}"
                )
            end += len(part.digests)
            self._check_encryption(part, where)
        if end != parts.num_chunks(self.size_bytes):
            raise CheckpointError(
                f"{where}: the parts hold {end} chunks, and a state of {self.size_bytes} bytes "
                f"has {parts.num_chunks(self.size_bytes)}"
            )
        chunks = [digest for part in self.parts for digest in part.digests]
        is_digest = _DIGESTS[self.digest_kind].fullmatch
        if not all(map(is_digest, chunks)) or parts.root(chunks, self.digest_kind) != self.root:
            raise CheckpointError(f"{where}: the digests do not match their root")

    def _check_encryption(self, part: PartFile, where: str) -> None:
        """Raises: CheckpointError: Some chunk has no tag, or no digest of its ciphertext."""
        if (given := part.encryption) is None:
            return
        is_digest = _DIGESTS[self.digest_kind].fullmatch
        count = len(part.digests)
        is_whole = len(given.tags) == len(given.digests) == count
        if not is_whole or not all(map(_TAG.fullmatch, given.tags)):
            raise CheckpointError(f"{where}: {part.file} has {count} chunks without a tag for each")
        if not all(map(is_digest, given.digests)):
            raise CheckpointError(f"{where}: {part.file} has a digest that is none")

    def _digest(self) -> str:
        # Of a fixed form, so that it does not depend on how the file is written.
        plain = self.model_dump(mode="json", exclude={"sha256", "signature"})
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
