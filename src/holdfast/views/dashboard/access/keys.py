"""Keys: the token and the certificate of the dashboard, in files that only their owner can read.

    ~/.local/state/holdfast/dashboard/HOST/
      token            who shows it may see runs from elsewhere, and stop them
      certificate.pem  and its key, for connections from other machines

They are made at their first use and stay, so that bookmarks and the exceptions of browsers do.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from holdfast.errors import JobError
from holdfast.rundir.run_directory import state_dir
from holdfast.views.dashboard.access.address import Address
from holdfast.wire.certificate_request import key_in_pem

VALID: Final = timedelta(days=398)
"""How long a certificate is valid; browsers refuse longer ones."""
RENEWED: Final = timedelta(days=30)
"""How long before its end it is replaced."""
CLOCK_SKEW: Final = timedelta(days=1)
"""How much the clock of a browser may differ."""


def token_file() -> Path:
    """Where the token is."""
    return _folder() / "token"


def certificate_file() -> Path:
    """Where the certificate and its key are, in PEM."""
    return _folder() / "certificate.pem"


def token() -> str:
    """The token; made if there is none.

    Raises:
        JobError: Others can read its file, or it cannot be made.
    """
    path = token_file()
    try:
        if not path.exists():
            _write(path, f"{secrets.token_urlsafe(32)}\n".encode())
        if path.stat().st_mode & 0o077:
            raise JobError(
                f"{path} can be read by others; remove it, and holdfast dashboard makes a new token"
            )
        found = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as error:
        raise JobError(
            f"the token of the dashboard cannot be kept in {path}: {error}; set XDG_STATE_HOME to "
            "a directory that you can write to"
        ) from None
    if not found:
        raise JobError(f"{path} is empty; remove it, and holdfast dashboard makes a new token")
    return found


def certificate(address: Address) -> str:
    """The SHA-256 fingerprint of the certificate, as browsers show it; made if there is none.

    Args:
        address: Whose names a new one has.

    Raises:
        JobError: It cannot be made or read.
    """
    path = certificate_file()
    try:
        found = _valid(path)
        if found is None:
            path.unlink(missing_ok=True)
            key, found = _signed_by_itself(address)
            pem = found.public_bytes(serialization.Encoding.PEM)
            _write(path, key_in_pem(key).encode() + pem)
    except (OSError, ValueError) as error:
        raise JobError(f"the certificate of the dashboard in {path}: {error}") from None
    return found.fingerprint(hashes.SHA256()).hex(":").upper()


def _folder() -> Path:
    return state_dir() / "dashboard" / socket.gethostname()  # hosts may share a home


def _write(path: Path, content: bytes) -> None:
    """Write a file whole, for its owner only, unless another process has done so meanwhile."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
        with suppress(FileExistsError):
            path.hardlink_to(draft)
    finally:
        draft.unlink(missing_ok=True)


def _valid(path: Path) -> x509.Certificate | None:
    if not path.exists():
        return None
    found = x509.load_pem_x509_certificate(path.read_bytes())
    return found if found.not_valid_after_utc > datetime.now(UTC) + RENEWED else None


def _signed_by_itself(address: Address) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """A new key and its certificate, for the names of this host."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "holdfast dashboard")])
    names = [_name(each) for each in sorted({address.host, socket.gethostname(), "localhost"})]
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + VALID - CLOCK_SKEW)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    )
    return key, builder.sign(key, hashes.SHA256())


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
