"""Encryption: the chunks of a part as ciphertext of the same length, AES-256-GCM.

    the key of the file ─ wraps ─▶ data key of a part ─ encrypts ─▶ chunk k, nonce k
                                                                    └─▶ tag, in the manifest

Each write of a part makes a data key of its own and encrypts each chunk once, so the number of a
chunk is a nonce that never repeats under its key. The wrapped key is bound to checkpoint and file,
and each chunk to checkpoint, file and number: none can take the place of another.
"""

from __future__ import annotations

import mmap
import os
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import GCM

from holdfast.checkpoint import parts
from holdfast.checkpoint.manifest import Encryption, PartFile
from holdfast.checkpoint.sealing.keys import ENCRYPT, SECRET_BYTES, SHOWN, EncryptionKey
from holdfast.errors import CheckpointError, JobError

_NONCE_BYTES: Final = 12


class PartEncrypter:
    """Encrypts the chunks of one part, once each and in order.

    Args:
        key: Wraps the data key.
        checkpoint: The name that the checkpoint will have.
        file: File of the part.
        kind: Kind of the digests.
    """

    def __init__(
        self, key: EncryptionKey, checkpoint: str, file: str, kind: parts.DigestKind
    ) -> None:
        self._place = f"{checkpoint}/{file}"
        self._key = key
        self._kind = kind
        self._data_key = os.urandom(SECRET_BYTES)
        self._last = -1
        self._buffer = memoryview(mmap.mmap(-1, parts.CHUNK_BYTES))  # aligned for direct I/O
        self._tags = list[str]()
        self._digests = list[str]()

    def encrypt(self, number: int, chunk: memoryview) -> memoryview:
        """The ciphertext of chunk `number` of the state, until the next call."""
        # The number is the nonce: a second use under one key would break GCM.
        assert number > self._last, "a nonce that was used before"
        self._last = number
        stored = self._buffer[: len(chunk)]
        encryptor = Cipher(AES256(self._data_key), GCM(_nonce(number))).encryptor()
        encryptor.authenticate_additional_data(_bound(self._place, number))
        _transform(encryptor, chunk, stored)
        self._tags.append(encryptor.tag.hex())
        self._digests.append(parts.digest(stored, self._kind))
        return stored

    def record(self) -> Encryption:
        """Record for a reader with the key."""
        # The wrapping key is used for many parts, so here the nonce is random.
        nonce = os.urandom(_NONCE_BYTES)
        wrapped = AESGCM(self._key.secret).encrypt(nonce, self._data_key, self._place.encode())
        return Encryption(
            key=self._key.name,
            data_key=(nonce + wrapped).hex(),
            tags=tuple(self._tags),
            digests=tuple(self._digests),
        )


class PartDecrypter:
    """Decrypts the chunks of one part.

    Args:
        key: Has wrapped the data key.
        checkpoint: The name of the checkpoint.
        part: The part, which is encrypted.
        where: Its file, for messages.

    Raises:
        JobError: It was encrypted with another key.
        CheckpointError: What the manifest says of its data key was altered.
    """

    def __init__(self, key: EncryptionKey, checkpoint: str, part: PartFile, where: str) -> None:
        assert part.encryption is not None
        self._place = f"{checkpoint}/{part.file}"
        self._where = where
        if part.encryption.key != key.name:
            raise JobError(
                f"{where} is encrypted with key {part.encryption.key[:SHOWN]}, and {key.path} "
                f"holds key {key.name[:SHOWN]}; name the file of the first one: {ENCRYPT} in a "
                "job, --key-file of holdfast export"
            )
        # The wrapped key is bound to its part: that of another part does not unwrap here.
        wrapped = bytes.fromhex(part.encryption.data_key)
        nonce = wrapped[:_NONCE_BYTES]
        sealed = wrapped[_NONCE_BYTES:]
        try:
            self._data_key = AESGCM(key.secret).decrypt(nonce, sealed, self._place.encode())
        except InvalidTag:
            raise CheckpointError(
                f"{where}: the manifest has a damaged data key, or that of another part"
            ) from None
        self._tags = part.encryption.tags
        self._first = part.first_chunk

    def decrypt(self, number: int, chunk: memoryview) -> None:
        """Decrypt chunk `number` of the state in its place.

        Raises:
            CheckpointError: It does not match its tag; its memory has nothing of use then.
        """
        tag = bytes.fromhex(self._tags[number - self._first])
        decryptor = Cipher(AES256(self._data_key), GCM(_nonce(number), tag)).decryptor()
        decryptor.authenticate_additional_data(_bound(self._place, number))
        try:
            _transform(decryptor, chunk, chunk)
        except InvalidTag:
            raise CheckpointError(
                f"{self._where}: chunk {number} of the state does not match its tag"
            ) from None


def _transform(context: CipherContext, source: memoryview, target: memoryview) -> None:
    done = context.update_into(source, target)
    context.finalize()
    assert done == len(source), "GCM buffers nothing"


def _nonce(number: int) -> bytes:
    return number.to_bytes(_NONCE_BYTES, "big")


def _bound(place: str, number: int) -> bytes:
    """The associated data of a chunk."""
    return f"{place}/{number}".encode()
