"""accelerate: Accelerator() selects the device, in all precisions; a user can choose the CPU."""

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator, load_checkpoint_and_dispatch
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DynamoBackend, get_max_memory, infer_auto_device_map
from torch.utils.data import DataLoader, TensorDataset


@pytest.fixture(autouse=True)
def fresh_state():
    """Accelerator's state is global to the process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def train(classifier, examples, accelerator):
    """The losses of some steps, with accumulation and clipping."""
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    data = DataLoader(TensorDataset(*examples), 16)
    model, optimizer, data, scheduler = accelerator.prepare(model, optimizer, data, scheduler)
    losses = []
    for x, y in data:
        assert x.device == accelerator.device
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).mean().item())
    return model, losses


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_it_takes_the_device_and_trains_as_on_cpu(remote, classifier, examples, precision):
    accelerator = Accelerator(mixed_precision=precision, gradient_accumulation_steps=2)
    assert accelerator.device == torch.device("remote", 0)
    assert (accelerator.scaler is not None and accelerator.scaler.is_enabled()) == (precision == "fp16")
    model, losses = train(classifier, examples, accelerator)
    assert {p.device for p in model.parameters()} == {torch.device("remote", 0)}
    with accelerator.autocast():
        dtype = model(examples[0].to(remote)).dtype
    assert dtype == torch.float32 or precision == "no"  # accelerate converts results back
    AcceleratorState._reset_state(reset_partial_state=True)
    _, expected = train(classifier, examples, Accelerator(cpu=True, gradient_accumulation_steps=2))
    assert losses == pytest.approx(expected, rel=1e-5 if precision == "no" else 2e-2)
    assert (losses != expected) or precision == "no"  # shows that the lower precision was used


FINDER = """
import torch, torch_remote
from accelerate.utils import find_executable_batch_size

total = torch.remote.get_device_properties().total_memory
torch.remote.set_per_process_memory_fraction((300 << 20) / total)
tried = []

@find_executable_batch_size(starting_batch_size=128)
def train(batch_size):
    tried.append(batch_size)
    rows = torch.ones(batch_size, 1 << 20, device="remote")  # 4 MiB each
    return rows.sum().item()

assert train() == tried[-1] * (1 << 20)
assert len(tried) > 1 and tried[-1] <= 75, tried
"""


def test_it_finds_a_batch_size_that_fits(script, remote):
    script(FINDER)


@pytest.mark.parametrize("how", ["argument", "ACCELERATE_USE_CPU", "ACCELERATE_TORCH_DEVICE"])
def test_the_cpu_for_who_asks(remote, monkeypatch, how):
    if how != "argument":
        monkeypatch.setenv(how, {"ACCELERATE_USE_CPU": "true", "ACCELERATE_TORCH_DEVICE": "cpu"}[how])
    accelerator = Accelerator(cpu=how == "argument")
    assert accelerator.device == torch.device("cpu")


def test_cuda_for_who_asks(remote, monkeypatch):
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cuda")
    assert PartialState().device == torch.device("cuda")


def test_state_is_saved_and_loaded(remote, equal, classifier, examples, tmp_path):
    accelerator = Accelerator()
    model, _ = train(classifier, examples, accelerator)
    saved = [p.detach().cpu() for p in model.parameters()]
    accelerator.save_state(tmp_path)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    accelerator.load_state(tmp_path)
    for got, expected in zip(model.parameters(), saved, strict=True):
        equal(got.detach(), expected)


def test_device_maps_count_the_device(remote, equal, classifier, examples, tmp_path):
    model = classifier()
    assert infer_auto_device_map(model) == {"": 0}
    memory = get_max_memory()
    assert list(memory) == [0, "cpu"] and memory[0] > 2**20
    assert get_max_memory({"cpu": "1KB", 0: "2KB"}) == {0: 2000, "cpu": 1000}
    with pytest.raises(ValueError, match="remote: max_memory has device 3, but there are only 1"):
        get_max_memory({3: "1KB"})
    torch.save(model.state_dict(), tmp_path / "weights.bin")
    expected = model(examples[0])
    there = load_checkpoint_and_dispatch(classifier(), str(tmp_path / "weights.bin"), device_map="auto")
    assert {p.device for p in there.parameters()} == {torch.device("remote", 0)}
    torch.testing.assert_close(there(examples[0].to(remote)).cpu(), expected)


def test_a_checkpoint_of_safetensors_is_dispatched(remote, classifier, examples, tmp_path):
    from safetensors.torch import save_file

    model = classifier()
    save_file(model.state_dict(), tmp_path / "model.safetensors", metadata={"format": "pt"})
    expected = model(examples[0])
    for device_map in ({"": "remote"}, {"0": "remote:0", "1": "cpu", "2": 0}):
        there = load_checkpoint_and_dispatch(classifier(), str(tmp_path / "model.safetensors"), device_map=device_map)
        torch.testing.assert_close(there(examples[0].to(remote)).cpu(), expected)
        assert there[0].weight.device.type == there[2].weight.device.type == "remote"


def test_dynamo_backend_by_name(remote):
    assert DynamoBackend("REMOTE").value == "REMOTE"
    assert DynamoBackend.REMOTE is DynamoBackend("REMOTE") and DynamoBackend.REMOTE in list(DynamoBackend)
    assert Accelerator(dynamo_backend="remote").state.dynamo_plugin.backend == DynamoBackend.REMOTE
