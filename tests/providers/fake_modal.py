"""Replaces Modal's SDK, as far as the provider uses it: the same names and arguments (modal 1.6), and no others.

A sandbox is a process of this machine that runs the same script, with its own folders and port. Its tunnel is a TLS
server in front of that port.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path


class Error(Exception):
    pass


class AuthError(Error):
    pass


class NotFoundError(Error):
    pass


class InvalidError(Error):
    pass


@dataclass(frozen=True)
class Image:
    steps: tuple[tuple[str, ...], ...] = ()
    files: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def debian_slim(python_version: str | None = None, force_build: bool = False) -> Image:
        return Image((("debian_slim", python_version or ""),))

    @staticmethod
    def from_registry(tag: str, **others: object) -> Image:
        return Image((("from_registry", tag),))

    def pip_install(self, *packages: str) -> Image:
        return replace(self, steps=(*self.steps, ("pip_install", *packages)))

    def add_local_file(self, local_path: str | Path, remote_path: str, *, copy: bool = False) -> Image:
        if not Path(local_path).is_file():
            raise FileNotFoundError(local_path)
        return replace(self, files={**self.files, remote_path: str(local_path)})


@dataclass(frozen=True)
class Secret:
    values: dict[str, str]

    @staticmethod
    def from_dict(env_dict: dict[str, str]) -> Secret:
        return Secret(dict(env_dict))


@dataclass
class App:
    name: str
    app_id: str


@dataclass(frozen=True)
class Tunnel:
    host: str
    port: int

    @property
    def tls_socket(self) -> tuple[str, int]:
        return self.host, self.port


class Sandbox:
    def __init__(self, cloud: Cloud, number: int, command: tuple[str, ...], app: App, arguments: dict) -> None:
        self.cloud, self.app, self.arguments = cloud, app, arguments
        self.object_id = f"sb-{number}"
        self.tags = dict(arguments["tags"])
        self.folder = cloud.folder / self.object_id
        for where, file in arguments["image"].files.items():
            inside = self.folder / where.lstrip("/")
            inside.parent.mkdir(parents=True, exist_ok=True)
            inside.symlink_to(Path(file).resolve())
        (self.folder / "tmp").mkdir(parents=True)
        assert command[:2] == ("sh", "-c")
        script = re.sub(r"(?<![\w.])/(opt|tmp)/torch-remote", lambda match: f"{self.folder}{match[0]}", command[2])
        assert "tcp://0.0.0.0:4500" in script
        script = script.replace("tcp://0.0.0.0:4500", "tcp://127.0.0.1:0")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TORCH_REMOTE")}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        environment["PYTHONPATH"] = os.pathsep.join(str(Path(p).resolve()) for p in sys.path if p)
        for secret in arguments["secrets"]:
            environment |= secret.values
        self.process = subprocess.Popen(
            ["sh", "-c", script, *command[3:], "--lease", "1"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            text=True, env=environment,
        )  # fmt: skip
        self.stdout = self._lines()
        self._port = 0
        self._tunnel: socket.socket | None = None

    def _lines(self) -> Iterator[str]:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                if line.startswith("tcp://"):
                    self._port = int(line.rpartition(":")[2])
                yield line

    @staticmethod
    def create(
        *args: str,
        app: App | None = None,
        tags: dict[str, str] | None = None,
        image: Image | None = None,
        secrets: list[Secret] | None = None,
        timeout: int | None = 300,
        idle_timeout: int | None = None,
        gpu: str | None = None,
        region: str | None = None,
        cpu: float | None = None,
        memory: int | None = None,
        encrypted_ports: tuple[int, ...] = (),
    ) -> Sandbox:
        if app is None or image is None or list(encrypted_ports) != [4500]:
            raise InvalidError("an app, an image and the port are wanted")
        if not isinstance(timeout, int) or not 1 <= timeout <= 86400 or not isinstance(idle_timeout, int):
            raise InvalidError("a sandbox would end too early, or never")
        current = _cloud[0]
        if current.refuse is not None:
            raise current.refuse
        given = {"tags": tags or {}, "image": image, "secrets": secrets or [], "timeout": timeout, "gpu": gpu,
                 "idle_timeout": idle_timeout, "region": region, "cpu": cpu, "memory": memory}  # fmt: skip
        made: list[Sandbox] = []

        def make() -> None:
            made.append(Sandbox(current, next(current.counter), args, app, given))
            current.sandboxes.append(made[0])

        # As in a cloud, interrupting the caller does not stop the creation.
        maker = threading.Thread(target=make)
        current.makers.append(maker)
        maker.start()
        maker.join()
        return made[0]

    @staticmethod
    def list(*, app_id: str | None = None, tags: dict[str, str] | None = None) -> Iterator[Sandbox]:
        for maker in _cloud[0].makers:
            if maker.ident is not None:
                maker.join()
        for one in _cloud[0].sandboxes:
            if one.poll() is None and one.app.app_id == app_id and (tags or {}).items() <= one.tags.items():
                yield one

    def get_tags(self) -> dict[str, str]:
        return dict(self.tags)

    def tunnels(self, timeout: int = 50) -> dict[int, Tunnel]:
        if self._tunnel is None:
            self._tunnel = socket.create_server(("127.0.0.1", 0))
            threading.Thread(target=self._serve, daemon=True).start()
        return {4500: Tunnel("127.0.0.1", self._tunnel.getsockname()[1])}

    def _serve(self) -> None:
        assert self._tunnel is not None
        while True:
            try:
                connection, _ = self._tunnel.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(connection,), daemon=True).start()

    def _carry(self, connection: socket.socket) -> None:
        try:
            with (
                self.cloud.context.wrap_socket(connection, server_side=True) as outside,
                socket.create_connection(("127.0.0.1", self._port)) as inside,
            ):
                modal_carry(outside, inside)
        except OSError:
            pass

    def poll(self) -> int | None:
        return self.process.poll()

    def terminate(self, *, wait: bool = False) -> int | None:
        if self._tunnel is not None:
            self._tunnel.shutdown(socket.SHUT_RDWR)
            self._tunnel.close()
            self._tunnel = None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)
        return self.process.returncode if wait else None


def modal_carry(outside: ssl.SSLSocket, inside: socket.socket) -> None:
    import select

    while True:
        readable = [outside] if outside.pending() else select.select([outside, inside], [], [])[0]
        if outside in readable:
            outside.settimeout(0)
            try:
                piece = outside.recv(1 << 16)
            except ssl.SSLWantReadError:
                continue
            if not piece:
                return
            inside.sendall(piece)
        if inside in readable:
            piece = inside.recv(1 << 16)
            if not piece:
                return
            outside.settimeout(30)
            outside.sendall(piece)


class Cloud:
    """The state behind the replaced SDK's sandboxes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.counter = itertools.count()
        self.sandboxes: list[Sandbox] = []
        self.makers: list[threading.Thread] = []
        self.apps: set[str] = set()
        self.refuse: Exception | None = None
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(folder / "worker.pem", folder / "worker.key")

    def processes(self) -> list[int]:
        return [one.process.pid for one in self.sandboxes if one.poll() is None]

    def install(self) -> None:
        """Makes `import modal` return this module."""
        _cloud[:] = [self]
        module, errors = types.ModuleType("modal"), types.ModuleType("modal.exception")
        for error in (Error, AuthError, NotFoundError, InvalidError):
            setattr(errors, error.__name__, error)
        module.Image, module.Secret, module.Sandbox, module.Error = Image, Secret, Sandbox, Error
        module.App = types.SimpleNamespace(lookup=self._lookup)
        module.exception = errors
        sys.modules["modal"], sys.modules["modal.exception"] = module, errors
        os.environ["SSL_CERT_FILE"] = str(self.folder / "ca.pem")  # the authority of the tunnels' certificates

    def _lookup(self, name: str, *, create_if_missing: bool = False) -> App:
        if self.refuse is not None:
            raise self.refuse
        if create_if_missing:
            self.apps.add(name)
        elif name not in self.apps:
            raise NotFoundError(f"no app {name}")
        return App(name, f"ap-{name}")

    def close(self) -> None:
        for one in self.sandboxes:
            one.terminate()
        for name in ("modal", "modal.exception"):
            sys.modules.pop(name, None)
        os.environ.pop("SSL_CERT_FILE", None)
        _cloud.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


_cloud: list[Cloud] = []
