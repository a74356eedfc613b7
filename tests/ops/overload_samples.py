"""Calls of overloads that no sample of torch's op_db reaches, because torch's Python API prefers other overloads on
CPU.

overload_calls() returns them by overload ("aten::all.dims"). The harness derives calls of in-place and out overloads
from these. Calls that it cannot derive are here, too.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

import torch
from torch.testing import make_tensor

Call = tuple[tuple[Any, ...], dict[str, Any]]


def overload_calls() -> dict[str, list[Call]]:
    """Returns the same values at each call, because they come from a separate generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        calls: dict[str, list[Call]] = defaultdict(list)

        def add(name: str, *args: Any, **kwargs: Any) -> None:
            calls["aten::" + name].append((args, kwargs))

        for group in (
            bits,
            lists,
            optimizers,
            norms,
            losses,
            images,
            convolutions,
            polynomials,
            copies,
            scalars,
            others,
        ):
            group(add)
    return dict(calls)


f32 = partial(make_tensor, device="cpu", dtype=torch.float32, low=-2, high=2)
positive = partial(make_tensor, device="cpu", dtype=torch.float32, low=0.25, high=2)
i64 = partial(make_tensor, device="cpu", dtype=torch.int64, low=0, high=6)
boolean = partial(make_tensor, device="cpu", dtype=torch.bool)
c64 = partial(make_tensor, device="cpu", dtype=torch.complex64, low=-2, high=2)


def transposed(t: torch.Tensor) -> torch.Tensor:
    """The same values with different strides."""
    return t.movedim(0, -1).contiguous().movedim(-1, 0)


def bits(add: Any) -> None:
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        for other in (5, 0):
            add(f"{name}.Scalar", i64((3, 4)), other)
            add(f"{name}.Scalar_Tensor", other, transposed(i64((3, 4))))
        add(f"{name}.Scalar", boolean((4,)), True)
        add(f"{name}_.Scalar", i64((3, 4)).to(torch.uint8), 7)
    for name in ("bitwise_left_shift", "bitwise_right_shift"):
        add(f"{name}.Tensor_Scalar", i64((3, 4)), 2)
        add(f"{name}.Scalar_Tensor", 9, i64((3, 4)).to(torch.int32))
    for name in ("__lshift__", "__rshift__"):
        add(f"{name}.Scalar", i64((3, 4)), 2)
        add(f"{name}.Tensor", i64((3, 4)), i64((4,)))


def tensors(make: Any = f32) -> list[torch.Tensor]:
    return [make((3, 4)), make((5,)), transposed(make((2, 3)))]


def lists(add: Any) -> None:
    for name in ("add", "sub", "mul", "div", "clamp_min", "clamp_max", "maximum", "minimum"):
        add(f"_foreach_{name}.ScalarList", tensors(), [0.5, -1.25, 2.0])
        add(f"_foreach_{name}.ScalarList", tensors(i64), [1, 2, 3])
    add("_foreach_pow.ScalarList", tensors(positive), [0.5, 2.0, -1.0])
    add("_foreach_pow.ScalarAndTensor", 2.5, tensors())
    add("_foreach_pow.ScalarAndTensor", 2, tensors(i64))
    for name in ("add", "mul", "div"):
        add(f"_foreach_{name}.Tensor", tensors(), torch.tensor(1.5))
    add("_foreach_add.Tensor", tensors(), torch.tensor(1.5), alpha=2)
    for name in ("addcmul", "addcdiv"):
        add(f"_foreach_{name}.ScalarList", tensors(), tensors(), tensors(positive), [0.5, -1.25, 2.0])
        add(f"_foreach_{name}.Tensor", tensors(), tensors(), tensors(positive), torch.tensor([0.5, -1.25, 2.0]))
    add("_foreach_lerp.ScalarList", tensors(), tensors(), [0.25, 0.5, 1.0])
    add("_foreach_copy", tensors(), tensors())
    add("_foreach_copy", tensors(), tensors(i64))
    add("_foreach_zero", tensors())
    add("_foreach_zero.out", tensors(), out=tensors())
    for order in (0, 1, 2, 3.5):
        add("_foreach_powsum.Scalar", tensors(), order)
    add("_amp_foreach_non_finite_check_and_unscale", tensors(), torch.tensor([0.0]), torch.tensor([0.5]))
    infinite = [f32((3,)), torch.tensor([1.0, torch.inf])]
    add("_amp_foreach_non_finite_check_and_unscale", infinite, torch.tensor([0.0]), torch.tensor([0.5]))
    unscaled = {"out": tensors()}
    add(
        "_amp_foreach_non_finite_check_and_unscale.out", tensors(), torch.tensor([0.0]), torch.tensor([0.5]), **unscaled
    )
    for found, tracker in ((0.0, 3), (0.0, 1), (1.0, 3)):
        numbers = (torch.tensor([64.0]), torch.tensor([tracker], dtype=torch.int32), torch.tensor([found]))
        add("_amp_update_scale", *numbers, 2.0, 0.5, 4)
        add("_amp_update_scale.out", *numbers, 2.0, 0.5, 4, out=torch.zeros(1))


