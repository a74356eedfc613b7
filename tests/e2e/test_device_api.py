"""torch.remote and torch.accelerator: what users of torch.cuda expect."""

import gc
import math
import os
import threading
import time
import warnings

import pytest
import torch


def test_the_module(remote):
    assert torch.remote.is_available() and torch.remote.is_initialized()
    assert torch.remote.device_count() >= 1 and torch.remote.current_device() == 0
    torch.remote.set_device(0)
    with torch.remote.device(0):
        assert torch.ones(1, device="remote").device.index == 0
    assert torch.get_device_module("remote") is torch.remote
    assert torch.utils.backend_registration is not None
    assert torch._C._get_privateuse1_backend_name() == "remote"


def test_a_device_that_does_not_exist(remote):
    with pytest.raises((RuntimeError, ValueError)):
        torch.ones(1, device=f"remote:{torch.remote.device_count()}")


def test_accelerator(remote):
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator().type == "remote"
    assert torch.accelerator.device_count() == torch.remote.device_count()
    assert torch.accelerator.current_device_index() == 0
    torch.accelerator.set_device_index(0)
    torch.accelerator.synchronize()
    assert torch.accelerator.current_stream().device.type == "remote"


def test_accelerator_memory(remote):
    x = torch.ones(1 << 20, device=remote)
    torch.accelerator.synchronize()
    assert torch.accelerator.memory_allocated() >= x.nbytes
    assert torch.accelerator.max_memory_allocated() >= x.nbytes
    assert torch.accelerator.memory_reserved() >= x.nbytes
    assert torch.accelerator.memory_stats()["allocated_bytes.all.current"] >= x.nbytes
    del x
    torch.accelerator.empty_cache()
    torch.accelerator.synchronize()
    assert torch.accelerator.memory_allocated() < 1 << 22
    torch.accelerator.reset_peak_memory_stats()
    assert torch.remote.memory_allocated() == torch.accelerator.memory_allocated()


def test_streams_and_events(remote):
    stream = torch.remote.current_stream()
    assert stream.device.type == "remote" and stream == torch.remote.current_stream()
    with torch.remote.stream(stream):
        x = torch.ones(4, device=remote) * 3
    begin, end = torch.remote.Event(enable_timing=True), torch.remote.Event(enable_timing=True)
    begin.record()
    y = x @ x
    end.record()
    stream.wait_event(end)
    end.synchronize()
    assert end.query() and stream.query()
    assert begin.elapsed_time(end) >= 0
    stream.synchronize()
    torch.remote.synchronize()
    assert y.item() == 36
    event = torch.Event("remote")
    event.record()
    event.synchronize()
    x.record_stream(stream)
    other = torch.remote.Stream()
    other.wait_stream(stream)
    with other:
        z = x + 1
    stream.wait_stream(other)
    assert z.tolist() == [4, 4, 4, 4]


def test_each_stream_has_a_number_and_a_thread_has_one_for_each_device(remote):
    first = torch.remote.current_stream()
    assert first == torch.remote.default_stream() and first.stream_id == 0
    made = [torch.remote.Stream() for _ in range(3)]
    assert len({s.stream_id for s in [first, *made]}) == 4 and all(s != first for s in made)
    with torch.remote.stream(made[0]):
        assert torch.remote.current_stream() == made[0] == torch.accelerator.current_stream()
        with made[1]:
            assert torch.remote.current_stream() == made[1]
            with torch.remote.stream(None):
                assert torch.remote.current_stream() == made[1]
        assert torch.remote.current_stream() == made[0]
        seen = []
        thread = threading.Thread(target=lambda: seen.append(torch.remote.current_stream()))
        thread.start()
        thread.join()
        assert seen == [first]
    assert torch.remote.current_stream() == first
    torch.remote.set_stream(made[2])
    assert torch.remote.current_stream() == made[2]
    torch.remote.set_stream(torch.remote.default_stream())
    assert isinstance(torch.remote.current_stream(), torch.remote.Stream)
    # A gradient of an op that was called on one stream, computed on another.
    x = torch.ones(3, device=remote, requires_grad=True)
    with torch.remote.stream(made[0]):
        y = (x * 2).sum()
    made[1].wait_stream(made[0])
    with torch.remote.stream(made[1]):
        (y + (x * x).sum()).backward()
    assert x.grad.tolist() == [4, 4, 4]


