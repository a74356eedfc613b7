"""Several devices, each with its own worker."""

import pytest

COPIES = """
import torch, torch_remote
assert torch.remote.device_count() == torch.accelerator.device_count() == 2
a = torch.arange(6.0, device="remote:0").view(2, 3)
b = a.t().to("remote:1")
assert b.device == torch.device("remote:1") and torch.equal(b.cpu(), a.cpu().t()) and b.stride() == (1, 3)
b[0] = torch.tensor([7, 8], device="remote:0")  # another dtype, into a view
assert b.cpu().tolist() == [[7, 8], [1, 4], [2, 5]]
assert (b + torch.tensor(1.0)).device.index == 1  # a number of the CPU

try:
    a @ b
except RuntimeError as error:
    assert "same device" in str(error) and "remote:1" in str(error) and ".to(" in str(error)
else:
    raise AssertionError
try:
    torch.ones(2, device="remote:2")
except RuntimeError as error:
    assert "no device remote:2; remote:0 to remote:1 exist" in str(error) and "TORCH_REMOTE_WORKER" in str(error)
else:
    raise AssertionError

with torch.remote.device(1):
    assert torch.ones(1, device="remote").device.index == torch.remote.current_device() == 1
assert torch.remote.current_device() == 0
workers = [torch.remote.get_device_properties(i).worker for i in range(2)]
assert workers[0] != workers[1], workers

torch.manual_seed(3)
x = [torch.rand(4, device=f"remote:{i}").cpu() for i in range(2)]
assert torch.equal(*x)  # both were seeded, and have their own numbers
assert len(torch.remote.get_rng_state_all()) == 2
"""

TRAIN = """
import copy, torch, torch_remote
from torch import nn

class Split(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        x = torch.relu(self.first(x))
        return self.second(x.to(self.second.weight.device)).log_softmax(-1)

torch.manual_seed(0)
here = Split()
split = copy.deepcopy(here)
split.first.to("remote:1")
split.second.to("remote:0")
run = torch.compile(split, backend="remote", dynamic=True) if COMPILED else split
optimizers = [torch.optim.AdamW(net.parameters(), 0.01) for net in (here, split)]
for step, count in enumerate([5, 3, 8, 4, 6, 7]):
    x = torch.randn(count, 8)
    torch.remote.reset_stats()
    losses = [-here(x)[:, 0].mean(), -run(x.to("remote:1"))[:, 0].mean()]
    for loss, optimizer in zip(losses, optimizers):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(losses[1].cpu(), losses[0])
    assert step < 3 or torch.remote.stats()["programs_built"] == 0
for mine, its in zip(split.parameters(), here.parameters()):
    torch.testing.assert_close(mine.detach().cpu(), its.detach(), rtol=1e-4, atol=1e-5)
"""

LOST = """
import os, signal, torch, torch_remote
a, b = (torch.ones(3, device=f"remote:{i}") * 2 for i in range(2))
assert a.sum().item() == b.sum().item() == 6
info = [torch_remote._C.worker_info(i) for i in range(2)]
os.kill(info[1]["process"], signal.SIGKILL)
try:
    (b + 1).cpu()
except torch.remote.WorkerLost as error:
    assert error.session == info[1]["session"] and "killed" in str(error), (error, error.session)
else:
    raise AssertionError
assert (a + 1).sum().item() == 9  # the other one lives on
torch.remote.restart(1)
assert torch.full((2,), 4.0, device="remote:1").sum().item() == 8
"""


