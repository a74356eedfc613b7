"""torch.remote and torch.accelerator: what users of torch.cuda expect."""

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
    assert torch.remote.get_device_properties(0) is not None


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


def test_loops_over_many_tensors_do_not_leak(remote):
    x = torch.ones(1 << 16, device=remote)
    torch.remote.synchronize()
    before = torch.remote.memory_allocated()
    for _ in range(300):
        x = x * 1.0
    torch.remote.synchronize()
    assert torch.remote.memory_allocated() == before
