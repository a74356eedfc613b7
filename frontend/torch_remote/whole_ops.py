"""Ops that a program can hold as they are, but that torch takes apart while AOTAutograd traces: kept whole here.

Interpolation becomes index arithmetic and gathers, whose gradient is a slow accumulation, and shrinkage some pointwise
ops, because their Python kernels for the keys Autograd and CompositeImplicitAutograd say so.
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

from torch_remote import _C

__all__ = ["whole_ops"]

_KEYS = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)
_NEAREST = [f"{name}{dims}d" for name in ("upsample_nearest", "_upsample_nearest_exact") for dims in (1, 2, 3)]
_LINEAR = ["upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"]
_lock = threading.RLock()  # compilers may run on several threads, and within each other


def _nearest(op: OpOverload) -> Callable[..., Any]:
    """Of the overload that F.interpolate calls, as a call of `op`, which takes sizes."""

    def kernel(x: Any, output_size: Any, scale_factors: Any) -> Any:
        size = upsample_compute_output_size(x.size(), output_size, scale_factors)
        return op(x, size, *(scale_factors or [None] * len(size)))

    return kernel


def _linear(op: OpOverload) -> Callable[..., Any]:
    def kernel(x: Any, output_size: Any, align_corners: bool, scale_factors: Any) -> Any:
        size = upsample_compute_output_size(x.size(), output_size, scale_factors)
        return op(x, size, align_corners, *(scale_factors or [None] * len(size)))

    return kernel


@functools.cache
def _kernels() -> dict[OpOverload, Callable[..., Any] | None]:
    """By op: what it is to do instead of its Python kernel; None: what C++ does."""
    known = [op for op in decomposition_table if isinstance(op, OpOverload) and op.py_kernels.keys() & set(_KEYS)]
    kernels: dict[OpOverload, Callable[..., Any] | None] = {op: None for op in known if _C.is_whole_op(op)}
    for names, make in ((_NEAREST, _nearest), (_LINEAR, _linear)):
        for name in names:
            packet = getattr(torch.ops.aten, name)
            if _C.is_whole_op(packet.default):
                kernels[packet.vec] = make(packet.default)
    return kernels


@contextlib.contextmanager
def whole_ops() -> Iterator[None]:
    """While it is entered, tracing leaves the ops whole that programs can hold."""
    with _lock:
        saved = {op: op.py_kernels.copy() for op in _kernels()}
        try:
            for op, kernel in _kernels().items():
                for key in _KEYS:
                    op.py_kernels.pop(key, None)
                    if kernel is not None:
                        op.py_kernels[key] = kernel
                op._dispatch_cache.clear()
            yield
        finally:
            for op, kernels in saved.items():
                op.py_kernels.clear()
                op.py_kernels.update(kernels)
                op._dispatch_cache.clear()