def optimizers(add: Any) -> None:
    def call(name: str, states: int, squares: int, steps: bool, **options: Any) -> None:
        # No tensor is strided, because the CPU's fused optimizers traverse elements in memory order.
        shapes = ((3, 4), (5,), (17,))
        for lr, suffix in ((0.1, ""), (torch.tensor(0.1), ".tensor_lr")):
            args: list[Any] = [[f32(shape) for shape in shapes] for _ in range(2)]
            args += [[f32(shape) for shape in shapes] for _ in range(states)]
            args += [[positive(shape) for shape in shapes] for _ in range(squares)]
            if "adam" in name:  # the largest squares so far
                args.append([positive(shape) for shape in shapes] if options["amsgrad"] else [])
            if steps:
                args.append([torch.tensor(3.0) for _ in shapes])
            add(name + suffix, *args, lr=lr, **options)
            out = [f32(shape) for shape in shapes]
            add(name + (suffix + "_out" if suffix else ".out"), *args, lr=lr, **options, out=out)

    for amsgrad, maximize, decay in ((False, False, 0.0), (True, True, 0.25)):
        for name in ("_fused_adam", "_fused_adamw"):
            options = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-6, "amsgrad": amsgrad, "maximize": maximize}
            call(name, 1, 1, True, weight_decay=decay, **options)
        call("_fused_adagrad", 0, 1, True, lr_decay=0.1, weight_decay=decay, eps=1e-6, maximize=maximize)
    for momentum, nesterov, first in ((0.5, True, False), (0.5, False, True)):
        options = {"dampening": 0.0 if nesterov else 0.25, "nesterov": nesterov, "is_first_step": first}
        call("_fused_sgd", 1, 0, False, weight_decay=0.25, momentum=momentum, maximize=False, **options)


