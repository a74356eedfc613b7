"""Which machine each device belongs to. Machines that TORCH_REMOTE_WORKER names are started here on first use."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import torch

from torch_remote import _C
from torch_remote.providers.handle import Machine
from torch_remote.providers.provider import Endpoint, MachineError, provider_names
from torch_remote.providers.url import is_url, provider_of

_log = logging.getLogger("torch_remote.machines")

make: Callable[[str], Machine] | None = None  # makes a RemoteMachine from a URL

_MACHINE = "machine:"
_STOPPED = "stopped:"

_lock = threading.Lock()  # guards the members below; never held while a machine is started or waited for
_owners: dict[int, Machine] = {}  # by device
_free: list[int] = []  # devices whose machine was stopped, the oldest first
_all: dict[str, Machine] = {}  # by id


def machines() -> list[Machine]:
    """Returns this process's running machines, the oldest first. A machine that could not be stopped is one of them."""
    with _lock:
        return list(_all.values())


def is_own(device: int) -> bool:
    """Whether the device's worker is this process or a child of it: the same user, on the same machine."""
    with _lock:
        machine = _owners.get(device)
    if machine is not None:
        return machine.spec.provider == "local"
    return provider_of(_C.worker_names()[device]) in ("local", "inproc")  # it may not have started yet


def check_may_start() -> None:
    if _C.in_bad_fork():
        raise RuntimeError(
            "Cannot re-initialize remote in forked subprocess. To use remote with multiprocessing, you must use the "
            "'spawn' start method"
        )


def give_devices(machine: Machine) -> list[int]:
    """Assigns devices to a machine: those of stopped machines, the oldest first, and then new ones."""
    given = []
    name = _MACHINE + machine.id
    with _lock:
        try:
            for _ in range(machine.spec.gpu_count):
                # Tensors of a reused device are lost, like those of a lost worker: they never show other tensors'
                # contents.
                if _free:
                    index = _free.pop(0)
                    _C.set_worker(index, name)
                else:
                    index = _C.add_device(name)
                given.append(index)
        except BaseException:
            for index in given:
                _C.set_worker(index, f"{_STOPPED}{machine!r}: there are too few free devices for it")
            _free.extend(given)
            raise
        _owners.update(dict.fromkeys(given, machine))
        _all[machine.id] = machine
    for index in given:
        # As if the device had existed when the user called torch.manual_seed.
        _C.default_generator(index).manual_seed(torch.initial_seed())
    return given


def take_devices(machine: Machine, devices: list[int], why: str) -> None:
    """Releases the devices of a machine that has ended."""
    with _lock:
        _all.pop(machine.id, None)
        for index in devices:
            if _owners.pop(index, None) is not None and _named.pop(index, None) is None:
                _C.set_worker(index, f"{_STOPPED}{machine!r}: {why}")
                _free.append(index)


def add_unstopped(machine: Machine) -> None:
    """Lists a machine without devices that its provider could not stop, so that `stop_all` tries again."""
    with _lock:
        _all[machine.id] = machine


def remove_unstopped(machine: Machine) -> None:
    """Undoes `add_unstopped`, if it was called."""
    with _lock:
        _all.pop(machine.id, None)


# -- devices that TORCH_REMOTE_WORKER names

_named: dict[int, str] = {}  # by device: its name when it was started
_start_locks: dict[str, threading.Lock] = {}  # by name


def connect(device: int, name: str) -> Endpoint:
    """Returns the address of the worker of a device with the given name (frontend/device/worker_names.h)."""
    if name.startswith(_STOPPED):
        raise MachineError(f"remote: remote:{device} has no worker: {name.removeprefix(_STOPPED)}; start() it again")
    if name.startswith(_MACHINE):
        with _lock:
            machine = _owners.get(device)
        if machine is None:
            raise MachineError(f"remote: the machine of remote:{device} has just been stopped; start() it again")
        return machine.connect(device)
    with _lock:
        start_lock = _start_locks.setdefault(name, threading.Lock())
    with start_lock:  # several devices of one machine may connect at once
        with _lock:
            machine = _owners.get(device)
        if machine is not None and _named.get(device) == name:
            try:
                return machine.connect(device)
            except MachineError:
                if machine.status().state != "lost":
                    raise
        if machine is not None:  # the name changed, or the machine is lost: it is started again
            machine.leave()
            machine = None
        if machine is None:
            machine = _start_named(device, name)
    return machine.connect(device)


def _start_named(device: int, name: str) -> Machine:
    check_may_start()
    provider = provider_of(name)
    if provider not in provider_names():
        missing = f": there is no provider {provider!r}" if is_url(name) else ""
        raise MachineError(
            f"remote: '{name}' is not a worker (TORCH_REMOTE_WORKER){missing}; use 'local' (the default), 'inproc', "
            "'unix://path', 'tcp://host:port', 'tls://host:port', or a machine: 'ssh://user@host' "
            f"(providers are {', '.join(provider_names())})"
        )
    assert make is not None
    machine = make(name)
    # Equal names share one machine, as its devices: "ssh://host?gpu=A100:2,ssh://host?gpu=A100:2".
    same = [index for index, other in enumerate(_C.worker_names()) if other == name]
    first = same.index(device) // machine.spec.gpu_count * machine.spec.gpu_count
    devices = same[first : first + machine.spec.gpu_count]
    machine.start_for(devices)
    with _lock:
        _owners.update(dict.fromkeys(devices, machine))
        _named.update(dict.fromkeys(devices, name))
        _all[machine.id] = machine
    return machine


def end_of(device: int) -> str:
    """Returns what is known about how a device's machine ended, for an error: empty, or "; ..."."""
    with _lock:
        machine = _owners.get(device)
    text = machine.end_of() if machine is not None else ""
    return f"; {text}" if text else ""


def stop_all() -> None:
    """Stops all machines, at exit. A machine that cannot be stopped does not keep the others from being stopped."""
    for machine in machines():
        try:
            machine.stop()
        except BaseException as error:  # Ctrl-C, too
            _log.error("%s (%s) could not be stopped: %s", machine.name, machine.id, str(error) or type(error).__name__)
