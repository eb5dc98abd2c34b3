"""A stand-in for the API server of Kubernetes: Secrets that can be patched, over HTTPS."""

import base64
import datetime
import ipaddress
import json
import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

BEARER = "of-the-account"


class Api:
    """What the server knows.

    Attributes:
        secrets: The content of each Secret, by namespace and name.
        environment: What a pod finds in its environment.
    """

    def __init__(self, secrets):
        self.secrets = secrets
        self.environment = {}


@contextmanager
def kubernetes_api(account: Path, secrets):
    """The server, for a pod in namespace `ns` whose ServiceAccount is in a folder."""
    api = Api(secrets)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(api))
    context = own_certificate(account)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    (account / "token").write_text(BEARER)
    (account / "namespace").write_text("ns")
    host, port = server.server_address
    api.environment = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": str(port)}
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def handler_of(api):
    class Handler(BaseHTTPRequestHandler):
        def do_PATCH(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            _, _, _, _, namespace, kind, name = self.path.split("/")
            if self.headers["Authorization"] != f"Bearer {BEARER}":
                self.answer(401, {"message": "Unauthorized"})
            elif kind != "secrets" or (namespace, name) not in api.secrets:
                self.answer(404, {"message": f'{kind} "{name}" not found'})
            elif self.headers["Content-Type"] != "application/merge-patch+json":
                self.answer(415, {"message": "unsupported"})
            else:
                for key, value in json.loads(body)["data"].items():
                    api.secrets[namespace, name][key] = base64.b64decode(value, validate=True)
                self.answer(200, {"kind": "Secret"})

        def answer(self, status, content):
            text = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            pass

    return Handler


def own_certificate(folder):
    """The context of a server whose certificate is `ca.crt` in the folder."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (folder / "server.key").write_bytes(private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.crt", folder / "server.key")
    return context
