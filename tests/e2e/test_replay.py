"""remote-replay and remote-reduce on captures of real runs, one of them with an intentional bug."""

from __future__ import annotations

import json
import os
import re
import subprocess
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from python_processes import run_python

from torch_remote.version import plugin as aten_plugin

# The pipeline of the tools in tools/testing miscompiles the difference and the product in the last line.
TRAIN = """
    import torch, torch_remote
    from torch import nn
    torch_remote._C.set_cut_limits(0, {cut}, {cut})
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.GELU()) for _ in range({blocks})]
    model = nn.Sequential(*blocks, nn.Linear(32, 4)).to("remote")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=False)
    for step in range(2):
        x, y, w = torch.randn(16, 32).to("remote"), torch.randn(16, 4).to("remote"), torch.rand(16, 1).to("remote")
        loss = ((model(x) - y) * w).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item())
"""
LINE = TRAIN[: TRAIN.index("loss =")].count("\n") + 1

# As in recurrent nets: a sigmoid and a tanh of parts of a matmul, which are live at the same time.
GATES = """
    import torch, torch_remote
    torch.manual_seed(0)
    weight = torch.randn(24, 64).to("remote")
    x, memory = torch.randn(10, 24).to("remote"), torch.ones(10, 16).to("remote")
    for step in range(3):
        gate = (x @ weight)[:, 8:40:2]
        keep, new = torch.sigmoid(gate), torch.tanh(gate)
        memory = memory * keep + new
        x = x + memory.exp().sum() * 1e-3
    print(x.sum().item())
"""
GATES_LINE = GATES[: GATES.index("memory = memory")].count("\n") + 1


class Tools:
    def __init__(self, folder: Path) -> None:
        import torch_remote

        self.package = Path(torch_remote.__file__).parent
        self.folder = folder
        self.environment = {
            **os.environ,
            "TORCH_REMOTE_PACKAGE": str(self.package),
            "TORCH_REMOTE_TORCH_LIB": str(Path(torch.__file__).parent / "lib"),
        }

    def capture(self, name: str, blocks: int, cut: int, **variables: str) -> Path:
        script, path = self.folder / f"{name}.py", self.folder / f"{name}.rreplay"
        script.write_text(textwrap.dedent(TRAIN.format(blocks=blocks, cut=cut)))
        environment = {**os.environ, "TORCH_REMOTE_CAPTURE": str(path), **variables}
        run_python(script, env=environment, check=True, timeout=120)
        return path

    def run(self, tool: str, *arguments: object, status: int = 0, **options: object) -> subprocess.CompletedProcess:
        binary = Path("tools/testing") / tool if tool.endswith("-miscompiling") else self.package / "bin" / tool
        result = subprocess.run(
            [str(binary.resolve()), *map(str, arguments)],
            env=self.environment, capture_output=True, text=True, timeout=120, cwd=self.folder, **options,
        )  # fmt: skip
        assert result.returncode == status, f"exit status {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result

    def json(self, *arguments: object, status: int = 0) -> dict:
        return json.loads(self.run(*arguments, "--json", status=status).stdout)


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    return Tools(tmp_path_factory.mktemp("tools"))


@pytest.fixture(scope="module")
def small(tools):
    return tools.capture("small", blocks=2, cut=1024)


def test_the_seeded_bug_is_found_with_its_line(tools, small):
    tools.run("remote-replay", small, "--compare", "passes")
    found = tools.json(
        "remote-replay-miscompiling", small, "--compare", "passes", "--passes", "rebuild", status=1
    )  # fmt: skip
    assert found["compared"] >= 2 and len(found["differences"]) >= 2
    for difference in found["differences"]:
        assert difference["op"].startswith("aten::sub.Tensor(f32[16, 4]{4, 1}, f32[16, 4]{4, 1}"), difference
        assert difference["line"].endswith(f"small.py:{LINE} in <module>")
        assert difference["differing"] == difference["elements"] == 64 and difference["max_rel"] == 2
    # The worker got the right program; the bug is only in the tool's passes.
    tools.run("remote-replay-miscompiling", small, "--compare", "passes")
    text = tools.run(
        "remote-replay-miscompiling", small, "--compare", "passes", "--passes", "rebuild", "--run", 1, "--memory", 1,
        status=1,
    ).stdout  # fmt: skip
    assert "first differing op" in text and f"small.py:{LINE}" in text


