"""Effects of a failure: dependent in-place updates are skipped, and any op that overwrites a tensor repairs it."""

from __future__ import annotations

import contextlib
import random
import re

import pytest
import torch
import torch.nn.functional as F
from commit import commit_number
from torch import nn

OUT_OF_RANGE = "index.* out of (range|bounds)"


def failing(device, size=4):
    """A tensor of `size` elements whose op fails on the worker."""
    return torch.arange(float(size), device=device)[torch.full((size,), size, device=device)]


def expect_failure(read, match=OUT_OF_RANGE):
    with pytest.raises((IndexError, RuntimeError), match=match) as error:  # scatter raises a RuntimeError, on CPU too
        read()
    return str(error.value)


# -- overwriting ------------------------------------------------------------------------------------------------------

OVERWRITE = {
    "zero_": lambda t: t.zero_(),
    "fill_": lambda t: t.fill_(3),
    "fill_ with a tensor": lambda t: t.fill_(torch.tensor(3.0, device=t.device)),
    "normal_": lambda t: t.normal_(),
    "uniform_": lambda t: t.uniform_(),
    "random_": lambda t: t.random_(5),
    "bernoulli_": lambda t: t.bernoulli_(0.5),
    "exponential_": lambda t: t.exponential_(),
    "slice": lambda t: t.__setitem__(slice(None), 1),
    "slice of a tensor": lambda t: t.__setitem__(slice(None), torch.ones(4, 4, device=t.device)),
    "ellipsis": lambda t: t.__setitem__(..., 1),
    "copy_ from the device": lambda t: t.copy_(torch.ones(4, 4, device=t.device)),
    "copy_ that broadcasts": lambda t: t.copy_(torch.ones(4, device=t.device)),
    "copy_ that converts": lambda t: t.copy_(torch.ones(4, 4, dtype=torch.int64, device=t.device)),
    "copy_ from the CPU": lambda t: t.copy_(torch.ones(4, 4)),
    "copy_ of a number of the CPU": lambda t: t.copy_(torch.tensor(2.0)),
    "transposed": lambda t: t.t().copy_(torch.ones(4, 4, device=t.device)),
    "flat": lambda t: t.view(-1).zero_(),
    "xavier_uniform_": nn.init.xavier_uniform_,
    "kaiming_normal_": nn.init.kaiming_normal_,
    "orthogonal_": nn.init.orthogonal_,
    "trunc_normal_": nn.init.trunc_normal_,
    "eye_": nn.init.eye_,
    "constant_": lambda t: nn.init.constant_(t, 0.5),
    "out=": lambda t: torch.mm(torch.ones(4, 2, device=t.device), torch.ones(2, 4, device=t.device), out=t),
    "out= pointwise": lambda t: torch.add(torch.ones(4, 4, device=t.device), 1, out=t),
    "_foreach_zero_": lambda t: torch._foreach_zero_([torch.ones(2, device=t.device), t]),
    "_foreach_copy_": lambda t: torch._foreach_copy_([t], [torch.ones(4, 4, device=t.device)]),
}


def overwritten(name, t):
    torch.manual_seed(3)
    with torch.no_grad():
        OVERWRITE[name](t)
    return t


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("name", OVERWRITE)
def test_whatever_overwrites_all_of_a_poisoned_tensor_repairs_it(remote, name, cut):
    good = overwritten(name, torch.ones(4, 4, device=remote)).cpu()
    poisoned = failing(remote, 16).view(4, 4)
    if cut:
        expect_failure(poisoned.cpu)
    assert torch.equal(overwritten(name, poisoned).cpu(), good)
    assert (poisoned + 1).isfinite().all().item()
    if cut:
        torch.remote.synchronize()
        return
    # The op's result is unobservable: it may be skipped, and then does not fail.
    with contextlib.suppress(IndexError):
        torch.remote.synchronize()
    torch.remote.synchronize()


def test_channels_last_weights(remote):
    """Dense, but not contiguous."""
    conv = nn.Conv2d(3, 4, 3).to(remote, memory_format=torch.channels_last)
    with torch.no_grad():
        conv.weight.data = (
            failing(remote, conv.weight.numel()).view(4, 3, 3, 3).contiguous(memory_format=torch.channels_last)
        )
        expect_failure(conv.weight.cpu)
        nn.init.ones_(conv.weight)
    assert conv.weight.sum().item() == 108


