"""DLPack: torch.from_dlpack(x), numpy.from_dlpack(x), and every other library that imports tensors of others.

In torch's _tensor.py, Tensor.__dlpack_device__ compares a device's type with "privateuse1", which a renamed backend
never has ("Unknown device type remote for Dlpack"). Tensor.__dlpack__ exports a tensor's address, but this device has
no memory that others could read.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from torch_remote.integrations.upstream import existing

__all__ = ["bridge"]


def bridge(module: ModuleType) -> None:
    """Changes torch.Tensor."""
    tensor = module.Tensor
    share, tell_device = existing(tensor, "__dlpack__", "__dlpack_device__")

    @functools.wraps(tell_device)
    def device_of(self: Any) -> tuple[Any, int]:
        if self.device.type != "remote":
            return tell_device(self)
        from torch.utils.dlpack import DLDeviceType

        return DLDeviceType.kDLExtDev, self.device.index

    @functools.wraps(share)
    def shared(self: Any, *, dl_device: Any = None, copy: bool | None = None, **kwargs: Any) -> Any:
        if self.device.type != "remote":
            return share(self, dl_device=dl_device, copy=copy, **kwargs)
        from torch.utils.dlpack import DLDeviceType

        if dl_device is not None and dl_device[0] == DLDeviceType.kDLCPU and copy is not False:
            return share(self.cpu(), dl_device=dl_device, **kwargs)  # the consumer asked for a copy on the CPU
        raise BufferError(
            f"remote: a tensor on {self.device} cannot be shared by DLPack, because its memory belongs to a worker; "
            "share a copy: "
            "from_dlpack(x.cpu())"
        )

    tensor.__dlpack_device__ = device_of
    tensor.__dlpack__ = shared
