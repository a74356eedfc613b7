"""The vocabulary of random programs."""

import torch

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
COMPLEX = (torch.complex64, torch.complex128)
DTYPES = (
    *((torch.float32,) * 8),
    *FLOATS,
    torch.int64,
    torch.int64,
    *INTS,
    torch.bool,
    torch.bool,
    torch.complex64,
    torch.complex128,
)
SIZES = (0, 1, 1, 2, 2, 3, 3, 4, 5, 7)

# Errors that CPU kernels raise only when they run. The worker reports them later, so such steps are left out.
RUN_TIME_ERRORS = (
    "not implemented for",
    "not supported for",
    "not support",
    "only supports",
    "out of bounds",
    "out of range",
    "division by zero",
    "ZeroDivisionError",
    "expected data pointer",
    "requires",
    "singular",
    "Expected all tensors to be on the same device",
)

UNARY = (
    "neg abs sign floor ceil trunc round frac sqrt square exp expm1 log1p sin cos tan atan tanh sigmoid "
    "erf rsqrt reciprocal relu logical_not bitwise_not isnan isinf isfinite signbit sgn clone positive "
    "nan_to_num exp2 deg2rad conj resolve_conj angle"
).split()
# Their algorithm may depend on the alignment.
INEXACT_UNARY = ("angle atan cos erf exp exp2 expm1 log1p rsqrt sigmoid sin sqrt tan tanh").split()
ACTIVATIONS = (
    "gelu silu softplus elu leaky_relu hardtanh hardswish hardsigmoid mish selu relu6 logsigmoid tanhshrink softsign"
).split()
BINARY = (
    "add sub mul div true_divide maximum minimum fmod remainder floor_divide pow atan2 eq ne lt le gt ge "
    "logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor fmax fmin hypot copysign "
    "heaviside rsub xlogy ldexp"
).split()
INEXACT_BINARY = ("atan2 hypot ldexp pow xlogy").split()
INPLACE_BINARY = (
    "add_ sub_ mul_ div_ fmod_ remainder_ pow_ eq_ lt_ ge_ logical_and_ bitwise_or_ bitwise_xor_ copysign_"
).split()
INPLACE_UNARY = (
    "neg_ abs_ sign_ floor_ sqrt_ exp_ tanh_ sigmoid_ relu_ square_ zero_ logical_not_ bitwise_not_ "
    "trunc_ reciprocal_ nan_to_num_"
).split()
REDUCTIONS = (
    "sum mean prod amax amin any all var std norm logsumexp count_nonzero nansum argmax argmin max min median"
).split()
# Their result does not depend on the order of elements.
EXACT_REDUCTIONS = "amax amin any all count_nonzero argmax argmin max min median".split()
