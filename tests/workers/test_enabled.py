"""torch.remote.set_enabled(False) and TORCH_REMOTE_ENABLED=0: the same script runs on CPU, without a worker."""

import pytest

NO_WORKER = """
from pathlib import Path
import torch_remote
assert not torch_remote._C.is_connected(0)
assert not (Path("/proc/self/task") / str(__import__("os").getpid()) / "children").read_text()
"""

USES = """
import threading
from concurrent.futures import ThreadPoolExecutor
import torch, torch_remote
torch.remote.set_enabled(False)
assert not torch.remote.is_enabled()
device = torch.device("remote")
cpu = torch.device("cpu")

def on_cpu(tensor):
    assert tensor.device == cpu, tensor.device
    return tensor

# where tensors are made, and moved
on_cpu(torch.randn(3, device="remote"))
on_cpu(torch.zeros(2, 2, device=device))
on_cpu(torch.tensor([1.0], device="remote:0"))
on_cpu(torch.empty(3, device=torch.device("remote", 0)))
x = on_cpu(torch.randn(4, 3).to("remote"))
on_cpu(x.to(device, torch.float64))
on_cpu(x.to(device=device, dtype=torch.float16, non_blocking=True))
on_cpu(x.remote())
on_cpu(x.new_zeros(3, device="remote"))
on_cpu(torch.zeros_like(x, device="remote"))
on_cpu(torch.as_tensor([1, 2], device=device))
on_cpu(torch.arange(9.0).to(device)[2:5])
on_cpu(torch.ops.aten.zeros([2], device=device))
with torch.device("remote"):
    on_cpu(torch.ones(3))
torch.set_default_device("remote")
on_cpu(torch.ones(2))
torch.set_default_device(None)

# modules, optimizers, autocast, scaling
model = torch.nn.Linear(3, 3, device="remote").to("remote").remote()
on_cpu(model.weight)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scaler = torch.amp.GradScaler("remote")
with torch.autocast("remote", dtype=torch.bfloat16):
    assert model(x).dtype == torch.bfloat16
with torch.autocast(device_type="remote", dtype=torch.bfloat16):
    assert model(x).dtype == torch.bfloat16
with torch.remote.amp.autocast(dtype=torch.bfloat16):
    loss = model(x).sum()
before = model.weight.detach().clone()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
assert not torch.equal(model.weight, before)
compiled = torch.compile(lambda v: (model(v) * 2 + torch.ones(3, device="remote")).relu(), backend="remote")
torch.testing.assert_close(compiled(x), (model(x) * 2 + 1).relu())

# random numbers, saved tensors, threads
generator = torch.Generator("remote")
generator.manual_seed(3)
a = on_cpu(torch.rand(3, generator=generator, device="remote"))
b = torch.rand(3, generator=generator, device="remote")
assert not torch.equal(a, b) and torch.equal(a, torch.rand(3, generator=torch.Generator().manual_seed(3)))
generator.manual_seed(3)
assert torch.equal(a, torch.rand(3, generator=generator, device="remote"))
torch.save({"w": x}, "saved.pt")
on_cpu(torch.load("saved.pt", map_location="remote")["w"])
on_cpu(torch.load("saved.pt", map_location=device)["w"])
seen = []
thread = threading.Thread(target=lambda: seen.append(torch.ones(1, device="remote")))
thread.start()
thread.join()
on_cpu(seen[0])
with ThreadPoolExecutor() as pool:
    on_cpu(pool.submit(lambda: torch.ones(1, device=device)).result())
from safetensors.torch import save_file
save_file({"a": torch.ones(2)}, "w.safetensors")
on_cpu(torch.remote.load_file("w.safetensors")["a"])

# torch.remote
torch.remote.synchronize()
torch.remote.synchronize(x.device)
torch.remote.manual_seed(3)
torch.remote.empty_cache()
torch.remote.reset_peak_memory_stats()
assert torch.remote.memory_allocated() == 0 and torch.remote.is_available() and torch.remote.device_count() == 1
assert torch.remote.get_device_properties().total_memory > 0 and torch.remote.get_device_name() == "CPU"
assert 0 < torch.remote.mem_get_info()[0] <= torch.remote.mem_get_info()[1]
assert "Allocated" in torch.remote.memory_summary()
begin, end = (torch.remote.Event(enable_timing=True) for _ in range(2))
begin.record()
on_cpu(x @ x.T)
end.record()
end.synchronize()
assert begin.elapsed_time(end) > 0 and end.query() and isinstance(end, torch.remote.Event)
with torch.remote.stream(torch.remote.Stream()), torch.remote.device(0):
    on_cpu(torch.ones(1, device="remote"))
"""


def test_what_a_script_uses(script, remote, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script(USES + NO_WORKER)


TRAINS = """
import torch, torch_remote
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(5)
device = torch.device("remote" if torch.remote.is_available() else "cpu")
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters())
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
for x, y in DataLoader(data, 16, num_workers=WORKERS, pin_memory=True):
    loss = torch.nn.functional.mse_loss(model(x.to(device, non_blocking=True)), y.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item(), model[0].weight.device.type)
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_the_same_script(script, remote, workers):
    source = TRAINS.replace("WORKERS", str(workers))
    there, kind = script(source).stdout.split()
    here, type_here = script(source, TORCH_REMOTE_ENABLED="0").stdout.split()
    plain = script(source.replace('"remote" if torch.remote.is_available() else ', ""), TORCH_REMOTE_ENABLED="0")
    assert (kind, type_here) == ("remote", "cpu")
    assert here == plain.stdout.split()[0]
    assert float(here) == pytest.approx(float(there), rel=1e-4)


def test_processes_that_are_started_later(script, remote):
    script(
        """
        import subprocess, sys, torch, torch_remote
        torch.remote.set_enabled(False)
        source = "import torch, torch_remote; assert torch.ones(1, device='remote').device.type == 'cpu'"
        subprocess.run([sys.executable, "-c", source], check=True)
        """
    )


def test_it_can_be_enabled_again(script, remote):
    script(
        """
        import torch, torch_remote
        from torch.overrides import _get_current_function_mode_stack
        set_enabled = torch.remote.set_enabled
        set_enabled(True)
        for _ in range(2):
            set_enabled(False)
            set_enabled(False)
            assert torch.ones(1, device="remote").device.type == "cpu"
            set_enabled(True)
            assert _get_current_function_mode_stack() == []
        assert torch.remote.is_enabled() and torch.ones(1, device="remote").device.type == "remote"
        with torch.autocast("remote", dtype=torch.bfloat16):
            assert (torch.ones(2, 2, device="remote") @ torch.ones(2, 2, device="remote")).dtype == torch.bfloat16
        torch.save(torch.ones(1), "/dev/null")
        assert torch.ones(1, device="remote").sum().item() == 1
        import pytest
        with pytest.raises(RuntimeError, match="comes too late: the device was used already.*TORCH_REMOTE_ENABLED=0"):
            set_enabled(False)
        assert torch.remote.is_enabled() and torch.ones(1, device="remote").device.type == "remote"
        """
    )


def test_a_setting_that_is_none(script, remote):
    script(
        """
        import pytest, torch, torch_remote
        with pytest.raises(RuntimeError, match="TORCH_REMOTE_ENABLED='no' is not a setting"):
            torch.ones(1, device="remote").item()
        """,
        TORCH_REMOTE_ENABLED="no",
    )