def norms(add: Any) -> None:
    mean, variance, weight, bias = f32((4,)), positive((4,)), f32((4,)), f32((4,))
    for x in (f32((3, 4, 5)), transposed(f32((3, 4, 5))), f32((6, 4))):
        add("_batch_norm_no_update", x, weight, bias, mean, variance, 0.1, 1e-5)
        add("_batch_norm_with_update_functional", x, weight, bias, mean, variance, 0.1, 1e-5)
        add("_native_batch_norm_legit.no_stats", x, weight, bias, True, 0.1, 1e-5)
        add("_native_batch_norm_legit_functional", x, weight, None, mean, variance, True, 0.1, 1e-5)
        add("_native_batch_norm_legit_no_training", x, weight, bias, mean, variance, 0.1, 1e-5)
        add("batch_norm_update_stats", x, mean, variance, 0.1)
        made = {"out": torch.zeros_like(x), "save_mean": torch.zeros(4), "save_invstd": torch.zeros(4)}
        made["reserve"] = torch.zeros(0, dtype=torch.uint8)
        add("_batch_norm_with_update.out", x, weight, bias, mean.clone(), variance.clone(), 0.1, 1e-5, **made)
    v, g = f32((3, 4)), positive((3, 1))
    add("_weight_norm_interface", v, g, 0)
    add("_weight_norm_interface", v, positive((1, 4)), 1)
    add("_weight_norm_interface_backward", f32((3, 4)), v, g, v.norm(dim=1, keepdim=True), 0)
    for p in (0, 1, 2, 3, torch.inf):
        add("norm.Scalar", f32((3, 4)), p)
        add("norm.ScalarOpt_dtype", f32((3, 4)), p, dtype=torch.float64)
        add("norm.ScalarOpt_dim_dtype", transposed(f32((3, 4))), p, [1], True, dtype=torch.float64)
        add("norm.ScalarOpt_dim_dtype", f32((3, 4)), p, [0, 1], False, dtype=torch.float32)
    for order in (0, 1, 2, 3.5):
        add("linalg__powsum", f32((3, 4)), order)
        add("linalg__powsum", transposed(f32((3, 4))), order, [0], True)
    mask = torch.arange(12).reshape(3, 4) % 3 == 1
    add("_masked_softmax", f32((3, 4)), mask, 1)
    add("_masked_softmax", f32((3, 4)), mask, 0)
    attention_mask = torch.tensor([[False, True], [False, False], [True, False]])[:, :, None, None].expand(3, 2, 4, 4)
    add("_masked_softmax", f32((3, 2, 4, 4)), attention_mask.contiguous(), 3, 2)
    output = torch.softmax(f32((3, 4)), 1)
    add("_masked_softmax_backward", f32((3, 4)), output, mask, 1)
    add("_logcumsumexp", f32((3, 4)), 1)
    add("_logcumsumexp", transposed(f32((3, 4))), 0)


def losses(add: Any) -> None:
    log_probs = f32((6, 2, 5)).log_softmax(2)
    targets, inputs, lengths = i64((2, 3)).clamp(1, 4), [6, 5], [3, 2]
    loss, alpha = torch.ops.aten._ctc_loss(log_probs, targets, inputs, lengths)
    grad = f32((2,))
    add("_ctc_loss", log_probs, targets, inputs, lengths)
    add("_ctc_loss.Tensor", log_probs, targets, torch.tensor(inputs), torch.tensor(lengths))
    add("_ctc_loss_backward", grad, log_probs, targets, inputs, lengths, loss, alpha, 0)
    by_tensors = (torch.tensor(inputs), torch.tensor(lengths))
    add("_ctc_loss_backward.Tensor", grad, log_probs, targets, *by_tensors, loss, alpha, 0, True)
    scores, labels = f32((2, 4, 3, 3)), i64((2, 3, 3)).clamp(0, 3)
    for weight, reduction, ignored in ((None, 0, -100), (positive((4,)), 1, 2), (positive((4,)), 2, -100)):
        _, total = torch.ops.aten.nll_loss2d_forward(scores, labels, weight, reduction, ignored)
        grad = f32((2, 3, 3)) if reduction == 0 else f32(())
        add("nll_loss2d_forward", scores, labels, weight, reduction, ignored)
        add("nll_loss2d_backward", grad, scores, labels, weight, reduction, ignored, total)
    indices, offsets = torch.tensor([0, 3, 3, 1, 6, 0]), torch.tensor([0, 2, 3])
    weight = f32((7, 5))
    for mode in (0, 1, 2):
        _, bags, sizes, largest = torch.ops.aten._embedding_bag(weight, indices, offsets, False, mode)
        add("_embedding_bag_dense_backward", f32((3, 5)), indices, bags, sizes, largest, 7, False, mode, None)
    add("embedding_renorm", f32((7, 5)), torch.tensor([0, 3, 6]), 0.5, 2.0)
    add("embedding_renorm", f32((7, 5)), torch.tensor([[0, 3], [6, 3]]), 0.5, 1.0)
    x = f32((3, 6))
    add("glu_jvp", torch.nn.functional.glu(x, 1), x, f32((3, 6)), 1)
    gradient = torch.ops.aten.glu_backward(f32((3, 3)), x, 1)
    add("glu_backward_jvp", gradient, f32((3, 3)), x, f32((3, 3)), f32((3, 6)), 1)
    add("_dirichlet_grad", positive((3, 4)) / 9, positive((3, 4)), positive((3, 4)) + 2)
    add("_standard_gamma_grad", positive((3, 4)), positive((3, 4)))


