"""Compiled functions whose arguments have no contents, because a worker was lost or an op failed. Arguments that are
overwritten, or read only for their sizes, need none."""

from __future__ import annotations

import pytest
import torch
from torch import nn

SIZES = (4, 4)


def split(w):
    """Becomes two programs, because a CPU tensor between them needs the first one's result."""
    total = w.zero_().sum().cpu()
    return w.add_(total.to(w.device) + 1)


OVERWRITE = {
    "fill_": lambda w, x: w.fill_(1),
    "fill_ with a tensor": lambda w, x: w.fill_(x.sum()),
    "copy_": lambda w, x: w.copy_(x),
    "copy_ that broadcasts": lambda w, x: w.copy_(x[0]),
    "zero_, then add_": lambda w, x: w.zero_().add_(1),
    "slice": lambda w, x: w.__setitem__(slice(None), 1),
    "slice of a tensor": lambda w, x: w.__setitem__(slice(None), x),
    "flat": lambda w, x: w.view(-1).fill_(1),
    "transposed": lambda w, x: w.t().copy_(x),
    "out=": lambda w, x: torch.mm(x, x, out=w),
    "normal_": lambda w, x: w.normal_(),
    "bernoulli_": lambda w, x: w.bernoulli_(0.5),
    "_foreach_zero_": lambda w, x: torch._foreach_zero_([w]),
    "_foreach_copy_": lambda w, x: torch._foreach_copy_([w], [x]),
    "its initialisation": lambda w, x: nn.init.ones_(w),
    "in two programs": lambda w, x: split(w),
}

READ_FOR_SIZES = {
    "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like,
    "full_like": lambda w: torch.full_like(w, 3),
    "new_zeros": lambda w: w.new_zeros(3),
    "new_ones": lambda w: w.new_ones(3),
    "new_full": lambda w: w.new_full((3,), 2.5),
    "rand_like": torch.rand_like,
    "of a view": lambda w: torch.zeros_like(w[1:]),
    "its rows": lambda w: torch.full((), float(w.shape[0]), device=w.device),
}


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, backend="remote", fullgraph=True)


def called(function, w, *rest):
    """The function's result, with the same random numbers each time."""
    torch.manual_seed(5)
    with torch.no_grad():
        return function(w, *rest)


def poisoned(device, *sizes):
    """A tensor whose op fails on the worker; the failure has been reported."""
    count = torch.Size(sizes).numel()
    t = torch.arange(float(count), device=device)[torch.full((count,), count, device=device)].view(sizes)
    with pytest.raises(IndexError):
        t.cpu()
    torch.remote.synchronize()
    return t


GONE = pytest.mark.parametrize("gone", ["lost", "poisoned"])


@pytest.fixture
def without_contents(remote, lose):
    """Makes a tensor whose contents are lost."""

    def make(gone, *sizes):
        if gone == "poisoned":
            return poisoned(remote, *sizes)
        t = torch.ones(sizes, device=remote)
        lose()
        return t

    return make


@GONE
@pytest.mark.parametrize("name", OVERWRITE)
def test_what_is_overwritten_is_good_again(remote, without_contents, gone, name):
    function = compiled(OVERWRITE[name])
    good = torch.ones(SIZES, device=remote)
    called(function, good, torch.ones(SIZES, device=remote))
    expected = good.cpu()
    w = without_contents(gone, *SIZES)
    programs = torch.remote.stats()["programs_built"]
    called(function, w, torch.ones(SIZES, device=remote))
    assert torch.equal(w.cpu(), expected)
    called(function, w, torch.ones(SIZES, device=remote))  # the storage belongs to the tensor permanently
    assert torch.equal(w.cpu(), expected)
    if gone == "poisoned":
        assert torch.remote.stats()["programs_built"] - programs <= 1  # the program that makes x


