"""Autocast and GradScaler."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_picks_the_dtypes(remote, dtype):
    a, b = torch.randn(4, 4, device=remote), torch.randn(4, 4, device=remote)
    with torch.autocast("remote", dtype=dtype):
        assert torch.is_autocast_enabled("remote") and torch.get_autocast_dtype("remote") == dtype
        product = a @ b
        assert product.dtype == dtype
        assert F.linear(a, b).dtype == dtype
        assert product.softmax(-1).dtype == torch.float32
        assert F.layer_norm(product, (4,)).dtype == torch.float32
        assert (product + a).dtype == torch.float32
        assert F.cross_entropy(product, torch.tensor([0, 1, 2, 3], device=remote)).dtype == torch.float32
        assert torch.cat([product, a]).dtype == torch.float32
        with torch.autocast("remote", enabled=False):
            assert (a @ b).dtype == torch.float32
    assert (a @ b).dtype == torch.float32


def test_autocast_equals_cpus(remote, equal):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    x, y = torch.randn(5, 8), torch.tensor([0, 1, 2, 3, 0])

    def run(module, where):
        with torch.autocast(where, dtype=torch.bfloat16):
            loss = F.cross_entropy(module(x.to(where)), y.to(where))
        loss.backward()
        return loss.detach(), module[0].weight.grad.clone()

    expected = run(net, "cpu")
    net.zero_grad()
    got = run(net.to(remote), "remote")
    for a, b in zip(got, expected, strict=True):
        equal(a, b, rtol=2e-2, atol=2e-3)


def test_grad_scaler(remote):
    """The scaler scales, skips the step on an overflow and reduces the scale, then grows it again. A step takes at most
    one round trip."""
    net = nn.Linear(4, 2).to(remote)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("remote", init_scale=1024.0, growth_interval=2)
    x = torch.randn(3, 4, device=remote)

    def step(factor):
        optimizer.zero_grad()
        with torch.autocast("remote", dtype=torch.float16):
            loss = net(x).float().pow(2).sum() * factor
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    before = net.weight.detach().clone()
    step(1.0)
    assert not torch.equal(net.weight.detach(), before)
    assert scaler.get_scale() == 1024.0
    step(1.0)
    assert scaler.get_scale() == 2048.0
    before = net.weight.detach().clone()
    step(float("inf"))
    assert torch.equal(net.weight.detach(), before)
    assert scaler.get_scale() == 1024.0
    assert set(scaler.state_dict()) >= {"scale", "growth_factor"}


def test_unscale_finds_infinities_in_a_list(remote):
    gradients = [torch.tensor([1.0, 2.0], device=remote), torch.tensor([float("inf")], device=remote)]
    found = torch.zeros(1, device=remote)
    torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, torch.tensor([0.5], device=remote))
    assert found.item() == 1.0
    assert gradients[0].tolist() == [0.5, 1.0]


def test_custom_function_with_autocast(remote):
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="remote")
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a @ b

        @staticmethod
        @torch.amp.custom_bwd(device_type="remote")
        def backward(ctx, grad):
            a, b = ctx.saved_tensors
            return grad @ b.t().to(grad.dtype), a.t().to(grad.dtype) @ grad

    a = torch.randn(3, 3, device=remote, requires_grad=True)
    with torch.autocast("remote", dtype=torch.bfloat16):
        Product.apply(a, a.detach()).sum().backward()
    assert a.grad is not None and a.grad.dtype == torch.float32


def test_supported_dtypes(remote):
    assert {torch.float16, torch.bfloat16} <= set(torch.remote.get_amp_supported_dtype())
