"""safetensors (0.8): load_file, safe_open and load_model with device="remote".

The compiled class safe_open looks up the device's name in a hard-coded list ("device remote is invalid"). It also takes
a number, and passes that to torch, where it is an index of the current accelerator: this device.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from torch_remote.device import _device
from torch_remote.integrations.upstream import UnknownUpstream, existing, is_remote, replace

__all__ = ["bridge"]


def bridge(module: ModuleType) -> None:
    """Changes `safetensors`, and modules that have imported safe_open from it."""
    (original,) = existing(module, "safe_open")
    if not isinstance(original, type):
        raise UnknownUpstream("safe_open is not a class")

    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original)

    class safe_open(metaclass=Meta):  # noqa: N801 (upstream's name)
        __doc__ = original.__doc__

        def __new__(cls, filename: Any, framework: str, device: Any = "cpu", *args: Any, **kwargs: Any) -> Any:
            if is_remote(device):
                device = _device._index(torch.device(device))
            return original(filename, framework, device, *args, **kwargs)

    safe_open.__module__, safe_open.__qualname__ = original.__module__, original.__qualname__
    replace(module, "safe_open", safe_open)