def test_events_tell_what_the_device_took(remote):
    begin, middle, end = (torch.remote.Event(enable_timing=True) for _ in range(3))
    x = torch.randn(700, 700, device=remote)
    torch.remote.synchronize()
    for _ in range(2):  # the second time they are recorded again
        begin.record()
        middle.record()
        y = x
        for _ in range(10):
            y = y @ x
        end.record()
        started = time.perf_counter()
        while not end.query():
            assert time.perf_counter() - started < 60
        assert middle.query() and begin.query()
        short, long = begin.elapsed_time(middle), middle.elapsed_time(end)
        assert 0 <= short < long  # 7 GFLOP take measurable time
        assert math.isclose(begin.elapsed_time(end), short + long, rel_tol=1e-6, abs_tol=1e-6)
    # A time that this process can bound: at most what it measures itself.
    started = time.perf_counter()
    begin.record()
    z = x @ x
    end.record()
    end.synchronize()
    assert begin.elapsed_time(end) <= (time.perf_counter() - started) * 1e3
    del y, z


def test_waiting_for_an_event_is_not_waiting_for_what_comes_behind_it(remote):
    x = torch.randn(1500, 1500, device=remote)
    torch.remote.synchronize()
    event, late = torch.remote.Event(enable_timing=True), torch.remote.Event(enable_timing=True)
    event.record()
    for _ in range(8):  # 54 GFLOP
        x = x @ x
        x = x / x.norm()
    late.record()
    event.synchronize()
    assert not late.query()
    late.synchronize()
    assert late.query()


def test_events_that_are_not_to_be_timed_cost_nothing_until_somebody_asks(remote):
    x = torch.ones(3, device=remote)
    torch.remote.synchronize()
    torch.remote.reset_stats()
    y = x + 1
    event = torch.remote.Event()
    event.record()
    torch.remote.Stream().wait_event(event)
    event.wait()
    z = y + 1
    assert torch.remote.stats()["flushes"] == 0
    event.synchronize()
    assert torch.remote.stats()["flushes"] == 1 and event.query()
    assert z.tolist() == [3, 3, 3]


def test_wrong_uses_of_events(remote):
    timed, other = torch.remote.Event(enable_timing=True), torch.remote.Event()
    with pytest.raises(ValueError, match=r"must be recorded"):
        timed.elapsed_time(timed)
    timed.record()
    other.record()
    with pytest.raises(ValueError, match="enable_timing"):
        timed.elapsed_time(other)
    assert torch.remote.Event().query()  # never recorded


def test_events_of_a_worker_that_is_gone(remote):
    event, other = torch.remote.Event(enable_timing=True), torch.remote.Event(enable_timing=True)
    event.record()
    torch.remote.restart()
    event.synchronize()
    assert event.query()
    other.record()
    other.synchronize()
    with pytest.raises(RuntimeError, match=r"worker is gone|two workers"):
        event.elapsed_time(other)


def test_synchronize_waits_for_the_worker(remote):
    torch.remote.synchronize()
    x = torch.randn(1200, 1200, device=remote)
    torch.remote.synchronize()
    for _ in range(3):
        x = x @ x
        x = x / x.norm()
    event = torch.remote.Event()
    event.record()
    torch.remote.synchronize()
    assert event.query()


def test_memory_statistics(remote):
    torch.remote.synchronize()
    before = torch.remote.memory_allocated()
    x = torch.zeros(1 << 20, device=remote)
    torch.remote.synchronize()
    assert torch.remote.memory_allocated() - before >= x.nbytes
    assert torch.remote.max_memory_allocated() >= torch.remote.memory_allocated()
    assert torch.remote.memory_reserved() >= torch.remote.memory_allocated()
    del x
    torch.remote.synchronize()
    assert torch.remote.memory_allocated() <= before + (1 << 16)
    torch.remote.reset_peak_memory_stats()
    assert torch.remote.max_memory_allocated() < before + (1 << 22)
    assert isinstance(torch.remote.memory_stats(), dict)
    torch.remote.empty_cache()


def test_default_device(remote):
    torch.set_default_device("remote")
    try:
        assert torch.ones(2).device.type == "remote" and torch.nn.Linear(2, 2).weight.device.type == "remote"
    finally:
        torch.set_default_device(None)


