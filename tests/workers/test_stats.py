"""Counters, logs, dumps, and the guard against building programs."""

import random
import re

import pytest
import torch
from torch.utils.benchmark import Timer

KEYS = {
    "ops_recorded", "flushes", "programs_built", "program_hits", "programs_dropped", "programs_kept",
    "kernels_compiled", "groups_without_kernel",
    "client_fallbacks", "round_trips", "back_pressure_waits", "connections", "compiled_graphs", "compiled_graph_splits",
    "direct_copies", "relayed_copies",
    "bytes_sent", "bytes_received", "bytes_uploaded", "bytes_downloaded", "worker_bytes", "worker_peak_bytes",
}  # fmt: skip


def test_keys(remote):
    stats = torch.remote.stats()
    assert set(stats) >= KEYS
    assert all(type(value) is int and value >= 0 for value in stats.values())


def test_counters_count(counted, remote):
    x = torch.ones(4, device=remote)

    def step():
        return ((x + 1) * 2).sum().item()

    step()  # also creates x
    step()
    with counted() as c:
        step()
        step()
    assert c["ops_recorded"] in (6, 8)  # with or without an op for .item() itself
    assert c["flushes"] == 2 and c["program_hits"] == 2 and c["programs_built"] == 0
    assert c["round_trips"] == 2
    assert 0 < c["bytes_sent"] < 1000 and 0 < c["bytes_received"] < 1000
    assert c["bytes_uploaded"] == 0 and c["bytes_downloaded"] == 8
    assert c["client_fallbacks"] == 0


def test_reset(remote):
    torch.ones(4, device=remote).sum().item()
    torch.remote.reset_stats()
    stats = torch.remote.stats()
    assert all(stats[key] == 0 for key in KEYS - {"programs_kept", "worker_bytes", "worker_peak_bytes"})


def test_worker_bytes(remote):
    torch.remote.synchronize()
    before = torch.remote.stats()["worker_bytes"]
    x = torch.zeros(1 << 20, device=remote)
    torch.remote.synchronize()
    assert torch.remote.stats()["worker_bytes"] - before >= x.nbytes
    del x
    torch.remote.synchronize()
    assert torch.remote.stats()["worker_bytes"] <= before


def test_which_tensors_are_joined_is_not_in_the_key(counted, remote):
    """A batch from a replay memory: states of different batches, or views of the same tensor, in any combination."""
    chance = random.Random(0)
    rows = torch.randn(4, 3, device=remote)
    memory = [torch.full((3,), float(i), device=remote) for i in range(12)] + list(rows)
    torch.remote.synchronize()

    def step():
        first, second = (chance.choices(range(16), k=6) for _ in range(2))
        result = torch.stack([memory[i] for i in first]) * 2 - torch.cat([memory[i] for i in second]).view(6, 3)
        return result.cpu(), torch.stack(
            [memory[i].cpu() * 2 - memory[j].cpu() for i, j in zip(first, second, strict=True)]
        )

    step()
    with counted() as c:
        results = [step() for _ in range(20)]
    assert c["programs_built"] == 0
    for result, expected in results:
        torch.testing.assert_close(result, expected)
    # Only the second of two such ops sees a write between them.
    before = torch.stack(memory[:6])
    memory[0].add_(1)
    after = torch.stack([memory[0]] * 6)
    assert (before[0].tolist(), after[5].tolist()) == ([0, 0, 0], [1, 1, 1])


def test_sizes_scalars_and_seeds_are_not_in_the_key(counted, remote):
    def step(n, factor, begin):
        x = torch.arange(float(n), device=remote)
        y = (x * factor + 0.5)[begin : n - 1].softmax(0).cumsum(0)
        return torch.cat([y, x]).view(-1, 1).sum().item()

    step(8, 1.5, 2)
    step(9, 2.5, 3)
    with counted() as c:
        for n in range(10, 40, 3):
            step(n, n / 7, n % 5 + 1)
    assert c["programs_built"] == 0


def test_expect_no_compile_names_the_first_difference(remote):
    x = torch.ones(4, device=remote)

    def step(extra):
        y = x + 1
        if extra:
            y = y.exp()  # the difference
        return (y * 2).sum().item()

    step(False)  # also creates x
    step(False)
    with torch.remote.expect_no_compile():
        step(False)
    with pytest.raises(RuntimeError) as error, torch.remote.expect_no_compile():
        step(True)
    message = str(error.value)
    assert "exp" in message
    with open(__file__) as file:
        line = next(i for i, text in enumerate(file, 1) if "# the difference" in text)
    assert re.search(rf"test_stats\.py.*\b{line}\b", message), message
    # the device is usable afterwards
    assert step(True) == pytest.approx(4 * 2 * torch.exp(torch.tensor(2.0)).item(), rel=1e-6)


def test_log_has_a_line_per_flush(script, remote):
    result = script(
        """
    import torch, torch_remote
    x = torch.ones(4, device="remote")
    for i in range(3):
        (x + i).sum().item()  # logged line
    """,
        TORCH_REMOTE_LOG="flush",
    )
    lines = [line for line in result.stderr.splitlines() if "flush" in line or "ops" in line]
    assert len(lines) >= 3, result.stderr
    assert any("hit" in line for line in lines) and any("miss" in line for line in lines)
    assert any("script.py:5" in line for line in lines), result.stderr
    assert "bytes" in lines[-1] or " B" in lines[-1]


