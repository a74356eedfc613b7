"""Copies between devices go directly from worker to worker: their bytes, their order, and failures."""

import os
import sys
import time
from pathlib import Path

import pytest
from python_processes import Python

TWO = "local,local"

# Helpers of the scripts: `stats` of a block, worker processes, the error of a call.
PRELUDE = """
import os, signal, threading, time
import torch, torch_remote

def stopped(index, signal_):
    os.kill(torch_remote._C.worker_info(index)["process"], signal_)

def error_of(f):
    try:
        f()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")

def connect():
    for i in (0, 1):
        assert torch.ones(2, device=f"remote:{i}").to(f"remote:{1 - i}").tolist() == [1, 1]
    torch.remote.reset_stats()
"""

VALUES = """
connect()
torch.manual_seed(0)
uploaded = downloaded = copies = 0
dtypes = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.bool, torch.uint8,
          torch.int16, torch.int64, torch.float8_e4m3fn]
layouts = [lambda x: x, lambda x: x.t(), lambda x: x[1:, ::2], lambda x: x[:, 3], lambda x: x[2, 2],
           lambda x: x.flatten()[5:9].view(2, 2), lambda x: x[:1].expand(4, 6), lambda x: x[:0]]
for dtype in dtypes:
    here = (torch.randn(5, 6) * 50).to(dtype)
    for i, layout in enumerate(layouts):
        source = i % 2
        there = here.to(f"remote:{source}")
        torch.remote.synchronize(source)
        before = torch.remote.stats()
        moved = layout(there).to(f"remote:{1 - source}")
        after = torch.remote.stats()
        expected = layout(here).clone()
        assert moved.device.index == 1 - source and moved.stride() == layout(here).to("meta").stride(), (dtype, i)
        assert after["round_trips"] == before["round_trips"]
        uploaded += after["bytes_uploaded"] - before["bytes_uploaded"]
        downloaded += after["bytes_downloaded"] - before["bytes_downloaded"]
        copies += expected.numel() != 0
        assert torch.equal(moved.cpu().view(torch.uint8) if dtype.itemsize == 1 else moved.cpu(),
                           expected.view(torch.uint8) if dtype.itemsize == 1 else expected), (dtype, i)
stats = torch.remote.stats()
assert stats["direct_copies"] == copies and stats["relayed_copies"] == 0, stats
assert uploaded == downloaded == 0, (uploaded, downloaded)

# Into what is there: another dtype, a view, broadcast, conjugates.
a, b = torch.arange(6.0).view(2, 3), torch.zeros(4, 3, dtype=torch.int32)
x, y = a.to("remote:0"), b.to("remote:1")
y[1:3] = x
b[1:3] = a
y[3].copy_(x[0])
b[3].copy_(a[0])
y += x.sum().to("remote:1").int()
b += a.sum().int()
assert torch.equal(y.cpu(), b)
c = torch.randn(3, dtype=torch.complex64)
assert torch.equal(c.to("remote:0").conj().to("remote:1").cpu(), c.conj())

# The bytes are those of the call, whatever is written since.
x = torch.ones(1 << 20, device="remote:0")
copies = []
for i in range(5):
    copies.append(x.to("remote:1", non_blocking=True))
    x += 1
y = copies[0]
del x
assert [c[-1].item() for c in copies] == [1, 2, 3, 4, 5] and y.sum().item() == 1 << 20
paths = {(p.source.index, p.destination.index): p for p in torch.remote.copy_paths()}
assert paths[0, 1].direct > 0 and paths[1, 0].direct > 0 and not paths[0, 1].why and not paths[1, 0].relayed
assert "5 from worker to worker, 0 through" in str(
    torch.remote.explain(lambda: torch.ones(3, device="remote:0").to("remote:1").sum().item(), calls=5))
"""