def images(add: Any) -> None:
    flat, deep = f32((2, 3, 5, 4)), f32((2, 3, 4, 5, 3))
    for x in (flat, transposed(flat), flat.contiguous(memory_format=torch.channels_last)):
        for name in ("upsample_nearest2d", "_upsample_nearest_exact2d"):
            add(name, x, [7, 9])
            add(name, x, [10, 8], 2.0, 2.0)
    for name in ("upsample_nearest2d", "_upsample_nearest_exact2d"):
        add(f"{name}_backward", f32((2, 3, 7, 9)), [7, 9], [2, 3, 5, 4])
        add(f"{name}_backward", f32((2, 3, 10, 8)), [10, 8], [2, 3, 5, 4], 2.0, 2.0)
    for name in ("upsample_nearest3d", "_upsample_nearest_exact3d"):
        add(name, deep, [6, 7, 8])
        add(f"{name}_backward", f32((2, 3, 6, 7, 8)), [6, 7, 8], [2, 3, 4, 5, 3])
    for corners in (False, True):
        add("_upsample_bicubic2d_aa", flat, [3, 7], corners)
        add("_upsample_bicubic2d_aa_backward", f32((2, 3, 3, 7)), [3, 7], [2, 3, 5, 4], corners)
    add("upsample_nearest2d.vec_out", flat, [7, 9], None, out=torch.empty(2, 3, 7, 9))
    add("upsample_bilinear2d.vec_out", flat, None, True, [2.0, 1.5], out=torch.empty(2, 3, 10, 6))
    pooled = f32((2, 3, 2, 2, 2))
    add("adaptive_avg_pool3d_backward.grad_input", pooled, deep, grad_input=torch.empty_like(deep))
    add("native_channel_shuffle", f32((2, 6, 3, 4)), 3)
    add("native_channel_shuffle", transposed(f32((2, 6, 3, 4))), 2)


def convolutions(add: Any) -> None:
    x, weight, bias = f32((2, 3, 6, 5)), f32((4, 3, 3, 2)), f32((4,))
    add("_slow_conv2d_forward", x, weight, [3, 2], bias, [2, 1], [1, 0])
    grad = torch.ops.aten._slow_conv2d_forward(x, weight, [3, 2], bias, [2, 1], [1, 0])
    for mask in ([True, True, True], [True, False, False], [False, True, True]):
        add("_slow_conv2d_backward.output_mask", f32(grad.shape), x, weight, [3, 2], [2, 1], [1, 0], mask)
    made = {"grad_input": torch.empty_like(x), "grad_weight": torch.empty_like(weight), "grad_bias": torch.empty(4)}
    add("_slow_conv2d_backward.grad_input", f32(grad.shape), x, weight, [3, 2], [2, 1], [1, 0], **made)
    add("slow_conv_dilated2d", x, weight, [3, 2], bias, [1, 2], [1, 1], [2, 1])
    add("slow_conv_transpose2d", x, f32((3, 4, 3, 2)), [3, 2], bias, [2, 1], [1, 0], [1, 0], [1, 1])
    deep, kernel = f32((2, 3, 4, 5, 6)), f32((4, 3, 2, 3, 2))
    add("slow_conv3d_forward", deep, kernel, [2, 3, 2], bias, [1, 2, 1], [0, 1, 1])
    add("slow_conv_dilated3d", deep, kernel, [2, 3, 2], bias, [1, 1, 1], [1, 1, 0], [1, 2, 1])
    add("slow_conv_transpose3d", deep, f32((3, 4, 2, 3, 2)), [2, 3, 2], bias, [2, 1, 1], [0, 1, 0])
    add("conv_tbc", f32((6, 2, 3)), f32((3, 3, 4)), f32((4,)), 1)


