"""Attention obeys sdpa_kernel, and supports torch's transforms and jagged tensors, as on CPU. Otherwise it is a single
op."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

attend = F.scaled_dot_product_attention
FUSED = "remote::attention"


def tensors(device, *sizes):
    torch.manual_seed(1)
    return [torch.randn(size).to(device) for size in sizes]


def qkv(device, grad=False):
    """Four query heads share two key and value heads."""
    made = tensors(device, (2, 4, 5, 8), (2, 2, 6, 8), (2, 2, 6, 8))
    return [t.requires_grad_(grad) for t in made]


def as_on_cpu(function, device, **tolerances):
    """The result of `function(device)`, after a comparison with CPU, where only the math backend supports
    everything."""
    got = function(device)
    with sdpa_kernel(SDPBackend.MATH):
        want = function(torch.device("cpu"))
    tolerances = tolerances or {"rtol": 1e-4, "atol": 1e-5}
    for mine, its in zip(*(x if isinstance(x, (tuple, list)) else (x,) for x in (got, want)), strict=True):
        torch.testing.assert_close(mine.detach().cpu(), its.detach(), **tolerances)
    return got


OPTIONS = {
    "plain": lambda device: {},
    "causal": lambda device: {"is_causal": True},
    "bool mask": lambda device: {"attn_mask": (tensors("cpu", (5, 6))[0] > -0.5).to(device)},
    "float mask": lambda device: {"attn_mask": tensors(device, (2, 1, 5, 6))[0]},
    "scale": lambda device: {"scale": 0.7},
}


def recorded(function):
    """The names of the ops that a call records."""
    with torch.remote.trace() as trace:
        function()
    return trace.to_text()


@pytest.mark.parametrize("options", OPTIONS)
def test_ordinary_training_is_one_op_each_way(remote, options):
    q, k, v = qkv(remote, grad=True)

    def step():
        attend(q, k, v, enable_gqa=True, **OPTIONS[options](remote)).sum().backward()

    text = recorded(step)
    assert FUSED in text
    assert FUSED + "_backward" in text
    assert "softmax" not in text


def test_math_is_obeyed(remote):
    q, k, v = qkv(remote)
    with sdpa_kernel(SDPBackend.MATH):
        text = recorded(lambda: attend(q, k, v, enable_gqa=True).sum().item())
    assert FUSED not in text
    assert "softmax" in text
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True):
        assert FUSED not in recorded(lambda: attend(q, k, v, enable_gqa=True).sum().item())
    for fused in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.OVERRIDEABLE):
        with sdpa_kernel(fused):
            assert FUSED in recorded(lambda: attend(q, k, v, enable_gqa=True).sum().item())


def test_without_a_backend(remote):
    q, k, v = qkv(remote)
    with sdpa_kernel([]), pytest.raises(RuntimeError, match=r"remote: No viable backend .* enable one with"):
        attend(q, k, v, enable_gqa=True)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        try:
            attend(q[0].cpu(), q[0].cpu(), q[0].cpu())  # from torch 2.14 on, three dims are enough
        except RuntimeError:
            with pytest.raises(RuntimeError, match=r"remote: No available kernel\. .* enable SDPBackend\.MATH"):
                attend(q[0], q[0], q[0])
        else:
            assert attend(q[0], q[0], q[0]).shape == q[0].shape
        # Code that selects CUDA's flash attention for training, which has dropout, must still run.
        assert torch.isfinite(attend(q, q, q, dropout_p=0.5)).all()


@pytest.mark.parametrize("options", OPTIONS)
def test_second_derivatives(device, options):
    def penalty(device):
        q, k, v = qkv(device, grad=True)
        if device.type == "cpu":  # CPU's math path does not support shared heads
            out = attend(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), **OPTIONS[options](device))
        else:
            out = attend(q, k, v, enable_gqa=True, **OPTIONS[options](device))
        gradients = torch.autograd.grad(out.square().sum(), (q, k, v), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in gradients), (q, k, v))

    as_on_cpu(penalty, device, rtol=1e-3, atol=1e-4)


def test_rows_without_keys_have_second_derivatives(device):
    def penalty(device):
        q, k, v = (t.requires_grad_() for t in tensors(device, *[(1, 1, 3, 4)] * 3))
        mask = torch.tensor([[True, True, False], [False, False, False], [True, True, True]], device=device)
        out = attend(q, k, v, attn_mask=mask)
        (gradient,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), (q, k, v))

    assert all(torch.isfinite(g).all() for g in as_on_cpu(penalty, device))


def test_forward_derivatives(device):
    def jvp(device):
        q, tangent = tensors(device, (2, 2, 4, 8), (2, 2, 4, 8))
        return torch.func.jvp(lambda q: attend(q, q, q, is_causal=True), (q,), (tangent,))

    def dual(device):
        q, tangent = tensors(device, (2, 2, 4, 8), (2, 2, 4, 8))
        with torch.autograd.forward_ad.dual_level():
            made = torch.autograd.forward_ad.make_dual(q, tangent)
            return torch.autograd.forward_ad.unpack_dual(attend(made, q, q)).tangent

    def through_vmap(device):
        q, tangent = tensors(device, (3, 2, 2, 4, 8), (3, 2, 2, 4, 8))
        each = torch.func.vmap(lambda q: attend(q, q, q))
        return torch.func.jvp(each, (q,), (tangent,))

    def hessian(device):
        (q,) = tensors(device, (1, 1, 2, 3))
        return torch.func.hessian(lambda q: attend(q, q, q).square().sum())(q)

    for function in (jvp, dual, through_vmap, hessian):
        as_on_cpu(function, device)


@pytest.mark.parametrize("dims", [(0, None, None), (1, 2, 0), (None, None, 4)])
@pytest.mark.parametrize("options", OPTIONS)
def test_vmap(device, dims, options):
    def each(device):
        sizes = [(2, 3, 5, 8), (2, 3, 6, 8), (2, 3, 6, 8)]
        sizes = [s if dim is None else (*s[:dim], 4, *s[dim:]) for s, dim in zip(sizes, dims, strict=True)]
        more = OPTIONS[options](device)
        return torch.func.vmap(lambda q, k, v: attend(q, k, v, **more), in_dims=dims)(*tensors(device, *sizes))

    as_on_cpu(each, device)


def test_vmap_keeps_the_fused_op(remote):
    (q,) = tensors(remote, (4, 2, 3, 5, 8))
    assert FUSED in recorded(lambda: torch.func.vmap(lambda q: attend(q, q, q))(q).sum().item())


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_vmap_over_masks(device, rank):
    def each(device):
        q, mask = tensors(device, (4, 2, 3, 5, 8), (4, 2, 1, 5, 5)[-rank - 1 :])
        if rank < 4:
            mask = mask.expand(4, *mask.shape[1:]) if mask.size(0) == 4 else mask[:1].expand(4, *mask.shape[1:])
        if rank == 3:
            return torch.func.vmap(lambda q, m: attend(q, q, q, attn_mask=m[None]))(q, mask)
        return torch.func.vmap(lambda q, m: attend(q, q, q, attn_mask=m))(q, mask)

    as_on_cpu(each, device)


def test_batched_cotangents(device):
    def jacobian(device):
        (q, cotangents) = tensors(device, (2, 2, 4, 8), (3, 2, 2, 4, 8))
        q.requires_grad_()
        return torch.autograd.grad(attend(q, q, q), q, cotangents, is_grads_batched=True)

    as_on_cpu(jacobian, device)


def test_gradients_of_each_sample(device):
    def each(device):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).to(device)
        parameters = {name: p.detach() for name, p in layer.named_parameters()}
        (x,) = tensors(device, (3, 5, 8))

        def loss(parameters, x):
            return torch.func.functional_call(layer, parameters, (x[None],)).square().sum()

        gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
        return [gradients[name] for name in sorted(gradients)]

    as_on_cpu(each, device, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["plain", "causal", "bool mask"])
def test_compiled_in_float64(device, name):
    """Compiled attention with gradients is as exact as op by op."""

    def run(device):
        q, k, v = (t.double().requires_grad_() for t in qkv(device))
        options = OPTIONS[name](device)

        def loss(q, k, v):
            return (attend(q, k, v, enable_gqa=True, **options) * q).sum()

        (torch.compile(loss, backend="remote") if device.type == "remote" else loss)(q, k, v).backward()
        return [q.grad, k.grad, v.grad]

    as_on_cpu(run, device, rtol=1e-12, atol=1e-12)


# -- the ops that nn.Transformer's modules call in eval mode
# ------------------------------------------------------------

PADDING = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0], [0, 1, 0, 0, 1]], dtype=torch.bool)
CAUSAL = torch.ones(5, 5, dtype=torch.bool).triu(1)


def encoder(device, **options):
    torch.manual_seed(4)
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options).to(device).eval()


def multi_head(device):
    torch.manual_seed(4)
    return nn.MultiheadAttention(8, 2, batch_first=True).to(device).eval()


def decoder(device):
    torch.manual_seed(4)
    return nn.TransformerDecoderLayer(8, 2, 16, batch_first=True).to(device).eval()


def attended(device, **options):
    (x,) = tensors(device, (3, 5, 8))
    masks = {name: mask.to(device) if torch.is_tensor(mask) else mask for name, mask in options.items()}
    results = multi_head(device)(x, x, x, **masks)
    return [t for t in results if t is not None]


AT_REST = {
    "layer": lambda d: encoder(d)(*tensors(d, (3, 5, 8))),
    "layer, padded": lambda d: encoder(d)(*tensors(d, (3, 5, 8)), src_key_padding_mask=PADDING.to(d)),
    "layer, masked": lambda d: encoder(d)(*tensors(d, (3, 5, 8)), src_mask=CAUSAL.to(d)),
    "layer, both": lambda d: encoder(d)(
        *tensors(d, (3, 5, 8)), src_mask=CAUSAL.to(d), src_key_padding_mask=PADDING.to(d)
    ),
    "layer, norms first": lambda d: encoder(d, norm_first=True, activation="gelu")(*tensors(d, (3, 5, 8))),
    "decoder": lambda d: decoder(d)(*tensors(d, (3, 4, 8), (3, 5, 8))),
    "weights": attended,
    "weights of each head": lambda d: attended(d, average_attn_weights=False),
    "no weights": lambda d: attended(d, need_weights=False),
    "no weights, padded": lambda d: attended(d, need_weights=False, key_padding_mask=PADDING),
    "weights, both": lambda d: attended(d, attn_mask=CAUSAL, key_padding_mask=PADDING),
    "others": lambda d: multi_head(d)(*tensors(d, (3, 5, 8), (3, 5, 8), (3, 5, 8)), need_weights=False)[0],
    "empty": lambda d: (
        attended(d, need_weights=False) and multi_head(d)(*tensors(d, (0, 5, 8), (0, 5, 8), (0, 5, 8)))[0]
    ),
}


@pytest.mark.parametrize("name", AT_REST)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_modules_at_rest(device, name, compiled):
    """torch has one op for a layer, and one for attention; here they are decomposed."""

    def run(device):
        function = AT_REST[name]
        if compiled and device.type == "remote":
            function = torch.compile(function, backend="remote")
        with torch.no_grad():
            return function(device)

    as_on_cpu(run, device)


def test_who_has_nothing_to_attend_to(remote):
    """The result is NaN, as on CPU."""
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1] = True
    with torch.no_grad():
        (got,) = attended(remote, need_weights=False, key_padding_mask=padding)
        (want,) = attended(torch.device("cpu"), need_weights=False, key_padding_mask=padding)
    assert want[1].isnan().all() and not want[0].isnan().any()
    torch.testing.assert_close(got.cpu(), want, equal_nan=True)


def test_wrong_calls_of_modules_at_rest(device):
    """The checks are those of CPU."""
    module, (x, y) = multi_head(device), tensors(device, (3, 5, 8), (3, 4, 8))
    weights = (module.in_proj_weight, module.in_proj_bias, module.out_proj.weight, module.out_proj.bias)
    attention = torch._native_multi_head_attention
    with torch.no_grad():
        with pytest.raises(RuntimeError, match="shapes to match"):
            attention(x, y, y, 8, 2, *weights)
        with pytest.raises(RuntimeError, match="didn't match last dim of query"):
            attention(x, x, x, 6, 2, *weights)
        with pytest.raises(RuntimeError, match="Mask Type should be defined"):
            attention(x, x, x, 8, 2, *weights, PADDING.to(device))


# -- jagged tensors --------------------------------------------------------------------------------------------------


def jagged(device, lengths, dtype=torch.float32):
    torch.manual_seed(2)
    parts = [torch.randn(n, 2, 8, dtype=dtype) for n in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, device=device, requires_grad=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_jagged(device, causal, dtype):
    q, kv = jagged(device, (3, 5, 1), dtype), jagged(device, (3, 5, 1) if causal else (4, 2, 6), dtype)
    if not causal and dtype == torch.float32:
        kv_lengths, q_lengths = kv.offsets().diff().tolist(), q.offsets().diff().tolist()
        assert kv_lengths != q_lengths
    heads = [t.transpose(1, 2) for t in (q, kv, kv)]
    if device.type == "cpu" and causal:
        pytest.skip("CPU has no causal attention of jagged tensors")
    out = attend(*heads, is_causal=causal)
    assert out.is_nested
    assert out.transpose(1, 2).is_contiguous()
    out.transpose(1, 2).values().square().sum().backward()
    tolerances = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.05, "atol": 0.05}
    gradients = [t.grad.unbind() for t in (q, kv)]
    parts = zip(out.unbind(), q.detach().unbind(), kv.detach().unbind(), *gradients, strict=True)
    for mine, a, b, grad_a, grad_b in parts:
        a, b = (t.cpu().float().requires_grad_() for t in (a, b))
        one = attend(*(t.transpose(0, 1)[None] for t in (a, b, b)), is_causal=causal)[0]
        one.square().sum().backward()
        for got, want in ((mine, one), (grad_a, a.grad), (grad_b, b.grad)):
            torch.testing.assert_close(got.detach().cpu().float(), want.detach(), **tolerances)


def test_jagged_as_on_cpu(device):
    def outputs(device):
        q = jagged(device, (3, 5))
        out = attend(*[q.transpose(1, 2)] * 3).transpose(1, 2)
        out.values().sin().sum().backward()
        return out.values(), q.grad.values()

    as_on_cpu(outputs, device)


def test_strided_nested_tensors_are_refused(remote):
    with pytest.raises(NotImplementedError, match=r"no nested tensors of torch\.strided; use layout=torch\.jagged"):
        torch.nested.as_nested_tensor([torch.ones(2, 3, device=remote, requires_grad=True)])
