"""Files of keys are refused before a run by what is wrong with them, and never shown."""

import os
import re

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from checkpoints import layout_of, save, state_of, store_in
from holdfast.checkpoint.sealing.keys import signing_key as load_signing_key
from holdfast.checkpoint.sealing.seal import Seal
from holdfast.errors import CheckpointError, JobError
from holdfast.job import load
from keys import encryption_key, private, seal_of, signing_key

PKCS8 = (Encoding.PEM, PrivateFormat.PKCS8)


def absent(path):
    path.unlink()


def open_to_others(path):
    path.chmod(0o644)


def of_a_group(path):
    path.chmod(0o660)


def a_folder(path):
    path.unlink()
    path.mkdir(0o700)


def a_pipe(path):
    path.unlink()
    os.mkfifo(path, 0o600)


def empty(path):
    private(path, b"")


def nonsense(path):
    private(path, b"hunter2" * 9)


@pytest.mark.parametrize("key", ["sign", "encrypt"])
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (
            absent,
            r"cannot be read on host \S+: No such file .*; each host that trains needs a copy",
        ),
        (open_to_others, r"\(mode 0644\); run chmod 600"),
        (of_a_group, r"\(mode 0660\); run chmod 600"),
        (a_folder, "is not a file"),
        (a_pipe, "is not a file"),
        (empty, r"(does not hold 32 bytes|holds no Ed25519 private key).*umask 077; openssl"),
        (nonsense, r"(does not hold 32 bytes|holds no Ed25519 private key).*umask 077; openssl"),
    ],
)
def test_a_file_that_holds_no_secret_key_is_refused(tmp_path, key, spoil, reason):
    path = {"sign": signing_key, "encrypt": encryption_key}[key](tmp_path / "key")
    spoil(path)
    with pytest.raises(JobError, match=rf"checkpoint\.{key}: .*{reason}") as refused:
        seal_of(**{key: path})
    assert str(path) in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("kind", ["rsa", "password", "public"])
def test_keys_of_other_kinds_do_not_sign(tmp_path, kind):
    path = signing_key(tmp_path / "key")
    match kind:
        case "rsa":
            rsa = generate_private_key(65537, 2048)
            private(path, rsa.private_bytes(*PKCS8, NoEncryption()))
        case "password":
            locked = BestAvailableEncryption(b"secret")
            private(path, load_signing_key(path).private_bytes(*PKCS8, locked))
        case "public":
            path = path.with_suffix(".pub")
            path.chmod(0o600)
    with pytest.raises(JobError, match="holds no Ed25519 private key in PEM without a password"):
        seal_of(sign=path)


def test_keys_are_not_shown(tmp_path):
    path = encryption_key(tmp_path / "key")
    seal = seal_of(sign=signing_key(tmp_path / "sign"), encrypt=path)
    assert path.read_text().strip() not in repr(seal)
    assert repr(seal.encryption.secret) not in repr(seal)
    assert not re.search(r"[0-9a-f]{64}", repr(seal))


def test_a_public_key_is_enough_to_check_signatures(tmp_path):
    path, other = signing_key(tmp_path / "key"), signing_key(tmp_path / "other")
    layout = layout_of(width=4)
    saved = save(tmp_path / "checkpoints", 3, state_of(layout), layout, seal=seal_of(sign=path))
    for trusted in (path, path.with_suffix(".pub")):
        assert store_in(saved.parent, Seal.trusting(trusted)).manifest(saved.name).step == 3
    with pytest.raises(CheckpointError, match="is signed by key"):
        store_in(saved.parent, Seal.trusting(other.with_suffix(".pub"))).manifest(saved.name)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (absent, "No such file"),
        (a_folder, "Is a directory"),
        (nonsense, "holds no Ed25519 public key in PEM; make its file"),
        (open_to_others, r"other users can read .* \(mode 0644\)"),
    ],
)
def test_messages_name_what_has_named_the_file(tmp_path, spoil, reason):
    path = signing_key(tmp_path / "key")
    spoil(path)
    with pytest.raises(JobError, match=rf"--public-key: .*{reason}") as refused:
        Seal.trusting(path, "--public-key")
    assert str(path) in str(refused.value)
    assert "checkpoint.sign" not in str(refused.value)


def test_paths_of_keys_are_relative_to_the_file_of_the_job(tmp_path, monkeypatch):
    folder = tmp_path / "jobs"
    folder.mkdir()
    (folder / "mine.yaml").write_text(
        "data: {name: digits}\nmodel: {name: mlp}\n"
        "checkpoint: {sign: keys/sign.pem, encrypt: /etc/own.key}\n"
    )
    monkeypatch.chdir(tmp_path)
    found = load.load("jobs/mine.yaml").checkpoint
    assert (str(found.sign), str(found.encrypt)) == ("jobs/keys/sign.pem", "/etc/own.key")
    given = load.load("jobs/mine.yaml", ["checkpoint.sign=here.pem"]).checkpoint
    assert str(given.sign) == "here.pem"