STORAGES = """
import copy, io, pickle, torch, torch_remote
x = torch.arange(4.0, device="remote:1")

def check(tensor, index, values=(0, 1, 2, 3)):
    assert tensor.device == torch.device("remote", index), tensor.device
    assert tensor.untyped_storage().device == tensor.device
    assert tuple(tensor.tolist()) == values
    assert (tensor + torch.ones(4, device=tensor.device)).sum().item() == sum(values) + 4

assert torch.UntypedStorage(8, device="remote:1").device == torch.device("remote:1")
assert torch.UntypedStorage(8, device="remote").device == torch.device("remote:0")
with torch.remote.device(1):
    assert torch.UntypedStorage(8, device="remote").device == torch.device("remote:1")
    assert torch.UntypedStorage(8, device="remote:0").device == torch.device("remote:0")
assert torch.remote.current_device() == 0
check(torch.empty(0, device="remote:1").set_(x.untyped_storage().clone()), 1)
check(copy.deepcopy(x), 1)
check(pickle.loads(pickle.dumps(x)), 1)
check(torch.nn.Parameter(x).__deepcopy__({}).detach(), 1)

file = io.BytesIO()
torch.save({"x": x, "row": x.view(2, 2)[1], "y": torch.arange(4.0, device="remote:0")}, file)

def load(**arguments):
    file.seek(0)
    loaded = torch.load(file, **arguments)
    assert loaded["row"].untyped_storage().data_ptr() == loaded["x"].untyped_storage().data_ptr()
    return loaded

check(load()["x"], 1)
check(load()["y"], 0)
for where, index in (
    ("remote:1", 1), (torch.device("remote:1"), 1), ("remote:0", 0), ({"remote:1": "remote:0"}, 0),
    ({"remote:1": "remote:1"}, 1), (lambda storage, tag: storage.remote(int(tag[-1])), 1),
):
    check(load(map_location=where)["x"], index)
check(load(map_location={"remote:0": "remote:1"})["y"], 1)
with torch.remote.device(1):
    check(load(map_location="remote")["x"], 1)
    check(load(map_location="remote")["y"], 1)

net = torch.nn.Linear(2, 2).to("remote:1")
torch.save(net.state_dict(), "/dev/null")
saved = io.BytesIO()
torch.save(net, saved)
saved.seek(0)
assert torch.load(saved, weights_only=False).weight.device == torch.device("remote:1")
"""

FACTORIES = """
import torch, torch_remote
torch.remote.set_device(1)
for make in (
    lambda: torch.zeros(2, device="remote"), lambda: torch.empty(2, device="remote"),
    lambda: torch.full((2,), 1.0, device="remote"), lambda: torch.arange(3, device="remote"),
    lambda: torch.eye(3, device="remote"), lambda: torch.linspace(0, 1, 3, device="remote"),
    lambda: torch.logspace(0, 1, 3, device="remote"), lambda: torch.tril_indices(3, 3, device="remote"),
    lambda: torch.hann_window(4, device="remote"), lambda: torch.rand(2, device="remote"),
    lambda: torch.randint(3, (2,), device="remote"), lambda: torch.randperm(4, device="remote"),
    lambda: torch.normal(0.0, 1.0, (2,), device="remote"), lambda: torch.tensor([1], device="remote"),
    lambda: torch.zeros(2).to("remote"), lambda: torch.ones(2, device="remote:0").to("remote"),
):
    assert make().device.index == 1
assert torch.arange(3, device="remote:0").device.index == 0
"""

CURRENT = """
import torch, torch_remote
stream = torch.remote.Stream(device=1)
with torch.remote.stream(stream):
    assert torch.remote.current_device() == 1 and torch.ones(1, device="remote").device.index == 1
    with torch.remote.stream(None):
        assert torch.remote.current_device() == 1
    with torch.remote.StreamContext(torch.remote.Stream(device=0)) as nothing:
        assert torch.remote.current_device() == 0
    assert torch.remote.current_stream() == stream
assert torch.remote.current_device() == 0
torch.remote.set_stream(stream)
assert torch.remote.current_device() == 1
torch.remote.set_device(0)

before = [torch.remote.memory_allocated(i) for i in range(2)]
x = torch.ones(1 << 20, device="remote:1")
assert x.sum().item() == 1 << 20
after = [torch.remote.memory_allocated(i) for i in range(2)]
assert after[0] == before[0] and after[1] - before[1] >= x.nbytes, (before, after)
assert torch.accelerator.memory_allocated(1) == after[1] != torch.accelerator.memory_allocated(0)
assert torch.remote.max_memory_allocated("remote:1") >= x.nbytes > torch.remote.max_memory_allocated("remote:0")
assert torch.remote.stats()["worker_bytes"] == sum(after)
assert torch.remote.memory_reserved(1) > torch.remote.memory_reserved(0)

torch.ones(3, device="remote:0").tolist()
before = torch.remote.stats()
torch.remote.restart(0)
after = torch.remote.stats()
assert before["round_trips"] == after["round_trips"] > 0 and before["bytes_sent"] <= after["bytes_sent"]
# levels are those of the current workers
assert 0 < after["programs_kept"] < before["programs_kept"] and after["worker_bytes"] <= before["worker_bytes"]
events = [key for key in before if "bytes" not in key and key != "programs_kept"]
assert {key: after[key] for key in events} == {key: before[key] for key in events}
torch.ones(3, device="remote:0").tolist()
assert torch.remote.stats()["flushes"] == before["flushes"] + 1
torch.remote.reset_stats()
assert torch.remote.stats()["flushes"] == torch.remote.stats()["round_trips"] == 0
"""


