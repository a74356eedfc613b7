"""Attention and its gradients with cuDNN on an emulated GPU, compared with CPU in float64. Hand-written kernels execute
the first use of a size, so each test repeats."""

import time

import pytest
import torch
import torch.nn.functional as F
from counted_calls import counted

TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 6e-2}
DTYPES = [torch.float16, torch.bfloat16]


def executed():
    return counted()["cudnnBackendExecute"]


def attend(q, k, v, device, dtype, layout=None, **options):
    """The result, and the gradients of query, key and value."""
    there = []
    for x in (q, k, v):
        x = x.to(dtype).to(device).detach()
        there.append((x if layout is None else layout(x)).requires_grad_())
    mask = options.pop("attn_mask", None)
    if mask is not None:
        mask = (mask if mask.dtype == torch.bool else mask.to(dtype)).to(device)
    out = F.scaled_dot_product_attention(*there, mask, **options)
    (out * (torch.arange(out.shape[-1], device=device) / out.shape[-1]).to(dtype)).sum().backward()
    return [out.detach(), *(x.grad for x in there)]


def check(remote, dtype, q, k, v, uses_cudnn=True, layout=None, **options):
    """Results equal CPU's with hand-written kernels and with cuDNN, and the expected runner executes the op."""
    exact = {n: x.to(dtype).double() if torch.is_tensor(x) and x.is_floating_point() else x for n, x in options.items()}
    expected = attend(*(x.to(dtype).double() for x in (q, k, v)), torch.device("cpu"), torch.float64, layout, **exact)
    deadline = time.monotonic() + 120
    before, rounds = executed(), 0
    while True:
        for there, right in zip(attend(q, k, v, remote, dtype, layout, **options), expected, strict=True):
            assert there.dtype == dtype
            torch.testing.assert_close(there.cpu().double(), right, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        rounds += 1
        calls = executed() - before
        # In both passes.
        if (calls >= 8 and rounds >= 5) or (not uses_cudnn and rounds == 5):
            break
        assert time.monotonic() < deadline, f"cuDNN did nothing: {calls} calls in {rounds} rounds"
    assert uses_cudnn or calls == 0


def operands(batch, heads, queries, size, keys=None, key_heads=None):
    keys, key_heads = keys or queries, key_heads or heads
    torch.manual_seed(7)
    return (
        torch.randn(batch, heads, queries, size),
        torch.randn(batch, key_heads, keys, size),
        torch.randn(batch, key_heads, keys, size),
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_forms(remote, dtype):
    check(remote, dtype, *operands(2, 3, 16, 8))
    check(remote, dtype, *operands(1, 2, 19, 32), is_causal=True)
    check(remote, dtype, *operands(1, 2, 9, 16, keys=21), is_causal=True)
    check(remote, dtype, *operands(2, 2, 10, 16, keys=23), scale=0.3)
    check(remote, dtype, *operands(1, 6, 12, 8, key_heads=2), enable_gqa=True, is_causal=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_masks(remote, dtype):
    q, k, v = operands(2, 4, 9, 8, keys=13)
    torch.manual_seed(8)
    for shape in ((9, 13), (2, 1, 9, 13), (1, 4, 9, 13), (2, 4, 9, 13), (9, 1), (1, 13)):
        check(remote, dtype, q, k, v, attn_mask=torch.randn(shape))
    check(remote, dtype, q, k, v, attn_mask=torch.randn(2, 4, 13, 9).transpose(2, 3))
    keep = torch.rand(2, 1, 9, 13) > 0.4
    keep[..., 0] = True
    check(remote, dtype, q, k, v, attn_mask=keep)
    check(remote, dtype, q, k, v, attn_mask=torch.where(keep, 0.0, float("-inf")))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_that_see_nothing(remote, dtype):
    """Zeros and zero gradients, and not NaN as from a library."""
    q, k, v = operands(2, 2, 11, 8)
    keep = torch.ones(2, 1, 11, 11, dtype=torch.bool).tril()
    keep[0, 0, 3] = keep[1, 0, 0] = keep[1, 0, 10] = False
    check(remote, dtype, q, k, v, attn_mask=keep)
    check(remote, dtype, q, k, v, attn_mask=torch.where(keep, 0.25, float("-inf")))


def test_layouts(remote):
    """Heads that are adjacent in memory, as in models, and strides that cuDNN does not support."""
    q, k, v = operands(2, 4, 12, 16)
    check(remote, torch.float16, q, k, v, layout=lambda x: x.transpose(1, 2).contiguous().transpose(1, 2))
    check(remote, torch.float16, q, k, v, layout=lambda x: torch.cat([x, x[..., :3]], -1)[..., :16])
    check(remote, torch.float16, q, k, v, layout=lambda x: torch.cat([x[:, :, :1], x], 2)[:, :, 1:])
    check(remote, torch.float16, q, k[:, :, :1].expand(-1, -1, 12, -1), v)


def test_what_is_left_to_kernels(remote):
    """Few queries, odd head sizes, other dtypes, a negative scale."""
    q, k, v = operands(1, 2, 3, 8, keys=9)
    check(remote, torch.float16, q, k, v, uses_cudnn=False)
    q, k, v = operands(1, 2, 12, 12)
    check(remote, torch.float16, q, k, v, uses_cudnn=False)
    q, k, v = operands(1, 2, 12, 8)
    check(remote, torch.float16, q, k, v, uses_cudnn=False, scale=-0.5)
    for scale in (0.3, 0.9, 0.3):  # the same program with different numbers
        for queries in (3, 12):
            given = [x.half() for x in (q[:, :, :queries], k, v)]
            want = F.scaled_dot_product_attention(*(x.double() for x in given), scale=scale)
            got = F.scaled_dot_product_attention(*(x.to(remote) for x in given), scale=scale)
            torch.testing.assert_close(got.cpu().double(), want, rtol=1e-2, atol=1e-2)
    torch.remote.synchronize()
    before = executed()
    for dtype in (torch.float32, torch.float64):
        got, want = (attend(q, k, v, device, dtype) for device in (remote, torch.device("cpu")))
        for there, right in zip(got, want, strict=True):
            torch.testing.assert_close(there.cpu(), right, rtol=1e-4, atol=1e-4)
    assert executed() == before


def test_deterministic_is_the_same_from_the_first_use_on(remote):
    q, k, v = operands(1, 2, 33, 16)
    torch.use_deterministic_algorithms(True)
    try:
        before = executed()
        first = [x.cpu() for x in attend(q, k, v, remote, torch.bfloat16, is_causal=True)]
        assert executed() - before == 2  # immediately, and without timing
        for _ in range(4):
            for there, right in zip(attend(q, k, v, remote, torch.bfloat16, is_causal=True), first, strict=True):
                assert torch.equal(there.cpu(), right)
    finally:
        torch.use_deterministic_algorithms(False)


def test_becomes_part_of_a_graph(remote):
    """Repeated steps are launched as CUDA graphs, which include cuDNN's calls."""
    torch.manual_seed(9)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
    x = torch.randn(2, 16, 32)
    want = layer(x).detach()
    layer, there = layer.half().to(remote), x.half().to(remote)

    def steps():
        before = counted()
        for _ in range(10):
            got = layer(there).detach().float().cpu()
            torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
        return counted() - before

    deadline = time.monotonic() + 120
    before = executed()
    while (calls := steps())["cuGraphLaunch"] < 8 or calls["cudnnBackendExecute"] != 0 or executed() == before:
        assert time.monotonic() < deadline, calls


def test_modules_at_rest(remote):
    """The modules of nn.Transformer call one op each in eval mode, which is decomposed."""
    torch.manual_seed(9)
    encoder = torch.nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True).eval()
    decoder = torch.nn.TransformerDecoderLayer(32, 4, 64, 0.0, batch_first=True).eval()
    x, padding = torch.randn(2, 6, 32), torch.tensor([[False] * 6, [False] * 4 + [True] * 2])

    def run(device):
        memory = encoder.to(device)(x.to(device), src_key_padding_mask=padding.to(device))
        return decoder.to(device)(x[:, :4].to(device), memory)

    with torch.no_grad():
        torch.testing.assert_close(run(remote).cpu(), run("cpu"), rtol=1e-4, atol=1e-4)
