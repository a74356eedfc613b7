"""Calls of overloads that no sample of torch's reaches, or not with the relevant options."""

from __future__ import annotations

from typing import Any

import torch
from torch import randn, tensor


def hand_samples() -> list[tuple[str, list[Any]]]:
    """(name, arguments in the schema's order; trailing ones may be missing)."""
    x = randn(4, 6)
    target = tensor([1, 0, 5, 2])
    one = tensor(1.0)
    labels = tensor([[1, 2], [3, 1]])
    scores = randn(5, 2, 4).log_softmax(2)
    loss, alpha = torch.ops.aten._ctc_loss(scores, labels, [5, 5], [2, 2], 0, False)
    image, weight2, weight3 = randn(2, 3, 6, 6), randn(4, 3, 2, 2), randn(4, 3, 2, 2, 2)
    volume = randn(2, 3, 4, 5, 5)
    rows: list[tuple[str, list[Any]]] = [
        ("nll_loss_backward", [randn(4), x, target, None, 0, -100, one]),
        ("nll_loss_backward", [one, x, target, randn(6), 1, -100, one]),
        ("nll_loss2d_backward", [randn(2, 3, 3), randn(2, 4, 3, 3), torch.zeros(2, 3, 3).long(), None, 0, -100, one]),
        ("nll_loss2d_backward", [one, randn(2, 4, 3, 3), torch.ones(2, 3, 3).long(), randn(4), 1, -100, one]),
        ("_reshape_alias_copy", [randn(4), [2, 2], [2, 1]]),
        ("_ctc_loss", [scores, labels, [5, 5], [2, 2], 0, False]),
        ("_ctc_loss.Tensor", [scores, labels, tensor([5, 5]), tensor([2, 2]), 0, False]),
        ("_ctc_loss_backward", [randn(2), scores, labels, [5, 5], [2, 2], loss, alpha, 0, False]),
        (
            "_ctc_loss_backward.Tensor",
            [randn(2), scores, labels, tensor([5, 5]), tensor([2, 2]), loss, alpha, 0, False],
        ),
        ("_amp_foreach_non_finite_check_and_unscale_", [[randn(3), randn(2, 2)], tensor([0.0]), tensor([0.5])]),
        ("_amp_foreach_non_finite_check_and_unscale", [[randn(3), randn(2, 2)], tensor([0.0]), tensor([0.5])]),
        ("_amp_update_scale_", [tensor([2.0]), tensor([1], dtype=torch.int32), tensor([0.0]), 2.0, 0.5, 3]),
        ("_amp_update_scale", [tensor([2.0]), tensor([1], dtype=torch.int32), tensor([0.0]), 2.0, 0.5, 3]),
        ("_foreach_addcdiv.Tensor", [[x], [x], [x + 3], tensor([2.0])]),
        ("_foreach_addcmul.Tensor", [[x], [x], [x], tensor([2.0])]),
        ("_foreach_addcdiv_.Tensor", [[x], [x], [x + 3], tensor([2.0])]),
        ("_foreach_addcmul_.Tensor", [[x], [x], [x], tensor([2.0])]),
        ("_masked_softmax", [x, torch.zeros(4, 6).bool(), 1, None]),
        ("_masked_softmax_backward", [x, x.softmax(1), torch.zeros(4, 6).bool(), 1]),
        ("_int_mm", [torch.ones(20, 8, dtype=torch.int8), torch.ones(8, 8, dtype=torch.int8)]),
        ("_native_batch_norm_legit_functional", [image, randn(3), randn(3), randn(3), randn(3).abs(), True, 0.1, 1e-5]),
        ("_native_batch_norm_legit_no_training", [image, randn(3), randn(3), randn(3), randn(3).abs(), 0.1, 1e-5]),
        ("_batch_norm_no_update", [image, randn(3), randn(3), randn(3), randn(3).abs(), 0.1, 1e-5]),
        ("_batch_norm_with_update_functional", [image, randn(3), randn(3), randn(3), randn(3).abs(), 0.1, 1e-5]),
        ("batch_norm_update_stats", [image, randn(3), randn(3), 0.1]),
        ("native_batch_norm", [image, randn(3), randn(3), randn(3), randn(3).abs(), False, 0.1, 1e-5]),
        ("_slow_conv2d_forward", [image, weight2, [2, 2], randn(4), [1, 1], [0, 0]]),
        ("slow_conv_dilated2d", [image, weight2, [2, 2], randn(4), [1, 1], [0, 0], [1, 1]]),
        ("slow_conv_dilated3d", [volume, weight3, [2, 2, 2], randn(4), [1, 1, 1], [0, 0, 0], [1, 1, 1]]),
        ("slow_conv3d_forward", [volume, weight3, [2, 2, 2], randn(4), [1, 1, 1], [0, 0, 0]]),
        ("slow_conv_transpose2d", [image, randn(3, 4, 2, 2), [2, 2], randn(4), [1, 1], [0, 0], [0, 0], [1, 1]]),
        (
            "slow_conv_transpose3d",
            [volume, randn(3, 4, 2, 2, 2), [2, 2, 2], randn(4), [1, 1, 1], [0, 0, 0], [0, 0, 0], [1, 1, 1]],
        ),
        ("_cdist_backward", [randn(5, 5, 6), randn(5, 5, 2), randn(5, 6, 2), 1.0, randn(5, 5, 6).abs()]),
        ("linalg_lstsq", [randn(3, 2, 3), randn(3, 2, 3), None, "gelsd"]),
        ("_upsample_bilinear2d_aa", [randn(1, 2, 10, 20), [17, 18], False, 1.7, 0.9]),
        ("_upsample_bicubic2d_aa", [randn(1, 2, 10, 20), [17, 18], False, 1.7, 0.9]),
        ("grid_sampler_2d_backward", [image, image, randn(2, 6, 6, 2), 0, 1, False, [True, True]]),
        ("grid_sampler_2d_backward", [image, image, randn(2, 6, 6, 2), 1, 1, False, [True, True]]),
        ("grid_sampler_2d_backward", [image, image, randn(2, 6, 6, 2), 0, 2, False, [True, True]]),
        ("_embedding_bag", [x, tensor([0, 3, 2, 1, 3]), tensor([0, 2]), False, 1, False, None]),
        ("_embedding_bag_forward_only", [x, tensor([0, 3, 2, 1, 3]), tensor([0, 2]), False, 0, False, randn(5)]),
        (
            "_embedding_bag_backward",
            [
                randn(2, 6),
                tensor([0, 3, 2, 1, 3]),
                tensor([0, 2]),
                tensor([0, 0, 1, 1, 1]),
                tensor([2, 3]),
                tensor([2, 3]),
                4,
                False,
                1,
                False,
                None,
            ],
        ),
        ("conv_tbc", [randn(5, 2, 3), randn(2, 3, 4), randn(4), 0]),
        ("fill_.Tensor", [x, one]),
        ("fill.Tensor", [x, one]),
        ("glu_jvp", [randn(4, 3), x, x, 1]),
        ("glu_backward_jvp", [x, randn(4, 3), x, randn(4, 3), x, 1]),
        ("linspace.Scalar_Tensor", [0, one, 5]),
        ("linspace.Tensor_Scalar", [one, 3, 5]),
        ("logspace.Scalar_Tensor", [0, one, 5]),
        ("logspace.Tensor_Scalar", [one, 3, 5]),
        ("norm.ScalarOpt_dim_dtype", [x, 2, [1], False, 7]),
        ("norm.ScalarOpt_dtype", [x, 2, 7]),
        ("view_as_complex_copy", [randn(3, 2)]),
        ("arange", [5]),
        ("clamp", [x, 0.1, 0.5]),
        ("clamp_max", [x, 0.1]),
        ("clamp_max_", [x, 0.1]),
        ("clamp_min", [x, 0.1]),
        ("exp2_", [x]),
        ("_upsample_bicubic2d_aa_backward", [randn(1, 2, 4, 4), [4, 4], [1, 2, 6, 6], False]),
        ("_transform_bias_rescale_qkv", [randn(2, 3, 24), randn(24), 2]),
        # Outside the op table.
        ("_assert_async", [one]),
        ("_assert_async.msg", [one, "no"]),
        ("_functional_assert_async.msg", [one, "no", one]),
        ("_assert_scalar", [1, "no"]),
        ("_functional_assert_scalar", [1, "no", one]),
        ("_jagged_to_padded_dense_forward", [randn(7, 3), [tensor([0, 3, 7])], [4], 0.0]),
        ("_padded_dense_to_jagged_forward", [randn(2, 4, 3), [tensor([0, 3, 7])], 7]),
        (
            "_fused_moving_avg_obs_fq_helper",
            [x, tensor([1]), tensor([1]), tensor([-1.0]), tensor([1.0]), tensor([0.1])]
            + [torch.zeros(1, dtype=torch.int32), 0.1, 0, 255, 0, False, False],
        ),
        (
            "_fused_moving_avg_obs_fq_helper",
            [x, tensor([1]), tensor([1]), randn(len(x)), randn(len(x)), torch.ones(len(x))]
            + [torch.zeros(len(x), dtype=torch.int32), 0.1, 0, 255, 0, True, True],
        ),
        ("affine_grid_generator", [randn(2, 2, 3), [2, 3, 4, 4], False]),
        ("_pack_padded_sequence", [randn(4, 2, 3), tensor([4, 2]), False]),
        (
            "_weight_int8pack_mm",
            [randn(4, 16).bfloat16(), torch.ones(8, 16, dtype=torch.int8), torch.ones(8).bfloat16()],
        ),
        ("fake_quantize_per_tensor_affine_cachemask", [x, 0.1, 0, 0, 255]),
        (
            "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
            [x, one, torch.zeros(1, dtype=torch.int32), torch.ones(1).long(), 0, 255],
        ),
        (
            "_native_multi_head_attention",
            [randn(2, 3, 8)] * 3 + [8, 2, randn(24, 8), randn(24), randn(8, 8), randn(8)],
        ),
        (
            "_transformer_encoder_layer_fwd",
            [randn(2, 3, 8), 8, 2, randn(24, 8), randn(24), randn(8, 8), randn(8), False, False, 1e-5]
            + [randn(8), randn(8), randn(8), randn(8), randn(16, 8), randn(16), randn(8, 16), randn(8)],
        ),
    ]
    state = [[randn(3), randn(2, 2)] for _ in range(4)]
    steps = [tensor(1.0), tensor(1.0)]
    lr = tensor(0.1)
    for name in ("_fused_adam", "_fused_adamw"):
        most = [randn(3), randn(2, 2)]
        for suffix in ("", "_"):
            rows += [
                (
                    f"{name}{suffix}.tensor_lr",
                    [*state, [], steps, lr, 0.9, 0.99, 0.1, 1e-8, False, False, one, tensor(0.0)],
                ),
                (f"{name}{suffix}", [*state, most, steps, 0.1, 0.9, 0.99, 0.1, 1e-8, True, False]),
            ]
    for suffix in ("", "_"):
        rows += [
            (f"_fused_adagrad{suffix}.tensor_lr", [state[0], state[1], state[3], steps, lr, 0.0, 0.1, 1e-8, False]),
            (f"_fused_sgd{suffix}.tensor_lr", [state[0], state[1], state[2], 0.1, 0.9, lr, 0.0, False, False, False]),
            (f"_fused_sgd{suffix}", [state[0], state[1], [], 0.0, 0.0, 0.1, 0.0, False, False, True]),
        ]
    return [(f"aten::{name}", args) for name, args in rows]


def attention_samples() -> list[tuple[str, list[Any], list[Any]]]:
    """This project's own ops, which torch lacks, with their results."""
    query, key, value, out = randn(2, 2, 5, 8), randn(2, 2, 7, 8), randn(2, 2, 7, 8), randn(2, 2, 5, 8)
    sums = randn(2, 2, 5)
    rows = []
    for bias in (None, randn(5, 7), randn(2, 1, 5, 7)):
        rows += [
            ("remote::attention", [query, key, value, bias, False, None], [out, sums]),
            (
                "remote::attention_backward",
                [out, query, key, value, out, sums, bias, False, None],
                [query, key, value],
            ),
        ]
    rows.append(("remote::attention", [query, key[:, :1], value[:, :1, :, :3], None, True, 0.3], [out[..., :3], sums]))
    rows.append(
        (
            "remote::attention_backward",
            [out[..., :3], query, key[:, :1], value[:, :1, :, :3], out[..., :3], sums, None, True, 0.3],
            [query, key[:, :1], value[:, :1, :, :3]],
        )
    )
    return rows