POLYNOMIALS = tuple(
    f"special_{name}"
    for name in (
        *(f"{kind}chebyshev_polynomial_{letter}" for kind in ("", "shifted_") for letter in "tuvw"),
        "hermite_polynomial_h",
        "hermite_polynomial_he",
        "laguerre_polynomial_l",
        "legendre_polynomial_p",
    )
)


def polynomials(add: Any) -> None:
    degrees = torch.tensor([[0.0, 1, 2, 3], [4, 5, 7, 2]])
    for name in POLYNOMIALS:
        for degree in (0, 3):
            add(f"{name}.n_scalar", make_tensor((3, 4), device="cpu", dtype=torch.float32, low=0, high=1), degree)
        add(f"{name}.x_scalar", 0.25, degrees)
        add(f"{name}.x_scalar", 0.75, transposed(degrees))


def copies(add: Any) -> None:
    x = f32((3, 4))
    for t in (x, transposed(x)):
        add("detach_copy", t)
        add("select_copy.int", t, 1, 2)
        add("slice_copy.Tensor", t, 1, 1, 4, 2)
        add("split_copy.Tensor", t, 3, 1)
        add("view_copy.dtype", t, torch.int32)
        add("copy", f32((3, 4)), t)
        add("copy", i64((3, 4)), t)
        add("fill.Tensor", t, torch.tensor(1.5))
        add("zero", t)
        add("_neg_view_copy", t)
    add("fill_.Tensor", i64((3, 4)), torch.tensor(2.5))
    add("_reshape_alias_copy", f32((12,)), [3, 4], [4, 1])
    add("_reshape_alias_copy", f32((12,)), [2, 3], [5, 2])
    add("squeeze_copy.dim", f32((3, 1, 4)), 1)
    add("squeeze_copy.dim", f32((3, 1, 4)), 0)
    add("squeeze_copy.dims", f32((1, 3, 1, 4)), [0, 2])
    add("view_as_complex_copy", f32((3, 2)))
    add("view_as_real_copy", c64((3, 2)))
    add("_conj_copy", c64((3, 2)))
    add("_stack", [x, f32((3, 4))], 1)
    for dims in (None, [0], [0, 1]):
        add("all.dims", boolean((3, 4)), dims, True)
        add("any.dims", transposed(boolean((3, 4))), dims)
    add("count_nonzero.dim_IntList", i64((3, 4, 2)), [0, 2])
    add("_is_all_true", torch.tensor([True, True]))
    add("_is_all_true", boolean((3, 4)))
    add("_is_any_true", boolean((3, 4)))
    add("_is_any_true", torch.zeros(3, dtype=torch.bool))
    rows = torch.tensor([[1, 2], [0, 5], [1, 2], [0, 5], [0, 5]])
    add("unique_dim", rows, 0, True, True, True)
    add("unique_dim", rows.t().contiguous(), 1, True, True, False)
    add("unique_dim_consecutive", rows, 0, True, True)
    add("repeat_interleave.Tensor", torch.tensor([2, 0, 3]))
    add("repeat_interleave.Tensor", torch.tensor([2, 0, 3]), output_size=5)
    for dim, descending in ((0, False), (1, True)):
        add("sort.stable", i64((5, 4)), stable=True, dim=dim, descending=descending)
    for name in ("_cummax_helper", "_cummin_helper"):
        add(name, f32((3, 4)), torch.empty(3, 4), torch.empty(3, 4, dtype=torch.int64), 1)
    for dim in (0, 1):
        add("_aminmax.dim", x, dim, True)
    add("_aminmax", x)


