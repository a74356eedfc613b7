"""Numbers that change in each step, such as learning rates, seeds and failure addresses. One copy writes them for all
kernels of a sequence's CUDA graph. The results equal those of kernels that take the numbers as parameters."""

import pytest
import torch
import torch.nn.functional as F
from counted_calls import counted

STEPS = 12


def settled(step) -> dict[str, float]:
    """The driver calls of a step after many repetitions."""
    for _ in range(STEPS):
        step()
    before = counted()
    for _ in range(STEPS):
        step()
    after = counted()
    return {name: (after[name] - before[name]) / STEPS for name in after}


def draws(device):
    """Each draw reuses the same output memory."""
    weights = torch.arange(1.0, 9.0).to(device)
    floats = [torch.empty(300, device=device) for _ in range(4)]
    whole = torch.empty(301, dtype=torch.int64, device=device)
    drawn, few = (torch.empty(n, dtype=torch.int64, device=device) for n in (40, 5))
    below = torch.empty(8, device=device)
    return [
        lambda: floats[0].uniform_(-1, 2),
        lambda: floats[1].normal_(1, 3),
        lambda: floats[2].exponential_(),
        lambda: floats[3].geometric_(0.2),
        lambda: whole.random_(0, 1000),
        lambda: torch.multinomial(weights, 40, replacement=True, out=drawn),
        lambda: torch.multinomial(weights, 5, out=few),
        lambda: torch.bernoulli(weights / 9, out=below),
    ]


def test_seeds(remote):
    ops = draws(remote)

    def alone(seed):  # not part of a sequence
        torch.manual_seed(seed)
        return [op().cpu() for op in ops]

    def together(seed):
        torch.manual_seed(seed)
        made = [op() for op in ops]
        return [x.cpu() for x in made]

    expected = [alone(seed) for seed in range(STEPS)]
    seeds = iter([*range(STEPS), *reversed(range(STEPS))])

    def step():
        seed = next(seeds)
        for there, here in zip(together(seed), expected[seed], strict=True):
            assert torch.equal(there, here)

    calls = settled(step)
    assert calls["cuGraphLaunch"] >= 1, calls
    assert calls["cuMemcpyHtoDAsync"] >= 1, calls
    assert calls["cuGraphExecKernelNodeSetParams"] <= 2, calls


def test_learning_rates_and_decays(remote):
    def trained(device):
        torch.manual_seed(0)
        parameters = [torch.randn(5, n).to(device).requires_grad_() for n in (3, 40, 7, 300, 1)]
        optimizer = torch.optim.AdamW(parameters, lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=9)
        for _ in range(2 * STEPS):
            sum((p * p).sum() for p in parameters).backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            for p in parameters:
                p.detach().sum().item()
        return [p.detach().cpu() for p in parameters]

    for there, here in zip(trained(remote), trained("cpu"), strict=True):
        torch.testing.assert_close(there, here)


@pytest.mark.parametrize("bad", range(5))
def test_failures_of_kernels_in_graphs(remote, bad):
    table = torch.arange(120.0).view(30, 4)
    there = table.to(remote)
    ops = [
        lambda x, i: F.embedding(i, x),
        lambda x, i: torch.take(x, i),
        lambda x, i: x.index_select(0, i),
        lambda x, i: F.embedding_bag(i.view(2, -1), x, mode="sum"),
        lambda x, i: F.nll_loss(x[:8].log_softmax(1), i[:8] % 4 + (i[:8] // 1000)),
    ]
    good = torch.arange(16)

    def made(x, wrong):
        indices = [(good + 100000 if wrong == k else good).to(x.device) for k in range(len(ops))]
        return [op(x, i) for op, i in zip(ops, indices, strict=True)]

    expected = made(table, None)
    for round in range(8):
        wrong = bad if round in (5, 6) else None
        results = made(there, wrong)
        if wrong is not None:
            with pytest.raises((IndexError, RuntimeError)):
                [x.cpu() for x in results]
            continue
        for x, y in zip(results, expected, strict=True):
            torch.testing.assert_close(x.cpu(), y)
