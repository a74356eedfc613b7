"""Our own samples in addition to torch's op_db, for ops whose first samples there do not set their options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch.testing import make_tensor
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

# Makes a tensor of a shape.
Make = Callable[..., torch.Tensor]


def attention(make: Make) -> Iterator[SampleInput]:
    def call(q: tuple[int, ...], kv: tuple[int, ...], value: int | None = None, **kwargs: Any) -> SampleInput:
        v = kv if value is None else (*kv[:-1], value)
        return SampleInput(make(q), make(kv), make(v), dropout_p=0.0, **kwargs)

    yield call((2, 4, 6, 8), (2, 4, 6, 8))
    yield call((2, 4, 6, 8), (2, 4, 6, 8), is_causal=True)
    yield call((2, 4, 5, 8), (2, 4, 7, 8), scale=0.3)
    yield call((2, 4, 5, 8), (2, 4, 7, 8), value=3)
    yield call((2, 8, 5, 8), (2, 2, 7, 8), enable_gqa=True)
    yield call((2, 8, 6, 8), (2, 4, 6, 8), enable_gqa=True, is_causal=True)
    yield call((2, 8, 5, 8), (2, 2, 7, 8), enable_gqa=True, attn_mask=some_mask((5, 7)), scale=0.7)
    yield call((2, 8, 5, 8), (2, 2, 7, 8), value=3, enable_gqa=True)
    yield call((2, 8, 5, 8), (2, 1, 7, 8), enable_gqa=True, attn_mask=make((1, 8, 5, 7)).detach())
    yield call((2, 4, 5, 8), (2, 4, 7, 8), is_causal=True, scale=0.5)
    yield call((2, 4, 7, 8), (2, 4, 5, 8), is_causal=True)
    yield call((2, 4, 5, 8), (2, 4, 7, 8), attn_mask=some_mask((5, 7)).index_fill(0, torch.tensor([2]), False))
    yield call((3, 5, 8), (3, 7, 8))
    yield call((5, 8), (7, 8))
    for shape in ((5, 7), (2, 1, 5, 7), (1, 4, 5, 7), (2, 4, 1, 7), (2, 4, 5, 7)):
        yield call((2, 4, 5, 8), (2, 4, 7, 8), attn_mask=some_mask(shape))
        yield call((2, 4, 5, 8), (2, 4, 7, 8), attn_mask=make(shape).detach())
    yield call((2, 4, 5, 8), (2, 4, 7, 8), attn_mask=make((5, 7)))  # its gradient is computed, too


def some_mask(shape: tuple[int, ...]) -> torch.Tensor:
    """Mostly True, with at least one True in each row."""
    return (torch.arange(torch.Size(shape).numel()) % 3 != 1).reshape(shape)


def convolution(make: Make, dims: int) -> Iterator[SampleInput]:
    size = (9, 8, 7)[:dims]
    sizes: list[tuple[Any, ...]] = [
        (4, 6, 1, {}),
        (4, 6, 2, {"stride": 2}),
        (4, 8, 4, {"padding": 1, "dilation": 2}),
        (4, 4, 1, {"padding": tuple(range(dims)), "stride": tuple(range(1, dims + 1))}),
        (4, 6, 1, {"padding": "same", "dilation": 2}),
        (4, 6, 1, {"padding": "valid"}),
        (6, 4, 2, {"padding": 2, "stride": 2, "dilation": 2}),
        (4, 4, 4, {"padding": "same"}),
    ]
    for (channels, filters, groups, options), bias, batch in product(sizes, (True, False), (True, False)):
        shape = ((2, channels) if batch else (channels,)) + size
        weight = make((filters, channels // groups, *((3,) * dims)))
        yield SampleInput(make(shape), weight, make((filters,)) if bias else None, groups=groups, **options)


def transposed_convolution(make: Make, dims: int) -> Iterator[SampleInput]:
    size = (5, 4, 3)[:dims]
    for options, bias, batch in product(
        (
            {},
            {"stride": 2, "output_padding": 1},
            {"padding": 1, "groups": 2},
            {"dilation": 2, "stride": 3, "output_padding": 2},
            {"dilation": 2, "stride": 2, "padding": 1, "output_padding": 1, "groups": 4},
        ),
        (True, False),
        (True, False),
    ):
        shape = ((2, 4) if batch else (4,)) + size
        groups = options.get("groups", 1)
        weight = make((4, 6 // groups, *((3,) * dims)))
        yield SampleInput(make(shape), weight, make((6 // groups * groups,)) if bias else None, **options)


def embedding(make: Make) -> Iterator[SampleInput]:
    indices = torch.tensor([[0, 3, 3], [1, 6, 0]])
    for options in (
        {},
        {"padding_idx": 3},
        {"padding_idx": -1},
        {"scale_grad_by_freq": True},
        {"padding_idx": 0, "scale_grad_by_freq": True},
    ):
        yield SampleInput(make((7, 5)), indices, **options)
    for options in ({"max_norm": 1.0}, {"max_norm": 0.5, "norm_type": 1.0, "padding_idx": 3}):
        yield SampleInput(make((7, 5)).detach(), indices, **options)
        yield SampleInput(make((7, 5)), indices, scale_grad_by_freq=True, **options)
    yield SampleInput(make((7, 5)), indices.int())
    yield SampleInput(make((7, 5)), torch.tensor(2))
    yield SampleInput(make((7, 5)), indices[:, :0])


def embedding_bag(make: Make) -> Iterator[SampleInput]:
    flat = torch.tensor([0, 3, 3, 1, 6, 0])
    square = flat.reshape(2, 3)
    offsets = torch.tensor([0, 2, 2])
    for mode in ("sum", "mean", "max"):
        yield SampleInput(make((7, 5)), square, mode=mode)
        yield SampleInput(make((7, 5)), flat, offsets=offsets, mode=mode)
        yield SampleInput(make((7, 5)), flat, offsets=torch.tensor([0, 2, 6]), mode=mode, include_last_offset=True)
        yield SampleInput(make((7, 5)), flat, offsets=offsets, mode=mode, padding_idx=3)
        if mode != "max":
            yield SampleInput(make((7, 5)), flat, offsets=offsets, mode=mode, scale_grad_by_freq=True)
        yield SampleInput(make((7, 5)).detach(), flat, offsets=offsets, mode=mode, max_norm=0.5)
        yield SampleInput(make((7, 5)), flat.int(), offsets=offsets.int(), mode=mode, max_norm=0.7, norm_type=1.0)
        yield SampleInput(
            make((7, 5)), flat, offsets=torch.tensor([0, 0, 4, 6]), mode=mode, padding_idx=0, include_last_offset=True
        )
    yield SampleInput(make((7, 5)), flat, offsets=offsets, mode="sum", per_sample_weights=make((6,)))
    yield SampleInput(make((7, 5)), square, mode="sum", per_sample_weights=make((2, 3)), padding_idx=6)
    last = torch.tensor([0, 3, 6])
    yield SampleInput(
        make((7, 5)), flat, offsets=last, mode="sum", per_sample_weights=make((6,)), include_last_offset=True
    )


def layer_norm(make: Make) -> Iterator[SampleInput]:
    for shape, normalized in (((3, 4, 5), (5,)), ((2, 3, 4, 5), (4, 5)), ((2, 0, 5), (5,)), ((5,), (5,))):
        yield SampleInput(make(shape), normalized)
        yield SampleInput(make(shape), normalized, make(normalized), None, 0.1)
        yield SampleInput(make(shape), normalized, make(normalized), make(normalized), 1e-3)


def rms_norm(make: Make) -> Iterator[SampleInput]:
    for shape, normalized in (((3, 4, 5), (5,)), ((2, 3, 4, 5), (4, 5)), ((5,), (5,))):
        yield SampleInput(make(shape), normalized)
        yield SampleInput(make(shape), normalized, make(normalized), eps=0.1)


def group_norm(make: Make) -> Iterator[SampleInput]:
    for shape, groups in product(((2, 6, 4), (2, 6, 3, 4), (2, 6, 2, 3, 4), (2, 6)), (1, 3)):
        yield SampleInput(make(shape), groups)
        yield SampleInput(make(shape), groups, make((6,)), make((6,)), 0.1)
        yield SampleInput(make(shape), groups, make((6,)), None)


def batch_norm(make: Make) -> Iterator[SampleInput]:
    for shape, training, affine in product(
        ((4, 3), (4, 3, 5), (2, 3, 4, 5), (2, 3, 2, 3, 4)), (True, False), (True, False)
    ):
        mean, variance = make((3,)).detach(), make((3,), low=0.5, high=2).detach()
        weight, bias = (make((3,)), make((3,))) if affine else (None, None)
        yield SampleInput(make(shape), mean, variance, weight, bias, training, 0.3, 0.01)
        if training:  # the cumulative average has momentum 1 at first; 0 keeps the statistics
            yield SampleInput(make(shape), mean.clone(), variance.clone(), weight, bias, training, 1.0)
            yield SampleInput(make(shape), mean.clone(), variance.clone(), weight, bias, training, 0.0)
    yield SampleInput(make((4, 3, 5)), None, None, training=True)
    yield SampleInput(make((4, 3, 5)), None, None, make((3,)), None, training=True, eps=0.1)


def instance_norm(make: Make) -> Iterator[SampleInput]:
    for shape in ((2, 3, 5), (2, 3, 4, 5), (2, 3, 2, 3, 4)):
        yield SampleInput(make(shape))
        yield SampleInput(make(shape), weight=make((3,)), bias=make((3,)), eps=0.1)
        mean, variance = make((3,)).detach(), make((3,), low=0.5, high=2).detach()
        yield SampleInput(make(shape), mean, variance, use_input_stats=False)
        yield SampleInput(make(shape), mean.clone(), variance.clone(), use_input_stats=True, momentum=0.3)


def pad(make: Make, mode: str) -> Iterator[SampleInput]:
    for shape, amount in (
        ((2, 5), (1, 2)),
        ((2, 3, 5), (2, 1)),
        ((2, 3, 4, 5), (1, 2, 0, 3)),
        ((3, 4, 5), (2, 2, 1, 1)),
    ):
        yield SampleInput(make(shape), pad=amount, mode=mode)
    yield SampleInput(make((2, 3, 4, 5, 6)), pad=(1, 2, 1, 0, 2, 1), mode=mode)


def dropout(make: Make) -> Iterator[SampleInput]:
    for options in ({"p": 0.0}, {"p": 0.5, "training": False}, {"p": 1.0}):
        yield SampleInput(make((2, 3, 4, 5)), **options)
    yield SampleInput(make((3, 4, 5)), p=0.0, training=True)


def multi_head_attention(make: Make) -> Iterator[SampleInput]:
    """torch's first samples in training have dropout, or a single key."""
    for heads, causal, weights, mask in product((1, 2), (False, True), (False, True), (None, "2d", "keys")):
        if causal and mask != "2d":
            continue
        masks = {
            "attn_mask": some_mask((3, 3)).logical_not().triu(1) if mask == "2d" else None,
            "key_padding_mask": torch.tensor([[False, False, True]] * 2) if mask == "keys" else None,
        }
        yield SampleInput(
            make((3, 2, 4)),
            args=(make((3, 2, 4)), make((3, 2, 4)), 4, heads, make((12, 4)), make((12,)), None, None, False, 0.0),
            kwargs={
                "out_proj_weight": make((4, 4)),
                "out_proj_bias": make((4,)),
                "is_causal": causal,
                "need_weights": weights,
                **masks,
            },
        )


