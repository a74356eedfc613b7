"""Makes torch's own results on the CPU correct from the first call.

Torch computes exp, sin, sqrt and similar functions of contiguous float and double tensors with MKL's vector math. The
first call of each function selects the code for this processor. Two threads that share this call may get the code of
the lowest accuracy once, with errors of about 1e-4 (pytorch/pytorch#188792). A comparison of a device's results with
such results would blame the device. Workers do the same (worker/targets/aten/first_calls.h).
"""

import torch

_FUNCTIONS = (
    torch.acos, torch.asin, torch.atan, torch.cos, torch.cosh, torch.erf, torch.erfc, torch.erfinv, torch.exp,
    torch.expm1, torch.log, torch.log10, torch.log1p, torch.log2, torch.sin, torch.sinh, torch.sqrt, torch.tan,
    torch.tanh, torch.trunc, torch.lgamma,
)  # fmt: skip


def make() -> None:
    """Calls each of these functions once in this thread; takes about a millisecond."""
    with torch.inference_mode():
        for dtype in (torch.float32, torch.float64):
            x = torch.full((1,), 0.5, dtype=dtype, device="cpu")
            for function in _FUNCTIONS:
                function(x)