@GONE
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", READ_FOR_SIZES)
def test_what_is_read_for_its_sizes_stays_without_contents(remote, without_contents, gone, name, dynamic):
    torch._dynamo.reset()
    function = torch.compile(READ_FOR_SIZES[name], backend="remote", fullgraph=True, dynamic=dynamic)
    expected = called(function, torch.ones(SIZES, device=remote)).cpu()
    w = without_contents(gone, *SIZES)
    assert torch.equal(called(function, w).cpu(), expected)
    with pytest.raises((RuntimeError, IndexError), match=r"lost with the worker|out of (range|bounds)"):
        w.cpu()


def test_other_strides_than_the_graph_was_made_for(remote, lose):
    function = compiled(lambda w: w.fill_(2))
    called(function, torch.ones(SIZES, device=remote))
    w = torch.ones(SIZES, device=remote).t()
    lose()
    assert called(function, w).cpu().eq(2).all() and w.cpu().eq(2).all()


def test_views_of_a_lost_argument_are_lost(remote, lose):
    function = compiled(lambda w: (w.t(), torch.zeros_like(w)))
    called(function, torch.ones(SIZES, device=remote))
    w = torch.ones(SIZES, device=remote)
    lose()
    view, zeros = called(function, w)
    assert zeros.cpu().eq(0).all()
    with pytest.raises(RuntimeError, match="lost with the worker"):
        view.cpu()
    w.fill_(3)
    assert view.cpu().eq(3).all()


READING = {
    "add_": lambda w: w.add_(1),
    "a part": lambda w: w[:2].fill_(1),
    "a sum, then zero_": lambda w: (w.sum(), w.zero_())[0],
    "a copy of itself": lambda w: w.copy_(w.flip(0)),
}


@pytest.mark.parametrize("name", READING)
def test_reading_raises_with_its_line(remote, lose, name):
    function = compiled(READING[name])
    called(function, torch.ones(SIZES, device=remote))
    w = torch.ones(SIZES, device=remote)
    lose()
    with pytest.raises(RuntimeError, match=r"lost with the worker .* read at .*test_compile_repair\.py:\d+"):
        called(function, w)
    with pytest.raises(RuntimeError, match="lost with the worker"):
        w.cpu()


def test_a_part_of_a_tensor_is_not_all_of_it(remote, lose):
    """A call that raises does not repair anything either."""
    function = compiled(lambda v, w: (v.fill_(1), w.fill_(1)))
    called(function, torch.ones(8, device=remote), torch.ones(2, 4, device=remote))
    whole, other = torch.ones(2, 8, device=remote), torch.ones(2, 4, device=remote)
    lose()
    with pytest.raises(RuntimeError, match=r"lost with the worker .* only a part of them is overwritten"):
        called(function, whole[1], other)
    for t in (whole, other):
        with pytest.raises(RuntimeError, match="lost with the worker"):
            t.cpu()


def test_other_arguments_keep_their_contents(remote, lose):
    function = compiled(lambda w, x: (w.copy_(x), x * 2)[1])
    called(function, torch.ones(SIZES, device=remote), torch.ones(SIZES, device=remote))
    w = torch.ones(SIZES, device=remote)
    lose()
    x = torch.full(SIZES, 5.0, device=remote)
    assert called(function, w, x).cpu().eq(10).all()
    assert w.cpu().eq(5).all() and x.cpu().eq(5).all()
    x.zero_()
    assert w.cpu().eq(5).all()


def test_a_compiled_model_is_mended_by_its_state(remote, lose):
    """A compiled reset of the gradients, and a training step."""
    model = nn.Linear(4, 4).to(remote)
    state = {name: t.cpu() for name, t in model.state_dict().items()}

    @compiled
    def reset(parameters):
        for p in parameters:
            p.zero_()

    model(torch.ones(2, 4, device=remote)).sum().backward()
    grads = [p.grad for p in model.parameters()]
    called(reset, grads)
    expected = [g.cpu() for g in grads]
    lose()
    model.load_state_dict(state)
    called(reset, grads)
    assert [g.cpu().tolist() for g in grads] == [g.tolist() for g in expected]
