"""Certificate request: a new key, and the proof of owning it for which an authority signs."""

from __future__ import annotations

from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateRequest:
    """A new key on the curve P-256 and a request for a certificate (RFC 2986).

    Attributes:
        key: In PEM; it stays with its owner.
        request: In PEM. It names no one: the authority decides whose certificate it signs.
    """

    key: str = field(repr=False)
    request: str


def new_request() -> CertificateRequest:
    """Make a key and the request for its certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder(x509.Name([])).sign(key, hashes.SHA256())
    return CertificateRequest(
        key=key_in_pem(key), request=request.public_bytes(serialization.Encoding.PEM).decode()
    )


def key_in_pem(key: ec.EllipticCurvePrivateKey) -> str:
    """A key in PEM (PKCS #8)."""
    form = serialization.PrivateFormat.PKCS8
    secrecy = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, secrecy).decode()