def test_memory_is_true_after_any_wait(remote):
    """It is up to date not only after synchronize(), because every reply states the memory in use."""
    torch.remote.synchronize()
    before = torch.remote.memory_allocated()
    x = torch.ones(1 << 20, device=remote)
    y = torch.ones(2, device=remote)
    assert y.sum().item() == 2
    assert torch.remote.memory_allocated() - before >= x.nbytes
    assert torch.remote.max_memory_allocated() >= before + x.nbytes
    del x
    assert y.tolist() == [1, 1]  # a read also sends the list of freed tensors
    assert torch.remote.memory_allocated() - before < 1 << 16
    x = torch.ones(1 << 20, device=remote)
    assert y.nonzero().shape == (2, 1)  # the reply to a run
    assert torch.remote.memory_allocated() - before >= x.nbytes
    assert torch.accelerator.memory_allocated() == torch.remote.memory_allocated()


def test_a_device_that_does_not_exist_has_no_memory(remote):
    for function in (
        torch.remote.memory_allocated, torch.remote.max_memory_reserved, torch.remote.mem_get_info,
        torch.remote.memory_summary, torch.remote.get_device_properties, torch.remote.reset_peak_memory_stats,
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match=r"there is no device remote:7.*TORCH_REMOTE_WORKER"):
            function(7)


@pytest.mark.parametrize("index", [7, 99])  # 99: more than this process can have
def test_a_device_that_does_not_exist_has_no_tensors(remote, index):
    d = f"remote:{index}"
    for call in (
        lambda: torch.empty(3, device=d), lambda: torch.arange(3, device=d), lambda: torch.linspace(0, 1, 3, device=d),
        lambda: torch.eye(3, device=d), lambda: torch.tril_indices(3, 3, device=d), lambda: torch.randperm(3, device=d),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match=rf"there is no device {d}.*TORCH_REMOTE_WORKER"):
            call()


def test_what_the_worker_has(remote):
    properties = torch.remote.get_device_properties()
    assert properties.name == torch.remote.get_device_name() and properties.name not in ("", "remote")
    assert 1 <= properties.multi_processor_count <= os.cpu_count()
    assert 1 << 26 < properties.total_memory <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert "ATen" in properties.worker and properties.type == "cpu"
    free, total = torch.remote.mem_get_info()
    assert total == properties.total_memory and 0 < free <= total
    assert torch.accelerator.get_memory_info()[1] == total
    assert torch.remote.device_memory_used() > 0
    assert torch.remote.get_device_capability() == (properties.major, properties.minor) == (0, 0)
    dtypes = torch.accelerator.get_device_capability(0)["supported_dtypes"]
    assert {torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64} <= set(dtypes)
    assert torch.qint8 not in dtypes
    assert torch.remote.can_device_access_peer(0, 0) is False
    assert 0 <= torch.remote.utilization() <= 100
    assert f"{os.getpid()} uses" in torch.remote.list_gpu_processes()
    for function in (torch.remote.is_tf32_supported, torch.remote.is_current_stream_capturing):
        assert function() is False


def test_statistics_of_the_allocator(remote):
    gc.collect()
    torch.remote.synchronize()  # what the tests before this one left is freed by the worker now
    torch.remote.reset_accumulated_memory_stats()
    before = torch.remote.memory_stats()
    assert before["allocation.all.allocated"] == before["allocated_bytes.all.freed"] == 0
    for _ in range(3):
        torch.ones(1 << 16, device=remote).sum().item()
    torch.remote.synchronize()
    after = torch.remote.memory_stats()
    assert after["allocation.all.allocated"] >= 3
    assert after["allocated_bytes.all.allocated"] >= 3 << 18
    assert after["allocated_bytes.all.current"] == torch.remote.memory_allocated()
    assert after["segment.all.current"] >= 1
    assert torch.remote.memory_stats_as_nested_dict()["allocation"]["all"]["current"] == after["allocation.all.current"]
    text = torch.remote.memory_summary()
    assert "Allocated memory" in text and "Reserved segments" in text and "remote:0" in text
    assert len({len(line) for line in text.splitlines()}) == 1, text
    assert "Reserved" not in torch.remote.memory_summary(abbreviated=True)


def test_the_peak_starts_anew_and_the_cache_is_given_back(remote):
    x = torch.ones(1 << 24, device=remote)
    x.sum().item()
    del x
    torch.remote.reset_max_memory_allocated()
    assert torch.remote.max_memory_allocated() < 1 << 25
    assert torch.remote.max_memory_allocated() == torch.remote.memory_allocated()
    torch.remote.empty_cache()
    torch.remote.synchronize()
    assert torch.remote.memory_reserved() - torch.remote.memory_allocated() < 1 << 26


def test_asking_for_memory_tells_no_failure_of_an_op(remote):
    bad = torch.ones(3, device=remote)[torch.tensor([7], device=remote)]
    torch.remote.mem_get_info()
    torch.remote.empty_cache()
    torch.remote.reset_peak_memory_stats()
    with pytest.raises(IndexError):
        bad.tolist()


