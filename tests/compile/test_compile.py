"""torch.compile(backend="remote") equals eager on the device and on CPU, for all sizes."""

import re
import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torch_remote import _C


@pytest.fixture(autouse=True)
def fresh_dynamo():
    yield
    torch._dynamo.reset()


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))


def compiled(function, **options):
    return torch.compile(function, backend="remote", **options)


def test_backend_needs_no_import(script):
    script(
        """
    import torch
    assert "remote" in torch._dynamo.list_backends()
    f = torch.compile(lambda x: (x * 2).sum(), backend="remote")
    assert f(torch.ones(3, device="cpu")).item() == 6  # whatever is on other devices runs there
    assert f(torch.ones(3).to("remote")).item() == 6
    """
    )


def test_training_at_all_sizes_builds_programs_once(remote):
    here, there = net(), net().to(remote)
    fast = compiled(there, dynamic=True, fullgraph=True)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in (here, there)]
    for step, count in enumerate([5, 9, 7, 3, 12, 30, 4]):
        x, y = torch.randn(count, 8), torch.randint(0, 4, (count,))
        torch.remote.reset_stats()
        losses = [F.cross_entropy(here(x), y), F.cross_entropy(fast(x.to(remote)), y.to(remote))]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-4)
        if step >= 2:
            assert torch.remote.stats()["programs_built"] == 0
    for mine, its in zip(there.parameters(), here.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().cpu(), its.detach(), rtol=1e-3, atol=1e-4)


def test_random_numbers_are_those_of_eager(remote):
    class Drop(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            return F.dropout(self.linear(x), 0.5, self.training) + torch.randn_like(x)

    module = Drop().to(remote)
    x = torch.randn(16, 8, device=remote)

    def run(function):
        module.zero_grad()
        torch.manual_seed(7)
        y = function(x)
        y.sum().backward()
        return y.detach().cpu(), module.linear.weight.grad.cpu()

    for mine, its in zip(run(compiled(module)), run(module), strict=True):
        torch.testing.assert_close(mine, its)


def test_mutated_and_aliased_inputs(remote):
    def step(x, buffer):
        buffer.add_(x)
        x.mul_(2)
        return x[1:], buffer.view(-1), x

    results = []
    for function in (step, compiled(step)):
        x, buffer = torch.arange(4.0, device=remote).view(2, 2), torch.ones(2, 2, device=remote)
        a, b, c = function(x, buffer)
        assert c is x or c.data_ptr() == x.data_ptr()
        a.add_(100)
        results.append([t.cpu() for t in (a, b, c, x, buffer)])
    for mine, its in zip(*results, strict=True):
        assert torch.equal(mine, its)


def test_batch_norm_buffers_and_tied_weights(remote):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(6)
            self.encode = nn.Linear(6, 6, bias=False)
            self.decode = nn.Linear(6, 6, bias=False)
            self.decode.weight = self.encode.weight

        def forward(self, x):
            return self.decode(torch.tanh(self.encode(self.norm(x))))

    torch.manual_seed(0)
    here = Tied()
    there = Tied().to(remote)
    there.load_state_dict(here.state_dict())
    there.decode.weight = there.encode.weight
    fast = compiled(there)
    for _ in range(3):
        x = torch.randn(10, 6)
        here(x).square().sum().backward()
        fast(x.to(remote)).square().sum().backward()
    torch.testing.assert_close(there.norm.running_mean.cpu(), here.norm.running_mean)
    torch.testing.assert_close(there.norm.running_var.cpu(), here.norm.running_var)
    torch.testing.assert_close(there.encode.weight.grad.cpu(), here.encode.weight.grad, rtol=1e-4, atol=1e-5)


def test_graph_breaks_and_sizes_that_depend_on_data(remote):
    def function(x):
        y = x * 2
        torch._dynamo.graph_break()
        kept = y[y > 1]
        return kept.sum() + kept.shape[0]

    x = torch.tensor([0.1, 0.9, 2.0, 0.4], device=remote)
    assert compiled(function)(x).item() == pytest.approx(function(x).item())


def test_autocast(remote):
    module = net().to(remote)
    x = torch.randn(5, 8, device=remote)
    fast = compiled(module)
    with torch.autocast("remote", dtype=torch.bfloat16):
        torch.testing.assert_close(fast(x).cpu(), module(x).cpu(), rtol=0.02, atol=0.02)


def test_autocast_inside_and_scaled_gradients(remote):
    module = net().to(remote)

    def function(x):
        with torch.autocast("remote", torch.bfloat16):
            return module(x).float().square().sum()

    x = torch.randn(5, 8, device=remote)
    scaler = torch.amp.GradScaler("remote", init_scale=8.0)

    def gradients(function):
        module.zero_grad()
        scaler.scale(function(x)).backward()
        return [p.grad.cpu() for p in module.parameters()]

    for mine, its in zip(gradients(compiled(function)), gradients(function), strict=True):
        torch.testing.assert_close(mine, its, rtol=0.05, atol=0.05)


def test_hooks(remote):
    module = net().to(remote)
    seen = []
    handles = [
        module[0].register_forward_hook(lambda module, args, result: result * 2),
        module.register_full_backward_hook(lambda module, inputs, outputs: seen.append(len(outputs))),
        module[0].weight.register_hook(lambda grad: grad * 3),
    ]
    x = torch.randn(5, 8, device=remote)

    def run(function):
        module.zero_grad()
        result = function(x)
        result.sum().backward()
        return [result.detach().cpu(), *(p.grad.cpu() for p in module.parameters())]

    for mine, its in zip(run(compiled(module)), run(module), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-5)
    assert len(seen) == 2
    for handle in handles:
        handle.remove()


def test_checkpointing(remote):
    module = net().to(remote)
    x = torch.randn(5, 8, device=remote)

    def run(function):
        module.zero_grad()
        function(x).sum().backward()
        return [p.grad.cpu() for p in module.parameters()]

    def checkpointed(x):
        return torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False)

    for mine, its in zip(run(compiled(checkpointed)), run(module), strict=True):
        torch.testing.assert_close(mine, its)


