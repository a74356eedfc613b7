"""torch.profiler and the autograd profiler show the worker's activity."""

import json
import re

import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function, schedule

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]


def by_name(profiler, device_type):
    return {e.key: e for e in profiler.key_averages() if e.device_type == device_type}


def test_ops_of_the_worker_have_rows_and_their_torch_ops_have_their_time(remote):
    x = torch.randn(256, 256, device=remote)
    torch.remote.synchronize()
    with profile(activities=BOTH) as profiler:
        y = x
        for _ in range(3):
            y = torch.relu(y @ x)
        y.sum().item()
    there = by_name(profiler, DeviceType.PrivateUse1)
    assert there["aten::mm"].count == 3 and there["aten::relu"].count == 3 and there["aten::sum"].count == 1
    assert there["aten::mm"].self_device_time_total > 0
    here = by_name(profiler, DeviceType.CPU)
    assert here["aten::mm"].count == 3
    # Each torch op has the time of its worker ops, and the enclosing ops have it in their total.
    assert here["aten::mm"].self_device_time_total == pytest.approx(there["aten::mm"].self_device_time_total)
    assert here["aten::matmul"].device_time_total >= here["aten::mm"].device_time_total > 0
    assert here["aten::matmul"].self_device_time_total == 0
    text = profiler.key_averages().table(sort_by="self_device_time_total")
    assert "Self REMOTE" in text and "aten::mm" in text
    # They are on the clock of the other events.
    begin, end = (f(e.time_range.start for e in profiler.events() if e.name == "aten::mm") for f in (min, max))
    assert all(begin <= e.time_range.start for e in profiler.events() if e.device_type == DeviceType.PrivateUse1)
    assert end - begin < 60e6


def test_a_training_step(remote):
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).to(remote)
    optimizer = torch.optim.AdamW(net.parameters())
    with profile(activities=BOTH) as profiler, record_function("step"):
        net(torch.randn(8, 16, device=remote)).square().mean().backward()
        optimizer.step()
        torch.remote.synchronize()
    here, there = by_name(profiler, DeviceType.CPU), by_name(profiler, DeviceType.PrivateUse1)
    assert {"aten::addmm", "aten::threshold_backward", "aten::mm"} <= set(there)
    for name in ("aten::addmm", "aten::threshold_backward", "aten::mm"):  # forward and backward
        assert here[name].self_device_time_total == pytest.approx(there[name].self_device_time_total), name
    total = sum(e.self_device_time_total for e in there.values())
    linked = sum(e.self_device_time_total for e in here.values())
    assert linked == pytest.approx(total)
    assert here["step"].device_time_total >= here["aten::addmm"].device_time_total


def test_the_chrome_trace(remote, tmp_path):
    x = torch.randn(8, 8, device=remote)
    with profile(activities=BOTH) as profiler:
        (x @ x).tanh().cpu()  # the line
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    (mm,) = (e for e in events if e.get("cat") == "kernel" and e["name"] == "aten::mm")
    assert mm["args"]["op"] == "aten::mm(f32[8, 8], f32[8, 8])"
    with open(__file__) as file:
        line = next(i for i, text in enumerate(file, 1) if "# the line" in text)
    assert re.search(rf"test_torch_profiler\.py:{line} ", mm["args"]["line"])
    (flush,) = (e for e in events if e["name"] == "remote::flush (copy to cpu)")
    arrows = [e for e in events if e["ph"] in "sf" and e.get("cat") == "ac2g"]
    assert {e["ph"] for e in arrows} == {"s", "f"}
    assert any(e["ph"] == "s" and e["ts"] == flush["ts"] for e in arrows)
    assert any(e["ph"] == "M" and e["args"].get("name") == "remote:0" for e in events)


def test_compiled_functions_have_rows(remote):
    @torch.compile(backend="remote")
    def f(x):
        return (x * 2).sin()

    x = torch.ones(4, device=remote)
    f(x).tolist()
    with profile(activities=BOTH) as profiler:
        f(x).tolist()
    assert {"aten::mul", "aten::sin"} <= set(by_name(profiler, DeviceType.PrivateUse1))


def test_a_schedule_and_another_profile_after_it(remote):
    x = torch.ones(4, device=remote)
    ready = []

    def on_trace_ready(profiler):
        ready.append(by_name(profiler, DeviceType.PrivateUse1)["aten::exp"].count)

    twice = schedule(wait=1, warmup=1, active=2, repeat=2)
    with profile(activities=BOTH, schedule=twice, on_trace_ready=on_trace_ready) as p:
        for _ in range(8):
            torch.exp(x)  # unused, so it is not computed
            torch.exp(x).sum().item()
            p.step()
    assert ready == [2, 2]
    with torch.remote.profile() as own:
        torch.exp(x).sum().item()
    assert any(op.name == "aten::exp" for worker in own.recording.workers for op in worker.ops)


def test_one_recording_at_a_time(remote, capfd):
    x = torch.ones(4, device=remote)
    with torch.remote.profile() as own:
        with profile(activities=BOTH) as profiler:
            x.exp().sum().item()
    assert "torch.remote.profile is active" in capfd.readouterr().err  # a message of kineto, not a Python warning
    assert not by_name(profiler, DeviceType.PrivateUse1)
    assert any(op.name == "aten::exp" for worker in own.recording.workers for op in worker.ops)
    with (
        profile(activities=BOTH),
        pytest.raises(RuntimeError, match="records a profile already"),
        torch.remote.profile(),
    ):
        pass


def test_an_unused_device_costs_nothing(script, remote):
    script("""
        import torch, torch_remote
        from torch.profiler import profile
        with profile() as profiler:
            torch.ones(3).sum()
        assert "aten::sum" in {e.key for e in profiler.key_averages()}
        assert torch_remote._C.worker_info(0) is None
    """)


def test_a_worker_that_starts_while_torch_profiles(script, remote):
    script("""
        import torch, torch_remote
        from torch.autograd import DeviceType
        from torch.profiler import profile
        with profile() as profiler:
            torch.ones(3, device="remote").sum().item()
        assert any(e.device_type == DeviceType.PrivateUse1 for e in profiler.key_averages())
    """)


def test_without_the_activity_it_says_so_once(script, remote):
    result = script("""
        import torch, torch_remote
        from torch.profiler import ProfilerActivity, profile
        x = torch.ones(3, device="remote")
        x.sum().item()
        for _ in range(2):
            with profile(activities=[ProfilerActivity.CPU]) as profiler:
                x.sum().item()
        assert not any("REMOTE" in str(e.device_type) for e in profiler.key_averages())
    """)
    assert result.stderr.count("ProfilerActivity.PrivateUse1") == 1, result.stderr


def test_the_autograd_profiler(script, remote):
    result = script("""
        import torch, torch_remote
        x = torch.randn(600, 600, device="remote")
        x.sum().item()
        with torch.autograd.profiler.profile(use_device="remote") as profiler:
            y = x @ x
            y.sum().item()
        times = {e.key: e.device_time_total for e in profiler.key_averages()}
        assert times["aten::mm"] > 100, times  # microseconds
        with torch.autograd.profiler.profile(use_device="remote", use_kineto=True) as profiler:
            (x @ x).sum().item()
        assert any("REMOTE" in str(e.device_type) for e in profiler.key_averages())
    """)
    assert "not enabled" not in result.stderr and "Exception raised from" not in result.stderr, result.stderr
    assert result.stderr.count("waits for each op") == 1, result.stderr