MEMORY_FRACTION = """
import torch, torch_remote
total = torch.remote.get_device_properties().total_memory
torch.remote.set_per_process_memory_fraction((64 << 20) / total)
assert abs(torch.remote.get_per_process_memory_fraction() * total - (64 << 20)) < 1
for again in range(2):
    torch.ones(1 << 20, device="remote").sum().item()
    try:
        large = torch.ones(1 << 26, device="remote")
        large.sum().item()
    except torch.remote.OutOfMemoryError as error:
        assert " out of memory." in str(error)
    else:
        raise AssertionError
    assert torch.remote.mem_get_info()[0] <= 64 << 20 and torch.remote.mem_get_info()[1] == total
    assert torch.remote.memory_stats()["num_ooms"] >= 1
    torch.remote.restart()  # the next worker has the same limit
torch.remote.set_per_process_memory_fraction(1.0)
assert torch.ones(1 << 26, device="remote")[-1].item() == 1
for wrong, error in ((1, TypeError), (1.5, ValueError), (-0.1, ValueError)):
    try:
        torch.remote.set_per_process_memory_fraction(wrong)
    except error:
        continue
    raise AssertionError(wrong)
"""


def test_a_share_of_the_memory(script, remote):
    script(MEMORY_FRACTION)


def test_pinned_memory_is_counted(remote):
    torch.remote.reset_accumulated_host_memory_stats()
    before = torch.remote.host_memory_stats()
    x = torch.ones(1000).pin_memory()
    during = torch.remote.host_memory_stats()
    assert during["allocations.current"] == before["allocations.current"] + 1
    assert during["allocated_bytes.allocated"] == x.nbytes
    assert x.is_pinned()
    del x
    after = torch.remote.host_memory_stats()
    assert after["active_bytes.current"] == before["active_bytes.current"]
    assert after["allocated_bytes.freed"] == 4000 and after["allocated_bytes.peak"] >= 4000
    torch.remote.reset_peak_host_memory_stats()
    assert torch.remote.host_memory_stats()["allocated_bytes.peak"] == after["allocated_bytes.current"]


@pytest.fixture
def sync_debug_mode(remote):
    yield torch.remote.set_sync_debug_mode
    torch.remote.set_sync_debug_mode("default")


def waits():
    """Calls on a tensor that wait for the worker."""
    return [
        lambda x: x.sum().item(),
        lambda x: x.cpu(),
        lambda x: x.tolist(),
        lambda x: x.nonzero(),
        lambda x: bool(x[0] > 0),
        lambda x: str(x),
        lambda x: x[x > 0],
    ]


def test_sync_debug_mode_names_the_line_that_waits(sync_debug_mode, remote):
    x = torch.ones(3, device=remote)
    assert torch.remote.get_sync_debug_mode() == 0
    for set_to, mode in (("warn", 1), (1, 1)):
        sync_debug_mode(set_to)
        assert torch.remote.get_sync_debug_mode() == mode
        for wait in waits():
            line = wait.__code__.co_firstlineno
            with pytest.warns(UserWarning, match=rf"waits for the worker \(.*test_device_api.py:{line} "):
                wait(x)
    for set_to in ("error", 2):
        sync_debug_mode(set_to)
        assert torch.remote.get_sync_debug_mode() == 2
        for wait in waits():
            line = wait.__code__.co_firstlineno
            with pytest.raises(RuntimeError, match=rf"waits for the worker \(.*test_device_api.py:{line} "):
                wait(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sync_debug_mode("error")
        y = (x * 2 + torch.tensor([1.0, 2, 3]).to(remote)).sum()  # nothing here waits
        torch.remote.synchronize()  # waiting is its purpose
        sync_debug_mode("default")
        assert y.item() == 12


@pytest.mark.parametrize("wrong", ["loud", 3, -1, None, 1.5])
def test_sync_debug_modes(sync_debug_mode, wrong):
    with pytest.raises(RuntimeError, match="expected one of `default`, `warn`, `error`"):
        sync_debug_mode(wrong)


def test_loops_over_many_tensors_do_not_leak(remote):
    x = torch.ones(1 << 16, device=remote)
    torch.remote.synchronize()
    before = torch.remote.memory_allocated()
    for _ in range(300):
        x = x * 1.0
    torch.remote.synchronize()
    assert torch.remote.memory_allocated() == before
