"""A stand-in for the API server of Kubernetes, for the real kubectl: pods are listed, and `exec`
runs processes of this machine.

A pod is a folder and the processes that were started in it. What a cluster does beyond that, such
as scheduling, readiness or network policies, is not here.
"""

import base64
import hashlib
import json
import os
import struct
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psutil

from kubectl_tool import kubectl

PROTOCOL = "v5.channel.k8s.io"
STDIN, STDOUT, STDERR, STATUS, CLOSE = 0, 1, 2, 3, 255


class Cluster:
    """What the server knows.

    Attributes:
        folder: Has one for each pod, `bin` with the kubectl, and `kubeconfig`.
        requests: The path of each request.
    """

    def __init__(self, folder):
        self.folder, self.requests, self._pods = folder, [], {}

    def add(self, *names, labels=None, **status):
        """Make pods, which are running and ready unless `status` says something else."""
        labels = labels or {"app": "trainer"}
        for name in names:
            (self.folder / "pods" / name / "work").mkdir(parents=True)
            self._pods[name] = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "ns", "labels": labels},
                "spec": {"containers": [{"name": "main", "image": "holdfast:0.1.0"}]},
                "status": {
                    "phase": "Running",
                    "podIP": "127.0.0.1",
                    "conditions": [{"type": "Ready", "status": "True"}],
                    **status,
                },
            }  # fmt: skip

    def delete_later(self, name, deadline):
        """Say when a pod will end."""
        self._pods[name]["metadata"]["deletionTimestamp"] = deadline

    def lose(self, name):
        """Delete a pod: all of its processes are killed, which ends the connections to them."""
        del self._pods[name]
        for process in self.processes(name):
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def processes(self, name):
        """What runs in a pod."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("POD_FOLDER") == str(self.folder / "pods" / name):
                    found.append(process)
        return found

    def listed(self, selector):
        wanted = {tuple(each.split("=")) for each in selector.split(",") if each}
        pods = [
            pod
            for pod in list(self._pods.values())
            if wanted <= set(pod["metadata"]["labels"].items())
        ]
        return {"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": pods}

    def pod(self, name):
        return self._pods.get(name)

    def environment(self, name):
        """That of processes in a pod."""
        folder = self.folder / "pods" / name
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {
            "PATH": path, "HOME": str(folder), "POD_FOLDER": str(folder), "TMPDIR": str(folder),
            "HOSTNAME": name,
        }  # fmt: skip

    def run(self, pod, command, socket):
        """Run a command in a pod; its status, or None if the pod is gone."""
        try:
            process = subprocess.Popen(
                command, cwd=self.folder / "pods" / pod / "work", start_new_session=True,
                env=self.environment(pod), bufsize=0, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
        except OSError:
            return 126
        threading.Thread(target=feed, args=[socket, process.stdin], daemon=True).start()
        outputs = [
            threading.Thread(target=forward, args=[socket, channel, stream], daemon=True)
            for channel, stream in ((STDOUT, process.stdout), (STDERR, process.stderr))
        ]
        for each in outputs:
            each.start()
        status = process.wait()
        for each in outputs:
            each.join(5)
        return None if self.pod(pod) is None else status if status >= 0 else 128 - status

    @property
    def client(self):
        """The environment of what uses kubectl."""
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "KUBECONFIG": str(self.folder / "kubeconfig")}


@contextmanager
def pods_api(folder):
    """The server, and a kubeconfig for it."""
    cluster = Cluster(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.cluster = cluster
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "kubectl").symlink_to(kubectl())
    at = {"server": f"http://127.0.0.1:{server.server_port}"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": at}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "ns"}}],
        "users": [{"name": "u", "user": {}}],
    }
    (folder / "kubeconfig").write_text(json.dumps(config))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield cluster
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        for name in [each["metadata"]["name"] for each in cluster.listed("")["items"]]:
            cluster.lose(name)


def feed(socket, stdin):
    """Pass on what the client sends, until it closes that channel, or is gone."""
    with stdin, suppress(OSError):
        while (message := socket.receive()) is not None:
            if message[:1] == bytes([STDIN]):
                stdin.write(message[1:])
            elif message[:1] == bytes([CLOSE]):
                return


def forward(socket, channel, stream):
    with stream:
        while data := stream.read(1 << 15):
            socket.send(channel, data)


class Handler(BaseHTTPRequestHandler):
    """Answers kubectl; its server has the cluster."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.cluster.requests.append(self.path)
        parts = urlsplit(self.path)
        query, words = parse_qs(parts.query), parts.path.strip("/").split("/")
        if words[:5] == ["api", "v1", "namespaces", "ns", "pods"]:
            self.answer_pods(words[5:], query)
        elif "/".join(words) in DISCOVERY:
            self.answer(200, DISCOVERY["/".join(words)])
        else:
            self.answer(404, status_of(404, f"{self.path} is not there"))

    def answer_pods(self, words, query):
        cluster = self.server.cluster
        if not words:
            self.answer(200, cluster.listed(query.get("labelSelector", [""])[0]))
        elif cluster.pod(words[0]) is None:
            self.answer(404, status_of(404, f'pods "{words[0]}" not found'))
        elif words[1:] == ["exec"]:
            self.exec(words[0], query["command"])
        else:
            self.answer(200, cluster.pod(words[0]))

    def answer(self, status, content):
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def exec(self, pod, command):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.send_response(101)
        for name, value in {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Accept": accept,
            "Sec-WebSocket-Protocol": PROTOCOL,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True
        socket = WebSocket(self.rfile, self.wfile)
        status = self.server.cluster.run(pod, command, socket)
        if status is not None:
            socket.send(STATUS, json.dumps(ended(status)).encode())
            socket.frame(8, struct.pack(">H", 1000))
        self.connection.shutdown(2)

    def log_message(self, *_):
        pass


class WebSocket:
    """A connection of `exec` (RFC 6455): its messages begin with the number of a channel."""

    def __init__(self, source, sink):
        self._source, self._sink, self._sending = source, sink, threading.Lock()

    def receive(self):
        """The next message; None at the end."""
        with suppress(OSError, ValueError, struct.error):
            while True:
                first, second = self._source.read(2)
                size = second & 127
                if size > 125:
                    form = ">H" if size == 126 else ">Q"
                    (size,) = struct.unpack(form, self._source.read(struct.calcsize(form)))
                mask, data = self._source.read(4), self._source.read(size)
                pad = (mask * (size // 4 + 1))[:size]
                plain = (int.from_bytes(data, "big") ^ int.from_bytes(pad, "big")).to_bytes(size)
                kind = first & 15
                if kind == 9:
                    self.frame(10, plain)
                elif kind in (0, 1, 2):
                    return plain
                elif kind == 8:
                    return None
        return None

    def send(self, channel, data):
        self.frame(2, bytes([channel]) + data)

    def frame(self, kind, data):
        size = len(data)
        if size < 126:
            head = bytes([128 | kind, size])
        elif size < 1 << 16:
            head = bytes([128 | kind, 126]) + struct.pack(">H", size)
        else:
            head = bytes([128 | kind, 127]) + struct.pack(">Q", size)
        with self._sending, suppress(OSError, ValueError):
            self._sink.write(head + data)
            self._sink.flush()


DISCOVERY = {
    "api": {"kind": "APIVersions", "versions": ["v1"]},
    "apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "api/v1": {
        "kind": "APIResourceList", "groupVersion": "v1",
        "resources": [
            {
                "name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod",
                "verbs": ["get", "list"], "shortNames": ["po"],
            }
        ],
    },
}  # fmt: skip


def status_of(code, message):
    return {
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message,
        "reason": "NotFound", "code": code,
    }  # fmt: skip


def ended(status, message=""):
    """How a command has ended, as the kubelet says it."""
    if status == 0:
        return {"metadata": {}, "status": "Success"}
    causes = [{"reason": "ExitCode", "message": str(status)}]
    return {
        "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
        "message": message or f"command terminated with exit code {status}",
        "details": {"causes": causes},
    }  # fmt: skip
