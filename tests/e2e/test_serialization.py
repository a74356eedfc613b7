"""Saving, loading, copying and pickling."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn


def saved(value, **arguments):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, **arguments)


def test_save_and_load_come_back_to_the_device(remote, equal):
    t = torch.arange(12.0, device=remote).reshape(3, 4).t()
    back = saved(t)
    assert back.device == t.device
    equal(back, torch.arange(12.0).reshape(3, 4).t())


@pytest.mark.parametrize("target", ["cpu", torch.device("cpu"), {"remote:0": "cpu"}, lambda storage, tag: storage])
def test_map_location_to_cpu(remote, target):
    back = saved(torch.arange(4.0, device=remote), map_location=target)
    assert back.device.type == "cpu" and back.tolist() == [0, 1, 2, 3]


def test_map_location_to_the_device(device, equal):
    t = torch.arange(4.0)
    back = saved(t, map_location=device)
    assert back.device.type == device.type
    equal(back, t)


def test_shared_storages_stay_shared(device):
    base = torch.zeros(4, 4, device=device)
    loaded = saved({"base": base, "row": base[1], "again": base})
    loaded["row"].fill_(7)
    assert loaded["base"][1].tolist() == [7] * 4 and loaded["again"][1, 0].item() == 7
    assert loaded["row"].storage_offset() == 4


def test_state_dicts(device, equal):
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(4, 4)).to(device)
    net(torch.randn(1, 1, 6, 6, device=device))
    state = saved(net.state_dict(), map_location="cpu")
    other = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(4, 4))
    other.load_state_dict(state)
    assert all(v.device.type == "cpu" for v in other.state_dict().values())
    for name, value in net.state_dict().items():
        equal(value, other.state_dict()[name])
    # Directly from the device's state_dict into CPU modules, and back.
    other.load_state_dict(net.state_dict())
    net.load_state_dict(other.state_dict())
    net.load_state_dict(state, assign=True)
    assert next(net.parameters()).device.type == "cpu"


def test_whole_modules_and_optimizers(device, equal):
    net = nn.Linear(3, 2).to(device)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 3, device=device)).sum().backward()
    optimizer.step()
    again = saved(net, weights_only=False)
    equal(again.weight.detach(), net.weight.detach().cpu())
    assert again.weight.requires_grad and again.weight.device == net.weight.device
    state = saved(optimizer.state_dict())
    assert state["state"][0]["exp_avg"].device == net.weight.device


def test_deepcopy(device, equal):
    net = nn.Linear(3, 2).to(device)
    net.tied = net.weight
    other = copy.deepcopy(net)
    assert other.tied is other.weight and other.weight is not net.weight
    with torch.no_grad():
        net.weight.zero_()
    assert other.weight.abs().sum().item() > 0
    views = copy.deepcopy({"a": net.weight.data, "b": net.weight.data[0]})
    views["b"].fill_(3)
    assert views["a"][0].tolist() == [3, 3, 3]


def test_pickle(device, equal):
    t = torch.arange(6, device=device).reshape(2, 3)[:, 1:]
    back = pickle.loads(pickle.dumps(t))
    assert back.device == t.device
    equal(back, torch.arange(6).reshape(2, 3)[:, 1:])
    parameter = pickle.loads(pickle.dumps(nn.Parameter(t.float())))
    assert isinstance(parameter, nn.Parameter) and parameter.tolist() == [[1, 2], [4, 5]]


def test_storage_objects(device):
    t = torch.arange(4.0, device=device)
    storage = t.untyped_storage()
    assert storage.nbytes() == 16 and storage.device == t.device
    assert storage.cpu().tolist() == torch.arange(4.0).untyped_storage().tolist()
    assert storage.clone().nbytes() == 16
    fresh = torch.UntypedStorage(8, device=device)
    assert fresh.device == t.device and fresh.nbytes() == 8
    assert torch.tensor([], device=device).set_(storage).shape == (4,)


def test_files_can_be_exchanged_with_a_process_without_the_package(script, remote, tmp_path):
    file = tmp_path / "net.pt"
    torch.save({"w": torch.ones(3, device=remote)}, file)
    script(f"""
        import torch
        w = torch.load({str(file)!r}, map_location="cpu")["w"]
        assert w.tolist() == [1, 1, 1] and w.device.type == "cpu"
    """)


def test_module_moves(device):
    net = nn.Linear(3, 2)
    net.to(device)
    assert net.weight.device.type == device.type and isinstance(net.weight, nn.Parameter)
    net.half().cpu().float()
    assert net.weight.device.type == "cpu"
    net = nn.Linear(3, 2, device="meta").to_empty(device=device)
    assert net.weight.device.type == device.type
    lazy = nn.LazyLinear(2).to(device)
    assert lazy(torch.ones(1, 3, device=device)).shape == (1, 2)
