"""Models as users write them train on the device as on CPU, with all sizes, and without slow paths."""

import contextlib
from collections import Counter

import pytest
import torch
import zoo
from torch import nn
from torch.export import Dim

import torch_remote

# (sequences, length) of each step; all differ
STEPS = [(4, 16), (3, 12), (5, 9), (2, 14), (6, 11)]
WARM = 2  # steps that may build programs; the second one has optimizer state


# Models that Dynamo captures within seconds.
COMPILED = ["llama", "gpt2", "bert", "vit", "resnet", "unet", "lstm"]

# The ops of a model's inference after the passes that only the recorded, or only the compiled program has.
COPIES = "AOTAutograd makes results that are views contiguous"
DIFFERENCES = {
    "vit": ("", {}, {}),
    "resnet": (
        "AOTAutograd captures batch norm at rest as another op",
        {"native_batch_norm": 5},
        {"_native_batch_norm_legit_no_training": 5},
    ),
    "unet": ("", {}, {}),
    "gpt2": (COPIES, {}, {"copy_": 4}),
    "llama": (f"{COPIES}; heads that share keys and values get copies of them", {}, {"copy_": 8}),
    "bert": ("", {}, {}),
}  # fmt: skip


def train(model, device, compiled=False, rounds=1):
    """The losses of the steps, and finally of inference. Steps after WARM may not build programs."""
    torch.manual_seed(0)
    net = model.make().to(device)
    run = torch.compile(net, backend="remote", dynamic=True) if compiled else net
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    losses = []
    for step, (count, length) in enumerate(STEPS * rounds):
        batch = {name: value.to(device) for name, value in model.batch(count, length).items()}
        known = device.type == "remote" and step >= WARM and model.same_ops
        with torch.remote.expect_no_compile() if known else contextlib.nullcontext():
            loss = model.loss(run, batch)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
    net.eval()
    with torch.no_grad():
        losses.append(model.loss(run, batch).item())
    return losses


@pytest.mark.parametrize("name", zoo.MODELS)
def test_trains_as_on_cpu(device, name):
    model = zoo.MODELS[name]
    assert train(model, device) == pytest.approx(train(model, torch.device("cpu")), rel=1e-4)


@pytest.mark.parametrize("name", COMPILED)
def test_trains_compiled_as_on_cpu(remote, name):
    torch._dynamo.reset()
    model = zoo.MODELS[name]
    assert train(model, remote, compiled=True, rounds=4) == pytest.approx(
        train(model, torch.device("cpu"), rounds=4), rel=1e-3
    )


@pytest.mark.parametrize("name", DIFFERENCES)
def test_recorded_and_compiled_are_the_same_program(remote, name):
    torch._dynamo.reset()
    model = zoo.MODELS[name]
    net = model.make().to(remote).eval()
    batch = {name: value.to(remote) for name, value in model.batch(3, 10).items()}
    ops = []
    for run in (net, torch.compile(net, backend="remote", dynamic=False)):
        with torch.no_grad():
            model.loss(run, batch)
            with torch.remote.trace() as trace:
                loss = model.loss(run, batch)  # noqa: F841 (lives, so that it is computed)
        ops.append(sum((Counter(graph.optimized().ops) for graph in trace.graphs), Counter()))
    _, recorded, compiled = DIFFERENCES[name]
    assert ops[0] - ops[1] == {f"aten::{op}": count for op, count in recorded.items()}
    assert ops[1] - ops[0] == {f"aten::{op}": count for op, count in compiled.items()}


class Loss(nn.Module):
    """A model in the form that torch.export accepts, without keyword arguments."""

    def __init__(self, name):
        super().__init__()
        self.model = zoo.MODELS[name]
        self.net = self.model.make()

    def forward(self, batch):
        return self.model.loss(self.net, batch)


@pytest.mark.parametrize("name", ["llama", "bert", "unet"])
def test_exported_it_is_one_program(remote, counted, name):
    here = Loss(name).eval()
    batch = here.model.batch(3, 12)
    last = 2 if name == "unet" else 1  # images: height and width; tokens: their number
    sizes = {key: {0: Dim.AUTO} | {value.dim() - 1 - i: Dim.AUTO for i in range(last)} for key, value in batch.items()}
    exported = torch.export.export(here, (batch,), dynamic_shapes=(sizes,))
    there = torch.remote.load_exported(exported)
    for count, length in STEPS:
        batch = here.model.batch(count, length)
        on_remote = {key: value.to(remote) for key, value in batch.items()}
        with counted() as c:
            loss = there(on_remote)
        with torch.no_grad():
            assert loss.item() == pytest.approx(here(batch).item(), rel=1e-4)
        if (count, length) != STEPS[0]:
            assert c["flushes"] == c["program_hits"] == 1 and c["ops_recorded"] == c["round_trips"] == 0


def test_dispatchers_meta_key_is_hardly_met(remote):
    # Counts calls of this process. Each new signature counts, and here all are new.
    recorded = torch.remote.stats()["ops_recorded"]
    met = dict(torch_remote._C.meta_key_calls())
    assert recorded > 5_000
    assert {name: count for name, count in met.items() if count >= recorded / 1000} == {}