def scatter(make: Make) -> Iterator[SampleInput]:
    """With `reduce`, which has no gradient; op_db leaves it out if gradients are requested."""
    index = torch.tensor([[0, 2, 1], [2, 2, 0]])
    for reduce in ("add", "multiply"):
        yield SampleInput(make((3, 4)), args=(0, index, make((2, 3))), kwargs={"reduce": reduce})
        yield SampleInput(make((3, 4)), args=(1, index, 1.5), kwargs={"reduce": reduce})


def ldexp(make: Make) -> Iterator[SampleInput]:
    """Integer exponents, for which CPU has a separate kernel. 2 ** y alone would be 0 or infinite."""
    far = torch.tensor([[-200], [200], [-149], [7]])
    for exponent in (far, far.to(torch.int16), far.to(torch.int32).expand(4, 3)):
        yield SampleInput(make((4, 3)) * 2.0 ** far.clamp(-6, 6).neg(), args=(exponent,))
    lying = torch.arange(-7, 8, dtype=torch.int16).reshape(1, 5, 1, 3).permute(2, 3, 0, 1)
    yield SampleInput(make((5, 1, 4, 1)), args=(lying,))
    yield SampleInput(make((3, 5)).t(), args=(lying.reshape(3, 5).t(),))
    yield SampleInput(make((5, 3)), args=(make((1, 3)).detach().double(),))
    yield SampleInput(make(()), args=(make((3, 7)).detach().t(),))


