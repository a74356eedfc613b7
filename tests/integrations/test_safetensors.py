"""safetensors loads files to the device by its name, as for CUDA."""

import pytest
import safetensors
import torch
from safetensors.torch import load_file, load_model, save_file, save_model

NAMES = ["remote", "remote:0", torch.device("remote"), torch.device("remote", 0)]


@pytest.fixture
def tensors():
    torch.manual_seed(0)
    tensors = {"a": torch.randn(3, 4), "b": torch.arange(5), "c": torch.randn(5).to(torch.bfloat16)}
    return tensors | {"d": torch.tensor([True, False]), "e": torch.ones(0)}


@pytest.fixture
def file(tensors, tmp_path):
    save_file(tensors, tmp_path / "file.safetensors")
    return tmp_path / "file.safetensors"


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_load_file(remote, equal, file, tensors, name):
    loaded = load_file(file, device=name)
    assert loaded.keys() == tensors.keys()
    for key, tensor in loaded.items():
        assert tensor.device == torch.device("remote", 0)
        equal(tensor, tensors[key])


def test_safe_open(remote, equal, file, tensors):
    with safetensors.safe_open(file, framework="pt", device="remote") as f:
        assert isinstance(f, safetensors.safe_open)
        assert sorted(f.keys()) == sorted(tensors)
        equal(f.get_tensor("a"), tensors["a"])
        part = f.get_slice("a")[1:, :2]
        assert part.device.type == "remote"
        equal(part.contiguous(), tensors["a"][1:, :2].contiguous())


def test_load_model_and_save_from_the_device(remote, equal, classifier, tmp_path):
    expected = classifier()
    save_model(expected.to(remote), tmp_path / "model.safetensors")
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)).to(remote)
    assert load_model(model, tmp_path / "model.safetensors", device="remote") == (set(), [])
    for got, wanted in zip(model.parameters(), expected.cpu().parameters(), strict=True):
        assert got.device.type == "remote"
        equal(got.detach(), wanted.detach())


def test_other_devices_are_upstreams(remote, file):
    assert load_file(file)["a"].device.type == load_file(file, device="cpu")["a"].device.type == "cpu"
    with pytest.raises(safetensors.SafetensorError, match="nonsense is invalid"):
        load_file(file, device="nonsense")
    with pytest.raises(RuntimeError, match="remote:7"):
        load_file(file, device="remote:7")["a"].sum().item()
