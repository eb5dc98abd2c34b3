"""Authority: the certificate authority of one start of a run on several hosts.

It trusts nothing but what it has signed, and nothing else trusts it: a certificate of another run,
or of an earlier start of the same one, is worth nothing here.
"""

from __future__ import annotations

import os
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from holdfast.errors import JobError, ProtocolError
from holdfast.wire.certificate_request import key_in_pem, new_request
from holdfast.wire.rpc import SERVER_NAME
from holdfast.wire.tls import Credentials, Identity, Role

VALID: Final = timedelta(days=90)
"""Time that certificates are valid."""
CLOCK_SKEW: Final = timedelta(days=1)
"""Greatest difference of the clocks of hosts."""

AUTHORITY: Final = "authority.json"
COORDINATOR: Final = "coordinator.json"
"""Files in the folder of the run's secrets."""


class Authority:
    """The authority of one start of a run.

    Args:
        own: Its certificate, signed by itself, and its key.
        coordinator: The coordinator's credentials.

    Attributes:
        coordinator: Credentials that were passed.
        run: The id of this start of the run.
    """

    def __init__(self, own: Credentials, coordinator: Credentials) -> None:
        key = serialization.load_pem_private_key(own.key.encode(), password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._own = own
        self._key = key
        self._certificate = x509.load_pem_x509_certificate(own.certificate.encode())
        self.coordinator = coordinator
        names = self._certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        self.run = str(names[0].value)

    @classmethod
    def create(cls, folder: Path) -> Self:
        """Make a new one, and the coordinator's credentials, and keep both in a folder."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, secrets.token_hex(8))])
        certificate = _in_pem(
            _builder(name, key.public_key())
            .subject_name(name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        own = Credentials(authority=certificate, certificate=certificate, key=key_in_pem(key))
        made = cls(own, own)
        made.coordinator = made.issue("coordinator", Role.COORDINATOR)
        write_secret(folder / AUTHORITY, own.model_dump_json().encode())
        write_secret(folder / COORDINATOR, made.coordinator.model_dump_json().encode())
        return made

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The one that is kept in a folder.

        Raises:
            JobError: It cannot be read.
        """
        try:
            own, coordinator = (
                Credentials.model_validate_json((folder / name).read_bytes())
                for name in (AUTHORITY, COORDINATOR)
            )
            return cls(own, coordinator)
        except (OSError, ValueError) as error:
            raise JobError(
                f"the keys in {folder} cannot be read: {error}; start the run again with "
                "holdfast coordinator --resume, which makes new ones"
            ) from None

    def issue(self, host: str, role: Role) -> Credentials:
        """Credentials with a new key, for a process of this host."""
        made = new_request()
        certificate = self.sign(made.request, host, role)
        return Credentials(authority=self._own.certificate, certificate=certificate, key=made.key)

    @property
    def certificate(self) -> str:
        """Its certificate, in PEM."""
        return self._own.certificate

    def sign(self, request: str, host: str, role: Role) -> str:
        """The certificate of a host for a role, in PEM.

        Args:
            request: Made by the host, in PEM. Only its key counts.
            host: The name of the host.
            role: Rights of the owner of the key.

        Raises:
            ProtocolError: The request is none, or not signed with its key.
        """
        identity = Identity(run=self.run, host=host, role=role)
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri)]
        if role == Role.COORDINATOR:
            names.append(x509.DNSName(SERVER_NAME))
        # Agents and workers also connect to each other, so they are clients too; a coordinator only
        # serves, and gRPC compares the name of a server.
        asks = [] if role == Role.COORDINATOR else [ExtendedKeyUsageOID.CLIENT_AUTH]
        issuer = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
        return _in_pem(
            _builder(self._certificate.subject, _key_of(request))
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, role)]))
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, *asks]), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer.value),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read. A program that waits for it finds it whole."""
    draft = path.with_name(f"{path.name}.tmp")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    draft.replace(path)


def _key_of(request: str) -> ec.EllipticCurvePublicKey:
    try:
        parsed = x509.load_pem_x509_csr(request.encode())
        key = parsed.public_key()
        is_ours = isinstance(key, ec.EllipticCurvePublicKey) and parsed.is_signature_valid
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ProtocolError(f"this is no request for a certificate: {error}") from None
    if not (isinstance(key, ec.EllipticCurvePublicKey) and is_ours):
        raise ProtocolError("a request for a certificate must be signed with its key, on P-256")
    return key


def _builder(issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    """Certificate with what all have in common."""
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _in_pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
