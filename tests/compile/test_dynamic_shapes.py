"""Ops with data-dependent result sizes are right, and take one round trip each."""

import pytest
import torch

X = torch.tensor([[0.0, 1.5, 0.0], [2.0, 0.0, 1.5]])
OPS = {
    "nonzero": lambda t: t.nonzero(),
    "nonzero_tuple": lambda t: t.nonzero(as_tuple=True)[1],
    "masked_select": lambda t: t.masked_select(t > 0),
    "mask_index": lambda t: t[t > 1],
    "row_mask": lambda t: t[t[:, 0] > 0],
    "unique": lambda t: t.unique(),
    "unique_inverse": lambda t: t.unique(return_inverse=True)[1],
    "unique_counts": lambda t: t.unique(return_counts=True)[1],
    "unique_dim": lambda t: t.unique(dim=0),
    "unique_consecutive": lambda t: t.flatten().unique_consecutive(),
    "bincount": lambda t: t.flatten().long().bincount(),
    "repeat_interleave": lambda t: t[0].repeat_interleave(torch.tensor([2, 0, 3], device=t.device)),
    "argwhere": lambda t: torch.argwhere(t),
    "where": lambda t: torch.where(t > 0)[0],
    "one_hot": lambda t: torch.nn.functional.one_hot(t.long()),
    "isin": lambda t: torch.isin(t, torch.tensor([1.5], device=t.device)),
    "histc": lambda t: torch.histc(t, 4, 0, 2),
    "combinations": lambda t: torch.combinations(t[0]),
    "equal": lambda t: torch.tensor(torch.equal(t, t.clone())),
    "allclose": lambda t: torch.tensor(torch.allclose(t, t + 1)),
}


@pytest.mark.parametrize("name", OPS)
def test_equals_cpu(device, equal, name):
    expected = OPS[name](X)
    got = OPS[name](X.to(device))
    torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=0)
    assert got.stride() == expected.stride()


def test_results_can_be_used_further(device, equal):
    t = X.to(device, copy=True)
    i = t.flatten().nonzero().squeeze(1)
    equal(t.flatten()[i] * 2, X.flatten()[X.flatten().nonzero().squeeze(1)] * 2)
    empty = (t * 0).nonzero()
    assert empty.shape == (0, 2)
    t[t > 1] = -1
    expected = X.clone()
    expected[expected > 1] = -1
    equal(t, expected)


def test_one_round_trip(counted, remote):
    t = X.to(remote)
    mask = t > 0
    t.masked_select(mask)
    with counted() as c:
        t.masked_select(mask)
    assert c["round_trips"] == 1
    with counted() as c:
        u = t * 2
        u.nonzero()
    assert c["round_trips"] == 1


def test_sizes_that_change_build_nothing(counted, remote):
    def step(n):
        t = torch.arange(12, device=remote)
        return (t[t < n] * 2).sum().item()

    assert [step(2), step(3)] == [2, 6]
    with counted() as c:
        assert [step(n) for n in (5, 9, 7)] == [20, 72, 42]
    assert c["programs_built"] == 0


def test_gradients_through_masks(device, equal):
    a = X.to(device, copy=True).requires_grad_()
    (a[a > 1] ** 2).sum().backward()
    b = X.clone().requires_grad_()
    (b[b > 1] ** 2).sum().backward()
    equal(a.grad, b.grad)
