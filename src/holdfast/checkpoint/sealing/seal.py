"""Seal: what makes a checkpoint confidential, and proves who wrote it; knows no torch.

The manifest is signed over its own SHA-256, which covers the digests of all chunks. The chunks are
encrypted where they are stored. What reads only stored bytes (retention, transfers to other hosts)
needs no key: the manifest has the digests of these, too. Cryptography is imported with a key only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from holdfast.checkpoint.manifest import Manifest, PartFile, Signature
from holdfast.checkpoint.parts import DigestKind
from holdfast.checkpoint.sealing.keys import (
    ENCRYPT,
    SHOWN,
    SIGN,
    EncryptionKey,
    encryption_key,
    fingerprint,
    public_key,
    signing_key,
)
from holdfast.errors import CheckpointError, JobError
from holdfast.job.settings import CheckpointSettings

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

    from holdfast.checkpoint.sealing.encryption import PartDecrypter, PartEncrypter


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """The keys that a process has for the checkpoints of a run.

    Attributes:
        signing: Signs manifests; None: they are not signed.
        trusted: The key whose signatures are accepted; None: signatures are not checked.
        encryption: Encrypts and decrypts the state; None: it is stored in plain.
    """

    signing: Ed25519PrivateKey | None = None
    trusted: Ed25519PublicKey | None = None
    encryption: EncryptionKey | None = None

    @classmethod
    def of(cls, settings: CheckpointSettings) -> Self:
        """The keys in the files that a job names.

        Raises:
            JobError: A file is not there, can be read by others, or holds no such key.
        """
        signing = None if settings.sign is None else signing_key(settings.sign)
        return cls(
            signing=signing,
            trusted=None if signing is None else signing.public_key(),
            encryption=None if settings.encrypt is None else encryption_key(settings.encrypt),
        )

    @classmethod
    def trusting(cls, path: Path, named_by: str = SIGN) -> Self:
        """Make a seal that checks signatures by the public or private key in a PEM file, only that.

        Args:
            path: The file.
            named_by: The job key or option that names it, for messages.

        Raises:
            JobError: The file cannot be read, or holds no such key.
        """
        return cls(trusted=public_key(path, named_by))

    @property
    def digest_kind(self) -> DigestKind:
        """Kind of the digests of a new checkpoint's chunks."""
        return DigestKind.XXH3 if self.signing is None else DigestKind.BLAKE3

    def signed(self, manifest: Manifest) -> Manifest:
        """A manifest with its digest in it, and with a signature if there is a key for that."""
        sealed = manifest.sealed()
        if self.signing is None:
            return sealed
        signature = Signature(
            key=fingerprint(self.signing.public_key()),
            value=self.signing.sign(_message(sealed)).hex(),
        )
        return sealed.model_copy(update={"signature": signature})

    def check_signature(self, manifest: Manifest, where: str) -> None:
        """Check who has signed a manifest, if a key is trusted.

        Args:
            manifest: It matches its own digest.
            where: Its file, for messages.

        Raises:
            CheckpointError: It is not signed, another key has signed it, or it was altered since.
        """
        if self.trusted is None:
            return
        key = fingerprint(self.trusted)
        signature = manifest.signature
        if signature is None:
            raise CheckpointError(
                f"{where} is not signed, and only key {key[:SHOWN]} is trusted; to trust this "
                f"checkpoint nevertheless, resume once without {SIGN}"
            )
        # The name of the key is only a hint for the message; the signature itself is checked below.
        if signature.key != key:
            raise CheckpointError(
                f"{where} is signed by key {signature.key[:SHOWN]}, and only key {key[:SHOWN]} is "
                f"trusted; name the file of the former as {SIGN} if you trust it"
            )
        from cryptography.exceptions import InvalidSignature

        try:
            self.trusted.verify(bytes.fromhex(signature.value), _message(manifest))
        except InvalidSignature:
            raise CheckpointError(
                f"{where} does not match its signature by key {key[:SHOWN]}: it was altered; use "
                "another checkpoint"
            ) from None

    def encrypter(self, checkpoint: str, file: str) -> PartEncrypter | None:
        """Cipher for a new part of a checkpoint; None if it is stored in plain."""
        if self.encryption is None:
            return None
        from holdfast.checkpoint.sealing.encryption import PartEncrypter

        return PartEncrypter(self.encryption, checkpoint, file, self.digest_kind)

    def decrypter(self, checkpoint: str, part: PartFile, where: str) -> PartDecrypter | None:
        """Cipher for a part of a checkpoint; None if it is stored in plain.

        Args:
            checkpoint: The name of the checkpoint.
            part: The part.
            where: Its file, for messages.

        Raises:
            JobError: There is no key, or another one.
            CheckpointError: What the manifest says of its data key was altered.
        """
        if part.encryption is None:
            return None
        if self.encryption is None:
            raise JobError(
                f"{where} is encrypted with key {part.encryption.key[:SHOWN]}; name its file: "
                f"{ENCRYPT} in a job, --key-file of holdfast export"
            )
        from holdfast.checkpoint.sealing.encryption import PartDecrypter

        return PartDecrypter(self.encryption, checkpoint, part, where)


UNSEALED: Final = Seal()
"""No keys: checkpoints are written in plain, and read without a check of signatures."""


def _message(manifest: Manifest) -> bytes:
    """Bytes that are signed."""
    return b"holdfast checkpoint manifest\0" + bytes.fromhex(manifest.sha256)
