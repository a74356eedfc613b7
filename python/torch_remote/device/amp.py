"""Mixed precision: `torch.amp` for this device, with the names of `torch.cuda.amp`."""

from __future__ import annotations

import functools

import torch

from torch_remote.device._device import get_device_capability

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


def __dir__() -> list[str]:
    return __all__


def autocast(enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True) -> torch.autocast:
    """`torch.autocast("remote", ...)` with torch.cuda.amp's order of arguments. Also a decorator."""
    return torch.autocast("remote", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler("remote", ...)`."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        super().__init__("remote", init_scale, growth_factor, backoff_factor, growth_interval, enabled)


custom_fwd = functools.partial(torch.amp.custom_fwd, device_type="remote")
custom_bwd = functools.partial(torch.amp.custom_bwd, device_type="remote")


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Returns the dtypes that torch.autocast("remote") supports."""
    return [torch.bfloat16, torch.float16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Returns True."""
    return True


def is_tf32_supported() -> bool:
    """Returns whether the current device's worker computes on a GPU with TF32. On a CPU float32 is computed as
    float32."""
    return get_device_capability() >= (8, 0)