def rsub(make: Make) -> Iterator[SampleInput]:
    """The other operand determines the strides of the result, where there is a choice."""
    yield SampleInput(make((4, 1)), args=(make((2, 1)).unfold(0, 2, 1),))
    yield SampleInput(make((2, 1)).unfold(0, 2, 1), args=(make((4, 1)),))
    yield SampleInput(make((3, 4)), args=(make((4, 3)).t(),))
    yield SampleInput(make((4, 3)).t(), args=(make((3, 4)),))


def multilabel_margin_loss(make: Make) -> Iterator[SampleInput]:
    """For a single vector, the loss is a number for every reduction."""
    for reduction, target in product(("none", "mean", "sum"), ([1, 4, -1, 0, 2], [[1, 4, -1, 0, 2], [3, 2, 1, 0, -1]])):
        labels = torch.tensor(target)
        yield SampleInput(make(labels.shape), args=(labels,), kwargs={"reduction": reduction})


def multi_margin_loss(make: Make) -> Iterator[SampleInput]:
    for reduction, target in product(("none", "mean", "sum"), (3, [3], [1, 4])):
        labels = torch.tensor(target)
        shape = (5,) if labels.numel() == 1 else (2, 5)
        yield SampleInput(make(shape), args=(labels,), kwargs={"reduction": reduction})
    yield SampleInput(make((1, 5)), args=(torch.tensor([2]),), kwargs={"reduction": "none"})