def test_five_thousand_ops_are_reduced_to_the_two_that_matter(tools):
    big = tools.capture("big", blocks=315, cut=8000)
    begin = time.monotonic()
    result = tools.run("remote-reduce-miscompiling", big, "--mismatch", "-o", "reduced.rreplay")
    seconds = time.monotonic() - begin
    print(result.stderr)
    ops = [int(count) for count in re.findall(r"tests +(\d+) ops", result.stderr)]
    assert ops[0] >= 5000 and ops[-1] == 2
    assert re.findall(r"aten::[\w.]+", result.stdout) == ["aten::sub.Tensor", "aten::mul.Tensor"]
    assert f"big.py:{LINE} in <module>" in result.stdout
    assert seconds < 60
    reduced = tools.folder / "reduced.rreplay"
    tools.run("remote-replay", reduced, "--compare", "passes", "--passes", "rebuild")
    found = tools.json(
        "remote-replay-miscompiling", reduced, "--compare", "passes", "--passes", "rebuild", status=1
    )  # fmt: skip
    assert found["differences"][0]["node"] == 0 and found["differences"][0]["elements"] == 4


def test_nothing_to_reduce(tools, small):
    result = tools.run("remote-reduce", small, "--mismatch", status=1)
    assert "none of its runs fails" in result.stderr


def test_a_command_decides(tools, small):
    dump = (tools.package / "bin/remote-dump").resolve()
    result = tools.run(
        "remote-reduce", small, "--run", 1, "-q", "-o", "command.rreplay",
        "--command", f"{dump} --program 1 {{}} | grep -q native_layer_norm_backward",
    )  # fmt: skip
    assert re.findall(r"aten::[\w.]+", result.stdout) == ["aten::native_layer_norm_backward"]
    tools.run("remote-replay", "command.rreplay")


def test_an_interrupted_command_ends_the_reduction(tools, small):
    """Ctrl-C reaches only the command, whose shell exits with 130."""
    result = tools.run("remote-reduce", small, "--command", "exit 130; : {}", status=2)
    assert "the command was interrupted: exit 130; : {}" in result.stderr


def test_a_graph_with_made_up_inputs(tools):
    graph = """graph(n, bytes) {
  b0: input survives
  b1: fresh(bytes)
  b2: fresh(bytes)
  b3: fresh(bytes) survives
  %0: f32[n] @b0
  %1: f32[n] @b1 = aten::exp(%0)
  %2: f32[n] @b2 = aten::sub.Tensor(%1, %0, alpha=1)
  %3: f32[n] @b3 = aten::mul.Tensor(%2, %0)
}
"""
    reduced = tools.run("remote-reduce-miscompiling", "--mismatch", "--params", "100,400", input=graph).stdout
    assert re.findall(r"aten::[\w.]+", reduced) == ["aten::sub.Tensor", "aten::mul.Tensor"]
    result = tools.run("remote-reduce", "--mismatch", "--params", "100", input=graph, status=2)
    assert "the graph has 2 parameters, --params gives 1" in result.stderr


@contextmanager
def worker(tools, plugin: str | Path, **environment: str) -> Iterator[str]:
    """A worker that listens; yields its address."""
    socket = tools.folder / "worker.sock"
    socket.unlink(missing_ok=True)
    process = subprocess.Popen(
        [str(tools.package / "bin/torch-remote-worker"), "--listen", f"unix://{socket}", "--plugin", str(plugin)],
        env={**tools.environment, **environment},
    )
    try:
        while not socket.exists():
            assert process.poll() is None
            time.sleep(0.05)
        yield f"unix://{socket}"
    finally:
        process.kill()
        process.wait()


def test_two_workers_are_compared(tools, small):
    with worker(tools, aten_plugin(torch.__version__)) as other:
        # Two workers may use different memory layouts, which changes the rounding of vector code.
        found = tools.json("remote-replay", small, "--compare", "worker", "--other", other, "--atol", 1e-5)
        assert found["compared"] >= 2 and not found["differences"]


def faulty(tools, fault: str):
    plugin = Path("worker/runner/testing/libfaulty_plugin.so").resolve()
    real = str(aten_plugin(torch.__version__))
    return worker(tools, plugin, TORCH_REMOTE_TEST_PLUGIN=real, TORCH_REMOTE_TEST_FAULT=fault)


