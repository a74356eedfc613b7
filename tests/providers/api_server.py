"""A Kubernetes API server for tests. It supports only the calls of the provider, and checks them strictly.

TLS and bearer token work as in a real server. Bodies must match the published schemas. A Job becomes pods. A pod whose
Secret exists becomes a process of this machine, which runs the container's command with its own paths and port. Invalid
requests are also recorded in `wrong`, because a client may hide the error.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate

VERSION = "1.37"
BEARER = "of-the-tests-own-cluster"
_INDEX = "batch.kubernetes.io/job-completion-index"
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_NAME = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"


class Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class Pod:
    """A pod, and its process."""

    def __init__(self, cluster: Cluster, job: dict, index: int) -> None:
        template = json.loads(json.dumps(job["spec"]["template"]))
        self.cluster, self.index = cluster, index
        self.name = f"{job['metadata']['name']}-{index}-{next(cluster.counter):05d}"
        self.spec = template["spec"]
        self.labels = {**template["metadata"].get("labels", {}), "job-name": job["metadata"]["name"]}
        self.job = job["metadata"]["name"]
        self.made = now()
        self.folder = cluster.folder / self.name
        self.folder.mkdir()
        self.process: subprocess.Popen | None = None
        self.ready = False
        self.waiting = ("ContainerCreating", "")
        self.unschedulable = cluster.unschedulable
        self.ended: tuple[str, int] | None = None  # reason, status
        self.gone = False

    def path(self, text: str) -> str:
        """Maps a path in the container to one on this machine."""
        return re.sub(r"(?<![\w.])/(?:run|etc)/torch-remote", lambda m: f"{self.folder}{m[0]}", text)

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def start(self, secrets: dict) -> None:
        (container,) = self.spec["containers"]
        for volume in self.spec["volumes"]:
            (mount,) = [m for m in container["volumeMounts"] if m["name"] == volume["name"]]
            target = Path(self.path(mount["mountPath"]))
            if "secret" in volume:
                found = secrets.get(volume["secret"]["secretName"])
                if found is None:
                    return  # a kubelet waits for it
                target.mkdir(parents=True, exist_ok=True)
                for key, value in found["data"].items():
                    (target / key).write_bytes(base64.b64decode(value, validate=True))
                    (target / key).chmod(volume["secret"]["defaultMode"])
            else:
                assert "emptyDir" in volume
                target.mkdir(parents=True, exist_ok=True)
        command = [*container["command"], *container["args"]]
        assert command[:5] == ["torch-remote", "worker", "serve", "--host", "127.0.0.1"], command
        port = command.index("--port") + 1
        assert command[port] == "4500"
        command[port] = "0"  # real pods have separate networks; these share one
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(Path(p).resolve()) for p in sys.path if p)}
        environment |= {one["name"]: self.path(one["value"]) for one in container["env"]}
        self.waiting = ("", "")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "torch_remote_cli", *(self.path(word) for word in command[1:]), "--lease", "1"],
            stdin=subprocess.DEVNULL, stdout=self.log.open("wb"), stderr=subprocess.STDOUT, env=environment,
        )  # fmt: skip

    def look(self, secrets: dict) -> None:
        """Does what a kubelet does periodically."""
        if self.ended is not None or self.unschedulable or self.cluster.image_error:
            return
        if self.process is None:
            self.start(secrets)
        elif self.process.poll() is not None:
            status = self.process.returncode
            self.ended, self.ready = ("Completed" if status == 0 else "Error", status), False
        elif not self.ready:
            (container,) = self.spec["containers"]
            command = [self.path(word) for word in container["readinessProbe"]["exec"]["command"]]
            self.ready = subprocess.run(command).returncode == 0

    def port(self) -> int:
        (entry,) = self.folder.glob("run/torch-remote/torch-remote/workers/worker.json")
        return int(json.loads(entry.read_text())["url"].rpartition(":")[2])

    def stop(self) -> None:
        self.gone = True
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def evict(self) -> None:
        if self.process is not None:
            for pid in self.cluster.descendants(self.process.pid):
                os.kill(pid, signal.SIGKILL)
            self.process.kill()
            self.process.wait()
        self.ended, self.ready = ("Evicted", 137), False

    def encoded(self) -> dict:
        conditions = [{"type": "Ready", "status": "True" if self.ready else "False"}]
        if self.unschedulable:
            conditions.append(
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": self.unschedulable}
            )
        status: dict = {"phase": "Running" if self.ready else "Pending", "conditions": conditions}
        reason, message = self.cluster.image_error or self.waiting
        (container,) = self.spec["containers"]
        state: dict = {"running": {"startedAt": self.made}}
        if self.ended is not None:
            status["phase"] = "Succeeded" if self.ended[1] == 0 else "Failed"
            if self.ended[0] == "Evicted":
                status |= {"reason": "Evicted", "message": "The node was low on resource: memory."}
            state = {"terminated": {"exitCode": self.ended[1], "reason": self.ended[0]}}
        elif reason:
            state = {"waiting": {"reason": reason, "message": message}}
        status["containerStatuses"] = [
            {"name": container["name"], "ready": self.ready, "restartCount": 0, "image": container["image"],
             "imageID": "", "state": state}
        ]  # fmt: skip
        return {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": self.name, "namespace": self.cluster.namespace, "labels": self.labels,
                         "annotations": {_INDEX: str(self.index)}, "creationTimestamp": self.made},
            "spec": self.spec, "status": status,
        }  # fmt: skip


class Cluster:
    """The server and its objects. A thread acts as the controllers and kubelets."""

    def __init__(self, folder: Path, certificates: Path, descendants) -> None:
        self.folder, self.namespace, self.descendants = folder, "lab", descendants
        self.lock = threading.RLock()
        self.counter = itertools.count()
        self.jobs: dict[str, dict] = {}
        self.secrets: dict[str, dict] = {}
        self.pods: dict[str, Pod] = {}
        self.nodes: list[dict[str, str]] = []  # labels
        self.wrong: list[str] = []
        self.calls: list[str] = []
        self.forbidden: set[str] = set()  # "GET nodes"
        self.unschedulable = ""
        self.image_error: tuple[str, str] | None = None
        self.tunnels: set[socket.socket] = set()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"cluster": self}))
        self.server.daemon_threads = True
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(certificates / "worker.pem", certificates / "worker.key")
        self.server.socket = self.context.wrap_socket(
            self.server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.host = f"https://127.0.0.1:{self.server.server_address[1]}"
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1", "kind": "Config", "current-context": "elsewhere",
                    "clusters": [
                        {"name": "tests", "cluster": {"server": self.host,
                                                      "certificate-authority": str(certificates / "ca.pem")}},
                        {"name": "elsewhere", "cluster": {"server": "https://127.0.0.1:9"}},
                    ],
                    "users": [{"name": "me", "user": {"token": BEARER}}, {"name": "other", "user": {"token": "no"}}],
                    "contexts": [
                        {"name": "tests", "context": {"cluster": "tests", "user": "me", "namespace": "lab"}},
                        {"name": "stranger", "context": {"cluster": "tests", "user": "other", "namespace": "lab"}},
                        {"name": "elsewhere", "context": {"cluster": "elsewhere", "user": "me"}},
                    ],
                }
            )
        )  # fmt: skip
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._serve, self._control)]
        for thread in self._threads:
            thread.start()

    def _serve(self) -> None:
        self.server.serve_forever(poll_interval=0.05)

    def _control(self) -> None:
        while not self._closed.wait(0.02):
            with self.lock:
                for job in list(self.jobs.values()):
                    self._control_job(job)
                for pod in self.pods.values():
                    pod.look(self.secrets)

    def _control_job(self, job: dict) -> None:
        """Creates a pod for each index without one, and for each failed pod while retries are left."""
        spec, name = job["spec"], job["metadata"]["name"]
        for index in range(spec["completions"]):
            pods = [p for p in self.pods.values() if p.job == name and p.index == index]
            failed = [p for p in pods if p.ended is not None]
            if len(failed) == len(pods) and len(failed) <= spec["backoffLimit"]:
                pod = Pod(self, job, index)
                self.pods[pod.name] = pod

    def add_job(self, body: dict) -> dict:
        name = body["metadata"]["name"]
        if name in self.jobs:
            raise Refused(409, f'jobs.batch "{name}" already exists')
        body["metadata"] |= {"uid": f"uid-{name}", "namespace": self.namespace, "creationTimestamp": now()}
        self.jobs[name] = body
        return body

    def add_secret(self, body: dict) -> dict:
        (owner,) = body["metadata"]["ownerReferences"]
        if owner["uid"] != self.jobs[owner["name"]]["metadata"]["uid"]:
            raise Refused(422, "the Secret's owner is no Job of here")
        self.secrets[body["metadata"]["name"]] = body
        return body

    def delete_job(self, name: str) -> None:
        if self.jobs.pop(name, None) is None:
            raise Refused(404, f'jobs.batch "{name}" not found')
        gone = [pod for pod in self.pods.values() if pod.job == name]
        self.secrets = {
            key: one for key, one in self.secrets.items() if one["metadata"]["ownerReferences"][0]["name"] != name
        }
        for pod in gone:
            del self.pods[pod.name]
        # Pods take a while to end, and the API does not wait for that.
        threading.Thread(target=lambda: [pod.stop() for pod in gone], daemon=True).start()

    def processes(self) -> list[int]:
        with self.lock:
            return [pod.process.pid for pod in self.pods.values() if pod.process is not None]

    def cut(self) -> int:
        """Cuts all connections to pods."""
        with self.lock:
            cut = list(self.tunnels)
        for one in cut:
            one.shutdown(socket.SHUT_RDWR)
        return len(cut)

    def close(self) -> None:
        self._closed.set()
        self.server.shutdown()
        self.server.server_close()
        for thread in self._threads:
            thread.join()
        for pod in self.pods.values():
            pod.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def select(items: list[dict], selector: str) -> list[dict]:
    """The items with the labels of a selector "a=b,c=d"."""
    wanted = dict(part.split("=") for part in selector.split(",")) if selector else {}
    return [one for one in items if wanted.items() <= one["metadata"]["labels"].items()]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    cluster: Cluster

    def log_message(self, *args) -> None:
        pass

    def setup(self) -> None:
        self.request.settimeout(30)
        self.request.do_handshake()
        super().setup()

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_GET  # noqa: N815
    do_DELETE = do_GET  # noqa: N815
    do_PUT = do_GET  # noqa: N815
    do_PATCH = do_GET  # noqa: N815

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        query = {key: value for key, (value,) in parse_qs(parts.query, keep_blank_values=True).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        called = f"{self.command} {parts.path}"
        try:
            if self.headers.get("Authorization") != f"Bearer {BEARER}":
                raise Refused(401, "Unauthorized")
            for handler, verb, pattern, options in ROUTES:
                match = re.fullmatch(pattern, parts.path)
                if match is not None and verb == self.command:
                    what = f"{verb} {handler.__name__}"
                    with self.cluster.lock:
                        self.cluster.calls.append(what)
                        if what in self.cluster.forbidden:
                            raise Refused(403, f"{what} is forbidden: User cannot do that")
                    if unknown := set(query) - set(options):
                        raise Refused(400, f"unknown query {unknown}")
                    if match.groupdict().get("namespace", self.cluster.namespace) != self.cluster.namespace:
                        raise Refused(404, "no such namespace")
                    answer = handler(self, match, query, body)
                    return None if answer is None else self._send(200 if verb != "POST" else 201, answer)
            raise Refused(404, f"the server could not find the requested resource: {called}")
        except Refused as error:
            if error.status not in (401, 403, 404) or "could not find" in str(error):
                self.cluster.wrong.append(f"{called}: {error}")
            message = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": str(error),
                       "code": error.status}  # fmt: skip
            self._send(error.status, json.dumps(message).encode())
        except (ConnectionError, ssl.SSLEOFError):  # the client is gone
            self.close_connection = True
        except Exception as error:
            self.cluster.wrong.append(f"{called}: {type(error).__name__} {error}")
            raise

    def _send(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _body(self, body: bytes, kind: str) -> dict:
        if self.headers.get("Content-Type") != "application/json":
            raise Refused(415, "the body must be application/json")
        value = json.loads(body)
        if value.get("kind") != kind:
            raise Refused(400, f"a {kind} is expected")
        try:
            kubernetes_validate.validate(value, VERSION, strict=True)
        except kubernetes_validate.ValidationError as error:
            raise Refused(422, f"{kind}: {error.path}: {error.message}") from error
        return value

    def _list(self, kind: str, items: list[dict]) -> bytes:
        return json.dumps({"kind": kind, "apiVersion": "v1", "metadata": {}, "items": items}).encode()

    # -- what can be called

    def create_job(self, match, query, body) -> bytes:
        if query.get("fieldValidation") != "Strict":
            raise Refused(400, "typing errors would pass")
        value = self._body(body, "Job")
        with self.cluster.lock:
            return json.dumps(self.cluster.add_job(value)).encode()

    def list_jobs(self, match, query, body) -> bytes:
        with self.cluster.lock:
            return self._list("JobList", select(list(self.cluster.jobs.values()), query.get("labelSelector", "")))

    def delete_job(self, match, query, body) -> bytes:
        options = json.loads(body)
        if options.pop("apiVersion") != "v1" or options.pop("kind") != "DeleteOptions":
            raise Refused(400, "DeleteOptions are expected")
        if options not in ({"propagationPolicy": "Background"}, {"propagationPolicy": "Foreground"}):
            raise Refused(400, "its pods would be left over")
        with self.cluster.lock:
            self.cluster.delete_job(match["name"])
        return json.dumps({"kind": "Status", "apiVersion": "v1", "status": "Success"}).encode()

    def create_secret(self, match, query, body) -> bytes:
        value = self._body(body, "Secret")
        with self.cluster.lock:
            return json.dumps(self.cluster.add_secret(value)).encode()

    def list_pods(self, match, query, body) -> bytes:
        with self.cluster.lock:
            pods = [pod.encoded() for pod in self.cluster.pods.values()]
        for pod in pods:
            kubernetes_validate.validate(pod, VERSION, strict=True)
        return self._list("PodList", select(pods, query.get("labelSelector", "")))

    def nodes(self, match, query, body) -> bytes:
        nodes = [{"metadata": {"name": f"node-{i}", "labels": one}} for i, one in enumerate(self.cluster.nodes)]
        return self._list("NodeList", nodes)

    def events(self, match, query, body) -> bytes:
        return self._list("EventList", [])

    def _pod(self, match) -> Pod:
        with self.cluster.lock:
            pod = self.cluster.pods.get(match["name"])
        if pod is None:
            raise Refused(404, f'pods "{match["name"]}" not found')
        return pod

    def log(self, match, query, body) -> None:
        pod = self._pod(match)
        text = pod.log.read_bytes() if pod.log.exists() else b""
        text = b"".join(text.splitlines(keepends=True)[-int(query["tailLines"]) :])[: int(query["limitBytes"])]
        self._send(200, text, "text/plain")

    def portforward(self, match, query, body) -> None:
        """RFC 6455, and v4.channel.k8s.io: for each port, one channel for bytes and one for errors."""
        pod = self._pod(match)
        if query != {"ports": "4500"} or self.headers.get("Upgrade", "").lower() != "websocket":
            raise Refused(400, "a websocket with ports=4500 is expected")
        if "v4.channel.k8s.io" not in self.headers.get("Sec-WebSocket-Protocol", ""):
            raise Refused(403, "unable to upgrade: unable to negotiate protocol")
        self.close_connection = True
        accept = base64.b64encode(hashlib.sha1(self.headers["Sec-WebSocket-Key"].encode() + _MAGIC).digest()).decode()
        self.connection.sendall(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n".encode()
        )
        for channel in (0, 1):
            self._frame(struct.pack("<BH", channel, 4500))
        try:
            inside = socket.create_connection(("127.0.0.1", pod.port()))
        except (OSError, ValueError) as error:
            self._frame(b"\1" + f"an error occurred forwarding 4500: {error}".encode())
            return
        with self.cluster.lock:
            self.cluster.tunnels.add(inside)
        try:
            self._tunnel(inside)
        except (OSError, ConnectionError):
            pass
        finally:
            with self.cluster.lock:
                self.cluster.tunnels.discard(inside)
            inside.close()

    def _frame(self, payload: bytes, kind: int = 2) -> None:
        """Occasionally sends two frames with a ping in between, as servers may."""
        size = len(payload)
        if kind == 2 and size > 1000 and payload[-1] % 4 == 0:
            self._raw(payload[:500], 0x02)
            self._raw(b"are you there", 0x89)
            return self._raw(payload[500:], 0x80)
        return self._raw(payload, 0x80 | kind)

    def _raw(self, payload: bytes, first: int) -> None:
        size = len(payload)
        head = bytes([first, size]) if size < 126 else struct.pack(">BBH", first, 126, size) if size < 65536 else (
            struct.pack(">BBQ", first, 127, size))  # fmt: skip
        self.connection.settimeout(30)
        self.connection.sendall(head + payload)

    def _tunnel(self, inside: socket.socket) -> None:
        import select as polling

        client, data = self.connection, bytearray()
        while True:
            if not client.pending():
                readable, _, _ = polling.select([client, inside], [], [])
            else:
                readable = [client]
            if inside in readable:
                piece = inside.recv(100_000)
                if not piece:
                    return
                self._frame(b"\0" + piece)
            if client in readable:
                client.settimeout(0)
                try:
                    piece = client.recv(1 << 20)
                except ssl.SSLWantReadError:
                    continue
                if not piece:
                    return
                data += piece
                while (frame := self._take(data)) is not None:
                    kind, payload = frame
                    if kind == 8:
                        return
                    if kind == 2:
                        assert payload[0] == 0, "only the port's own channel takes bytes"
                        inside.sendall(payload[1:])

    @staticmethod
    def _take(data: bytearray) -> tuple[int, bytes] | None:
        if len(data) < 2:
            return None
        assert data[0] & 0x80 and data[1] & 0x80, "clients' frames are masked"
        size, begin = data[1] & 127, 2
        if size >= 126:
            begin = 4 if size == 126 else 10
            size = int.from_bytes(data[2:begin], "big")
        if len(data) < begin + 4 + size:
            return None
        mask, masked = bytes(data[begin : begin + 4]), bytes(data[begin + 4 : begin + 4 + size])
        kind = data[0] & 15
        del data[: begin + 4 + size]
        key = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
        return kind, (int.from_bytes(masked, "big") ^ key).to_bytes(size, "big")


_IN = rf"/api/v1/namespaces/(?P<namespace>{_NAME})"
_BATCH = rf"/apis/batch/v1/namespaces/(?P<namespace>{_NAME})"
ROUTES = [
    (Handler.create_job, "POST", rf"{_BATCH}/jobs", ["fieldValidation"]),
    (Handler.list_jobs, "GET", rf"{_BATCH}/jobs", ["labelSelector"]),
    (Handler.delete_job, "DELETE", rf"{_BATCH}/jobs/(?P<name>{_NAME})", []),
    (Handler.create_secret, "POST", rf"{_IN}/secrets", []),
    (Handler.list_pods, "GET", rf"{_IN}/pods", ["labelSelector"]),
    (Handler.log, "GET", rf"{_IN}/pods/(?P<name>{_NAME})/log", ["limitBytes", "tailLines"]),
    (Handler.portforward, "GET", rf"{_IN}/pods/(?P<name>{_NAME})/portforward", ["ports"]),
    (Handler.events, "GET", rf"{_IN}/events", ["fieldSelector"]),
    (Handler.nodes, "GET", "/api/v1/nodes", []),
]
