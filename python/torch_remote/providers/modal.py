"""Provider `modal`: workers in sandboxes of Modal, reached through its encrypted tunnels.

The worker of this installation is uploaded, so an image needs only the same version of torch (on GPUs not even that). A
sandbox ends with its machine. If the client dies, Modal's idle time-out ends the sandbox, because the tunnel is silent.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import secrets
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from torch_remote.providers import bundle
from torch_remote.providers.forward import Forwarder, RemoteSocket
from torch_remote.providers.local import ALLOWANCES, allowances, worker_arguments
from torch_remote.providers.provider import Endpoint, Leftover, MachineError, MachineSpec, Provider, ProviderStatus
from torch_remote_cli.exit_status import describe

_PORT = 4500
_FOLDER = "/opt/torch-remote"
_APP = "torch-remote"
_TO_START = 1800.0  # seconds: an image may be built, and a GPU waited for
_TO_TUNNEL = 300
_TO_CONNECT = 20.0
_TO_LOOK = 1.0  # seconds between `status` requests to Modal, at least
_MOST_LIFETIME = 24 * 3600
_LOG_KEPT = 64 << 10
# Modal's GPUs, by the names of `gpus`; "any" is the cheapest one that kernels support.
_GPUS = {
    "any": "L4", "T4": "T4", "L4": "L4", "A10": "A10", "L40S": "L40S", "A100": "A100", "A100-40GB": "A100-40GB",
    "A100-80GB": "A100-80GB", "H100": "H100", "H200": "H200", "B200": "B200", "RTX-PRO-6000": "RTX-PRO-6000",
}  # fmt: skip

# The script in the sandbox. Uploaded files may not be executable.
_SCRIPT = f"""umask 077
printf %s "$TORCH_REMOTE_TOKEN" > /tmp/torch-remote.token
unset TORCH_REMOTE_TOKEN
cp {_FOLDER}/bin/torch-remote-worker /tmp/torch-remote-worker && chmod 700 /tmp/torch-remote-worker || exit
export TORCH_REMOTE_PACKAGE={_FOLDER}
: "${{TORCH_REMOTE_TORCH_LIB:=$(python3 -c '
import importlib.util, os
found = importlib.util.find_spec("torch")
print(os.path.join(os.path.dirname(found.origin), "lib") if found else "")')}}"
export TORCH_REMOTE_TORCH_LIB
exec /tmp/torch-remote-worker --listen tcp://0.0.0.0:{_PORT} --token-file /tmp/torch-remote.token "$@" 2>&1
"""


def _sdk() -> Any:
    try:
        import modal
    except ImportError as error:
        raise MachineError(
            "remote: provider 'modal' needs Modal's client: pip install 'torch-remote[modal]'"
        ) from error
    return modal


@contextlib.contextmanager
def _errors(modal: Any, what: str) -> Iterator[None]:
    """Raises errors of Modal's client as MachineError. `what`: what Modal was asked to do."""
    try:
        yield
    except modal.exception.AuthError as error:
        raise MachineError(f"remote: Modal rejected your credentials: {error}; log in: modal setup") from error
    except modal.Error as error:
        raise MachineError(f"remote: Modal cannot {what}: {error}") from error


def _terminate(modal: Any, sandbox: Any) -> None:
    """Ends a sandbox, unless it has ended."""
    with _errors(modal, f"stop sandbox {sandbox.object_id}"), contextlib.suppress(modal.exception.NotFoundError):
        sandbox.terminate()


def _owner() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return re.sub(r"[^A-Za-z0-9_.-]", "-", f"{user}.{socket.gethostname()}")[:63]


