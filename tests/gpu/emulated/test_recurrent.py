"""Recurrent layers with gradients on an emulated GPU, compared with CPU. cuDNN executes them; hand-written kernels do
so for float64 and without cuDNN."""

import os

import pytest
import torch
from counted_calls import counted
from torch import nn

WITHOUT = os.environ.get("TORCH_REMOTE_TEST_WITHOUT_CUDNN") == "1"
TOLERANCE = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},
    torch.float64: {"rtol": 1e-9, "atol": 1e-10},
    torch.float16: {"rtol": 2e-2, "atol": 2e-2},
    torch.bfloat16: {"rtol": 5e-2, "atol": 5e-2},
}


def same(there, expected):
    assert there.dtype == expected.dtype
    assert there.shape == expected.shape
    torch.testing.assert_close(there.cpu(), expected, **TOLERANCE[expected.dtype])


def train(device, kind, dtype=torch.float32, steps=5, batch=3, inputs=4, units=6, given=True, wanted="both", **options):
    torch.manual_seed(7)
    layer = kind(inputs, units, **options).to(dtype)
    x = torch.randn((batch, steps, inputs) if options.get("batch_first") else (steps, batch, inputs)).to(dtype)
    directions = layer.num_layers * (2 if layer.bidirectional else 1)
    states = [torch.randn(directions, batch, units).to(dtype).to(device) for _ in range(2)]
    layer = layer.to(device)
    x = x.to(device).requires_grad_()
    for state in states:
        state.requires_grad_()
    hidden = tuple(states) if kind is nn.LSTM else states[0]
    y, last = layer(x, hidden) if given else layer(x)
    last = last if isinstance(last, tuple) else (last,)
    results = [y, *last]
    chosen = {"both": results, "output": [y], "states": list(last)}[wanted]
    torch.manual_seed(8)
    torch.autograd.backward(chosen, [torch.randn(r.shape).to(dtype).to(device) for r in chosen])
    used = states[: 2 if kind is nn.LSTM else 1] if given else []
    return [r.detach() for r in results] + [x.grad] + [s.grad for s in used] + [p.grad for p in layer.parameters()]


def check(remote, kind, **options):
    for there, expected in zip(train(remote, kind, **options), train("cpu", kind, **options), strict=True):
        same(there, expected)


KINDS = [nn.LSTM, nn.GRU, nn.RNN]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_dtypes(remote, kind, dtype):
    check(remote, kind, dtype=dtype)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_forms(remote, kind):
    check(remote, kind, bidirectional=True)
    check(remote, kind, num_layers=2, bias=False)
    check(remote, kind, num_layers=2, bidirectional=True, batch_first=True, steps=3)
    check(remote, kind, given=False, wanted="output")
    check(remote, kind, wanted="states")


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (2, 1, 3, 17), (1, 18, 33, 5), (9, 2, 1, 16)], ids=str)
def test_sizes(remote, kind, sizes):
    steps, batch, inputs, units = sizes
    check(remote, kind, steps=steps, batch=batch, inputs=inputs, units=units)


def test_relu(remote):
    check(remote, nn.RNN, nonlinearity="relu", bidirectional=True)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_inference_and_views(remote, kind):
    torch.manual_seed(1)
    layer = kind(4, 5)
    x = torch.randn(3, 4, 8)
    there = kind(4, 5)
    there.load_state_dict(layer.state_dict())
    there = there.to(remote)
    with torch.no_grad():
        for view in (lambda t: t[:, :, ::2], lambda t: t.transpose(0, 2)[:, :, :3].expand(8, 4, 3)[:4, :, :1]):
            given = view(x).expand(-1, -1, 4)
            on = view(x.to(remote)).expand(-1, -1, 4)
            same(there(on)[0], layer(given)[0])
    # No state is kept between calls.
    same(there(x[:, :, :4].to(remote))[0].detach(), layer(x[:, :, :4])[0].detach())


def test_a_model_learns(remote):
    def losses(device):
        torch.manual_seed(3)
        embedding, lstm, head = nn.Embedding(7, 8), nn.LSTM(8, 12, num_layers=2), nn.Linear(12, 7)
        parts = nn.ModuleList([embedding, lstm, head]).to(device)
        optimizer = torch.optim.Adam(parts.parameters(), lr=0.02)
        text = torch.randint(0, 7, (6, 4)).to(device)
        made = []
        for _ in range(6):
            optimizer.zero_grad()
            y = head(lstm(embedding(text[:-1]))[0])
            loss = nn.functional.cross_entropy(y.flatten(0, 1), text[1:].flatten())
            loss.backward()
            optimizer.step()
            made.append(loss.detach())
        return torch.stack(made).cpu()

    got, expected = losses(remote), losses("cpu")
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)
    assert got[-1] < got[0]


# cuDNN executes every dtype except float64: once in the forward pass, and once more before the gradients in the
# backward pass.
@pytest.mark.parametrize(("dtype", "calls"), [(torch.float32, 1), (torch.bfloat16, 1), (torch.float64, 0)], ids=str)
def test_who_does_it(remote, dtype, calls):
    before = counted()
    check(remote, nn.LSTM, dtype=dtype)
    done = counted() - before
    calls = 0 if WITHOUT else calls
    assert done["cudnnRNNForward"] == 2 * calls
    assert done["cudnnRNNBackwardData_v8"] == calls
    assert done["cudnnRNNBackwardWeights_v8"] == calls


def test_frozen_weights_need_no_gradients(remote):
    def run(device):
        torch.manual_seed(4)
        layer = nn.GRU(3, 4).requires_grad_(False).to(device)
        x = torch.randn(5, 2, 3).to(device).requires_grad_()
        layer(x)[0].square().sum().backward()
        return x.grad.cpu()

    before = counted()
    torch.testing.assert_close(run(remote), run("cpu"), rtol=1e-4, atol=1e-5)
    done = counted() - before
    assert done["cudnnRNNBackwardData_v8"] == (0 if WITHOUT else 1)
    assert done["cudnnRNNBackwardWeights_v8"] == 0
