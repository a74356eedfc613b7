"""Torch's own numbers on the CPU, right from the first call.

Torch computes exp, sin, sqrt and their like of contiguous float and double tensors with MKL's vector math. The first
call of each such function chooses the code for this processor, and two threads that share it may get the code of the
lowest accuracy: about 1e-4 off, once (pytorch/pytorch#188792). Who compares a device's numbers with these would take
them for the device's fault. Workers do the same (worker/targets/aten/first_calls.h).
"""

import torch

_FUNCTIONS = (
    torch.acos, torch.asin, torch.atan, torch.cos, torch.cosh, torch.erf, torch.erfc, torch.erfinv, torch.exp,
    torch.expm1, torch.log, torch.log10, torch.log1p, torch.log2, torch.sin, torch.sinh, torch.sqrt, torch.tan,
    torch.tanh, torch.trunc, torch.lgamma,
)  # fmt: skip


def make() -> None:
    """Calls each of these functions once, in this thread. About a millisecond."""
    with torch.inference_mode():
        for dtype in (torch.float32, torch.float64):
            x = torch.full((1,), 0.5, dtype=dtype, device="cpu")
            for function in _FUNCTIONS:
                function(x)