def test_a_worker_that_computes_an_op_wrongly_is_found(tools, small):
    with faulty(tools, "operands") as other:
        found = tools.json("remote-replay", small, "--compare", "worker", "--other", other, "--atol", 1e-5, status=1)
        assert found["differences"][0]["op"].startswith("aten::sub.Tensor(")
        assert found["differences"][0]["line"].endswith(f"small.py:{LINE} in <module>")
        assert found["differences"][0]["operand"] is None
        result = tools.run(
            "remote-reduce", small, "--mismatch", "worker", "--other", other, "--atol", 1e-5, "-o", "worker.rreplay"
        )  # fmt: skip
        assert re.findall(r"aten::[\w.]+", result.stdout) == ["aten::sub.Tensor"], result.stderr
        tools.run("remote-replay", "worker.rreplay", "--compare", "worker", "--other", other, status=1)


@pytest.fixture(scope="module")
def gates(tools):
    script, path = tools.folder / "gates.py", tools.folder / "gates.rreplay"
    script.write_text(textwrap.dedent(GATES))
    environment = {**os.environ, "TORCH_REMOTE_CAPTURE": str(path)}
    run_python(script, env=environment, check=True, timeout=120)
    return path


# The pass assigns the same memory to two temporaries that are live at the same time.
def test_a_wrong_memory_plan_is_found_and_reduced(tools, gates):
    found = tools.json(
        "remote-replay-miscompiling", gates, "--compare", "passes", "--passes", "rebuild", status=1
    )  # fmt: skip
    (difference, *_) = found["differences"]
    assert difference["op"].startswith("aten::mul.Tensor(") and difference["operand"] is not None, difference
    assert f"gates.py:{GATES_LINE}" in difference["line"]
    text = tools.run(
        "remote-replay-miscompiling", gates, "--compare", "passes", "--passes", "rebuild", status=1
    ).stdout  # fmt: skip
    assert "its memory was overwritten" in text
    result = tools.run("remote-reduce-miscompiling", gates, "--mismatch", "-o", "memory.rreplay")
    ops = re.findall(r"aten::[\w.]+", result.stdout)
    assert ops[:2] == ["aten::sigmoid", "aten::tanh"] and len(ops) <= 4, result.stdout
    assert int(re.findall(r"(\d+) bytes of inputs", result.stderr)[-1]) <= 64, result.stderr
    tools.run("remote-replay-miscompiling", "memory.rreplay", "--compare", "passes", "--passes", "rebuild", status=1)
    tools.run("remote-replay", "memory.rreplay", "--compare", "passes", "--passes", "rebuild")


# The same bug in a worker, which the graph does not show.
def test_a_worker_that_lays_memory_out_wrongly_is_found_and_reduced(tools, gates):
    with faulty(tools, "memory") as other:
        found = tools.json("remote-replay", gates, "--compare", "worker", "--other", other, "--atol", 1e-5, status=1)
        assert any(d.get("operand") is not None for d in found["differences"]), found
        result = tools.run(
            "remote-reduce", gates, "--mismatch", "worker", "--other", other, "--atol", 1e-5, "-o", "layout.rreplay"
        )  # fmt: skip
        ops = re.findall(r"aten::[\w.]+", result.stdout)
        assert ops[:2] == ["aten::sigmoid", "aten::tanh"] and len(ops) <= 4, result.stdout
        tools.run(
            "remote-replay", "layout.rreplay", "--compare", "worker", "--other", other, "--atol", 1e-5, status=1
        )  # fmt: skip


def test_one_run_is_taken_out(tools, small):
    tools.run("remote-replay", small, "--extract", "run:2", "--out", "one.rreplay")
    found = tools.json("remote-replay", "one.rreplay")
    assert (found["programs"], found["runs"]) == (1, 1) and found["uploads"] > 5
    tools.run("remote-replay", "one.rreplay", "--compare", "passes")
    result = tools.run("remote-replay", small, "--extract", "run:99", "--out", "none.rreplay", status=2)
    assert "none with number 99" in result.stderr


def test_times_of_programs_and_ops(tools, small):
    found = tools.json("remote-replay", small, "--bench", "--rounds", 3)
    programs = {entry["program"]: entry for entry in found["programs"]}
    assert programs and all(entry["p50_us"] <= entry["p99_us"] for entry in found["times"])
    nodes = [entry for entry in found["times"] if entry["program"] == 1]
    assert programs[1]["what"] == f"{len(nodes)} ops" and all(entry["p50_us"] > 0 for entry in nodes)
    assert sum(entry["p50_us"] for entry in nodes) < 2 * programs[1]["p50_us"] < 1e6
    assert {entry["runner"] for entry in nodes} == {f"ATen {torch.__version__.partition('+')[0]}"}  # nothing is fused
    (tools.folder / "times.json").write_text(json.dumps(found))
    tools.run("remote-viz", small, "--program", 1, "--times", "times.json", "-o", "net.html")


