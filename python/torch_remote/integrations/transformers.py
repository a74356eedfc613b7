"""transformers (5.23): TrainingArguments and Trainer, pipeline(), device_map="auto".

What it hard-codes:
- training_args.py, TrainingArguments._setup_devices: asks for MPS, XPU, ... itself, takes CUDA or the CPU, whatever
  accelerate has chosen.
- utils/import_utils.py, is_torch_bf16_gpu_available (bf16=True): False for devices it does not know.
- pipelines/base.py, Pipeline.__init__: the default device and a device's number are CUDA's, MPS', ... or the CPU.
device_map="auto" asks accelerate.utils.get_max_memory, and what Trainer does else is accelerate's: accelerate.py.
"""

from __future__ import annotations

import functools
import inspect
from types import ModuleType
from typing import Any

import torch

from torch_remote.integrations.upstream import UnknownUpstream, current, existing, replace

__all__ = ["bridge"]


def bridge(module: ModuleType) -> None:
    """Changes one of transformers' modules."""
    _PARTS[module.__name__](module)


def _bf16(module: ModuleType) -> None:
    (original,) = existing(module, "is_torch_bf16_gpu_available")

    @functools.wraps(original)
    def is_torch_bf16_gpu_available() -> bool:
        return True

    replace(module, "is_torch_bf16_gpu_available", is_torch_bf16_gpu_available)


def _training_arguments(module: ModuleType) -> None:
    (devices,) = existing(module.TrainingArguments, "_setup_devices")
    if not hasattr(devices, "func") or not hasattr(devices, "__get__"):
        raise UnknownUpstream("TrainingArguments._setup_devices is no cached property")
    original = devices.func

    @functools.wraps(original)
    def _setup_devices(self: Any) -> torch.device:
        device = original(self)
        state = self.distributed_state
        if state is None or state.device.type != "remote":  # the CPU or CUDA was asked for
            return device
        self._n_gpu = 1  # no DataParallel over the CUDA devices that there may be
        return state.device

    devices.func = _setup_devices


def _pipeline(module: ModuleType) -> None:
    (original,) = existing(module.Pipeline, "__init__")
    signature = inspect.signature(original)
    if not {"model", "device"} <= signature.parameters.keys():
        raise UnknownUpstream("Pipeline.__init__ has no arguments model and device")

    @functools.wraps(original)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        device, model = bound.arguments.get("device"), bound.arguments["model"]
        if device is None:
            if getattr(model, "hf_device_map", None) is None and _device_type(model) == "cpu":
                bound.arguments["device"] = current()
        elif type(device) is int and device >= 0:
            bound.arguments["device"] = torch.device("remote", device)
        original(*bound.args, **bound.kwargs)

    module.Pipeline.__init__ = make


def _device_type(model: Any) -> str:
    return getattr(getattr(model, "device", None), "type", "cpu")


_PARTS = {
    "transformers.pipelines.base": _pipeline,
    "transformers.training_args": _training_arguments,
    "transformers.utils.import_utils": _bf16,
}
