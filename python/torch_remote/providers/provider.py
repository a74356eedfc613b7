"""The interface of a provider, which starts workers in one kind of place."""

from __future__ import annotations

import difflib
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, ClassVar


class MachineError(RuntimeError):
    """A machine cannot be had, or cannot do something. The message says what helps."""


@dataclass(frozen=True)
class MachineSpec:
    """The requested properties of a machine."""

    id: str  # such as "m-5f2c81d0": identifies this machine
    provider: str
    gpu: str | None = None  # a name of torch_remote.providers.gpus; None: the workers compute on a CPU
    gpu_count: int = 1  # number of devices, with gpu=None too
    threads: int | None = None  # per worker
    memory_limit: int | None = None  # bytes per worker
    idle_timeout: float | None = None  # seconds
    options: Mapping[str, Any] = field(default_factory=dict)  # the provider's own options


@dataclass
class Endpoint:
    """The address of a worker.

    Attributes:
        url: "unix://PATH", "tcp://HOST:PORT", "tls://HOST:PORT"; with `socket`: "socket:" (a worker of this machine,
            which shares memory) or "channel:DESCRIPTION" (another program carries the bytes).
        token: the token that the worker was given with --token-file; None: the environment's.
        certificate, key, authorities: PEM files for TLS; None: the environment's.
        socket: a connected stream socket. The device becomes its owner.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    certificate: str | None = None
    key: str | None = None
    authorities: str | None = None
    socket: socket.socket | None = None

    def detach(self) -> int:
        """Returns the socket's descriptor, which the caller then owns; -1 if there is none."""
        taken, self.socket = self.socket, None
        return taken.detach() if taken is not None else -1


@dataclass(frozen=True)
class ProviderStatus:
    """state: "running", "paused", "stopped" or "lost" (it ended by itself); detail: for people."""

    state: str
    detail: str = ""


@dataclass(frozen=True)
class Leftover:
    """A machine that a client of this user may have left behind; its provider finds it by its labels.

    `process`: the client's pid, on the host where it ran. `remove` ends the machine.
    """

    id: str
    what: str  # such as "job default/torch-remote-m-5f2c81d0"
    made: str  # the creation time, as the provider writes it
    process: int
    remove: Callable[[], None] = field(repr=False)


class Provider(ABC):
    """Starts the workers of one machine; each machine has its own object.

    One thread at a time calls the methods, except `connect`, `status` and `logs`, which may be called at any time after
    `start`. Errors are raised as MachineError with a message that says what helps. A provider is registered by an entry
    point of the group `torch_remote.providers`. The entry point's name is what `RemoteMachine(provider=...)` takes, and
    the scheme of the provider's URLs.
    """

    options: ClassVar[Mapping[str, str]] = {}  # its options of RemoteMachine: name and description
    address: ClassVar[str | None] = None  # the option that gets the part of a URL after "://"
    can_pause: ClassVar[bool] = False

    @classmethod  # noqa: B027 (some providers can check nothing)
    def check(cls, spec: MachineSpec) -> None:
        """Raises MachineError if no machine could be started with these options. Starts nothing and contacts nothing.
        `start` does not rely on an earlier call."""

    @abstractmethod
    def start(self, spec: MachineSpec) -> Endpoint:
        """Starts the machine. If it raises, nothing that it started remains."""

    def connect(self, index: int) -> Endpoint:
        """Returns the address of the worker of the machine's device `index`. Called for each connection but the first
        one of device 0.

        Unless this is overridden, all devices are sessions at the address that `start` returned.
        """
        raise NotImplementedError

    @abstractmethod
    def stop(self) -> None:
        """Ends what was started; the devices have disconnected. Does nothing if nothing runs."""

    @abstractmethod
    def status(self) -> ProviderStatus:
        """Returns the current status."""

    @abstractmethod
    def logs(self) -> str:
        """Returns the workers' output (the end of it, if it is long); also after `stop`."""

    @classmethod
    def leftovers(cls, options: Mapping[str, Any]) -> Iterable[Leftover]:
        """Returns existing machines of this user, whichever process started them. Only for providers whose machines do
        not end by themselves."""
        raise MachineError("remote: machines of this provider end with their client; none of them is left over")

    def price(self) -> float | None:
        """Returns US dollars per hour, if known."""
        return None

    def pause(self) -> None:
        """Stops using CPU time, and keeps tensors."""
        raise NotImplementedError

    def resume(self) -> None:
        """Undoes `pause`."""
        raise NotImplementedError


# The package's own providers, imported on first use.
_OWN = {
    "local": "torch_remote.providers.local:Local",
    "tcp": "torch_remote.providers.network:Tcp",
    "tls": "torch_remote.providers.network:Tls",
    "ssh": "torch_remote.providers.ssh:Ssh",
    "ray": "torch_remote.providers.ray:Ray",
    "kubernetes": "torch_remote.providers.kubernetes:Kubernetes",
    "modal": "torch_remote.providers.modal:Modal",
}


@cache
def _known() -> dict[str, str]:
    """Name -> "module:class". Other packages cannot replace this package's own providers."""
    return {entry.name: entry.value for entry in entry_points(group="torch_remote.providers")} | _OWN


def provider_names() -> list[str]:
    return sorted(_known())


def find_provider(name: str) -> type[Provider]:
    """Returns the provider with that name. Raises MachineError if there is none."""
    value = _known().get(name)
    if value is None:
        near = difflib.get_close_matches(name, _known(), n=1)
        guess = f"did you mean {near[0]!r}? " if near else ""
        raise MachineError(f"remote: there is no provider {name!r}; {guess}Known are {', '.join(provider_names())}")
    module, _, attribute = value.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except ImportError as error:
        raise MachineError(f"remote: provider {name!r} cannot be loaded ({value}): {error}") from error
    return found