def test_writing_a_part_repairs_nothing(remote):
    t = failing(remote, 4)
    t[:2] = 1
    t[2:] = 1
    expect_failure(t.cpu)
    t.add_(1)
    t.copy_(t.flip(0))  # reads the tensor
    expect_failure(t.cpu)
    t.zero_()
    assert t.tolist() == [0] * 4


def test_whatever_overwrites_all_of_a_lost_tensor_repairs_it(remote, lose):
    good = {name: overwritten(name, torch.ones(4, 4, device=remote)).cpu() for name in OVERWRITE}
    lost = {name: torch.ones(4, 4, device=remote) for name in OVERWRITE}
    part, other = torch.ones(4, device=remote), torch.ones(4, device=remote)
    lose()
    for name, t in lost.items():
        with pytest.raises(RuntimeError, match="lost with the worker"):
            t.cpu()
        assert torch.equal(overwritten(name, t).cpu(), good[name]), name
    for wrong in (
        lambda: part[:2].zero_(),
        lambda: part.add_(1),
        lambda: part.copy_(other),
        lambda: part.copy_(part.flip(0)),
        lambda: part.cpu(),
    ):
        with pytest.raises(RuntimeError, match="lost with the worker"):
            wrong()


def test_restart_and_load_a_checkpoint(remote, lose, tmp_path):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3)).to(remote)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    x = torch.randn(5, 1, 4, 4)

    def step():
        optimizer.zero_grad()
        loss = model(x.to(remote)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "ck.pt")
    expected = [step() for _ in range(3)]
    lose()
    checkpoint = torch.load(tmp_path / "ck.pt")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    # The last bits depend on when kernels replace ops that run one by one.
    assert [step() for _ in range(3)] == pytest.approx(expected, rel=1e-4)


# -- the results of a failed op ----------------------------------------------------------------------------------------


def test_the_example_of_a_weight(remote):
    w = torch.ones(2, 2, device=remote)
    e = nn.Embedding(3, 2).to(remote)
    with torch.no_grad():
        w.add_(e(torch.tensor([9, 1], device=remote)))
    message = expect_failure(w.sum().item)
    assert "1 in-place update that depends on it was skipped; its tensor keeps its old contents" in message
    assert w.sum().item() == 4
    torch.remote.synchronize()
    w.zero_()
    assert w.sum().item() == 0


def test_reading_what_lacks_an_update_tells_once(remote):
    w = torch.ones(4, device=remote)
    bad = failing(remote)
    w.add_(bad)
    doubled = w * 2
    good = torch.ones(4, device=remote) * 3
    assert good.tolist() == [3] * 4
    expect_failure(w.tolist)
    assert w.tolist() == [1] * 4 and (w * 2).tolist() == [2] * 4
    torch.remote.synchronize()
    expect_failure(doubled.tolist)  # its operand lacked the update
    expect_failure(bad.tolist)


def test_told_elsewhere_reading_just_works(remote):
    w = torch.ones(4, device=remote)
    bad = failing(remote)
    expect_failure(bad.tolist)
    w.add_(bad)
    assert w.tolist() == [1] * 4