BOTH_WAYS = """
connect()
size = 8_000_000  # more than sockets and queues take
x = [torch.arange(size, dtype=torch.float32, device=f"remote:{i}") + i for i in (0, 1)]
moved = [x[0].to("remote:1"), x[1].to("remote:0")]  # each is under way while the other one is
moved += [t.to(f"remote:{1 - t.device.index}") for t in moved]
for i, t in enumerate(moved):
    assert torch.equal(t.cpu(), torch.arange(size, dtype=torch.float32) + i % 2), i
errors = []

def carry(source):
    try:
        for i in range(30):
            t = torch.full((1000 * i + 1,), float(i), device=f"remote:{source}")
            for hop in range(3):
                t = t.to(f"remote:{(source + hop + 1) % 2}") + 1
            assert t[-1].item() == i + 3 and t.sum().item() == (i + 3) * (1000 * i + 1)
    except BaseException as error:
        errors.append(error)

threads = [threading.Thread(target=carry, args=(i % 2,)) for i in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
assert not errors, errors
stats = torch.remote.stats()
assert stats["direct_copies"] == 4 + 4 * 30 * 3 and stats["relayed_copies"] == 0, stats
"""

NO_WAIT = """
connect()
x = torch.arange(1000.0, device="remote:0") * 2
torch.remote.synchronize(0)
torch.remote.reset_stats()
stopped(0, signal.SIGSTOP)  # whatever its worker does: nobody waits for it here
moved = x.to("remote:1")
z = torch.ones(3, device="remote:1") * 3
assert z.tolist() == [3, 3, 3]  # what does not need the copy does not wait, either
assert torch.remote.stats()["round_trips"] == 1
y = moved + 1
stopped(0, signal.SIGCONT)
assert torch.equal(y.cpu(), torch.arange(1000.0) * 2 + 1)
stats = torch.remote.stats()
assert stats["bytes_uploaded"] == 0 and stats["bytes_downloaded"] == 12 + 4000 and stats["bytes_sent"] < 5000, stats
"""

SENDER_LOST = """
connect()
x = torch.ones(1000, device="remote:0")
w = torch.full((1000,), 7.0, device="remote:1")
good = x.to("remote:1")
assert good.sum().item() == 1000
stopped(0, signal.SIGSTOP)
y = (x + 1).to("remote:1")
w.copy_(x)
begin = time.perf_counter()
stopped(0, signal.SIGKILL)
error = error_of(lambda: (y * 2).tolist())
assert "the worker of remote:0 is gone" in str(error) and "direct copy" in str(error), error
assert time.perf_counter() - begin < 5
assert isinstance(error_of(lambda: y.cpu()), RuntimeError)  # it is not there, also when that is known
error_of(lambda: w.cpu())  # lacks what was to come: once
assert w.sum().item() == 7000 and good.sum().item() == 1000
assert isinstance(error_of(lambda: (x + 1).cpu()), torch.remote.WorkerLost)
assert isinstance(error_of(lambda: x.to("remote:1").cpu()), torch.remote.WorkerLost)
torch.remote.restart(0)
connect()
assert torch.full((3,), 2.0, device="remote:0").to("remote:1").tolist() == [2, 2, 2]
assert torch.remote.stats()["direct_copies"] == 1
"""

RECEIVER_LOST = """
connect()
x = torch.ones(20_000_000, device="remote:0")
stopped(1, signal.SIGSTOP)
copies = [x.to("remote:1") for _ in range(3)]
x += 1
stopped(1, signal.SIGKILL)
assert isinstance(error_of(lambda: copies[0].cpu()), torch.remote.WorkerLost)
assert x[0].item() == 2  # the sender is as good as ever, and says nothing of it
torch.remote.synchronize(0)
del copies
torch.remote.restart(1)
assert x[:3].to("remote:1").tolist() == [2, 2, 2]
assert torch.remote.memory_allocated(0) < 2 * x.nbytes
"""

