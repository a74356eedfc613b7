"""Machines for workers: what starts them, where, and which devices they become (docs/machines.md).

A *provider* starts workers in one kind of place. Packages add providers with the entry points `torch_remote.providers`.
"""

from torch_remote.providers.machine import MachineStatus, RemoteMachine, add_machine, machines
from torch_remote.providers.provider import Endpoint, Leftover, MachineError, MachineSpec, Provider, ProviderStatus

__all__ = [
    "Endpoint",
    "Leftover",
    "MachineError",
    "MachineSpec",
    "MachineStatus",
    "Provider",
    "ProviderStatus",
    "RemoteMachine",
    "add_machine",
    "machines",
]
