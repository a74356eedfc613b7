"""Training steps equal CPU's, and after the second step no program is built, whatever changes."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn


def mlp():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 5))


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    )


class SequenceModel(nn.Module):
    """Attention over sequences of any length, with learned positions sliced to it."""

    def __init__(self, width=24, heads=2, longest=64, vocabulary=20):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Parameter(torch.randn(longest, width) * 0.1)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.head = nn.Linear(width, vocabulary)
        self.register_buffer("mask", torch.full((longest, longest), float("-inf")).triu(1))

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.positions[:length]
        for layer in self.layers:
            x = layer(x, src_mask=self.mask[:length, :length])
        return self.head(x)


def images(n, generator):
    return torch.randn(n, 1, 8, 8, generator=generator), torch.randint(0, 5, (n,), generator=generator)


def vectors(n, generator):
    return torch.randn(n, 16, generator=generator), torch.randint(0, 5, (n,), generator=generator)


MODELS = {"mlp": (mlp, vectors), "cnn": (cnn, images)}


class Trainer:
    def __init__(self, make_model, device, **optimizer_arguments):
        torch.manual_seed(0)
        self.device = device
        self.model = make_model().to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, **optimizer_arguments)

    def step(self, x, y):
        loss = F.cross_entropy(self.model(x.to(self.device)).flatten(0, -2), y.to(self.device).flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("fused", [False, True])
def test_losses_equal_cpu(device, equal, name, fused):
    make_model, data = MODELS[name]
    here, there = (Trainer(make_model, where, fused=fused) for where in (torch.device("cpu"), device))
    generator = torch.Generator().manual_seed(0)
    for _ in range(8):
        x, y = data(12, generator)
        equal(there.step(x, y), here.step(x, y), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_built_from_the_third_step_on(counted, remote, name):
    make_model, data = MODELS[name]
    trainer = Trainer(make_model, remote)
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        trainer.step(*data(16, generator)).item()
    with counted() as c, torch.remote.expect_no_compile():
        for _ in range(6):
            trainer.step(*data(16, generator)).item()
    assert c["programs_built"] == 0 and c["client_fallbacks"] == 0
    assert c["round_trips"] <= 6  # the .item() calls
    assert (c["bytes_sent"] + c["bytes_received"]) / 6 <= 4096


@pytest.mark.parametrize("name", MODELS)
def test_without_reads_a_step_needs_no_round_trip(counted, remote, name):
    make_model, data = MODELS[name]
    trainer = Trainer(make_model, remote)
    generator = torch.Generator().manual_seed(0)
    for _ in range(6):  # the first steps may be cut at different positions
        trainer.step(*data(16, generator))
    with counted() as c:
        for _ in range(6):
            trainer.step(*data(16, generator))
        assert c["round_trips"] == 0


@pytest.mark.parametrize("name", MODELS)
def test_batch_size_and_learning_rate_may_change_every_step(counted, remote, name):
    make_model, data = MODELS[name]
    trainer = Trainer(make_model, remote)
    generator = torch.Generator().manual_seed(0)

    def step(i):
        trainer.optimizer.param_groups[0]["lr"] = 1e-3 / (i + 1)
        trainer.optimizer.param_groups[0]["betas"] = (0.9 - i / 1000, 0.99)
        return trainer.step(*data(16 + 3 * i, generator)).item()

    step(0), step(1)
    with counted() as c, torch.remote.expect_no_compile():
        for i in range(2, 9):
            step(i)
    assert c["programs_built"] == 0


def test_growing_sequences(counted, remote, equal):
    """Lengths exceed the head size, the width, a power of two and the longest length: one program, CPU's losses."""
    here, there = Trainer(SequenceModel, torch.device("cpu")), Trainer(SequenceModel, remote)
    generator = torch.Generator().manual_seed(0)

    def batch(length):
        tokens = torch.randint(0, 20, (2, length + 1), generator=generator)
        return tokens[:, :-1], tokens[:, 1:]

    def step(length):
        data = batch(length)
        equal(there.step(*data), here.step(*data), rtol=1e-4, atol=1e-5)

    step(5), step(6)
    with counted() as c, torch.remote.expect_no_compile():
        for length in (7, 12, 16, 20, 24, 31, 32, 33, 48, 63, 64, 8):
            step(length)
    assert c["programs_built"] == 0


def test_evaluation_between_training_steps(counted, remote):
    trainer = Trainer(cnn, remote)
    generator = torch.Generator().manual_seed(0)

    def epoch():
        trainer.model.train()
        for _ in range(3):
            trainer.step(*images(10, generator))
        trainer.model.eval()
        with torch.no_grad():
            x, y = images(20, generator)
            return (trainer.model(x.to(remote)).argmax(1) == y.to(remote)).sum().item()

    epoch(), epoch(), epoch()
    with counted() as c:
        epoch()
    assert c["programs_built"] == 0


def test_gradient_accumulation_and_clipping(counted, remote):
    trainer = Trainer(mlp, remote)
    generator = torch.Generator().manual_seed(0)

    def step():
        trainer.optimizer.zero_grad()
        for _ in range(3):
            x, y = vectors(8, generator)
            (F.cross_entropy(trainer.model(x.to(remote)), y.to(remote)) / 3).backward()
        norm = nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        trainer.optimizer.step()
        return norm.item()

    step(), step()
    with counted() as c:
        norms = {step() for _ in range(4)}
    assert c["programs_built"] == 0 and len(norms) == 4


def test_amp_training_with_a_scaler(counted, remote):
    torch.manual_seed(0)
    net = mlp().to(remote)
    optimizer = torch.optim.AdamW(net.parameters())
    scaler = torch.amp.GradScaler("remote", init_scale=256.0)
    x, y = torch.randn(16, 16, device=remote), torch.randint(0, 5, (16,)).to(remote)

    def step():
        optimizer.zero_grad()
        with torch.autocast("remote", dtype=torch.bfloat16):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    losses = [step(), step(), step()]
    with counted() as c:
        losses += [step() for _ in range(20)]
    assert losses[-1] < losses[0] and c["programs_built"] == 0


@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_padded_sequences_at_rest(device):
    """In eval mode, nn.TransformerEncoder tries to pack sequences with padding at the end into a nested tensor."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    here = nn.TransformerEncoder(layer, 2).eval()
    there = copy.deepcopy(here).to(device)
    x, padding = torch.randn(3, 6, 16), torch.zeros(3, 6, dtype=torch.bool)
    padding[0, 4:] = padding[2, 1:] = True
    with torch.no_grad():
        result = there(x.to(device), src_key_padding_mask=padding.to(device)).cpu()
        torch.testing.assert_close(result[~padding], here(x, src_key_padding_mask=padding)[~padding])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["x86", "qnnpack"])  # per channel and per tensor
def test_training_for_quantization(device, backend):
    """A single op observes, stores statistics, and rounds."""

    def train(device):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
        model.qconfig = torch.ao.quantization.get_default_qat_qconfig(backend)
        model = torch.ao.quantization.prepare_qat(model.train()).to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        for step in range(3):
            torch.manual_seed(step)
            optimizer.zero_grad()
            model(torch.randn(4, 2, 6, 6).to(device)).square().mean().backward()
            optimizer.step()
        return model.state_dict()

    there, here = train(device), train("cpu")
    assert any("scale" in name for name in here)
    for name, want in here.items():
        torch.testing.assert_close(there[name].cpu(), want, rtol=1e-4, atol=1e-5)