def scalars(add: Any) -> None:
    for name, others in {
        "clamp_max": (0.5, 1),
        "copysign.Scalar": (-1.0, 2),
        "floor_divide.Scalar": (0.7, 2),
        "fmod.Scalar": (0.7, -2),
        "xlogy.Scalar_Other": (1.5, 2),
        "special_xlog1py.other_scalar": (1.5, 2),
        "special_zeta.other_scalar": (1.5, 2),
    }.items():
        make = positive if "zeta" in name else f32
        for other in others:
            add(name, make((3, 4)) + ("zeta" in name), other)
            add(name, transposed(make((3, 4))) + ("zeta" in name), other)
        add(name, i64((3, 4)) + 2, others[1])
    for name in ("remainder.Scalar_Tensor", "xlogy.Scalar_Self", "special_xlog1py.self_scalar"):
        add(name, 1.5, positive((3, 4)))
        add(name, 3, i64((3, 4)) + 1)
    add("special_zeta.self_scalar", 2.5, positive((3, 4)))
    for mode in (None, "floor", "trunc"):
        add("div.Scalar_mode", f32((3, 4)), 0.75, rounding_mode=mode)
        add("div.Scalar_mode", i64((3, 4)), 3, rounding_mode=mode)
    add("clamp", f32((3, 4)), -0.5, 0.5)
    add("clamp", f32((3, 4)), None, 0.5)
    add("clamp", i64((3, 4)), 2, None)
    add("lerp.Tensor", f32((3, 4)), f32((4,)), f32((3, 1)))
    boundaries = torch.tensor([-1.0, 0.0, 0.5, 1.5])
    for right in (False, True):
        add("bucketize.Scalar", 0.5, boundaries, right=right)
        add("searchsorted.Scalar", boundaries, 0.5, right=right, out_int32=True)
    add("searchsorted.Scalar", boundaries.flip(0).contiguous(), 0.25, sorter=torch.tensor([3, 2, 1, 0]))
    for invert in (False, True):
        add("isin.Scalar_Tensor", 3, i64((3, 4)), invert=invert)
        add("isin.Tensor_Scalar", i64((3, 4)), 3, invert=invert)
    on_device = {"device": torch.device("cpu")}
    add("linspace.Scalar_Tensor", -1.0, torch.tensor(2.5), 7, **on_device)
    add("linspace.Scalar_Tensor", 0, torch.tensor(9), 4, dtype=torch.int64, **on_device)
    add("logspace.Scalar_Tensor", -1.0, torch.tensor(2.5), 7, 2.0, **on_device)
    for dtype in (torch.float32, torch.int64):
        add("range", 1, 7, dtype=dtype, device=torch.device("cpu"))
        add("range.step", 1, 8, 3, dtype=dtype, device=torch.device("cpu"))
        add("range.out", 1, 8, 2, out=torch.empty(0, dtype=dtype))
        add("range.out_", 1, 8, out=torch.empty(0, dtype=dtype))


def others(add: Any) -> None:
    for gelu in (False, True):
        add("_addmm_activation", f32((4,)), f32((3, 5)), f32((5, 4)), beta=0.5, alpha=2, use_gelu=gelu)
    add("_int_mm", i64((17, 8)).to(torch.int8), i64((8, 16)).to(torch.int8))
    factor = torch.linalg.cholesky(torch.eye(3) * 4 + torch.ones(3, 3))
    for upper in (False, True):
        add("_cholesky_solve_helper", f32((3, 2)), factor.mT.contiguous() if upper else factor, upper)
    add("_linalg_eigvals", torch.tensor([[2.0, 1.0], [0.0, 3.0]]))
    add("_grouped_mm", f32((2, 8, 8)).bfloat16(), f32((2, 8, 8)).bfloat16())
    one = torch.tensor(0.5)
    eights = [make_tensor((16, 16), device="cpu", dtype=torch.float8_e4m3fn, low=-2, high=2) for _ in range(2)]
    add("_scaled_mm", eights[0], eights[1].t(), one, one, out_dtype=torch.float32)
    index = [torch.tensor([0, 2]), torch.tensor([1, 3])]
    for accumulate in (False, True):
        add("_index_put_impl", f32((3, 4)), index, f32((2,)), accumulate)
        add("_unsafe_index_put", f32((3, 4)), [None, torch.tensor([1, 3])], f32((3, 2)), accumulate)
    add("_unsafe_index.Tensor", f32((3, 4)), index)
    add("_unsafe_index.Tensor", f32((3, 4, 5)), [None, torch.tensor([1, 3])])
    add("_transform_bias_rescale_qkv", f32((2, 3, 24)), f32((24,)), 4)
