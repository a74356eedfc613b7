"""Small models of many architectures (tests/models) on an emulated GPU, executed only by kernels and libraries. Two
training steps and inference give CPU's losses, and no op is refused."""

from __future__ import annotations

import pytest
import torch
import zoo
from torch import nn

NAMES = ("llama", "gpt2", "bert", "t5", "mixtral", "mamba", "vit", "resnet50", "unet", "lstm", "dlrm")
GENERATES = ("llama", "gpt2", "t5", "mamba")
# Batch norm over few points amplifies rounding, so these get larger images.
BATCHES = {"resnet50": (3, 24)}
BATCH = (2, 6)


def losses_of(name: str, device: torch.device) -> list[float]:
    model = zoo.FIXED_MODELS[name]
    torch.manual_seed(0)
    net = model.make().to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    batch = {key: x.to(device) for key, x in model.batch(*BATCHES.get(name, BATCH)).items()}
    losses = []
    for _ in range(2):
        loss = model.loss(net, batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    net.eval()
    with torch.no_grad():
        losses.append(model.loss(net, batch).item())
    return losses


@pytest.mark.parametrize("name", NAMES)
def test_trains_as_on_cpu(remote, name):
    torch.set_num_threads(1)
    there = losses_of(name, remote)
    torch.remote.synchronize()
    assert there == pytest.approx(losses_of(name, torch.device("cpu")), rel=2e-4)


@pytest.mark.parametrize("name", GENERATES)
def test_generates_as_on_cpu(remote, name):
    torch.manual_seed(0)
    model = zoo.FIXED_MODELS[name]
    net = model.make().eval()
    prompt = model.batch(1, 4)["input_ids"]
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    want = net.generate(prompt, **options)
    assert torch.equal(net.to(remote).generate(prompt.to(remote), **options).cpu(), want)
