"""Key files for tests."""

import base64
import os

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from holdfast.checkpoint.sealing.seal import Seal
from holdfast.job.settings import CheckpointSettings


def private(path, content):
    """A file that only its owner can read."""
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def signing_key(path):
    """A file with a new key that signs; next to it one with the public key, `.pub`."""
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    path.with_suffix(".pub").write_bytes(public)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private(path, pem)


def encryption_key(path):
    """A file with a new key that encrypts."""
    return private(path, base64.b64encode(os.urandom(32)) + b"\n")


def seal_of(*, sign=None, encrypt=None):
    """The seal of a job that names these files."""
    return Seal.of(CheckpointSettings(sign=sign, encrypt=encrypt))
