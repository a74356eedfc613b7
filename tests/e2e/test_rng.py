"""Random numbers are reproducible, come from the device's generator, and do not depend on where a trace is cut."""

import pytest
import torch
import torch.nn.functional as F

DRAWS = {
    "rand": lambda d: torch.rand(1000, device=d),
    "randn": lambda d: torch.randn(1000, device=d),
    "randint": lambda d: torch.randint(0, 100, (1000,), device=d),
    "randperm": lambda d: torch.randperm(500, device=d),
    "uniform": lambda d: torch.empty(1000, device=d).uniform_(2, 3),
    "normal": lambda d: torch.empty(1000, device=d).normal_(1, 2),
    "bernoulli": lambda d: torch.full((1000,), 0.3, device=d).bernoulli(),
    "exponential": lambda d: torch.empty(1000, device=d).exponential_(),
    "multinomial": lambda d: torch.multinomial(torch.ones(50, device=d), 20),
    "dropout": lambda d: F.dropout(torch.ones(1000, device=d), 0.5),
    "rand_like": lambda d: torch.rand_like(torch.ones(1000, device=d)),
    "poisson": lambda d: torch.poisson(torch.full((1000,), 4.0, device=d)),
    "rrelu": lambda d: F.rrelu(-torch.ones(1000, device=d), training=True),
    "half": lambda d: torch.randn(1000, device=d, dtype=torch.bfloat16),
    "double": lambda d: torch.rand(1000, device=d, dtype=torch.float64),
}


@pytest.mark.parametrize("name", DRAWS)
def test_seeds_reproduce_and_draws_differ(device, name):
    torch.manual_seed(7)
    first, second = DRAWS[name](device).cpu(), DRAWS[name](device).cpu()
    torch.manual_seed(7)
    assert torch.equal(DRAWS[name](device).cpu(), first)
    assert torch.equal(DRAWS[name](device).cpu(), second)
    assert not torch.equal(first, second)
    torch.manual_seed(8)
    assert not torch.equal(DRAWS[name](device).cpu(), first)


def test_moments(device):
    torch.manual_seed(1)
    n = 100_000
    uniform = torch.rand(n, device=device).cpu()
    assert uniform.min() >= 0 and uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 5e-3 and abs(uniform.var() - 1 / 12) < 2e-3
    normal = torch.randn(n, device=device).cpu()
    assert abs(normal.mean()) < 0.015 and abs(normal.std() - 1) < 0.01
    kept = (F.dropout(torch.ones(n, device=device), 0.25) > 0).float().mean().item()
    assert abs(kept - 0.75) < 0.01
    counts = torch.bincount(torch.randint(0, 10, (n,), device=device).cpu())
    assert counts.min() > 9_500 and counts.max() < 10_500
    assert sorted(torch.randperm(1000, device=device).tolist()) == list(range(1000))


def test_cuts_do_not_change_the_numbers(remote):
    def draw(cut):
        torch.manual_seed(3)
        parts = []
        for _ in range(6):
            parts.append(F.dropout(torch.rand(50, device=remote), 0.3) + torch.randn(50, device=remote))
            if cut:
                torch.remote.synchronize()
        return torch.stack(parts).cpu()

    assert torch.equal(draw(False), draw(True))


def test_state_can_be_saved_and_put_back(remote):
    torch.rand(10, device=remote)
    state = torch.remote.get_rng_state()
    assert state.dtype == torch.uint8 and state.device.type == "cpu"
    first = torch.rand(10, device=remote).tolist()
    torch.remote.set_rng_state(state)
    assert torch.rand(10, device=remote).tolist() == first
    with torch.random.fork_rng(devices=[0], device_type="remote"):
        torch.manual_seed(99)
        torch.rand(5, device=remote)
    after = torch.rand(10, device=remote).tolist()
    torch.remote.set_rng_state(state)
    torch.rand(10, device=remote)
    assert torch.rand(10, device=remote).tolist() == after


def test_seeds_of_the_module(remote):
    torch.remote.manual_seed(5)
    assert torch.remote.initial_seed() == 5
    first = torch.rand(4, device=remote).tolist()
    torch.remote.manual_seed_all(5)
    assert torch.rand(4, device=remote).tolist() == first
    torch.remote.seed()
    assert torch.rand(4, device=remote).tolist() != first


def test_own_generators(remote):
    a, b = torch.Generator(remote).manual_seed(1), torch.Generator(remote).manual_seed(1)
    assert a.device.type == "remote"
    first = torch.rand(5, generator=a, device=remote).tolist()
    torch.rand(5, device=remote)
    assert torch.rand(5, generator=b, device=remote).tolist() == first
    state = a.get_state()
    second = torch.rand(5, generator=a, device=remote).tolist()
    a.set_state(state)
    assert torch.rand(5, generator=a, device=remote).tolist() == second
    copy = a.clone_state()
    assert torch.rand(5, generator=copy, device=remote).tolist() == torch.rand(5, generator=a, device=remote).tolist()


def test_dropout_backward_uses_the_same_mask(device):
    x = torch.ones(200, device=device, requires_grad=True)
    y = F.dropout(x, 0.5)
    y.sum().backward()
    assert torch.equal(x.grad.cpu(), y.detach().cpu())


def test_checkpointing_replays_the_same_mask(device):
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(200, device=device, requires_grad=True)
    y = checkpoint(lambda v: F.dropout(v, 0.5), x, use_reentrant=False)
    y.sum().backward()
    assert torch.equal(x.grad.cpu(), y.detach().cpu())


def test_a_new_seed_builds_no_program(counted, remote):
    def step(seed):
        torch.manual_seed(seed)
        return F.dropout(torch.randn(8, 8, device=remote), 0.5).sum().item()

    values = {step(1), step(2)}
    with counted() as c:
        values |= {step(seed) for seed in range(3, 8)}
    assert len(values) == 7 and c["programs_built"] == 0
