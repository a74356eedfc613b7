"""RemoteMachine: a machine that a provider starts, and its devices."""

from __future__ import annotations

import contextlib
import difflib
import logging
import os
import re
import secrets
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import torch

from torch_remote import _C
from torch_remote.providers import gpus, records, registry, watch
from torch_remote.providers.provider import Endpoint, MachineError, MachineSpec, Provider, find_provider
from torch_remote.providers.url import is_url, read_url

_log = logging.getLogger("torch_remote.machines")

_TO_END = 0.5  # seconds: a connection ends a moment before its process
_TO_RETRY = 60.0  # seconds between attempts to stop an idle machine
_OPTIONS = ("gpu", "gpu_count", "threads", "memory_limit", "idle_timeout", "name")  # of all providers
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class MachineStatus:
    """The state of a machine."""

    id: str
    name: str  # the user's name for it, or its address
    provider: str
    state: Literal["new", "running", "paused", "stopped", "lost"]
    detail: str  # for people: why it was lost, processes, ...
    devices: tuple[str, ...]  # "remote:1", ...; empty while it is stopped, and after a stop() that failed
    gpu: str | None
    gpu_count: int
    seconds: float  # since its start
    idle_seconds: float  # since the last use of its devices
    price: float | None  # US dollars per hour, if known


def bytes_of(text: int | str) -> int:
    """The number of bytes of text such as "2G" (2147483648)."""
    if isinstance(text, int):
        number = text
    else:
        match = re.fullmatch(r"(\d+)\s*([KMGT]?)(?:i?B)?", str(text).strip(), re.IGNORECASE)
        if match is None:
            raise MachineError(f"remote: {text!r} is not a number of bytes; write 8G, 500M or 1000000")
        number = int(match[1]) * _UNITS[match[2].upper()]
    if number <= 0:
        raise MachineError(f"remote: memory_limit={text!r} leaves no memory; write 8G, 500M or 1000000")
    return number


def _kind_and_index(device: int | str, index: int | None) -> tuple[str | None, int]:
    """The kind and index that RemoteMachine.device() was asked for."""
    fix = "write device(), device(1), device('cpu') or device('cuda', 1)"
    for number in (index, None if isinstance(device, str) else device):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
            raise TypeError(f"remote: device({device!r}, {index!r}): {number!r} is not an index; {fix}")
    if isinstance(device, int):
        if index is not None:
            raise TypeError(f"remote: device({device}, {index}) has two indices; {fix}")
        return None, device
    match = re.fullmatch(r"(cpu|cuda)(?::(\d+))?", device)
    if match is None:
        raise MachineError(f"remote: device({device!r}): a machine computes on 'cpu' or 'cuda'; {fix}")
    if match[2] is not None and index is not None:
        raise TypeError(f"remote: device({device!r}, {index}) has two indices; {fix}")
    return match[1], int(match[2] or index or 0)


def _seconds(name: str, value: float | str | None) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0
    if not 0 < number < float("inf"):
        raise MachineError(f"remote: {name}={value!r} is not a time; give seconds, more than 0")
    return number


def _count(name: str, value: int | str, most: int) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = 0
    if not 1 <= number <= most or number != float(value):
        raise MachineError(f"remote: {name}={value!r} must be an integer from 1 to {most}")
    return number


