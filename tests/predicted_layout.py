"""A torch.compile backend for comparisons: results have the layout that torch's tracing predicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd


def stored(result: torch.Tensor, strides: list[int], dtype: torch.dtype) -> torch.Tensor:
    if result.dtype == dtype and (result.numel() <= 1 or list(result.stride()) == strides):
        return result
    if result.dtype == dtype and all(
        size <= 1 or mine == stride for size, mine, stride in zip(result.shape, result.stride(), strides, strict=True)
    ):  # the same memory; it may have elements that share an address, which no copy can have
        return result.as_strided(result.shape, strides, result.storage_offset())
    return torch.empty_strided(result.shape, strides, dtype=dtype, device=result.device).copy_(result)


def with_predicted_layout(module: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
    """Calls the graph and gives its results the strides and dtypes of torch's shape functions. Programs of the device
    produce these; CPU kernels may produce others."""
    inputs = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    outputs = module.graph.output_node().args[0]

    def run(*args: Any) -> list[Any]:
        symbols: dict[Any, int] = {}
        for value, arg in zip(inputs, args, strict=True):
            is_tensor = isinstance(value, torch.Tensor)
            pairs = list(zip(value.shape, arg.shape, strict=True)) if is_tensor else [(value, arg)]
            if any(isinstance(of, int) and of != given for of, given in pairs):
                # AOTAutograd traced the argument with other sizes, as it does for the common base of two arguments of
                # which one gets the other's storage by set_. Inductor raises here, too: "expected size 50==2".
                raise RuntimeError(
                    f"an argument has sizes {[given for _, given in pairs]}, expected {[of for of, _ in pairs]}"
                )
            symbols |= {of.node.expr: given for of, given in pairs if isinstance(of, torch.SymInt)}
        results = list(module(*args))
        for i, (node, result) in enumerate(zip(outputs, results, strict=True)):
            if not isinstance(result, torch.Tensor) or node.op == "placeholder":
                continue
            predicted = node.meta["val"]
            strides = [s.node.expr.subs(symbols) if isinstance(s, torch.SymInt) else s for s in predicted.stride()]
            if not any(getattr(stride, "free_symbols", ()) for stride in strides):  # skips data-dependent sizes
                results[i] = stored(result, list(map(int, strides)), predicted.dtype)
        return results

    return make_boxed_func(run)


# Input mutations stay in the graph, as with the device's backend and Inductor: otherwise AOTAutograd handles them
# differently.
PREDICTED_LAYOUT = aot_autograd(
    fw_compiler=with_predicted_layout, bw_compiler=with_predicted_layout, keep_inference_input_mutations=True
)