def test_who_executes_each_op(tools):
    fused = tools.capture("fused", blocks=1, cut=1024, TORCH_REMOTE_FUSION="1")
    program = max(tools.json("remote-dump", fused)["programs"], key=lambda program: program["ops"])["program"]
    (found,) = tools.json("remote-dump", fused, "--runners", "--program", program)["graphs"]
    ops = [node["op"] for node in found["graph"]["nodes"]]
    runners = dict(zip(ops, found["runners"], strict=True))
    assert runners["aten::native_layer_norm"] == {"runner": "compiled kernels", "in_kernel": True, "declined": ""}
    matmuls = [node for op, node in zip(ops, found["runners"], strict=True) if op in ("aten::mm", "aten::addmm")]
    for matmul in matmuls:  # which of them is faster depends on the machine
        assert matmul["runner"] == "matmul loops" or matmul["runner"].startswith("ATen"), matmul
        assert not matmul["declined"] or matmul["declined"].startswith("matmul loops: "), matmul
    assert matmuls
    text = tools.run("remote-dump", fused, "--runners", "--program", program).stdout
    assert text.count("  // compiled kernels, with its group\n") == sum(n["in_kernel"] for n in found["runners"])
    assert len(re.findall(r"^  .*aten::.*  // \S", text, re.M)) == len(ops)
    plain = tools.run("remote-dump", fused, "--runners", "--numbers").stdout
    assert "// op 0: " in plain and "did not run" not in plain


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("remote-replay", ["--compare", "worker"], "--compare worker and --other go together"),
        ("remote-replay", ["--bench", "--compare", "passes"], "choose one"),
        ("remote-replay", ["--extract", "12"], "run:N"),
        ("remote-replay", ["--compare", "colours"], "colours"),
        ("remote-replay", ["--worker", "teapot"], "'teapot' is not a worker"),
        ("remote-replay", ["/proc/nonexistent"], "/proc/nonexistent"),
        ("remote-replay", ["--run", 1], "--run goes with --compare passes"),
        ("remote-replay", ["--run", 0, "--bench"], "--run"),
        ("remote-dump", ["--runners", "--before-passes"], "leave out --before-passes"),
        ("remote-dump", ["--runners", "--worker", "teapot"], "'teapot' is not a worker"),
        ("remote-dump", ["--worker", "local"], "--runners"),
        ("remote-replay", ["--threads", -1], "--threads"),
        ("remote-reduce", ["--mismatch", "train.rreplay"], "if it is the input, it goes before --mismatch"),
        ("remote-reduce", [], "choose one of --mismatch and --command"),
        ("remote-reduce", ["--command", "true"], "needs {}"),
        ("remote-reduce", ["--mismatch", "worker"], "--mismatch worker and --other go together"),
    ],
)
def test_bad_use_exits_with_2(tools, small, tool, arguments, message):
    files = [] if "/proc/nonexistent" in arguments else [small]
    result = tools.run(tool, *files, *arguments, status=2)
    assert result.stderr.startswith(f"{tool}: ") and message in result.stderr and result.stdout == ""


def test_damaged_captures_are_refused(tools, small):
    data = bytearray(small.read_bytes())
    data[len(data) // 2] ^= 1
    damaged = tools.folder / "damaged.rreplay"
    damaged.write_bytes(data)
    for tool, *arguments in (["remote-replay"], ["remote-reduce", "--mismatch"]):
        result = tools.run(tool, damaged, *arguments, status=2)
        assert re.search(r"damaged at byte \d+: the checksum of a chunk is wrong", result.stderr), result.stderr
    result = tools.run("remote-replay", status=2, input="graph() {\n}\n")
    assert "<stdin> is text, not a capture" in result.stderr


@pytest.mark.parametrize("tool", ["remote-replay", "remote-reduce"])
def test_help_is_for_newcomers(tools, tool):
    text = tools.run(tool, "--help").stdout
    assert "Examples:" in text and "Exit status:" in text and "TORCH_REMOTE_CAPTURE" in text