class RemoteMachine:
    """A machine with workers; each of its devices is a `remote:i` while it runs.

        with torch_remote.RemoteMachine("ssh", host="user@gpu.example.org", gpu="A100") as machine:
            model.to(machine.device())

    Args:
        provider: what starts the machine ("local", "ssh", "tcp", "tls", "ray", "kubernetes", "modal", or a provider of
            another package), or a URL: "ssh://user@host?gpu=A100", "local?threads=1".
        gpu: the GPU that each device must be ("A100", "H100-80GB", "any"); with a count "A100:2". None: CPUs.
        gpu_count: the number of devices; without `gpu`, the number of workers on the CPU.
        threads: threads per worker; None: torch's default there.
        memory_limit: limit of each worker's tensors: bytes, or "8G".
        idle_timeout: seconds without use after which the machine is stopped, with all tensors on it.
        name: the name in lists; default: its address.
        restore: "replay": tensors survive the loss of a worker (torch.remote.set_restore).
        options: the provider's own options (docs/machines.md).

    It is thread safe. Raises MachineError if the machine cannot be had.
    """

    def __init__(
        self,
        provider: str = "local",
        gpu: str | None = None,
        *,
        gpu_count: int = 1,
        threads: int | None = None,
        memory_limit: int | str | None = None,
        idle_timeout: float | None = None,
        name: str | None = None,
        restore: Literal["replay"] | None = None,
        **options: Any,
    ) -> None:
        if restore not in ("replay", None):
            raise MachineError(f"remote: restore={restore!r} is unknown; give 'replay', or nothing")
        self._restore = restore
        given: dict[str, Any] = {
            "gpu": gpu, "gpu_count": gpu_count, "threads": threads, "memory_limit": memory_limit,
            "idle_timeout": idle_timeout, "name": name, **options,
        }  # fmt: skip
        if is_url(provider):
            provider, given = read_url(provider, given)
        self._kind = find_provider(provider)
        count = _count("gpu_count", given.pop("gpu_count"), 16)
        gpu = given.pop("gpu")
        if gpu is not None:
            gpu, count = gpus.canonical(gpu, count)
        threads, limit = given.pop("threads"), given.pop("memory_limit")
        idle = _seconds("idle_timeout", given.pop("idle_timeout"))
        label = given.pop("name")
        options = {key: value for key, value in given.items() if value is not None}
        for option in options:
            if option not in self._kind.options:
                known = [*_OPTIONS, *self._kind.options]
                near = difflib.get_close_matches(option, known, n=1)
                guess = f"did you mean {near[0]!r}? " if near else ""
                raise MachineError(
                    f"remote: provider {provider!r} has no option {option!r}; {guess}Known are {', '.join(known)}"
                )
        self.spec = MachineSpec(
            id=f"m-{secrets.token_hex(4)}",
            provider=provider,
            gpu=gpu,
            gpu_count=count,
            threads=None if threads is None else _count("threads", threads, 4096),
            memory_limit=None if limit is None else bytes_of(limit),
            idle_timeout=idle,
            options=options,
        )
        address = options.get(self._kind.address) if self._kind.address else None
        self.name: str = label or (f"{provider}://{address}" if address else provider)
        self._lock = threading.RLock()  # guards start and stop; a device that connects does not wait for it
        self._connecting = threading.Lock()
        self._provider: Provider | None = None
        self._unstopped: Provider | None = None  # of a machine that has ended here, until its stop() succeeds
        self._process = os.getpid()  # the process that started it
        self._first: Endpoint | None = None  # from `start`, until it is used
        self._shared: Endpoint | None = None  # from `start`, for all devices
        self._devices: list[int] = []
        self._restores: list[int] = []  # devices whose set_restore is undone when this machine ends
        self._state: Literal["new", "running", "paused", "stopped"] = "new"
        self._why = ""
        self._logs = ""
        self._started = time.monotonic()
        self._watch: watch.Watch | None = None

    @property
    def id(self) -> str:
        return self.spec.id

    def __repr__(self) -> str:
        return f"<RemoteMachine {self.id} {self.name} {self._state}>"

    # -- life

    def check(self) -> None:
        """Raises MachineError if the machine cannot be started with these options. Starts nothing and contacts
        nothing."""
        self._kind.check(self.spec)

    def start(self) -> RemoteMachine:
        """Starts the machine and connects its devices; does nothing if it runs. Ctrl-C interrupts the start and undoes
        it."""
        with self._lock:
            if self._state in ("running", "paused"):
                return self
            registry.check_may_start()
            self._stop_provider()
            try:
                self._start_provider()
                self._devices = registry.give_devices(self)
                for index in self._devices:
                    if self._restore is not None:
                        _C.set_restore(index, True, "", 1 << 30, 300)
                        self._restores.append(index)
                    _C.machine(index)  # connects the device
            except BaseException as error:
                self._end("it could not be started")
                if isinstance(error, RuntimeError) and not isinstance(error, MachineError):
                    raise MachineError(str(error)) from error
                raise
            self._run()
            return self

    def start_for(self, devices: list[int]) -> None:
        """Starts the machine for existing devices, which TORCH_REMOTE_WORKER names; one of them is connecting."""
        with self._lock:
            try:
                self._start_provider()
            except BaseException:
                self._end("it could not be started")
                raise
            self._devices = devices
            self._run()

    def leave(self) -> None:
        """Ends a machine of such devices while one of them connects, so it does not wait for them."""
        with self._lock:
            if self._state in ("running", "paused"):
                self._end("it was restarted", disconnect=False)

    def _start_provider(self) -> None:
        self._process = os.getpid()
        self._provider = self._kind()
        _log.info("starting %s (%s)", self.name, self.id)
        records.write(self)  # `torch-remote machines --left-over` must not take it for one without a script
        self._first = self._provider.start(self.spec)
        if self._first.socket is None:
            self._shared = self._first

    def _run(self) -> None:
        self._state = "running"
        self._why = ""
        self._started = time.monotonic()
        _log.info("%s (%s) runs", self.name, self.id)
        records.write(self)
        self._watch = watch.Watch(self, self.spec.idle_timeout)

    def stop(self) -> None:
        """Ends the machine, and waits until it has ended. Its tensors are lost, and its devices cannot be used until
        `start`. If it raises, a second call tries again. Does nothing in a forked child of the process that started
        it."""
        if os.getpid() != self._process:  # before the lock, which another thread may have held during the fork
            return
        with self._lock:
            if self._state in ("running", "paused"):
                self._end("it was stopped")
            else:
                self._stop_provider()

    def _end(self, why: str, disconnect: bool = True) -> None:
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        if self._state == "paused" and self._provider is not None:
            self._provider.resume()
        self._state = "stopped"
        self._why = why
        devices, self._devices = self._devices, []
        try:
            for index in devices if disconnect else ():
                _C.restart(index)  # closes the session
            for index in self._restores if disconnect else ():
                _C.set_restore(index, False, "", 1 << 30, 300)
            self._restores = []
            registry.take_devices(self, devices, why)
        finally:
            self._unstopped, self._provider = self._provider, None
            first, self._first, self._shared = self._first, None, None
            if first is not None and first.socket is not None:
                first.socket.close()
            self._stop_provider()
            _log.info("%s (%s): %s", self.name, self.id, why)

    def _stop_provider(self) -> None:
        """Stops what the provider started. If this fails, the machine remains listed, and `stop` tries again."""
        provider = self._unstopped
        if provider is None:
            return
        try:
            provider.stop()
        except BaseException:
            registry.add_unstopped(self)
            raise
        self._unstopped = None
        registry.remove_unstopped(self)
        records.remove(self.id)
        self._logs = provider.logs()

    def __enter__(self) -> RemoteMachine:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def pause(self) -> None:
        """Makes the machine use no CPU time while it keeps its tensors. Any use of its devices resumes it."""
        for index in self.device_indices():
            _C.synchronize(index)
        with self._lock:
            provider = self._running("paused")
            if not self._kind.can_pause:
                raise MachineError(
                    f"remote: machines of provider {self.spec.provider!r} cannot be paused; stop() ends them, with "
                    "their tensors (torch.save keeps these)"
                )
            if self._state == "paused":
                return
            provider.pause()
            self._state = "paused"
            assert self._watch is not None
            self._watch.paused()

    def resume(self) -> None:
        """Undoes `pause`; does nothing if the machine is not paused."""
        with self._lock:
            provider = self._running("resumed")
            if self._state == "paused":
                provider.resume()
                self._state = "running"

    def _running(self, what: str) -> Provider:
        if self._provider is None or self._state not in ("running", "paused"):
            raise MachineError(f"remote: {self!r} does not run, so it cannot be {what}; start() it")
        return self._provider

    # -- use

    def device(self, device: int | str = 0, index: int | None = None) -> torch.device:
        """Returns the machine's device with the given index, from 0 to gpu_count - 1.

        Args:
            device: the index; or what the device must compute on, "cpu" or "cuda", also with an index: "cuda:1".
            index: the index, if `device` names what it computes on.
        """
        kind, index = _kind_and_index(device, index)
        found = self._device(index)
        if kind is not None:
            targets = _C.machine(found.index)["targets"]
            has = "cuda" if any(target.startswith("sm_") for target in targets) else "cpu"
            if kind != has:
                more = "; a machine with a GPU is made with RemoteMachine(..., gpu=...)" if kind == "cuda" else ""
                raise MachineError(
                    f"remote: device({device!r}): device({index}) of {self!r} computes on {has!r}, not on {kind!r}; "
                    f"write device({index}){more}"
                )
        return found

    def _device(self, index: int) -> torch.device:
        with self._lock:
            if not self._devices:
                raise MachineError(
                    f"remote: {self!r} has no devices, because {self._why or 'it was not started'}; start() it"
                )
            if not 0 <= index < len(self._devices):
                raise MachineError(
                    f"remote: {self!r} has {len(self._devices)} device{'s' if len(self._devices) > 1 else ''}, and no "
                    f"device({index}); request more with gpu_count="
                )
            return torch.device("remote", self._devices[index])

    def devices(self) -> list[torch.device]:
        """Returns all devices of the machine; empty while it does not run."""
        with self._lock:
            return [torch.device("remote", index) for index in self._devices]

    def connect(self, device: int) -> Endpoint:
        """Returns the address of the worker of remote:`device`; the device calls this when it connects."""
        with self._connecting:
            provider, devices = self._provider, self._devices
            if provider is None or device not in devices:
                raise MachineError(f"remote: {self!r} does not run ({self._why or 'it was not started'}); start() it")
            index = devices.index(device)
            if index == 0 and self._first is not None:
                first, self._first = self._first, None
                return first
            if type(provider).connect is not Provider.connect:
                return provider.connect(index)
            if self._shared is None:
                raise MachineError(f"remote: provider {self.spec.provider!r} gives a socket, and has no connect()")
            return self._shared

    # -- looking

    def status(self) -> MachineStatus:
        """Returns the machine's current state."""
        with self._lock:
            state: Any = self._state
            detail, price = self._why, None
            if self._provider is not None:
                its = self._provider.status()
                detail, price = its.detail, self._provider.price()
                state = "lost" if its.state in ("lost", "stopped") else state
                for index in self._devices:
                    info = _C.worker_info(index)
                    if state != "lost" and info is not None and info["lost"]:
                        state, detail = "lost", info["lost"]
            elif self._unstopped is not None:
                state, price = "running", self._unstopped.price()
                detail = f"{detail}, but the provider could not stop it; stop() it again"
            return MachineStatus(
                id=self.id,
                name=self.name,
                provider=self.spec.provider,
                state=state,
                detail=detail,
                devices=tuple(f"remote:{index}" for index in self._devices),
                gpu=self.spec.gpu,
                gpu_count=self.spec.gpu_count,
                seconds=time.monotonic() - self._started if self._devices else 0.0,
                idle_seconds=self._watch.idle_seconds() if self._watch is not None else 0.0,
                price=price,
            )

    def logs(self) -> str:
        """Returns the workers' output, or the end of it if it is long. It is available after `stop`, too."""
        with self._lock:
            provider = self._provider or self._unstopped
            return provider.logs() if provider is not None else self._logs

    def end_of(self) -> str:
        """Returns what the provider knows about the machine's end, for an error; empty if it has not ended. Takes no
        lock."""
        provider = self._provider
        deadline = time.monotonic() + _TO_END
        while provider is not None:
            its = provider.status()
            if its.state == "lost":
                return its.detail
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        return ""

    def idle_for_too_long(self) -> None:
        """Called by the watch: stops the machine, unless it was used or started again before this call got the lock."""
        timeout = self.spec.idle_timeout
        with self._lock:
            if self._watch is None or timeout is None or self._watch.idle_seconds() < timeout:
                return
            try:
                self._end(f"it was not used for {timeout:g} s (idle_timeout)")
            except Exception as error:
                _log.error("%s (%s) was idle but could not be stopped: %s", self.name, self.id, error)
        while self._unstopped is not None:
            time.sleep(_TO_RETRY)
            with self._lock, contextlib.suppress(Exception):
                self._stop_provider()

    def resume_if_used(self, used: bool) -> bool:
        """Called by the watch of a paused machine: resumes it if it was used. Returns whether the watch should end."""
        with self._lock:
            if self._state == "paused" and used:
                self.resume()
            return self._state != "paused"

    def device_indices(self) -> list[int]:
        return list(self._devices)


def add_machine(machine: str | RemoteMachine, **arguments: Any) -> torch.device:
    """Starts a machine, unless it runs, and returns its first device.

    Args:
        machine: a RemoteMachine, a URL ("ssh://user@host", "tcp://host:4500") or a provider's name.
        arguments: arguments of RemoteMachine, for a URL or a name.
    """
    if isinstance(machine, RemoteMachine):
        if arguments:
            raise MachineError(f"remote: {machine!r} exists already; {', '.join(arguments)} cannot be given here")
        return machine.start().device()
    return RemoteMachine(machine, **arguments).start().device()


def machines() -> list[RemoteMachine]:
    """Returns this process's running machines, the oldest first. A machine that could not be stopped is one of them."""
    return [machine for machine in registry.machines() if isinstance(machine, RemoteMachine)]


registry.make = RemoteMachine
