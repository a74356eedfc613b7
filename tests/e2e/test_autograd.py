"""Autograd: gradients, saved tensors and errors must be as on CPU."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn


def both(device, function, *shapes, dtype=torch.float32):
    """Runs `function` on equal leaves on CPU and device; returns results and gradients of both."""
    leaves = [torch.randn(s, dtype=dtype) for s in shapes]
    outcomes = []
    for where in ("cpu", device):
        inputs = [leaf.to(where).detach().requires_grad_() for leaf in leaves]
        result = function(*inputs)
        result.sum().backward()
        outcomes.append((result.detach(), [i.grad for i in inputs]))
    return outcomes


FUNCTIONS = {
    "broadcast": (lambda a, b: (a + b) * a, (3, 4), (4,)),
    "matmul": (lambda a, b: (a @ b).relu(), (3, 4), (4, 5)),
    "views": (lambda a: a.t()[1:].reshape(-1).unsqueeze(0).expand(2, -1) * 3, (3, 4)),
    "indexing": (lambda a: a[torch.tensor([0, 2, 2], device=a.device)].pow(2), (3, 4)),
    "softmax": (lambda a: a.softmax(-1)[:, 0], (3, 4)),
    "layer_norm": (lambda a, w: F.layer_norm(a, (4,), w), (3, 4), (4,)),
    "conv": (lambda a, w: F.conv2d(a, w, padding=1), (2, 3, 5, 5), (4, 3, 3, 3)),
    "pool": (lambda a: F.max_pool2d(a, 2), (2, 3, 6, 6)),
    "cat": (lambda a, b: torch.cat([a, b * 2], 1), (3, 4), (3, 2)),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
                  (2, 2, 5, 4), (2, 2, 5, 4), (2, 2, 5, 4)),
    "grouped queries": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
                        (2, 4, 5, 4), (2, 2, 5, 4), (2, 2, 5, 4)),
    "embedding": (lambda w: F.embedding(torch.tensor([[1, 2], [2, 0]], device=w.device), w), (4, 3)),
    "where": (lambda a, b: torch.where(a > 0, a, b), (3, 4), (3, 4)),
    "cumsum": (lambda a: a.cumsum(0), (3, 4)),
    "logcumsumexp": (lambda a: a.logcumsumexp(0), (3, 4)),
    "take": (lambda a: a.t().take(torch.tensor([[1, -2], [1, 11]], device=a.device)), (3, 4)),
    "norm": (lambda a: a.norm(dim=1), (3, 4)),
    "std": (lambda a: a.std(1), (3, 4)),
    "topk": (lambda a: a.topk(2, 1).values, (3, 4)),
    "einsum": (lambda a, b: torch.einsum("ij,kj->ik", a, b), (3, 4), (5, 4)),
    "double_use": (lambda a: a.exp() * a.exp().detach() + a, (3, 4)),
    "interpolate": (lambda a: F.interpolate(a, scale_factor=2, mode="bilinear"), (1, 2, 3, 3)),
    "cross_entropy": (lambda a: F.cross_entropy(a, torch.tensor([0, 2, 1], device=a.device)), (3, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_equal_cpu(device, equal, name):
    function, *shapes = FUNCTIONS[name]
    (value, gradients), (value_there, gradients_there) = both(device, function, *shapes)
    if name == "attention":  # the strides depend on which of torch's attention kernels runs
        value_there, gradients_there = value_there.contiguous(), [g.contiguous() for g in gradients_there]
        value, gradients = value.contiguous(), [g.contiguous() for g in gradients]
    equal(value_there, value, rtol=1e-5, atol=1e-6)
    for there, here in zip(gradients_there, gradients, strict=True):
        equal(there, here, rtol=1e-5, atol=1e-6)


def test_in_place_ops_on_views_of_a_graph(device, equal):
    def function(a):
        b = a * 2
        b[:, 0].mul_(3)
        b.t()[1] += a[:, 0]
        return b * b

    (value, gradients), (value_there, gradients_there) = both(device, function, (3, 4))
    equal(value_there, value)
    equal(gradients_there[0], gradients[0])


def test_second_derivatives(device, equal):
    def second(x):
        (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    x = torch.randn(5)
    equal(second(x.to(device).requires_grad_()), second(x.clone().requires_grad_()))


def test_gradcheck(device):
    x = torch.randn(3, 4, dtype=torch.float64).to(device).requires_grad_()
    w = torch.randn(4, 2, dtype=torch.float64).to(device).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: torch.tanh(a @ b), (x, w))


def test_changed_saved_tensor_is_noticed(device):
    x = torch.randn(3, device=device, requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_leaf_in_place_is_refused(device):
    x = torch.ones(3, device=device, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        x.add_(1)
    with torch.no_grad():
        x.add_(1)
    assert x.tolist() == [2, 2, 2] and x._version == 1


def test_custom_function_and_hooks(device):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * 2 + x * 0

    seen = []
    x = torch.ones(3, device=device, requires_grad=True)
    y = Double.apply(x)
    y.register_hook(lambda g: seen.append(g.tolist()))
    y.sum().backward()
    assert seen == [[1, 1, 1]] and x.grad.tolist() == [2, 2, 2]


def test_checkpointing(device, equal):
    from torch.utils.checkpoint import checkpoint

    net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
    x = torch.randn(2, 4)
    net(x).sum().backward()
    expected = net[0].weight.grad.clone()
    there = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
    there.load_state_dict(net.state_dict())
    there.to(device)
    checkpoint(there, x.to(device), use_reentrant=False).sum().backward()
    equal(there[0].weight.grad, expected, rtol=1e-5, atol=1e-6)


def test_functional_transforms(device, equal):
    x = torch.randn(3, 4)
    f = lambda v: (v.sin() * v).sum()  # noqa: E731
    equal(torch.func.grad(f)(x.to(device)), torch.func.grad(f)(x), rtol=1e-6, atol=1e-6)
    equal(torch.vmap(torch.func.grad(f))(x.to(device)), torch.vmap(torch.func.grad(f))(x), rtol=1e-6, atol=1e-6)
    _, tangent = torch.func.jvp(torch.tanh, (x.to(device),), (torch.ones(3, 4, device=device),))
    equal(tangent, torch.func.jvp(torch.tanh, (x,), (torch.ones(3, 4),))[1], rtol=1e-6, atol=1e-6)


def test_gradients_accumulate_and_clip(device, equal):
    net, there = nn.Linear(4, 3), nn.Linear(4, 3)
    there.load_state_dict(net.state_dict())
    there.to(device)
    x = torch.randn(5, 4)
    for module, where in ((net, "cpu"), (there, device)):
        for _ in range(3):
            (module(x.to(where)) ** 2).sum().backward()
    norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    norm_there = nn.utils.clip_grad_norm_(there.parameters(), 1.0)
    equal(norm_there, norm, rtol=1e-5, atol=1e-6)
    equal(there.weight.grad, net.weight.grad, rtol=1e-5, atol=1e-6)


def test_inference_mode(device):
    with torch.inference_mode():
        y = torch.ones(3, device=device) * 2
        y.add_(1)
    assert y.is_inference() and y.tolist() == [3, 3, 3]


def test_anomaly_mode_names_the_forward_line(device):
    with torch.autograd.detect_anomaly(check_nan=True), pytest.warns(UserWarning, match="sqrt"):
        x = torch.zeros(2, device=device, requires_grad=True)
        y = (x * -1).sqrt() * 0
        with pytest.raises(RuntimeError, match="nan"):
            y.sum().backward()
