"""Models as people write them train on the device as on CPU, whatever their sizes, and meet no slow path."""

import contextlib

import pytest
import torch
import zoo
from torch import nn

import torch_remote

# (sequences, length) of each step: all differ
STEPS = [(4, 16), (3, 12), (5, 9), (2, 14), (6, 11)]
WARM = 2  # steps that may build programs: the second one has the optimizer's state


# Those that Dynamo captures in seconds.
COMPILED = ["gpt2", "bert", "resnet", "unet", "lstm"]


def train(model, device, compiled=False):
    """Losses of the steps; steps after WARM must find every program."""
    torch.manual_seed(0)
    net = model.make().to(device)
    run = torch.compile(net, backend="remote", dynamic=True) if compiled else net
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    losses = []
    for step, (count, length) in enumerate(STEPS):
        batch = {name: value.to(device) for name, value in model.batch(count, length).items()}
        known = device.type == "remote" and step >= WARM and model.same_ops
        with torch.remote.expect_no_compile() if known else contextlib.nullcontext():
            loss = model.loss(run, batch)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", zoo.MODELS)
def test_trains_as_on_cpu(device, name):
    model = zoo.MODELS[name]
    assert train(model, device) == pytest.approx(train(model, torch.device("cpu")), rel=1e-4)


@pytest.mark.parametrize("name", COMPILED)
def test_trains_compiled_as_on_cpu(remote, name):
    torch._dynamo.reset()
    model = zoo.MODELS[name]
    assert train(model, remote, compiled=True) == pytest.approx(train(model, torch.device("cpu")), rel=1e-4)


def test_dispatchers_meta_key_is_hardly_met(remote):
    # Of this process's ops; each signature that is new counts, and here all are.
    recorded = torch.remote.stats()["ops_recorded"]
    met = dict(torch_remote._C.meta_key_calls())
    assert recorded > 5_000
    assert {name: count for name, count in met.items() if count >= recorded / 1000} == {}
