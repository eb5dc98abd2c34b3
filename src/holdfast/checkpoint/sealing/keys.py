"""Keys: the files that hold what signs and encrypts checkpoints.

A key never leaves its process: no message, log or manifest has it. What names a key there is a
digest of it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import socket
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.errors import JobError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

SIGN: Final = "checkpoint.sign"
ENCRYPT: Final = "checkpoint.encrypt"
"""The keys of a job that name the files, for messages."""
SECRET_BYTES: Final = 32
SHOWN: Final = 16
"""Length to which the name of a key is cut in a message, characters."""
_MAX_FILE_BYTES: Final = 1 << 16
_MAKE_ENCRYPTION_KEY: Final = "(umask 077; openssl rand -base64 32 > FILE)"
_MAKE_SIGNING_KEY: Final = "(umask 077; openssl genpkey -algorithm ed25519 -out FILE)"
_MAKE_PUBLIC_KEY: Final = "openssl pkey -in KEY -pubout -out FILE"
_PRIVATE: Final = b"PRIVATE KEY-----"
"""Ends the first line of a private key in PEM, of any kind."""


@dataclass(frozen=True, slots=True)
class EncryptionKey:
    """A key that wraps the data keys of checkpoints.

    Attributes:
        secret: The key, 32 bytes.
        path: Its file.
    """

    secret: bytes = field(repr=False)
    path: Path

    @property
    def name(self) -> str:
        """Name of the key for those who do not know it, 32 hexadecimal digits."""
        return hashlib.sha256(b"holdfast checkpoint key\0" + self.secret).hexdigest()[:32]


def encryption_key(path: Path) -> EncryptionKey:
    """The key in a file that holds 32 bytes in base64.

    Raises:
        JobError: It is not there, others can read it, or it holds no such key.
    """
    try:
        secret = base64.b64decode(_secret(path, ENCRYPT).strip(), validate=True)
    except binascii.Error:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise JobError(
            f"{ENCRYPT}: {path} does not hold {SECRET_BYTES} bytes in base64; make a key with "
            f"{_MAKE_ENCRYPTION_KEY}"
        )
    return EncryptionKey(secret, path)


def signing_key(path: Path, named_by: str = SIGN) -> Ed25519PrivateKey:
    """The private key in a PEM file.

    Args:
        path: The file.
        named_by: The job key or option that names it, for messages.

    Raises:
        JobError: It is not there, others can read it, or it holds no such key.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(_secret(path, named_by), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise JobError(
            f"{named_by}: {path} holds no Ed25519 private key in PEM without a password; make one "
            f"with {_MAKE_SIGNING_KEY}"
        )
    return key


def public_key(path: Path, named_by: str) -> Ed25519PublicKey:
    """The public key in a PEM file, or that of the private key in it.

    Args:
        path: The file.
        named_by: The job key or option that names it, for messages.

    Raises:
        JobError: It cannot be read, or holds neither.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        text = path.read_bytes()
    except OSError as error:
        raise JobError(
            f"{named_by}: {path}: {error.strerror}; name the file of a public key"
        ) from None
    if _PRIVATE in text:
        return signing_key(path, named_by).public_key()
    try:
        key = load_pem_public_key(text)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise JobError(
            f"{named_by}: {path} holds no Ed25519 public key in PEM; make its file from the key "
            f"that signed with {_MAKE_PUBLIC_KEY}"
        )
    return key


def fingerprint(key: Ed25519PublicKey) -> str:
    """Name of a public key: the SHA-256 of its 32 bytes."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()


def _secret(path: Path, key: str) -> bytes:
    """The content of a file that only its owner may read; `key` names it in messages."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would block
            raise JobError(f"{key}: {path} is not a file; name the file of a key")
        mode = stat.S_IMODE(status.st_mode)
        # Kubernetes mounts secrets as root's, readable by a group of the pod.
        if mode & (0o037 if status.st_uid == 0 else 0o077):
            raise JobError(
                f"{key}: other users can read {path} (mode {mode:04o}); run chmod 600 {path}, and "
                "make a new key if it is no secret any more"
            )
        with path.open("rb") as file:
            return file.read(_MAX_FILE_BYTES)
    except OSError as error:
        raise JobError(
            f"{key}: {path} cannot be read on host {socket.gethostname()}: {error.strerror}; each "
            "host that trains needs a copy there"
        ) from None
