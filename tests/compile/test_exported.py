"""torch.remote.load_exported."""

import pytest
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x, *, scale=2.0):
        self.calls += 1
        y = torch.relu(self.norm(self.inner(x))) * scale
        z, _ = self.attention(y[None], y[None], y[None], need_weights=False)
        return {"y": y, "rows": y.shape[0], "z": z}


@pytest.fixture(scope="module")
def exported():
    torch.manual_seed(0)
    net = Net().eval()
    rows = torch.export.Dim("rows", min=2, max=100)
    return net, torch.export.export(net, (torch.randn(5, 8),), dynamic_shapes=({0: rows},))


def test_all_sizes_with_one_program(exported, remote):
    net, program = exported
    loaded = torch.remote.load_exported(program)
    for _ in range(2):  # reading the results builds separate programs
        results = loaded(torch.randn(5, 8, device=remote))
        results["y"].cpu(), results["z"].cpu()
    with torch.remote.expect_no_compile():
        for rows in (2, 7, 64, 100):
            x = torch.randn(rows, 8)
            mine, its = loaded(x.to(remote)), net(x)
            assert mine["rows"] == rows
            for name in "yz":
                torch.testing.assert_close(mine[name].cpu(), its[name], rtol=1e-4, atol=1e-5)
    assert loaded.calls.item() == 6  # buffers change as in the exported program
    assert set(loaded.state_dict()) == set(net.state_dict())
    assert all(tensor.device.type == "cpu" for tensor in program.state_dict.values())


def test_from_a_file(exported, remote, tmp_path):
    net, program = exported
    torch.export.save(program, tmp_path / "net.pt2")
    loaded = torch.remote.load_exported(tmp_path / "net.pt2", "remote:0")
    x = torch.randn(6, 8)
    torch.testing.assert_close(loaded(x.to(remote))["y"].cpu(), net(x)["y"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (lambda: (torch.randn(101, 8, device="remote"),), RuntimeError, "to be <= 100, but got 101"),
        (lambda: (torch.randn(5, 7, device="remote"),), RuntimeError, "to be equal to 8, but got 7"),
        (lambda: (torch.randn(5, 8),), RuntimeError, "must be on remote:0, got one on cpu"),
        (lambda: (), ValueError, "was exported for 1 positional arguments and keywords none"),
    ],
)
def test_wrong_calls(exported, remote, arguments, error, message):
    loaded = torch.remote.load_exported(exported[1])
    with pytest.raises(error, match=message):
        loaded(*arguments())


def test_an_example_that_was_expanded(remote):
    """A call may pass a tensor with other strides, as torch.export checks only sizes."""

    class Add(nn.Module):
        def forward(self, x, y):
            return torch.relu(x) + y.t()

    program = torch.export.export(Add(), (torch.randn(3, 4), torch.randn(4, 1).expand(4, 3)))
    loaded = torch.remote.load_exported(program)
    for y in (torch.randn(4, 3), torch.randn(4, 1).expand(4, 3)):
        x = torch.randn(3, 4)
        torch.testing.assert_close(loaded(x.to(remote), y.to(remote)).cpu(), Add()(x, y))


def test_weights_that_were_replaced_are_used(exported, remote):
    _, program = exported
    loaded = torch.remote.load_exported(program)
    weights = {name: tensor.to(remote) for name, tensor in loaded.state_dict().items()}
    weights["inner.weight"] = torch.zeros(8, 8, device=remote)
    calls = weights["calls"].item()
    loaded.load_state_dict(weights, assign=True)
    changed = Net().eval()
    changed.load_state_dict({name: tensor.cpu() for name, tensor in weights.items()})
    x = torch.randn(6, 8)
    torch.testing.assert_close(loaded(x.to(remote))["y"].cpu(), changed(x)["y"], rtol=1e-4, atol=1e-5)
    assert loaded.calls is weights["calls"] and loaded.calls.item() == calls + 1


def test_a_parameter_that_changes(remote):
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.count = nn.Parameter(torch.zeros(3))

        def forward(self, x):
            with torch.no_grad():
                self.count.add_(1)
            return x * self.count

    loaded = torch.remote.load_exported(torch.export.export(Counter(), (torch.ones(3),)))
    x = torch.full((3,), 2.0, device=remote)
    assert [loaded(x).tolist() for _ in range(2)] == [[2.0] * 3, [4.0] * 3]
    assert loaded.count.tolist() == [2.0] * 3


def test_names_of_the_exported_module_are_free(remote):
    class Names(nn.Module):
        def __init__(self):
            super().__init__()
            self._state = nn.Parameter(torch.full((3,), 2.0))
            self.register_buffer("_signature", torch.full((3,), 5.0))
            self._compiled = nn.Linear(3, 3)

        def forward(self, x):
            return self._compiled(x * self._state) + self._signature

    net = Names()
    x = torch.randn(4, 3)
    loaded = torch.remote.load_exported(torch.export.export(net, (x,)))
    torch.testing.assert_close(loaded(x.to(remote)).cpu(), net(x).detach(), rtol=1e-4, atol=1e-5)
    assert set(loaded.state_dict()) == set(net.state_dict())


def test_only_onto_the_device(exported):
    with pytest.raises(ValueError, match="expected a remote device, got cpu"):
        torch.remote.load_exported(exported[1], "cpu")
