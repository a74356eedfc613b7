"""Shared by bridges: inspects upstream before changing it, and changes names that other modules have imported."""

import sys
from types import ModuleType
from typing import Any

import torch

from torch_remote import remote

__all__ = ["UnknownUpstream", "current", "existing", "is_remote", "replace"]


class UnknownUpstream(Exception):
    """Upstream differs from what the bridge expects."""


def current() -> torch.device:
    """The device for a library that asks for no specific one: the current one, with its index."""
    return torch.device("remote", remote.current_device())


def is_remote(device: Any) -> bool:
    """Whether the device is a remote one, given as torch.device or text. (A number is the accelerator's index.)"""
    if isinstance(device, torch.device):
        return device.type == "remote"
    return isinstance(device, str) and device.split(":")[0] == "remote"


def existing(owner: ModuleType | type, *names: str) -> list[Any]:
    """Returns the attributes with these names of a module or class itself.

    Raises:
        UnknownUpstream: some of them do not exist.
    """
    missing = [name for name in names if name not in vars(owner)]
    if missing:
        raise UnknownUpstream(f"{owner.__name__} has no {', '.join(missing)}")
    return [vars(owner)[name] for name in names]


def replace(module: ModuleType, name: str, new: Any) -> None:
    """Replaces module.name, also in modules that have already imported it, under any name."""
    old = vars(module)[name]
    for other in list(sys.modules.values()):
        if isinstance(other, ModuleType):
            names = vars(other)
            for key in [key for key, value in list(names.items()) if value is old]:
                names[key] = new
