"""Compiled functions draw the same random numbers as eager functions, and leave the generator in the same state."""

import warnings

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

import torch_remote.compile.random_states as random_states

LSTM = nn.LSTM(16, 8, 2, dropout=0.5, batch_first=True)


def new(x, **options):
    return torch.empty_like(x, **options)


OPS = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout in place": lambda x: F.dropout(x.clone(), 0.3, inplace=True),
    "dropout1d": lambda x: F.dropout1d(x[None], 0.3),
    "dropout2d": lambda x: F.dropout2d(x[None, None], 0.3),
    "dropout3d": lambda x: F.dropout3d(x[None, None, None], 0.3),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.3, training=True),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x[None], 0.3, training=True),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x, hard=True),
    "rand": lambda x: x + torch.rand(8, 16, device=x.device),
    "rand in half precision": lambda x: x + torch.rand(8, 16, device=x.device, dtype=torch.half),
    "randn": lambda x: x + torch.randn(8, 16, device=x.device),
    "randn in double precision": lambda x: x + torch.randn(8, 16, device=x.device, dtype=torch.double),
    "rand_like": lambda x: x + torch.rand_like(x),
    "randn_like": lambda x: x * torch.randn_like(x),
    "randint": lambda x: x + torch.randint(0, 10, (8, 16), device=x.device),
    "randint from 3": lambda x: x + torch.randint(3, 10, (8, 16), device=x.device),
    "randint_like": lambda x: x + torch.randint_like(x, 9) + torch.randint_like(x, 2, 9),
    "randperm": lambda x: x[torch.randperm(8, device=x.device)],
    "bernoulli": lambda x: x * torch.bernoulli(torch.sigmoid(x)),
    "bernoulli_": lambda x: x * new(x).bernoulli_(0.3) * new(x).bernoulli_(torch.sigmoid(x)),
    "normal_": lambda x: x + new(x).normal_(1, 2),
    "uniform_": lambda x: x + new(x).uniform_(-1, 2),
    "exponential_": lambda x: x + new(x).exponential_(2.0),
    "geometric_": lambda x: x + new(x).geometric_(0.3),
    "cauchy_": lambda x: x + new(x).cauchy_(),
    "log_normal_": lambda x: x + new(x).log_normal_(),
    "random_": lambda x: x + new(x).random_(5) + new(x).random_(2, 5) + new(x, dtype=torch.int32).random_(),
    "trunc_normal_": lambda x: x + nn.init.trunc_normal_(new(x)),
    "normal": lambda x: torch.normal(x, x.abs()) + torch.normal(0.5, x.abs()) + torch.normal(x, 2.0),
    "normal of a size": lambda x: x + torch.normal(0.0, 1.0, (8, 16), device=x.device),
    "multinomial": lambda x: torch.multinomial(x.softmax(-1), 3),
    "multinomial with replacement": lambda x: torch.multinomial(x.softmax(-1), 3, replacement=True),
    "poisson": lambda x: torch.poisson(x.abs() * 3),
    "binomial": lambda x: torch.binomial(torch.full_like(x, 9.0), torch.sigmoid(x.detach())),
    "gamma": lambda x: torch.distributions.Gamma(x.abs() + 0.1, x.abs() + 0.2).rsample(),
    "beta": lambda x: torch.distributions.Beta(x.abs() + 0.1, x.abs() + 0.2).rsample(),
    "categorical": lambda x: torch.distributions.Categorical(logits=x).sample(),
    "attention": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None], dropout_p=0.3),
    "fractional_max_pool2d": lambda x: F.fractional_max_pool2d(x[None, None], 2, output_size=3),
    "several": lambda x: F.dropout(torch.relu(F.dropout(x, 0.2)), 0.5) + torch.rand_like(x),
    "a layer of a transformer": nn.TransformerEncoderLayer(16, 2, 32, dropout=0.3, batch_first=True),
    "LSTM": lambda x: LSTM.to(x.device)(x[None])[0],
}


def on_random_numbers(function, remote):
    """The results of two calls, the gradient, and the next random number."""
    torch.manual_seed(0)
    x = torch.randn(8, 16).to(remote).requires_grad_()
    torch.manual_seed(5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = [function(x) for _ in range(2)]
    if results[0].requires_grad:
        (results[0] * results[1]).sum().backward()
    after = torch.rand(3, device=remote)
    return [None if t is None else t.detach().cpu() for t in (*results, x.grad, after)]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", OPS)
def test_the_same_numbers_as_uncompiled(remote, name, dynamic):
    torch._dynamo.reset()
    function = OPS[name]
    if isinstance(function, nn.Module):
        function.to(remote)
    compiled = torch.compile(function, backend="remote", dynamic=dynamic)
    want = on_random_numbers(function, remote)
    got = on_random_numbers(compiled, remote)
    torch.testing.assert_close(got[:3], want[:3], rtol=1e-4, atol=1e-5)
    assert torch.equal(got[3], want[3])


CHECKPOINTED = {
    "dropout": lambda y: F.dropout(y.sin(), 0.4).cos(),
    "several": lambda y: F.dropout(F.dropout(y.sin(), 0.4).cos(), 0.2) * torch.rand_like(y),
    "an order": lambda y: F.dropout(y[torch.randperm(8, device=y.device)].sin(), 0.4).cos(),
    "attention": lambda y: F.scaled_dot_product_attention(y[None], y[None], y[None], dropout_p=0.3).sin(),
    "partly on the CPU": lambda y: (F.dropout(y.cpu().sin(), 0.4).cos().to(y.device) * F.dropout(y, 0.5)).sin(),
}


@pytest.mark.parametrize("name", CHECKPOINTED)
def test_checkpoints_draw_the_same_numbers_again(remote, compiled_graphs, name):
    torch._dynamo.reset()

    def function(x):
        return torch.utils.checkpoint.checkpoint(CHECKPOINTED[name], x, use_reentrant=False)

    want = on_random_numbers(function, remote)
    got = on_random_numbers(torch.compile(function, backend="remote", fullgraph=True), remote)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    kind = "Plan" if name == "partly on the CPU" else "CompiledGraph"
    assert [type(graph).__name__ for graph in compiled_graphs] == [kind, kind]  # forward and backward


def test_random_ops_outside_of_programs(remote):
    for device in (remote, torch.device("cpu")):
        x = torch.randn(100, device=device)
        state, (first, _) = random_states.run_and_save(torch.ops.aten.native_dropout.default, x, 0.5, True)
        torch.rand(7, device=device)
        before = torch.get_rng_state(), torch.remote.get_rng_state()
        again, _ = random_states.run_with(state, torch.ops.aten.native_dropout.default, x, 0.5, True)
        after = torch.get_rng_state(), torch.remote.get_rng_state()
        assert torch.equal(first.cpu(), again.cpu())
        assert all(map(torch.equal, before, after))
