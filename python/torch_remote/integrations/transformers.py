"""transformers (5.23): TrainingArguments and Trainer, pipeline(), device_map="auto".

It hard-codes:
- training_args.py, TrainingArguments._setup_devices: asks for MPS, XPU, ... itself, and uses CUDA or the CPU, whatever
  accelerate has chosen.
- utils/import_utils.py, is_torch_bf16_gpu_available (bf16=True): False for devices that it does not know.
- pipelines/base.py, Pipeline.__init__: the default device and a device's number are CUDA's, MPS', ... or the CPU.
- core_model_loading.py, _materialize_copy: from_pretrained reads a tensor from its mapped file, then moves it to its
  device and dtype. It gets slices of files that modeling_utils.py opened with safe_open, which do not know their file.
  Here they do, so that weights for the device are loaded as by torch.remote.load_file: by the worker if it may.
device_map="auto" asks accelerate.utils.get_max_memory, and other parts of Trainer use accelerate: see accelerate.py.
"""

from __future__ import annotations

import functools
import inspect
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from torch_remote import weights
from torch_remote.integrations.upstream import UnknownUpstream, current, existing, is_remote, replace

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
        raise UnknownUpstream("TrainingArguments._setup_devices is not a cached property")
    original = devices.func

    @functools.wraps(original)
    def _setup_devices(self: Any) -> torch.device:
        device = original(self)
        state = self.distributed_state
        if state is None or state.device.type != "remote":  # the user asked for the CPU or CUDA
            return device
        self._n_gpu = 1  # no DataParallel over CUDA devices that may exist
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


class _Weights:
    """A file that from_pretrained has opened on the CPU."""

    def __init__(self, original: Any, filename: Any) -> None:
        self._original, self._path = original, Path(filename)
        self._lock = threading.Lock()
        self._files: dict[torch.device, weights.File] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __enter__(self) -> _Weights:
        self._original.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for file in self._files.values():
            file.close()
        self._original.__exit__(*error)

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._original.get_slice(name), self, name)

    def load(self, name: str, device: torch.device, dtype: torch.dtype | None) -> torch.Tensor:
        with self._lock:
            if device not in self._files:
                self._files[device] = weights.Reader(device, None).open(self._path)
        file = self._files[device]
        return weights.Sender(device, dtype).load(file, file.entries[name])


class _Slice:
    """A tensor of such a file, not read yet."""

    def __init__(self, original: Any, file: _Weights, name: str) -> None:
        self._original, self._file, self._name = original, file, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._original[index]

    def load(self, device: torch.device, dtype: torch.dtype | None) -> torch.Tensor:
        # Sender converts only floating-point tensors.
        loaded = self._file.load(self._name, device, dtype if dtype is not None and dtype.is_floating_point else None)
        return loaded if dtype is None else loaded.to(dtype)


def _opening(module: ModuleType) -> None:
    original = vars(module).get("safe_open")
    if original is None:
        raise UnknownUpstream("transformers.modeling_utils does not open files with safe_open")

    @functools.wraps(original)
    def safe_open(filename: Any, framework: str = "pt", device: Any = "cpu", *args: Any, **kwargs: Any) -> Any:
        opened = original(filename, framework, device, *args, **kwargs)
        return _Weights(opened, filename) if framework == "pt" and device == "cpu" else opened

    vars(module)["safe_open"] = safe_open  # only in this module


def _loading(module: ModuleType) -> None:
    (original,) = existing(module, "_materialize_copy")
    if list(inspect.signature(original).parameters) != ["tensor", "device", "dtype"]:
        raise UnknownUpstream("_materialize_copy has other arguments than tensor, device and dtype")

    @functools.wraps(original)
    def materialize(tensor: Any, device: Any = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        if type(device) is int:
            device = torch.device(device)
        if isinstance(tensor, _Slice) and is_remote(device):
            return tensor.load(torch.device(device), dtype)
        return original(tensor, device, dtype)

    replace(module, "_materialize_copy", materialize)


_PARTS = {
    "transformers.core_model_loading": _loading,
    "transformers.modeling_utils": _opening,
    "transformers.pipelines.base": _pipeline,
    "transformers.training_args": _training_arguments,
    "transformers.utils.import_utils": _bf16,
}