SAMPLES: dict[str, Callable[[Make], Iterator[SampleInput]]] = {
    "nn.functional.scaled_dot_product_attention": attention,
    **{f"nn.functional.conv{d}d": partial(convolution, dims=d) for d in (1, 2, 3)},
    **{f"nn.functional.conv_transpose{d}d": partial(transposed_convolution, dims=d) for d in (1, 2, 3)},
    "nn.functional.multi_head_attention_forward": multi_head_attention,
    "nn.functional.embedding": embedding,
    "nn.functional.embedding_bag": embedding_bag,
    "nn.functional.multi_margin_loss": multi_margin_loss,
    "nn.functional.multilabel_margin_loss": multilabel_margin_loss,
    "nn.functional.layer_norm": layer_norm,
    "nn.functional.rms_norm": rms_norm,
    "nn.functional.group_norm": group_norm,
    "nn.functional.batch_norm": batch_norm,
    "nn.functional.instance_norm": instance_norm,
    **{f"nn.functional.pad.{mode}": partial(pad, mode=mode) for mode in ("reflect", "replicate", "circular")},
    **{f"nn.functional.{name}": dropout for name in ("dropout", "dropout2d", "dropout3d", "alpha_dropout")},
    "scatter": scatter,
    "ldexp": ldexp,
    "rsub": rsub,
}
OF_COMPLEX = ("scatter",)


def extra_samples(op: OpInfo, dtype: torch.dtype, grad: bool) -> list[SampleInput]:
    """Samples of an op in a floating-point dtype, or in a complex dtype if it is in OF_COMPLEX. CPU accepts all of them
    in float32."""
    name = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
    if name not in SAMPLES or not (dtype.is_floating_point or (dtype.is_complex and name in OF_COMPLEX)):
        return []
    # Small values, so that the order of a sum makes no difference.
    make = partial(make_tensor, device="cpu", dtype=dtype, low=-1, high=1, requires_grad=grad)
    return list(SAMPLES[name](make))
