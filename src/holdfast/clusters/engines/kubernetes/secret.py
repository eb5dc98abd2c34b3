"""Secret: what a pod of a run writes into Kubernetes, by the rights of its ServiceAccount.

One request with the standard library: a client of the whole API would be the largest part of the
image, for the one thing that a run asks of Kubernetes.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

from holdfast.errors import EngineError, JobError

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder in which Kubernetes mounts the ServiceAccount of a pod."""
_TIMEOUT_S: Final = 30.0
_MAX_ANSWER_BYTES: Final = 64 << 10


def put(
    secret: str, key: str, value: bytes, environment: Mapping[str, str], account: Path = ACCOUNT
) -> None:
    """Set one key of a Secret that exists, in the namespace of this pod.

    Args:
        secret: Its name.
        key: Name of one of its keys.
        value: New value of the key.
        environment: Environment of this process, in which Kubernetes names its server.
        account: The folder of the pod's ServiceAccount.

    Raises:
        JobError: This is no pod, or one without a ServiceAccount.
        EngineError: Kubernetes refuses, or does not answer.
    """
    try:
        host = environment["KUBERNETES_SERVICE_HOST"]
        port = int(environment["KUBERNETES_SERVICE_PORT"])
        bearer = (account / "token").read_text(encoding="ascii").strip()
        namespace = (account / "namespace").read_text(encoding="ascii").strip()
        trusted = ssl.create_default_context(cafile=account / "ca.crt")
    except (KeyError, ValueError, OSError) as error:
        raise JobError(
            f"this is no pod with a ServiceAccount ({error}); only a container of Kubernetes that "
            f"has {account} can fill a Secret"
        ) from None
    where = f"/api/v1/namespaces/{quote(namespace)}/secrets/{quote(secret)}"
    body = json.dumps({"data": {key: base64.b64encode(value).decode()}})
    headers = {
        "Authorization": f"Bearer {bearer}",
        "Content-Type": "application/merge-patch+json",
    }
    connection = http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=trusted)
    try:
        connection.request("PATCH", where, body, headers)
        answer = connection.getresponse()
        text = answer.read(_MAX_ANSWER_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise EngineError(
            f"Kubernetes at {host}:{port} does not answer: {error}; check that network policies "
            "let this pod reach it"
        ) from None
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise EngineError(
            f"Kubernetes refuses to fill Secret {namespace}/{secret}: {answer.status} "
            f"{_reason(text)}; check that it exists, and that the Role of this pod may patch it"
        )


def _reason(answer: bytes) -> str:
    """The message of a refusal, if it has one. It quotes no value of a Secret."""
    try:
        return str(json.loads(answer)["message"])[:200]
    except (ValueError, KeyError, TypeError):
        return "without a reason"
