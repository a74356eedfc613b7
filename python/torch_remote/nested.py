"""Attention over jagged nested tensors.

Torch's own implementation uses CUDA kernels, or makes nested tensors with the layout torch.strided, which the device
does not support. Here sequences are padded to the longest, attend like dense ones under a mask, and are packed again.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.nested._internal.nested_tensor import NestedTensor, nested_from_padded

__all__ = ["register"]

_attention = torch._C._nn.scaled_dot_product_attention


def _lengths(tensor: NestedTensor) -> torch.Tensor:
    return tensor.lengths() if tensor.lengths() is not None else tensor.offsets().diff()


def _padded(tensor: NestedTensor) -> torch.Tensor:
    """Pads a tensor [batch, heads, length, features] to [batch, heads, longest, features]."""
    packed: Any = tensor.transpose(1, 2).contiguous()
    size = (packed.size(0), packed._get_max_seqlen(), packed.size(2), packed.size(3))
    return packed.to_padded_tensor(0.0, size).transpose(1, 2)


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """scaled_dot_product_attention of jagged tensors [batch, heads, length, features]."""
    from torch.nested._internal.sdpa import _autocast, _validate_sdpa_input

    query, key, value, attn_mask = _autocast(query, key, value, attn_mask)
    _validate_sdpa_input(query, key, value, attn_mask, dropout_p, is_causal, scale)
    q, k, v = _padded(query), _padded(key), _padded(value)
    rows, columns = (torch.arange(t.size(2), device=query.device) for t in (q, k))
    mask = (columns < _lengths(key)[:, None])[:, None, None, :]
    if is_causal:
        mask = mask & (columns <= rows[:, None])
    out = F.scaled_dot_product_attention(q, k, v, mask, dropout_p, scale=scale, enable_gqa=enable_gqa)
    packed = query.transpose(1, 2).contiguous()
    return nested_from_padded(
        out.transpose(1, 2),
        packed.offsets(),
        min_seqlen=query._maybe_min_seqlen,
        max_seqlen=query._maybe_max_seqlen,
        sum_S=packed.values().size(0),
    ).transpose(1, 2)


def _is_ours(tensors: tuple[Any, ...]) -> bool:
    return len(tensors) == 3 and all(
        isinstance(t, NestedTensor) and t.device.type == "remote" and t.dim() == 4 and t._ragged_idx == 2
        for t in tensors
    )


def register() -> None:
    """Makes NestedTensor call `attention` for tensors of the device."""
    nested: Any = NestedTensor  # its class method is replaced
    function = nested.__torch_function__.__func__

    def torch_function(
        cls: type, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is _attention:
            named = kwargs or {}
            tensors = (*args[:3], *(named[name] for name in ("query", "key", "value")[len(args) :] if name in named))
            if _is_ours(tensors):
                return attention(*args, **named)
        return function(cls, func, types, args, kwargs)

    nested.__torch_function__ = classmethod(torch_function)