IN_PLACE = {
    "index_put_": lambda t, bad: t.index_put_((bad,), torch.full((4,), 7.0, device=t.device)),
    "setitem": lambda t, bad: t.__setitem__(bad, 7.0),
    "index_add_": lambda t, bad: t.index_add_(0, bad, torch.full((4,), 7.0, device=t.device)),
    "index_copy_": lambda t, bad: t.index_copy_(0, bad, torch.full((4,), 7.0, device=t.device)),
    "index_fill_": lambda t, bad: t.index_fill_(0, bad, 7.0),
    "scatter_": lambda t, bad: t.scatter_(0, bad, 7.0),
    "scatter_add_": lambda t, bad: t.scatter_add_(0, bad, torch.full((4,), 7.0, device=t.device)),
    "put_": lambda t, bad: t.put_(bad, torch.full((4,), 7.0, device=t.device)),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_an_op_in_place_that_fails_in_the_middle_writes_nothing(remote, name):
    t = torch.arange(5.0, device=remote)
    IN_PLACE[name](t, torch.tensor([0, 1, 9, 2], device=remote))
    expect_failure(t.tolist, "out of (range|bounds)")
    assert t.tolist() == [0, 1, 2, 3, 4]
    IN_PLACE[name](
        t, torch.tensor([0, 1, -1 if name in ("index_put_", "setitem", "index_fill_", "put_") else 4, 2], device=remote)
    )
    assert t.tolist() != [0, 1, 2, 3, 4]


def test_an_integer_division_by_zero_writes_nothing(remote):
    t = torch.arange(10, 14, device=remote)
    t.floor_divide_(torch.tensor([1, 2, 0, 1], device=remote))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        t.tolist()
    assert t.tolist() == [10, 11, 12, 13]


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.norm = nn.BatchNorm1d(8)
        self.out = nn.Linear(8, 4)

    def forward(self, x):
        return self.out(self.norm(self.embedding(x)))


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, foreach=False),
    "sgd, foreach": lambda p: torch.optim.SGD(p, lr=0.1, foreach=True),
    "sgd, momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, foreach=False),
    "sgd, momentum, foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, foreach=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, foreach=False),
    "adam, foreach": lambda p: torch.optim.Adam(p, lr=0.1, foreach=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=False),
    "adamw, foreach": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
    "adamw, fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_bad_batch_that_is_caught_costs_nothing(remote, name, compiled):
    """Weights and the optimizer's buffers have the same bits as before the batch. With SGD, the run equals a CPU run
    without the batch.

    Adam's `step` is not compared, because it counts that batch, too. It does not depend on the data, so it is counted
    on the client, or on the device before the update is skipped.
    """

    def train(device, batches):
        torch.manual_seed(0)
        model = Classifier().to(device)
        steps = OPTIMIZERS[name](model.parameters())
        forward, step = model, steps.step
        if compiled and device.type == "remote":
            forward, step = (torch.compile(f, backend="remote") for f in (model, step))

        def state():
            tensors = {f"weight of {n}": p for n, p in model.named_parameters()}
            for number, buffers in steps.state_dict()["state"].items():
                tensors |= {f"{n} of {number}": t for n, t in buffers.items() if n != "step" and t is not None}
            return {n: t.detach().cpu().clone() for n, t in tensors.items()}

        losses = []
        for inputs, targets in batches:
            before = state() if inputs.max() > 9 or targets.max() > 3 else None
            steps.zero_grad()
            try:
                loss = F.cross_entropy(forward(inputs.to(device)), targets.to(device))
                loss.backward()
                step()
                losses.append(loss.item())
            except IndexError as error:
                assert "in-place updates that depend on it were skipped" in str(error)
                after = state()
                assert before.keys() == after.keys()
                assert [n for n in before if not torch.equal(before[n], after[n])] == []
            else:
                assert before is None
        return losses, state()

    torch.manual_seed(1)
    good = [(torch.randint(10, (6,)), torch.randint(4, (6,))) for _ in range(4)]
    bad_input, bad_target = good[0][0].clone(), good[0][1].clone()
    bad_input[3] = 10
    bad_target[2] = 4
    batches = [*good[:2], (bad_input, good[0][1]), good[2], (good[0][0], bad_target), good[3]]
    losses, state = train(remote, batches)
    torch.remote.synchronize()
    if name.startswith("sgd"):
        expected_losses, expected_state = train(torch.device("cpu"), good)
        torch.testing.assert_close(losses, expected_losses, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(state, expected_state, rtol=1e-3, atol=1e-4)


def test_running_statistics(remote):
    norm = nn.BatchNorm1d(4).to(remote)
    norm(failing(remote, 8).view(2, 4))
    expect_failure(lambda: norm.running_mean.tolist())
    assert norm.running_mean.tolist() == [0] * 4 and norm.running_var.tolist() == [1] * 4
    norm(torch.ones(2, 4, device=remote))
    assert norm.running_mean.tolist() == pytest.approx([0.1] * 4)


def test_a_compiled_function(remote):
    @torch.compile(backend="remote")
    def step(w, table, index):
        t = w * 2
        t.add_(table[index])
        w.copy_(t)
        return t.sum(), table.sum()

    w, table = torch.ones(4, device=remote), torch.arange(3.0, device=remote)
    good, bad = torch.tensor([0, 1, 2, 0], device=remote), torch.tensor([0, 1, 3, 0], device=remote)
    step(w, table, good)
    before = w.tolist()
    total, other = step(w, table, bad)
    assert other.item() == 3
    expect_failure(total.item)
    assert w.tolist() == before
    step(w, table, good)
    assert w.tolist() == [2 * v + t for v, t in zip(before, [0, 1, 2, 0], strict=True)]
    poisoned = failing(remote, 3)
    total, _ = step(w, poisoned, good)
    expect_failure(total.item)
    poisoned.copy_(table)
    step(w, poisoned, good)[0].item()


# -- compared with a model ---------------------------------------------------------------------------------------------


class Model:
    """The rules, op by op. A value is a list of numbers, or the number of the failure that poisons it."""

    def __init__(self):
        self.values, self.behind, self.after, self.kept = {}, {}, {}, {}
        self.failed, self.checks, self.told = [], [], set()

    def create(self, name, value, check=None):
        self.values[name], self.behind[name], self.after[name], self.kept[name] = value, None, check, []

    def pending(self):
        return next((c for c in self.checks if c not in self.told), None)

    def earlier(self, *failures):
        return min((f for f in failures if f is not None and f not in self.told), default=None)

    def blocking(self, *names):
        reasons = (v if isinstance(v := self.values[n], int) else self.earlier(self.behind[n]) for n in names)
        return min((r for r in reasons if r is not None), default=None)

    def fails(self, reason, failure):
        """The failure because of which an op is skipped: an operand's, or its own, which is then recorded."""
        if reason is None and failure is not None:
            self.failed.append(failure)
            return failure
        return reason

    def set(self, name, value, check):
        """After a failure, the first replaced value is kept."""
        last = max((f for f in self.failed if f not in self.told), default=None)
        kept = self.kept[name]
        if last is not None and (not kept or kept[-1][0] < last):
            kept.append((last, self.values[name], self.behind[name]))
        self.values[name], self.behind[name], self.after[name] = value, None, check

    def skip(self, name, reason):
        if isinstance(self.values[name], int):
            return
        kept = self.kept[name]
        first = next((i for i, (failure, _, _) in enumerate(kept) if failure >= reason), None)
        if first is not None and reason not in self.told:
            _, value, behind = kept[first]
            if not isinstance(value, int):
                self.values[name], self.behind[name] = value, self.earlier(self.behind[name], behind)
            del kept[first:]
        self.behind[name] = self.earlier(self.behind[name], reason)

    def make(self, name, operands, compute, failure=None):
        reason = self.fails(self.blocking(*operands), failure)
        if reason is not None:
            self.create(name, reason)
            return
        check = self.earlier(self.pending(), *(self.after[n] for n in operands))
        self.create(name, compute(*(self.values[n] for n in operands)), check)

    def write(self, name, operands, compute, part=slice(None), reads=True, failure=None):
        whole = part == slice(None)
        reason = self.fails(self.blocking(*operands, *([name] if reads or not whole else [])), failure)
        if reason is not None:
            self.skip(name, reason)
            return
        old = self.values[name]
        check = self.earlier(self.pending(), *(self.after[n] for n in operands))
        if reads or not whole:
            check = self.earlier(check, self.after[name])
        new = [0.0] * 4 if isinstance(old, int) else list(old)
        new[part] = compute(new[part], *(self.values[n][part] for n in operands))
        self.set(name, new, check)

    def read(self, name):
        """The outcome of a read: the values, or the failure that it raises."""
        value = self.values[name]
        failure = value if isinstance(value, int) else self.earlier(self.behind[name], self.after[name])
        if failure is None:
            self.kept[name] = []  # the value stays as it was read
            return value
        self.told.add(failure)
        return failure


def add(a, b):
    return [x + y for x, y in zip(a, b, strict=True)]


def random_program(device, seed):
    rng = random.Random(seed)
    model, tensors, failures = Model(), {}, []
    step = iter(range(1000, 100000))

    def new(tensor):
        name = len(tensors)
        tensors[name] = tensor
        return name

    def fail():
        failures.append(next(step))
        return failures[-1]

    for _ in range(3):
        values = [float(rng.randrange(5)) for _ in range(4)]
        name = new(torch.tensor(values, device=device))
        model.create(name, values)

    def made():
        a, b = rng.choice(list(tensors)), rng.choice(list(tensors))
        model.make(new(tensors[a] + tensors[b]), [a, b], add)

    def made_by_steps():
        """A temporary that is updated in place, and freed before the program is built."""
        a, b, c = (rng.choice(list(tensors)) for _ in range(3))
        t = tensors[a] + tensors[b]
        model.make("t", [a, b], add)
        for _ in range(rng.randrange(3)):
            t.add_(tensors[c])
            model.write("t", [c], add)
            t.relu_()
            model.write("t", [], lambda t: [max(x, 0.0) for x in t])
        model.make(new(t * 1), ["t"], list)

    def poisoned():
        a, bad = rng.choice(list(tensors)), fail()
        model.make(new(tensors[a][torch.full((4,), bad, device=device)]), [a], list, bad)

    def updated():
        a, b = rng.choice(list(tensors)), rng.choice(list(tensors))
        part = rng.choice([slice(None), slice(0, 2), slice(1, 4)])
        tensors[a][part].add_(tensors[b][part])
        model.write(a, [b], add, part)

    def updated_in_lists():
        a, b, c = rng.choice(list(tensors)), rng.choice(list(tensors)), rng.choice(list(tensors))
        d = rng.choice([name for name in tensors if name != a])
        if d in (b, c) or a in (b, c):
            return
        torch._foreach_add_([tensors[a], tensors[d]], [tensors[b], tensors[c]])
        reason = model.blocking(a, b, c, d)
        check = model.earlier(model.pending(), *(model.after[n] for n in (a, b, c, d)))
        for target, source in ((a, b), (d, c)):
            if reason is None:
                model.set(target, add(model.values[target], model.values[source]), check)
            else:
                model.skip(target, reason)

    def updated_and_failed():
        a, bad = rng.choice(list(tensors)), fail()
        index = torch.tensor([0, 1, bad, 2], device=device)
        tensors[a].index_put_((index,), torch.ones(4, device=device), accumulate=True)
        model.write(a, [], list, failure=bad)

    def overwritten():
        a, b = rng.choice(list(tensors)), rng.choice(list(tensors))
        part = rng.choice([slice(None), slice(None), slice(0, 3)])
        if rng.random() < 0.5 or a == b:
            tensors[a][part] = 2.0
            model.write(a, [], lambda old: [2.0] * len(old), part, reads=False)
        else:
            tensors[a][part] = tensors[b][part]
            model.write(a, [b], lambda _, new: list(new), part, reads=False)

    def checked():
        a = rng.choice(list(tensors))
        condition = tensors[a].sum() < 0
        bad = next(step)
        torch._assert_async(condition, f"check {bad}")
        if model.blocking(a) is None:  # fails, because no element is negative
            failures.append(bad)
            model.checks.append(bad)

    def raised(read):
        try:
            read()
        except (IndexError, RuntimeError) as error:
            first = str(error).splitlines()[0]
            return next((f for f in failures if re.search(rf"\b{f}\b", first)), str(error))
        return None

    def read(name):
        expected = model.read(name)
        if isinstance(expected, int):
            return raised(tensors[name].tolist), expected
        return tensors[name].tolist(), expected

    steps = [made, made_by_steps, made_by_steps, poisoned, updated, updated, updated_in_lists, updated_and_failed,
             overwritten, overwritten, checked]  # fmt: skip
    for i in range(rng.randrange(5, 40)):
        rng.choice(steps)()
        if rng.random() < 0.15:
            torch.remote._C.flush(0)
        if rng.random() < 0.15:
            got, expected = read(rng.choice(list(tensors)))
            assert got == expected, f"seed {seed}, step {i}: {got}, expected {expected}"
    for name in tensors:
        for _ in range(3):  # it may lack several updates
            got, expected = read(name)
            assert got == expected, f"seed {seed}, tensor {name}: {got}, expected {expected}"
    raised(torch.remote.synchronize)
    torch.remote.synchronize()


@pytest.mark.parametrize("part", range(4))
def test_random_programs(remote, part):
    """Each commit runs different programs. A failure names its seed: random_program(device, seed) repeats it."""
    first = commit_number() * 400 + part * 100
    for seed in range(first, first + 100):
        random_program(remote, seed)


@pytest.mark.parametrize("seeds", [(4,), (48,), (264,), (6064, 7431)], ids=str)
def test_programs_that_were_wrong(remote, seeds):
    """In each pair, the first program taught the client which results are read after a program."""
    for seed in seeds:
        random_program(remote, seed)