FAILED = """
connect()
table = torch.arange(4.0, device="remote:0").requires_grad_()
weight = torch.ones(2, device="remote:1").requires_grad_()
optimizer = torch.optim.SGD([table, weight], lr=0.5)

def step(indices):
    optimizer.zero_grad()
    loss = (table[indices.to("remote:0")].to("remote:1") * weight).sum()
    loss.backward()
    optimizer.step()
    return loss.item()

assert step(torch.tensor([1, 2])) == 3.0
error = error_of(lambda: step(torch.tensor([1, 9])))
assert isinstance(error, IndexError) and "index 9 is out of bounds" in str(error), error
assert str(error).count("in step") >= 2, error  # the copy's line, and that of the op that failed
# Nothing else has to be said: parameters are as before, and the next batch works.
assert torch.equal(table.detach().cpu(), torch.tensor([0.0, 0.5, 1.5, 3.0]))
assert step(torch.tensor([1, 2])) == 0.25
for i in (0, 1):
    torch.remote.synchronize(i)

# Of several copies under way one fails alone.
x = torch.ones(4, device="remote:0")
bad = x[torch.tensor([7], device="remote:0")]
moved = [x.to("remote:1"), bad.to("remote:1"), (x * 2).to("remote:1")]
assert moved[0].tolist() == [1] * 4 and moved[2].tolist() == [2] * 4
for _ in range(2):  # each time it is read
    assert isinstance(error_of(lambda: moved[1].cpu()), IndexError)
kept = torch.full((1,), 5.0, device="remote:1")
kept.copy_(bad)
assert isinstance(error_of(lambda: kept.cpu()), IndexError)
assert kept.item() == 5.0  # what could not be copied left it as it was
torch.remote.synchronize(0)
torch.remote.synchronize(1)
back = moved[0].to("remote:0").to("remote:1")
assert back.tolist() == [1] * 4
stats = torch.remote.stats()
assert stats["relayed_copies"] == 0, stats
"""

CANCELLED = """
connect()
x = torch.ones(1000, 1000, device="remote:0")
torch.remote.synchronize(0)
for receiver in (False, True):
    y = x
    for _ in range(200):
        y = y @ x * 1e-3
    moved = y.to("remote:1")
    last = moved + 1
    torch.remote.cancel(1 if receiver else 0)
    begin = time.perf_counter()
    if receiver:
        torch.remote.synchronize(1)  # what was cancelled is nothing to tell
    error = error_of(lambda: last.cpu())
    assert time.perf_counter() - begin < 20
    assert "cancel" in str(error) or "interrupted" in str(error), error
    if not receiver:
        error_of(lambda: y.cpu())
    torch.remote.cancel(0)
    for i in (0, 1):
        torch.remote.synchronize(i)
    assert (x[:2, :2].to("remote:1") + 1).tolist() == [[2, 2], [2, 2]]
    assert torch.ones(2, device="remote:1").to("remote:0").tolist() == [1, 1]
"""

NO_MEMORY = """
connect()
torch.remote.set_per_process_memory_fraction(1e-9 + 300e6 / torch.remote.mem_get_info(1)[1], 1)
x = torch.ones(100_000_000, dtype=torch.uint8, device="remote:0")
held = [x.to("remote:1") for _ in range(2)]
refused = [x.to("remote:1") for _ in range(2)]
small = x[:3].to("remote:1")
assert small.tolist() == [1, 1, 1]
errors = [error_of(lambda t=t: t.cpu()) for t in refused[-1:]]
assert all(isinstance(error, torch.OutOfMemoryError) for error in errors), errors
assert all(t.min().item() == t.max().item() == 1 for t in held)
error_of(lambda: torch.remote.synchronize(1))
del held, refused
assert x.to("remote:1").min().item() == 1
assert torch.remote.stats()["relayed_copies"] == 0
"""


