"""`torch.compile(backend="remote")`.

Dynamo captures a graph, AOTAutograd makes a functional forward and backward graph of it, and a call of the compiled
function records the graph's ops as eager code would, without Python's share of eager execution: the program key, the
passes and the session are those of the main path, so sizes that change build nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device

import torch_remote.remote as remote

__all__ = ["backend"]

# Modes that torch.compile knows. Programs are cached by structure in all of them, and none asks for more.
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
# Names that `options=` may have, with what each says.
OPTIONS: dict[str, str] = {
    "verify": "bool: check the FX graph (torch.fx.Graph.lint) before it is compiled",
}


class RemoteInterface(DeviceInterface):
    """What Dynamo asks a device."""

    device = remote.device
    Event = remote.Event
    Stream = remote.Stream

    class Worker:
        @staticmethod
        def set_device(device: int) -> None:
            remote.set_device(device)

        @staticmethod
        def current_device() -> int:
            return remote.current_device()

        @staticmethod
        def get_device_properties(device: Any = None) -> Any:
            return remote.get_device_properties(device)

    @staticmethod
    def current_device() -> int:
        return remote.current_device()

    @staticmethod
    def set_device(device: Any) -> None:
        remote.set_device(device)

    @staticmethod
    def exchange_device(device: int) -> int:
        previous = remote.current_device()
        if device >= 0:
            remote.set_device(device)
        return previous

    maybe_exchange_device = exchange_device

    @staticmethod
    def device_count() -> int:
        return remote.device_count()

    @staticmethod
    def is_available() -> bool:
        return remote.is_available()

    @staticmethod
    def stream(stream: Any) -> Any:
        return remote.stream(stream)

    @staticmethod
    def current_stream() -> Any:
        return remote.current_stream()

    @staticmethod
    def set_stream(stream: Any) -> None:
        remote.set_stream(stream)

    @staticmethod
    def get_raw_stream(device_index: int) -> int:
        return 0

    @staticmethod
    def synchronize(device: Any = None) -> None:
        remote.synchronize(device)

    @staticmethod
    def get_device_properties(device: Any = None) -> Any:
        return remote.get_device_properties(device)

    @staticmethod
    def get_compute_capability(device: Any = None) -> int:
        return 0

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        return remote.is_bf16_supported()

    @staticmethod
    def is_dtype_supported(dtype: torch.dtype, including_emulation: bool = False) -> bool:
        return True

    @staticmethod
    def memory_allocated(device: Any = None) -> int:
        return remote.memory_allocated(device)


def _register_interfaces() -> None:
    register_interface_for_device("remote", RemoteInterface)
    for index in range(remote.device_count()):
        register_interface_for_device(f"remote:{index}", RemoteInterface)


def _check_options(mode: str | None, options: dict[str, Any] | None) -> dict[str, Any]:
    if mode is not None and mode not in MODES:
        raise ValueError(f"torch.compile(backend='remote'): mode={mode!r} is unknown; use one of {', '.join(MODES)}")
    for name in options or {}:
        if name not in OPTIONS:
            known = "; ".join(f"{option} ({text})" for option, text in OPTIONS.items())
            raise ValueError(f"torch.compile(backend='remote'): options has an unknown name {name!r}; known: {known}")
    return dict(options or {})


def _compile(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    return make_boxed_func(graph.forward)


def backend(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles a graph that Dynamo captured.

    Args:
        graph: as Dynamo gives it; sizes that it does not specialise are SymInts.
        example_inputs: fake tensors, and SymInts.
        mode: one of MODES; all mean the same here.
        options: names of OPTIONS.

    Raises:
        ValueError: an unknown mode or option; the message lists what is known.
    """
    if _check_options(mode, options).get("verify"):
        graph.graph.lint()
    return _AOT(graph, example_inputs)


_AOT = aot_autograd(
    fw_compiler=_compile,
    bw_compiler=_compile,
    inference_compiler=_compile,
    partition_fn=min_cut_rematerialization_partition,
    keep_inference_input_mutations=True,
)

_register_interfaces()