MIXED = """
import torch, torch_remote
import torch.nn.functional as F

lstm = torch.nn.LSTM(4, 8).to("remote:1")
here, there = torch.randn(5, 2, 4, device="remote:0"), torch.randn(5, 2, 4, device="remote:1")
q, mask = torch.randn(1, 2, 3, 4, device="remote:0"), torch.zeros(3, 3, device="remote:1")
state = torch.zeros(1, 2, 8, device="remote:0")
layer = (None, 2, 8, 0, 1, False, 0.0, False, False, [], None)
attention = torch.ops.aten._scaled_dot_product_fused_attention_overrideable
for call in (
    lambda: lstm(here), lambda: lstm(there, (state,) * 2),
    lambda: F.scaled_dot_product_attention(q, q, q, attn_mask=mask),
    lambda: torch._cudnn_rnn(there, lstm._flat_weights, 4, None, state, *layer),
    lambda: torch._cudnn_rnn(here, lstm._flat_weights, 4, None, state, *layer),
    lambda: attention(q, q.to("remote:1"), q), lambda: attention(q, q, q, mask), lambda: attention(q, q, q.cpu()),
    lambda: attention(q.cpu(), q, q),
):
    try:
        call()
    except RuntimeError as error:
        assert "same device" in str(error), error
    else:
        raise AssertionError("tensors of two devices were accepted")

# Both workers number their programs from 1.
x = torch.ones(4, device="remote:0")
x.tolist()
with torch.remote.trace() as trace:
    y = x * 2.0
    y.tolist()
for i in range(4):
    assert (torch.ones(3 + i, device="remote:1").reshape(1, -1).repeat(1 + i, 1) / 10).sum().item() > 0
for device in ("remote:0", "remote:1", "remote:0"):
    (result,) = trace.graph.run(torch.ones(4, device=device))
    assert result.tolist() == [2.0] * 4, (device, result)

for index in (2, 40, -3):
    try:
        torch.remote.trace(index).__enter__()
    except RuntimeError:
        continue
    raise AssertionError(index)
with torch.remote.device(1), torch.remote.trace("remote") as trace:
    y = torch.ones(2, device="remote")
assert len(trace.graphs) == 1

for index in (2, 40):
    stream = torch.Stream(stream_id=0, device_index=index, device_type=torch.remote.Stream(device=0).device_type)
    for call in (
        lambda: torch.Stream(device=f"remote:{index}"), lambda: torch.remote.current_stream(index),
        lambda: torch.remote.default_stream(index), lambda: torch.accelerator.set_stream(stream), stream.query,
        stream.synchronize, lambda: torch.Event("remote").record(stream),
    ):
        try:
            call()
        except RuntimeError as error:
            assert f"no device remote:{index}" in str(error), error
        else:
            raise AssertionError(index)
assert torch.remote.current_device() == 0
"""


@pytest.mark.parametrize("workers", ["local,local", "inproc,inproc"])
def test_storages_stay_on_their_device(script, workers):
    script(STORAGES, TORCH_REMOTE_WORKER=workers)


def test_calls_that_name_no_number_go_to_the_current_device(script):
    script(FACTORIES, TORCH_REMOTE_WORKER="local,local")


def test_the_current_device_memory_and_counters_of_two(script):
    script(CURRENT, TORCH_REMOTE_WORKER="local,local")


def test_tensors_and_programs_of_two_devices_are_not_mixed(script):
    script(MIXED, TORCH_REMOTE_WORKER="local,local")


@pytest.mark.parametrize("workers", ["local,local", "local,inproc"])
def test_copies_errors_and_seeds(script, workers):
    script(COPIES, TORCH_REMOTE_WORKER=workers)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_model_on_two_devices(script, compiled):
    script(TRAIN.replace("COMPILED", str(compiled)), TORCH_REMOTE_WORKER="local,local")


def test_a_lost_worker_is_one_devices_loss(script):
    script(LOST, TORCH_REMOTE_WORKER="local,local")


def test_too_many(script):
    script(
        """
    import torch, torch_remote
    try:
        torch.ones(1, device="remote")
        torch.remote.synchronize()
    except RuntimeError as error:
        assert "names 17 workers" in str(error) and "at most 16" in str(error)
    else:
        raise AssertionError
    """,
        TORCH_REMOTE_WORKER=",".join(["local"] * 17),
    )