def test_compiled_optimizer(remote):
    here, there = net(), net().to(remote)
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (here, there)]
    fast = compiled(optimizers[1].step)
    for _ in range(3):
        x = torch.randn(6, 8)
        here(x).sum().backward()
        there(x.to(remote)).sum().backward()
        optimizers[0].step()
        fast()
    for mine, its in zip(there.parameters(), here.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().cpu(), its.detach(), rtol=1e-4, atol=1e-5)


def test_recurrent_net(remote):
    torch.manual_seed(0)
    here = nn.LSTM(4, 6)
    there = nn.LSTM(4, 6).to(remote)
    there.load_state_dict(here.state_dict())
    x = torch.randn(5, 3, 4)
    torch.testing.assert_close(compiled(there)(x.to(remote))[0].cpu(), here(x)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_modes(remote, mode):
    x = torch.randn(4, device=remote)
    assert torch.equal(compiled(torch.sin, mode=mode)(x).cpu(), torch.sin(x).cpu())


def test_low_latency_keeps_the_worker_awake(remote):
    """While calls follow each other, the worker spins and need not be woken."""

    def sleeps_a_call(function):
        def sleeps():
            status = Path(f"/proc/{_C.worker_info(0)['process']}/status").read_text()
            return int(re.search(r"\nvoluntary_ctxt_switches:\s*(\d+)", status)[1])

        function(x).cpu()
        before = sleeps()
        for _ in range(300):
            function(x).cpu()
            end = time.perf_counter() + 50e-6
            while time.perf_counter() < end:
                pass
        return (sleeps() - before) / 300

    torch.remote.restart()
    x = torch.randn(8, device=remote)
    # On a busy machine, any thread may have to wait long.
    assert min(sleeps_a_call(compiled(torch.sin, mode="reduce-overhead")) for _ in range(5)) < 0.3


def test_unknown_options_are_refused(remote):
    x = torch.randn(4, device=remote)
    with pytest.raises(Exception, match=r"unknown name 'speed'; known: low_latency \(.*\); tune \(.*\); verify"):
        compiled(torch.sin, options={"speed": 11})(x)
    with pytest.raises(Exception, match=r"TypeError.*options\['tune'\] must be True or False, got 3"):
        compiled(torch.sin, options={"tune": 3})(x)
    assert compiled(torch.sin, options={"verify": True})(x).shape == (4,)


def test_custom_ops_in_a_graph(remote):
    @torch.library.custom_op("testlib::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @double.register_fake
    def _(x):
        return torch.empty_like(x)

    x = torch.randn(4, device=remote)
    torch.testing.assert_close(compiled(lambda x: double(x) + 1, fullgraph=True)(x).cpu(), x.cpu() * 2 + 1)


def test_cond(remote):
    def function(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    fast = compiled(function, fullgraph=True)
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(fast(x.to(remote)).cpu(), function(x))


def test_a_loss_that_torch_takes_apart_otherwise(remote):
    """torch decomposes this loss into ops whose results differ from its kernel's, on CPU, too."""
    torch.manual_seed(0)
    x, target = torch.rand(5, 4), torch.tensor([[3, 0, -1, 1]] * 5)
    for reduction in ("mean", "none"):
        here, there = x.clone().requires_grad_(), x.to(remote).requires_grad_()

        def loss(x, target, reduction=reduction):
            return torch.nn.functional.multilabel_margin_loss(x, target, reduction=reduction)

        want, got = loss(here, target), torch.compile(loss, backend="remote")(there, target.to(remote))
        want.sum().backward()
        got.sum().backward()
        torch.testing.assert_close(got.cpu(), want)
        torch.testing.assert_close(there.grad.cpu(), here.grad)
