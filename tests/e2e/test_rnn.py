"""Recurrent layers are one op each, and equal CPU's for sequences of any length."""

import itertools

import pytest
import torch
from torch import nn

KINDS = {
    "lstm": lambda **options: nn.LSTM(4, 6, **options),
    "gru": lambda **options: nn.GRU(4, 6, **options),
    "tanh": lambda **options: nn.RNN(4, 6, nonlinearity="tanh", **options),
    "relu": lambda **options: nn.RNN(4, 6, nonlinearity="relu", **options),
}


def pair(kind, device, **options):
    torch.manual_seed(0)
    here = KINDS[kind](**options)
    there = KINDS[kind](**options)
    there.load_state_dict(here.state_dict())
    return here, there.to(device)


def outcome(net, input, states, wanted, device):
    """The outputs, then the gradients of all leaves, of a loss over the outputs that `wanted` names."""
    leaves = [t.clone().to(device).requires_grad_() for t in (input, *states)]
    output, hidden = net(leaves[0], tuple(leaves[1:]) if len(states) == 2 else leaves[1])
    results = {"output": output} | dict(
        zip(("hy", "cy"), hidden if isinstance(hidden, tuple) else (hidden,), strict=False)
    )
    loss = sum((results[name] ** 2).sum() for name in wanted if name in results)
    loss.backward()
    gradients = [t.grad for t in (*leaves, *net.parameters())]
    return [*results.values(), *gradients]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_equals_cpu(device, kind, layers, bidirectional):
    for batch_first, bias, (steps, batch), wanted in itertools.product(
        [False, True], [True, False], [(5, 3), (1, 2)], [("output", "hy", "cy"), ("output",), ("hy",), ("cy",)]
    ):
        if wanted == ("cy",) and kind != "lstm":
            continue
        options = {"num_layers": layers, "bidirectional": bidirectional, "batch_first": batch_first, "bias": bias}
        here, there = pair(kind, device, **options)
        input = torch.randn(batch, steps, 4) if batch_first else torch.randn(steps, batch, 4)
        states = [torch.randn(layers * (1 + bidirectional), batch, 6) for _ in range(1 + (kind == "lstm"))]
        expected = outcome(here, input, states, wanted, torch.device("cpu"))
        for mine, its in zip(outcome(there, input, states, wanted, device), expected, strict=True):
            assert (mine is None) == (its is None)
            if its is not None:
                assert mine.stride() == its.stride()
                torch.testing.assert_close(mine.cpu(), its, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("sizes", [(5, 3, 4, 6), (1, 2, 7, 33), (12, 4, 130, 64), (7, 2, 300, 20), (3, 5, 20, 300)])
def test_sizes(device, kind, bidirectional, sizes):
    """The error exceeds CPU's own by at most a few roundings."""
    steps, batch, inputs, units = sizes
    torch.manual_seed(0)
    here = kind(inputs, units, 2, bidirectional=bidirectional)
    there = kind(inputs, units, 2, bidirectional=bidirectional)
    there.load_state_dict(here.state_dict())
    there.to(device)
    exact = kind(inputs, units, 2, bidirectional=bidirectional).double()
    exact.load_state_dict(here.state_dict())
    input = torch.randn(steps, batch, inputs)
    states = [torch.randn(2 * (1 + bidirectional), batch, units) for _ in range(1 + (kind is nn.LSTM))]
    wanted = ("output", "hy", "cy")
    truth = outcome(exact, input.double(), [s.double() for s in states], wanted, torch.device("cpu"))
    expected = outcome(here, input, states, wanted, torch.device("cpu"))
    for mine, its, true in zip(outcome(there, input, states, wanted, device), expected, truth, strict=True):
        most = 2 * (its - true).abs().max() + 2e-6 * true.abs().max()
        assert (mine.cpu() - true).abs().max() <= most


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_lstm_of_other_dtypes(device, dtype):
    torch.manual_seed(0)
    here = nn.LSTM(8, 12, dtype=dtype)
    there = nn.LSTM(8, 12, dtype=dtype)
    there.load_state_dict(here.state_dict())
    there.to(device)
    input, tolerance = torch.randn(6, 3, 8, dtype=dtype), 1e-9 if dtype == torch.float64 else 3e-2
    expected = outcome(here, input, [torch.zeros(1, 3, 12, dtype=dtype)] * 2, ("output",), torch.device("cpu"))
    got = outcome(there, input, [torch.zeros(1, 3, 12, dtype=dtype)] * 2, ("output",), device)
    for mine, its in zip(got, expected, strict=True):
        torch.testing.assert_close(mine.cpu(), its, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_without_gradients(device, kind):
    here, there = pair(kind, device, num_layers=2)
    input = torch.randn(7, 3, 4)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            torch.testing.assert_close(there(input.to(device))[0].cpu(), here(input)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_build_nothing(remote, kind):
    _, net = pair(kind, remote, num_layers=2)

    def step(steps, batch):
        loss = net(torch.randn(steps, batch, 4).to(remote))[0].square().sum()
        loss.backward()
        loss.item()

    step(5, 3)
    step(6, 2)
    torch.remote.reset_stats()
    with torch.remote.expect_no_compile():
        for steps, batch in [(9, 4), (30, 3), (2, 8), (64, 6), (6, 4)]:
            step(steps, batch)
    assert torch.remote.stats()["ops_recorded"] < 5 * 60  # the number per step does not depend on the length


def test_dropout_between_layers(remote):
    _, net = pair("lstm", remote, num_layers=2, dropout=0.5)
    input = torch.randn(5, 3, 4).to(remote)

    def run(seed):
        torch.manual_seed(seed)
        return net(input)[0].cpu()

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))
    net.eval()
    assert torch.equal(run(1), run(2))


def test_packed_sequences(device):
    here, there = pair("lstm", device, bidirectional=True)
    input, lengths = torch.randn(6, 3, 4), torch.tensor([6, 4, 1])

    def run(net, where):
        packed = nn.utils.rnn.pack_padded_sequence(input.to(where), lengths)
        return nn.utils.rnn.pad_packed_sequence(net(packed)[0])[0]

    torch.testing.assert_close(run(there, device).cpu(), run(here, "cpu"), rtol=1e-4, atol=1e-5)


def test_projection_and_cells(device):
    here, there = pair("lstm", device, proj_size=3)
    input = torch.randn(5, 2, 4)
    torch.testing.assert_close(there(input.to(device))[0].cpu(), here(input)[0], rtol=1e-4, atol=1e-5)
    for cell in (nn.LSTMCell(4, 6), nn.GRUCell(4, 6), nn.RNNCell(4, 6)):
        expected = cell(input[0])
        mine = cell.to(device)(input[0].to(device))
        for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (mine, expected)), strict=True):
            torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5)


