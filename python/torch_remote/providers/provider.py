"""What a provider is: who starts workers of one kind of place."""

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
    """A machine cannot be had, or cannot do that. The message says what helps."""


@dataclass(frozen=True)
class MachineSpec:
    """What is wanted of a machine."""

    id: str  # "m-5f2c81d0": of this machine and no other
    provider: str
    gpu: str | None = None  # a name of torch_remote.providers.gpus; None: the worker computes on a CPU
    gpu_count: int = 1  # devices, with gpu=None too
    threads: int | None = None  # of each device's worker
    memory_limit: int | None = None  # bytes, likewise
    idle_timeout: float | None = None  # seconds
    options: Mapping[str, Any] = field(default_factory=dict)  # the provider's own


@dataclass
class Endpoint:
    """Where a worker is.

    Attributes:
        url: "unix://PATH", "tcp://HOST:PORT", "tls://HOST:PORT"; with `socket` "socket:" (a worker of this
            machine, which shares memory) or "channel:DESCRIPTION" (another program carries the bytes).
        token: what the worker was given with --token-file; None: what the environment says.
        certificate, key, authorities: PEM files for TLS; None: what the environment says.
        socket: a connected stream socket. It is the device's from then on.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    certificate: str | None = None
    key: str | None = None
    authorities: str | None = None
    socket: socket.socket | None = None

    def detach(self) -> int:
        """The socket's descriptor, whose owner the caller becomes; -1 if there is none."""
        taken, self.socket = self.socket, None
        return taken.detach() if taken is not None else -1


@dataclass(frozen=True)
class ProviderStatus:
    """state: "running", "paused", "stopped" or "lost" (it ended by itself); detail: for people."""

    state: str
    detail: str = ""


@dataclass(frozen=True)
class Leftover:
    """What a client of this user may have left behind: a machine that its provider finds by its marks.

    `process`: of the client, on the host where it ran. `remove` ends the machine.
    """

    id: str
    what: str  # "job default/torch-remote-m-5f2c81d0"
    made: str  # when, as the provider says it
    process: int
    remove: Callable[[], None] = field(repr=False)


class Provider(ABC):
    """Starts the workers of one machine; each machine has an object of its own.

    Methods are called by one thread at a time, but for `connect`, `status` and `logs`, which may come at any time after
    `start`. What goes wrong is a MachineError that names what helps. A provider is
    named by an entry point of the group `torch_remote.providers`: its name there is what `RemoteMachine(provider=...)`
    takes, and the scheme of its URLs.
    """

    options: ClassVar[Mapping[str, str]] = {}  # options of RemoteMachine that it takes: what each is
    address: ClassVar[str | None] = None  # the option that the part of a URL after "://" is
    can_pause: ClassVar[bool] = False

    @abstractmethod
    def start(self, spec: MachineSpec) -> Endpoint:
        """Starts the machine. What it has started is gone when this raises."""

    def connect(self, index: int) -> Endpoint:
        """Where the worker of the machine's device `index` is, for each connection but the first one of device 0.

        Unless this is overridden, all devices are sessions at what `start` returned.
        """
        raise NotImplementedError

    @abstractmethod
    def stop(self) -> None:
        """Ends what was started; devices have disconnected. Does nothing if nothing runs."""

    @abstractmethod
    def status(self) -> ProviderStatus:
        """How it is, now."""

    @abstractmethod
    def logs(self) -> str:
        """What the workers wrote (the end of it, if that is much); also after `stop`."""

    @classmethod
    def leftovers(cls, options: Mapping[str, Any]) -> Iterable[Leftover]:
        """Machines of this user that are there, whichever process started them. Only where nothing else ends them."""
        raise MachineError("remote: machines of this provider end with their client; none of them is left over")

    def price(self) -> float | None:
        """US dollars per hour, if known."""
        return None

    def pause(self) -> None:
        """Stops using processors, keeping tensors."""
        raise NotImplementedError

    def resume(self) -> None:
        """Undoes `pause`."""
        raise NotImplementedError


# Those of the package: imported when they are used.
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
    """Name -> "module:class". Others cannot replace this package's own."""
    return {entry.name: entry.value for entry in entry_points(group="torch_remote.providers")} | _OWN


def provider_names() -> list[str]:
    return sorted(_known())


def find_provider(name: str) -> type[Provider]:
    """The provider of that name."""
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
