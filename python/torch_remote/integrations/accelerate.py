"""accelerate (1.15): Accelerator, mixed precision, device maps, Dynamo plugin.

It hard-codes:
- state.py, PartialState.default_device: MPS, MLU, ... CUDA, ... or the CPU. (ACCELERATE_TORCH_DEVICE overrides it, but
  also overrides cpu=True, so setting that variable here would take the CPU from code that asks for it.)
- accelerator.py, Accelerator.__init__: the device types that may have fp16, a tuple of names.
- accelerator.py through utils/modeling.py, get_grad_scaler: torch.amp.GradScaler("cuda") for unknown devices, which is
  disabled where there is no CUDA.
- utils/modeling.py, get_max_memory (device_map="auto"): only CUDA's devices, in addition to the ones that it lists.
- utils/dataclasses.py, DynamoBackend: the backends of torch.compile, an Enum.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from torch_remote import remote
from torch_remote.integrations.upstream import UnknownUpstream, current, existing, replace

__all__ = ["bridge"]


def bridge(module: ModuleType) -> None:
    """Changes one of accelerate's modules."""
    _PARTS[module.__name__](module)


def _default_device(module: ModuleType) -> None:
    state = module.PartialState
    (old,) = existing(state, "default_device")
    if not isinstance(old, property):
        raise UnknownUpstream("PartialState.default_device is not a property")
    state.default_device = property(lambda self: current(), doc="The current remote device.")


def _fp16(module: ModuleType) -> None:
    existing(module, "get_grad_scaler", "PartialState")
    init = module.Accelerator.__init__
    constants = init.__code__.co_consts
    lists = [c for c in constants if isinstance(c, tuple) and {"cuda", "xpu", "npu"} <= set(c)]
    if len(lists) != 1:
        raise UnknownUpstream("Accelerator.__init__ has no list of the devices that may have fp16")
    init.__code__ = init.__code__.replace(
        # nothing else in the function changes
        co_consts=tuple((*c, "remote") if c is lists[0] else c for c in constants)
    )


def _scaler_and_memory(module: ModuleType) -> None:
    get_grad_scaler, get_max_memory, size = existing(
        module, "get_grad_scaler", "get_max_memory", "convert_file_size_to_int"
    )

    @functools.wraps(get_grad_scaler)
    def grad_scaler(distributed_type: Any = None, **kwargs: Any) -> Any:
        from accelerate.state import PartialState
        from accelerate.utils import DistributedType

        if distributed_type != DistributedType.FSDP and PartialState().device.type == "remote":
            return torch.amp.GradScaler("remote", **kwargs)
        return get_grad_scaler(distributed_type, **kwargs)

    @functools.wraps(get_max_memory)
    def max_memory(max_memory: dict[int | str, int | str] | None = None) -> dict[Any, Any]:
        """A number is the index of a remote device, as everywhere in torch when this is the accelerator."""
        if max_memory is None:
            cpu = {name: size for name, size in get_max_memory().items() if not isinstance(name, int)}
            return {index: remote.mem_get_info(index)[0] for index in range(remote.device_count())} | cpu
        ours = sorted(key for key in max_memory if isinstance(key, int))
        for index in ours:
            if not 0 <= index < remote.device_count():
                raise ValueError(f"remote: max_memory has device {index}, but there are only {remote.device_count()}")
            if isinstance(max_memory[index], str):  # like upstream, this changes the caller's dict
                max_memory[index] = size(max_memory[index])
        max_memory.update(get_max_memory({key: value for key, value in max_memory.items() if key not in ours}))
        return {index: max_memory[index] for index in ours} | {
            key: value for key, value in max_memory.items() if key not in ours
        }

    replace(module, "get_grad_scaler", grad_scaler)
    replace(module, "get_max_memory", max_memory)


def _dynamo_backend(module: ModuleType) -> None:
    backends = module.DynamoBackend
    inductor = backends("INDUCTOR")
    if not isinstance(inductor, str) or "REMOTE" in backends._member_map_:
        raise UnknownUpstream("DynamoBackend is not an Enum of strings, or has this device already")
    member = str.__new__(backends, "REMOTE")
    member._name_ = member._value_ = "REMOTE"
    member.__objclass__ = backends
    member._sort_order_ = len(backends._member_names_)
    backends._member_map_["REMOTE"] = backends._value2member_map_["REMOTE"] = member
    backends._member_names_.append("REMOTE")


_PARTS = {
    "accelerate.state": _default_device,
    "accelerate.accelerator": _fp16,
    "accelerate.utils.dataclasses": _dynamo_backend,
    "accelerate.utils.modeling": _scaler_and_memory,
}