def test_autocast(remote):
    here, there = pair("gru", remote)
    input = torch.randn(5, 3, 4)
    with torch.autocast("remote", dtype=torch.bfloat16):
        output, _ = there(input.to(remote))
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float().cpu(), here(input)[0], rtol=0.05, atol=0.05)
    output.float().sum().backward()
    assert there.weight_hh_l0.grad.dtype == torch.float32


def test_wrong_use_says_so(device):
    _, net = pair("lstm", device)
    with pytest.raises(RuntimeError, match="Expected hidden"):
        net(torch.randn(5, 3, 4).to(device), (torch.zeros(1, 2, 6).to(device), torch.zeros(1, 2, 6).to(device)))
    with pytest.raises(RuntimeError, match=r"input\.size"):
        net(torch.randn(5, 3, 9).to(device))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_second_derivatives(device, kind, joined, bias):
    """Second derivatives of everything, if all outputs have a gradient; one state is computed from the input."""

    def penalty(net, where):
        torch.manual_seed(3)
        net = net.double()
        input = torch.randn(4, 2, 4).double().to(where).requires_grad_()
        state = torch.cat([input.sum(0)[:, :3]] * 2, 1).expand(4, 2, 6)
        with torch.backends.cudnn.flags(enabled=joined), torch.backends.mkldnn.flags(enabled=False):
            output, hidden = net(input, (state, state.tanh()) if kind == "lstm" else state)
        hidden = hidden if kind == "lstm" else (hidden,)
        loss = output.square().sum() + sum(h.sin().sum() for h in hidden)
        first = torch.autograd.grad(loss, [input, *net.parameters()], create_graph=True)
        sum(g.square().sum() for g in first).backward()
        return [*(g.detach() for g in first), input.grad, *(p.grad for p in net.parameters())]

    here, there = pair(kind, device, num_layers=2, bidirectional=True, bias=bias)
    for mine, its in zip(penalty(there, device), penalty(here, "cpu"), strict=True):
        torch.testing.assert_close(mine.cpu(), its, rtol=1e-7, atol=1e-9)


def test_a_kept_graph_is_no_second_derivative(remote, counted):
    """Layers stay single ops unless a gradient of a gradient is requested."""
    _, net = pair("lstm", remote)
    x = torch.randn(4, 2, 4).to(remote)
    net(x)[0].sum().backward()
    torch.remote.synchronize()
    with counted() as c:
        net(x)[0].sum().backward(retain_graph=True)
        torch.remote.synchronize()
    assert c["ops_recorded"] < 40


def test_transforms(remote):
    here, there = pair("lstm", remote)
    torch.manual_seed(4)
    input, tangent = torch.randn(5, 3, 4), torch.randn(5, 3, 4)

    def forward(net, where):
        return torch.func.jvp(lambda x: net(x)[0], (input.to(where),), (tangent.to(where),))[1]

    def each(net, where):
        def loss(x):
            return net(x[:, None])[0].square().sum()

        return torch.func.vmap(torch.func.grad(loss), in_dims=1)(input.to(where))

    plain = pair("tanh", remote)  # torch's fused LSTM and GRU cells have no forward derivative, on CUDA neither
    torch.testing.assert_close(forward(plain[1], remote).cpu(), forward(plain[0], "cpu"), rtol=1e-4, atol=1e-5)
    with pytest.raises(NotImplementedError, match="forward AD"):
        forward(there, remote)
    torch.testing.assert_close(each(there, remote).cpu(), each(here, "cpu"), rtol=1e-4, atol=1e-5)