class _Sandbox:
    """A sandbox, with the output of its worker."""

    def __init__(self, sandbox: Any) -> None:
        self.sandbox = sandbox
        self.listens = threading.Event()
        self.forwarder: Forwarder | None = None
        self._text = ""
        self._reader = threading.Thread(target=self._read, name="torch-remote modal log", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(Exception):  # raised when a sandbox ends; poll() returns how
            for line in self.sandbox.stdout:
                self._text = (self._text + line)[-_LOG_KEPT:]
                if line.startswith("tcp://"):
                    self.listens.set()

    def text(self) -> str:
        connection = self.forwarder.error if self.forwarder is not None else ""
        return self._text + (f"connection: {connection}\n" if connection else "")

    def stop(self) -> None:
        if self.forwarder is not None:
            self.forwarder.close()
        self.sandbox.terminate()
        self._reader.join(10)


class Modal(Provider):
    """One sandbox per device."""

    address = "app"
    options = {
        "app": "Modal's app that the sandboxes belong to; default: torch-remote",
        "image": "a modal.Image, or the name of one in a registry; default: Debian with torch",
        "cpu": "CPU cores that each sandbox requests",
        "memory": "MiB that each sandbox requests",
        "region": "Modal's name of the region: 'us-east'",
        "orphan_after": "seconds without a client after which Modal ends a sandbox; default: 300",
        "lifetime": "seconds after which Modal ends it in any case; default and most: 86400",
        **ALLOWANCES,
    }

    def __init__(self) -> None:
        self._modal: Any = None
        self._sandboxes: list[_Sandbox] = []
        self._looked = (-1.0, ProviderStatus("stopped"))
        self._kept = ""
        self._app: Any = None

    @classmethod
    def check(cls, spec: MachineSpec) -> None:
        if spec.gpu is not None and spec.gpu not in _GPUS:
            raise MachineError(f"remote: Modal has no NVIDIA GPU of kind {spec.gpu}; it has {', '.join(_GPUS)}")
        _whole(spec.options, "lifetime", _MOST_LIFETIME, _MOST_LIFETIME)
        _whole(spec.options, "orphan_after", 300, _MOST_LIFETIME)
        _amount(spec.options, "cpu", float)
        _amount(spec.options, "memory", int)

    def start(self, spec: MachineSpec) -> Endpoint:
        self.check(spec)
        self._spec = spec
        self._gpu = None if spec.gpu is None else _GPUS[spec.gpu]
        self._token = secrets.token_hex(32)
        self._lifetime = _whole(spec.options, "lifetime", _MOST_LIFETIME, _MOST_LIFETIME)
        self._orphan = _whole(spec.options, "orphan_after", 300, _MOST_LIFETIME)
        self._modal = _sdk()
        try:
            with _errors(self._modal, "start a worker"):
                self._create()
                self._wait()
                return self.connect(0)
        except BaseException:
            self.stop()
            raise

    def _image(self) -> Any:
        modal, image = self._modal, self._spec.options.get("image")
        if image is None:
            python = f"{sys.version_info.major}.{sys.version_info.minor}"
            image = modal.Image.debian_slim(python_version=python)
            torch_there = f"torch=={bundle.torch_version()}"
            needed = ["nvidia-cublas" if self._gpu else torch_there]
            if any(argument.startswith("--allow-python") for argument in allowances(self._spec.options)):
                needed += [torch_there, "cloudpickle"]
            image = image.pip_install(*dict.fromkeys(needed))
        elif isinstance(image, str):
            image = modal.Image.from_registry(image)
        for name, file in sorted(bundle.worker().files.items()):
            image = image.add_local_file(str(file), f"{_FOLDER}/{name}")
        return image

    def _create(self) -> None:
        modal, spec, options = self._modal, self._spec, self._spec.options
        self._app = modal.App.lookup(str(options.get("app") or _APP), create_if_missing=True)
        image = self._image()
        arguments = worker_arguments(spec, 0 if self._gpu else None)
        for index in range(spec.gpu_count):
            sandbox = modal.Sandbox.create(
                *("sh", "-c", _SCRIPT, "torch-remote", *arguments),
                app=self._app,
                tags={"managed-by": "torch-remote", "machine": spec.id, "index": str(index), "owner": _owner(),
                      "process": str(os.getpid()), "made": datetime.now(UTC).isoformat(timespec="seconds")},
                image=image,
                secrets=[modal.Secret.from_dict({"TORCH_REMOTE_TOKEN": self._token})],
                timeout=self._lifetime,
                idle_timeout=self._orphan,
                gpu=self._gpu,
                region=options.get("region"),
                cpu=_amount(options, "cpu", float),
                memory=_amount(options, "memory", int),
                encrypted_ports=[_PORT],
            )  # fmt: skip
            self._sandboxes.append(_Sandbox(sandbox))

    def _wait(self) -> None:
        """Waits until all workers listen, in steps, so that Ctrl-C interrupts it."""
        deadline = time.monotonic() + _TO_START
        for one in self._sandboxes:
            while not one.listens.wait(0.1):
                status = one.sandbox.poll()
                if status is not None:
                    last = "; ".join(one.text().strip().splitlines()[-3:])
                    raise MachineError(f"remote: the worker in Modal's sandbox {describe(status)}: {last}")
                if time.monotonic() > deadline:
                    raise MachineError(
                        f"remote: Modal started no worker in {_TO_START:.0f} s; modal.com shows why, or request less"
                    )

    def connect(self, index: int) -> Endpoint:
        one = self._sandboxes[index]
        if one.forwarder is None:
            host, port = one.sandbox.tunnels(timeout=_TO_TUNNEL)[_PORT].tls_socket
            context = ssl.create_default_context()

            def dial() -> RemoteSocket:
                plain = socket.create_connection((host, port), _TO_CONNECT)
                try:
                    return RemoteSocket(context.wrap_socket(plain, server_hostname=host))
                except BaseException:
                    plain.close()
                    raise

            one.forwarder = Forwarder(dial, f"{host}:{port}")
        return Endpoint(f"tcp://{one.forwarder.address}", token=self._token)

    def stop(self) -> None:
        if self._modal is None:
            return
        failed: Exception | None = None
        left = []
        for one in self._sandboxes:
            try:
                one.stop()
            except self._modal.exception.NotFoundError:
                pass
            except Exception as error:  # the next call tries again
                failed = error
                left.append(one)
        self._kept = self.logs()
        # interrupted: there may be a sandbox that is not in the list
        if self._app is not None and len(self._sandboxes) < self._spec.gpu_count:
            try:
                for other in self._modal.Sandbox.list(app_id=self._app.app_id, tags={"machine": self._spec.id}):
                    with contextlib.suppress(self._modal.exception.NotFoundError):
                        other.terminate()
            except Exception as error:
                failed = error
        if failed is not None:
            self._sandboxes = left
            raise MachineError(
                f"remote: Modal did not stop all sandboxes of {self._spec.id}: {failed}; stop() the machine again. "
                "They end after orphan_after seconds; torch-remote machines --left-over modal:// lists those of "
                "scripts that have ended"
            ) from failed
        self._sandboxes, self._app = [], None

    def status(self) -> ProviderStatus:
        sandboxes = list(self._sandboxes)
        if not sandboxes:
            return ProviderStatus("stopped")
        when, known = self._looked
        if time.monotonic() - when > _TO_LOOK:
            try:
                ends = [one.sandbox.poll() for one in sandboxes]
            except self._modal.Error as error:
                return ProviderStatus("running", f"unknown: {error}")
            ended = [f"sandbox {i} {describe(status)}" for i, status in enumerate(ends) if status is not None]
            names = ", ".join(one.sandbox.object_id for one in sandboxes)
            known = ProviderStatus("lost" if ended else "running", "; ".join(ended) or names)
            self._looked = (time.monotonic(), known)
        return known

    def logs(self) -> str:
        return "".join(one.text() for one in list(self._sandboxes)) or self._kept

    @classmethod
    def leftovers(cls, options: Mapping[str, Any]) -> Iterable[Leftover]:
        modal = _sdk()
        found: list[Leftover] = []
        ours = {"managed-by": "torch-remote", "owner": _owner()}
        with _errors(modal, "list sandboxes"):
            try:
                app = modal.App.lookup(str(options.get("app") or _APP))
            except modal.exception.NotFoundError:  # no machine was ever started
                return found
            for sandbox in modal.Sandbox.list(app_id=app.app_id, tags=ours):
                with contextlib.suppress(modal.exception.NotFoundError):  # it has ended since
                    tags = sandbox.get_tags()
                    found.append(
                        Leftover(
                            id=tags["machine"],
                            what=f"sandbox {sandbox.object_id}",
                            made=tags["made"],
                            process=int(tags["process"]),
                            remove=partial(_terminate, modal, sandbox),
                        )
                    )
        return found


def _amount(options: Mapping[str, Any], name: str, kind: type[int] | type[float]) -> float | None:
    value = options.get(name)
    if value is None:
        return None
    try:
        number = kind(value)
    except (TypeError, ValueError, OverflowError):
        number = 0
    if not 0 < number < float("inf"):
        raise MachineError(f"remote: {name}={value!r} is not {'an integer' if kind is int else 'a number'} above 0")
    return number


def _whole(options: Mapping[str, Any], name: str, default: int, most: int) -> int:
    value = options.get(name)
    try:
        number = default if value is None else int(value)
    except (TypeError, ValueError):
        number = 0
    if not 1 <= number <= most:
        raise MachineError(f"remote: {name}={value!r} is not a number of seconds from 1 to {most}")
    return number
