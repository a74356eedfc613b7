"""What bridges share: looking at upstream before changing it, and changing what others have imported by name."""

import sys
from types import ModuleType
from typing import Any

import torch

from torch_remote import remote

__all__ = ["UnknownUpstream", "current", "existing", "is_remote", "replace"]


class UnknownUpstream(Exception):
    """Upstream is other than the bridge knows it."""


def current() -> torch.device:
    """The device that a library gets that asks for none: the current one, with its index."""
    return torch.device("remote", remote.current_device())


def is_remote(device: Any) -> bool:
    """Whether it is one of ours, given as libraries do: torch.device or text. (A number is the accelerator's index.)"""
    if isinstance(device, torch.device):
        return device.type == "remote"
    return isinstance(device, str) and device.split(":")[0] == "remote"


def existing(owner: ModuleType | type, *names: str) -> list[Any]:
    """What a module or class has under these names itself.

    Raises:
        UnknownUpstream: it has not all of them.
    """
    missing = [name for name in names if name not in vars(owner)]
    if missing:
        raise UnknownUpstream(f"{owner.__name__} has no {', '.join(missing)}")
    return [vars(owner)[name] for name in names]


def replace(module: ModuleType, name: str, new: Any) -> None:
    """Gives module.name another value, also in modules that have imported it already, under whatever name."""
    old = vars(module)[name]
    for other in list(sys.modules.values()):
        if isinstance(other, ModuleType):
            names = vars(other)
            for key in [key for key, value in list(names.items()) if value is old]:
                names[key] = new
