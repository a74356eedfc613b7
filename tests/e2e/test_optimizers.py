"""Optimizers in every variant, compared with the same one on CPU."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd_momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "sgd_foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "sgd_loop": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
    "sgd_fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "adam_amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True, weight_decay=1e-2),
    "adam_foreach": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=True),
    "adam_loop": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=False),
    "adam_fused": lambda p: torch.optim.Adam(p, lr=1e-2, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adamw_fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "adamw_maximize": lambda p: torch.optim.AdamW(p, lr=1e-2, maximize=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-2),
    "radam": lambda p: torch.optim.RAdam(p, lr=1e-2),
    "adamax": lambda p: torch.optim.Adamax(p, lr=1e-2),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=4),
}


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12, bias=False), nn.ReLU(), nn.Linear(12, 3))


def batches(count=6):
    generator = torch.Generator().manual_seed(2)
    for _ in range(count):
        yield torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)


def train(make_optimizer, device, schedule=None):
    net = network().to(device)
    optimizer = make_optimizer(net.parameters())
    scheduler = schedule(optimizer) if schedule else None
    losses = []
    for x, y in batches():
        x, y = x.to(device), y.to(device)

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).detach())
        if scheduler:
            scheduler.step()
    return net, optimizer, torch.stack(losses)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_equals_cpu(device, equal, name):
    net, _, losses = train(OPTIMIZERS[name], "cpu")
    there, _, losses_there = train(OPTIMIZERS[name], device)
    # LBFGS divides by differences of gradients, which amplifies rounding differences of sums.
    more = 100 if name == "lbfgs" else 1
    equal(losses_there, losses, rtol=1e-5 * more, atol=1e-6 * more)
    for a, b in zip(there.parameters(), net.parameters(), strict=True):
        equal(a.detach(), b.detach(), rtol=1e-4 * more, atol=1e-5 * more)


def test_capturable_keeps_steps_and_lr_on_the_device(remote, equal):
    def capturable(parameters):
        return torch.optim.Adam(parameters, lr=torch.tensor(1e-2, device=remote), capturable=True, foreach=True)

    _, optimizer, losses_there = train(capturable, remote)
    assert all(state["step"].device.type == "remote" for state in optimizer.state.values())
    _, _, losses = train(lambda p: torch.optim.Adam(p, lr=1e-2), "cpu")
    equal(losses_there, losses, rtol=1e-5, atol=1e-6)


SCHEDULES = {
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 6),
    "one_cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=7),
    "warmup": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=3), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)],
        [3],
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(device, equal, name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, _, losses = train(OPTIMIZERS["adamw"], "cpu", SCHEDULES[name])
        _, _, losses_there = train(OPTIMIZERS["adamw"], device, SCHEDULES[name])
    equal(losses_there, losses, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["sgd_momentum", "adamw", "adamw_fused"])
def test_state_dict_resumes(device, equal, name):
    """Half of the steps, then everything is saved and loaded into new objects, then the other half. The result equals
    an uninterrupted run."""
    whole, _, _ = train(OPTIMIZERS[name], device)
    net, optimizer = None, None
    for i, (x, y) in enumerate(batches()):
        if i in (0, 3):
            saved = (net.state_dict(), optimizer.state_dict()) if net is not None else None
            net = network().to(device)
            optimizer = OPTIMIZERS[name](net.parameters())
            if saved:
                net.load_state_dict(saved[0])
                optimizer.load_state_dict(saved[1])
        optimizer.zero_grad()
        F.cross_entropy(net(x.to(device)), y.to(device)).backward()
        optimizer.step()
    for a, b in zip(net.parameters(), whole.parameters(), strict=True):
        equal(a.detach(), b.detach().cpu(), rtol=1e-6, atol=1e-7)


def test_averaged_model_and_parameter_groups(device, equal):
    def run(where):
        net = network().to(where)
        optimizer = torch.optim.AdamW(
            [{"params": net[0].parameters(), "lr": 1e-2}, {"params": net[2:].parameters(), "weight_decay": 0.0}]
        )
        average = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
        for x, y in batches():
            optimizer.zero_grad(set_to_none=False)
            F.cross_entropy(net(x.to(where)), y.to(where)).backward()
            optimizer.step()
            average.update_parameters(net)
        return average.module[0].weight.detach()

    equal(run(device), run("cpu"), rtol=1e-5, atol=1e-6)
