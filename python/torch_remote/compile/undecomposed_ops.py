"""Keeps ops whole that programs support but torch decomposes while AOTAutograd traces.

They are the interpolations and attention with grouped queries. Interpolations would become index arithmetic and
gathers, with scatter-adds as their gradients; attention would become matmuls and a softmax. Torch composes other such
ops in eager code, too, except a few pointwise ones. Two ops that torch keeps whole are decomposed here, as in eager
code: multi-head attention, and nn.TransformerEncoderLayer in eval mode.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._C import DispatchKey
from torch._decomp import decomposition_table
from torch._decomp.decompositions import upsample_compute_output_size
from torch._ops import OpOverload
from torch._prims_common import suggest_memory_format

from torch_remote import _C

__all__ = ["keep_undecomposed", "undecomposed_ops"]

_NEAREST = [f"{name}{dims}d" for name in ("upsample_nearest", "_upsample_nearest_exact") for dims in (1, 2, 3)]
_LINEAR = ["upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"]
_LINEAR += ["_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"]
# Their gradients are contiguous for every memory format.
_PACKED = ["upsample_bicubic2d", "upsample_nearest3d", "_upsample_nearest_exact3d"]
_COMPOSED = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)  # keys of kernels that decompose ops
_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_lock = threading.RLock()  # compilers may run on several threads, and recursively

Kernels = dict[DispatchKey, Callable[..., Any]]


def _nearest(op: OpOverload) -> Callable[..., Any]:
    """The kernel of the overload that F.interpolate calls; it calls `op`, which takes only sizes."""

    def kernel(x: Any, output_size: Any, scale_factors: Any) -> Any:
        size = upsample_compute_output_size(x.size(), output_size, scale_factors)
        return op(x, size, *(scale_factors or [None] * len(size)))

    return kernel


def _linear(op: OpOverload) -> Callable[..., Any]:
    def kernel(x: Any, output_size: Any, align_corners: bool, scale_factors: Any) -> Any:
        size = upsample_compute_output_size(x.size(), output_size, scale_factors)
        return op(x, size, align_corners, *(scale_factors or [None] * len(size)))

    return kernel


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """scaled_dot_product_attention. For grouped queries, repeats keys and values, as the recorder does. For float64,
    uses matmuls and a softmax, because torch's shape function of the fused op always returns float32 sums."""
    if enable_gqa and query.device.type == "remote":
        each = query.shape[-3] // key.shape[-3]
        key, value = (t.unsqueeze(-3).expand(*t.shape[:-2], each, *t.shape[-2:]).flatten(-4, -3) for t in (key, value))
        enable_gqa = False
    if query.dtype == torch.float64 and query.device.type == "remote":
        math = torch.ops.aten._scaled_dot_product_attention_math.default
        if attn_mask is not None and attn_mask.dtype == torch.bool:  # the math kernel would add a bool mask
            attn_mask = query.new_zeros(attn_mask.shape).masked_fill(attn_mask.logical_not(), float("-inf"))
        return math(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)[0]
    return _ATTENTION._op_dk(
        DispatchKey.CompositeImplicitAutograd,
        query,
        key,
        value,
        attn_mask,
        dropout_p,
        is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
    )


def _multi_head_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = (query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias)
    return _C.multi_head_attention(*inputs, mask, need_weights, average_attn_weights, mask_type)


def _encoder_layer(*arguments: Any) -> torch.Tensor:
    # The mask and its type are optional.
    return _C.transformer_encoder_layer(*arguments, *[None] * (20 - len(arguments)))


def _backward_meta(name: str) -> Callable[..., Any]:
    """A shape function that supports symbolic sizes, which most of C++'s shape functions do not."""

    def meta(gradient: torch.Tensor, output_size: Any, input_size: Any, *options: Any) -> torch.Tensor:
        result = gradient.new_empty(input_size)
        return result if name in _PACKED else result.to(memory_format=suggest_memory_format(gradient))

    return meta


def _attention_gradients(
    grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> tuple[torch.Tensor | None, ...]:
    """The shape function of fused attention's gradients. As in eager code, heads follow positions in memory."""

    def gradient(of: torch.Tensor) -> torch.Tensor:
        batch, heads, positions, size = of.shape
        return of.new_empty((batch, positions, heads, size)).transpose(1, 2)

    return gradient(query), gradient(key), gradient(value), None


@functools.cache
def _replaced() -> dict[OpOverload, Kernels]:
    """By op: the Python kernels that replace the decomposition kernels."""
    kernels: dict[OpOverload, Kernels] = {
        _ATTENTION: dict.fromkeys(_COMPOSED, _attention),
        torch.ops.aten._native_multi_head_attention.default: dict.fromkeys(_COMPOSED, _multi_head_attention),
        torch.ops.aten._transformer_encoder_layer_fwd.default: dict.fromkeys(_COMPOSED, _encoder_layer),
    }
    # Torch's shape function gives the gradients the strides of query, key and value.
    kernels[torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward.default] = {
        DispatchKey.Meta: _attention_gradients
    }
    # Torch's decomposition returns other values than its kernel, and another shape for a vector.
    kernels[torch.ops.aten.multilabel_margin_loss_forward.default] = {}
    # Torch's decomposition gives the gradient of a tensor without dimensions a dimension.
    unfold_backward = torch.ops.aten.unfold_backward.default
    kernels[unfold_backward] = {DispatchKey.Meta: lambda gradient, sizes, *_: gradient.new_empty(sizes)}
    for names, make in ((_NEAREST, _nearest), (_LINEAR, _linear)):
        for name in names:
            forward, backward = getattr(torch.ops.aten, name), getattr(torch.ops.aten, f"{name}_backward").default
            if not (_C.is_single_op(forward.default) and _C.is_single_op(backward)):
                continue
            kernels[forward.default] = {}
            kernels[forward.vec] = dict.fromkeys(_COMPOSED, make(forward.default))
            if DispatchKey.Meta not in backward.py_kernels:
                kernels[backward] = {DispatchKey.Meta: _backward_meta(name)}
    return kernels


def keep_undecomposed(compositions: dict[OpOverload, Callable[..., Any]]) -> None:
    """Removes these ops from a table of decompositions, as ExportedProgram.run_decompositions takes one."""
    for op, kernels in _replaced().items():
        if DispatchKey.CompositeImplicitAutograd in kernels:
            compositions[op] = kernels[DispatchKey.CompositeImplicitAutograd]
        else:
            compositions.pop(op, None)


@contextlib.contextmanager
def undecomposed_ops() -> Iterator[None]:
    """In this context, tracing keeps these ops whole, also with symbolic sizes."""
    with _lock:
        saved = {op: op.py_kernels.copy() for op in _replaced()}
        # A decomposition comes before a shape function.
        shaped = [op for op, kernels in _replaced().items() if DispatchKey.Meta in kernels]
        decompositions = {op: decomposition_table[op] for op in shaped if op in decomposition_table}
        try:
            for op in decompositions:
                del decomposition_table[op]
            for op, kernels in _replaced().items():
                for key in _COMPOSED:
                    op.py_kernels.pop(key, None)
                op.py_kernels.update(kernels)
                op._dispatch_cache.clear()
            yield
        finally:
            for op, decomposition in decompositions.items():
                decomposition_table[op] = decomposition
            for op, kernels in saved.items():
                op.py_kernels.clear()
                op.py_kernels.update(kernels)
                op._dispatch_cache.clear()