@pytest.mark.parametrize("workers", [TWO, "inproc,inproc"])
def test_values_dtypes_and_strides(script, workers):
    script(PRELUDE + VALUES, TORCH_REMOTE_WORKER=workers)


def test_large_ones_both_ways_and_from_several_threads(script):
    script(PRELUDE + BOTH_WAYS, TORCH_REMOTE_WORKER=TWO, timeout=120)


def test_nobody_waits_and_only_control_passes_the_client(script):
    script(PRELUDE + NO_WAIT, TORCH_REMOTE_WORKER=TWO)


def test_a_lost_sender_is_named(script):
    script(PRELUDE + SENDER_LOST, TORCH_REMOTE_WORKER=TWO)


def test_a_lost_receiver_is_not_the_senders_failure(script):
    script(PRELUDE + RECEIVER_LOST, TORCH_REMOTE_WORKER=TWO)


def test_a_failed_op_fails_what_was_copied_of_it(script):
    script(PRELUDE + FAILED, TORCH_REMOTE_WORKER=TWO)


def test_cancelling_either_end(script):
    script(PRELUDE + CANCELLED, TORCH_REMOTE_WORKER=TWO, timeout=120)


def test_no_memory_at_the_receiver(script):
    script(PRELUDE + NO_MEMORY, TORCH_REMOTE_WORKER=TWO)


RELAYED = """
x = torch.arange(6.0, device="remote:0")
assert x.to("remote:1").tolist() == [0, 1, 2, 3, 4, 5]
assert torch.ones(2, device="remote:1").to("remote:0").tolist() == [1, 1]
stats = torch.remote.stats()
assert (stats["direct_copies"], stats["relayed_copies"]) == EXPECTED, (stats, torch.remote.copy_paths())
why = torch.remote.copy_paths()[0].why
assert WHY in why and (why or not WHY), why
assert "through this process" in str(torch.remote.explain(lambda: x.to("remote:1").sum().item(), calls=1))
for i in (0, 1):
    torch.remote.synchronize(i)
"""


@pytest.mark.parametrize(
    "why, environment",
    [
        ("TORCH_REMOTE_SYNC=1", {"TORCH_REMOTE_SYNC": "1"}),
        ("captured", {"TORCH_REMOTE_CAPTURE": "capture-%p"}),
        ("restore='replay'", {"TORCH_REMOTE_RESTORE": "replay"}),
    ],
)
def test_ways_that_need_the_bytes_here(script, tmp_path, why, environment):
    if "TORCH_REMOTE_CAPTURE" in environment:
        environment = {"TORCH_REMOTE_CAPTURE": f"{tmp_path}/capture-%p"}
    text = RELAYED.replace("EXPECTED", "(0, 2)").replace("WHY", repr(why))
    script(PRELUDE + text, TORCH_REMOTE_WORKER=TWO, **environment)


@pytest.mark.parametrize("arguments, expected", [([], (0, 2)), (["--peer-host", "127.0.0.1"], (2, 0))])
def test_two_sessions_of_one_worker(script, tmp_path_factory, arguments, expected):
    path = Path(tmp_path_factory.mktemp("s")) / "w"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(Path(p).resolve()) for p in sys.path if p)}
    worker = Python(
        [sys.executable, "-m", "torch_remote.worker", "--listen", f"unix://{path}", *arguments], env=environment
    )
    try:
        deadline = time.monotonic() + 60
        while not path.is_socket():
            assert worker.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        why = "" if arguments else "start it with --peer-host"
        text = RELAYED.replace("EXPECTED", repr(expected)).replace("WHY", repr(why))
        script(PRELUDE + text, TORCH_REMOTE_WORKER=f"unix://{path},unix://{path}")
        if not arguments:  # a listening worker without --peer-host does not connect to other workers, either
            script(PRELUDE + text, TORCH_REMOTE_WORKER=f"unix://{path},local")
    finally:
        worker.kill()
        worker.wait()