def test_nothing_is_logged_without_being_asked(script, remote):
    result = script("import torch, torch_remote; torch.ones(4, device='remote').sum().item()")
    assert result.stdout == "" and result.stderr == ""


def test_dump_writes_the_ir_after_every_pass(script, remote, tmp_path):
    folder = tmp_path / "dump"
    script(
        """
    import torch, torch_remote
    ((torch.ones(4, device="remote") + 1) * 2).sum().item()
    """,
        TORCH_REMOTE_DUMP=str(folder),
    )
    names = [f.name for f in folder.rglob("*") if f.is_file()]
    for stage in ("lift", "canonicalize", "cse", "dce", "plan"):
        assert any(stage in name for name in names), names
    text = "".join(f.read_text(errors="replace") for f in folder.rglob("*plan*"))
    assert "aten::add" in text and "script.py:3" in text


def test_sync_mode_gives_the_same_results(script, remote):
    program = """
        import torch, torch_remote
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).to("remote")
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(3):
            loss = net(torch.ones(3, 4, device="remote")).square().sum()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        print(loss.item())
    """
    # With one op per program there are no fused kernels, which round differently.
    op_by_op = {"TORCH_REMOTE_FUSION": "0"}
    assert script(program, **op_by_op).stdout == script(program, TORCH_REMOTE_SYNC="1", **op_by_op).stdout


def test_passes_verify_between_each_other(script, remote):
    script(
        """
    import torch, torch_remote
    x = torch.randn(4, 4, device="remote", requires_grad=True)
    (x @ x).softmax(-1).sum().backward()
    x.grad.sum().item()
    """,
        TORCH_REMOTE_VERIFY="1",
    )


def test_benchmark_times_results_that_are_computed(remote):
    """A loop that drops its results would measure only recording, which takes a thousandth of the time."""
    x = torch.rand(600, 600, device=remote)
    recording = Timer("for _ in range(100): x @ x", globals={"x": x})
    recorded = min(recording.timeit(1).median for _ in range(5)) / 100
    there = torch.remote.benchmark(torch.mm, x, x, min_run_time=0.05)
    assert there.median > 20 * recorded
    timer = Timer("kept.append(x @ x)", setup="kept = []", globals={"x": x})  # as in docs/limits.md
    assert timer.timeit(10).median > 20 * recorded
    assert len(there.raw_times) >= 5 and "Median" in str(there) and "mm" in str(there)
    assert torch.remote.benchmark(torch.mm, x.cpu(), x.cpu(), min_run_time=0.05).median > 20 * recorded


def test_benchmark_chooses_blocks_and_bounds_what_it_keeps(remote, monkeypatch):
    import torch_remote.profiling.benchmark

    x = torch.ones(256, device=remote)
    assert torch.remote.benchmark(lambda: {"y": [x + 1]}, min_run_time=0).number_per_run >= 32
    monkeypatch.setattr(torch_remote.profiling.benchmark, "_KEPT_BYTES", 4 * x.nbytes)
    assert torch.remote.benchmark(lambda: {"y": [x + 1]}, min_run_time=0).number_per_run == 4
    assert torch.remote.benchmark(x.add_, 1, min_run_time=0).median > 0


def test_every_wait_is_counted(script, remote):
    """A worker that is far behind makes the process wait, although no result is read."""
    script("""
    import torch, torch_remote
    big = torch.ones(700, 700, device="remote")
    torch.remote.synchronize()
    before = torch.remote.stats()
    assert before["connections"] == 1, before
    for _ in range(300):
        big = (big @ big) * 1e-3
        torch.remote._C.flush(0)
    after = torch.remote.stats()
    assert after["back_pressure_waits"] > before["back_pressure_waits"], after
    assert after["round_trips"] == before["round_trips"], after
    torch.remote.restart()
    torch.ones(1, device="remote").item()
    assert torch.remote.stats()["connections"] == 2, torch.remote.stats()
    assert torch.remote.stats()["back_pressure_waits"] >= after["back_pressure_waits"]
    """)


def test_compiled_graphs_that_are_taken_apart_are_counted(remote):
    x = torch.randn(8, device=remote)

    def whole(x):
        return (x * 2).relu()

    def apart(x):
        return (x * 2)[x > 0] + 1  # a data-dependent number of elements

    for function, splits in ((whole, 0), (apart, 1)):
        torch.remote.reset_stats()
        torch.testing.assert_close(
            torch.compile(function, backend="remote", fullgraph=True)(x).cpu(), function(x.cpu()), rtol=0, atol=0
        )
        stats = torch.remote.stats()
        assert stats["compiled_graphs"] == 1
        assert (stats["compiled_graph_splits"] >= 1) == (splits == 1), stats


def test_passes_can_be_switched_off(script, remote, tmp_path):
    program = """
    import torch, torch_remote
    x = torch.ones(4, device="remote")
    print(((x + 1) * (x + 1)).sum().item())
    """
    result = script(program, TORCH_REMOTE_PASSES="cse=0", TORCH_REMOTE_DUMP=str(tmp_path / "dump"))
    assert result.stdout == "16.0\n"
    names = [f.name for f in (tmp_path / "dump").rglob("*") if f.is_file()]
    assert any("dce" in name for name in names) and not any("cse" in name for name in names)
    result = script(program, status=1, TORCH_REMOTE_PASSES="cse=0,groups=1")
    assert "TORCH_REMOTE_PASSES: 'groups=1' is not an option of a pass; there are: lift=0" in result.stderr
