"""torch.remote.trace, from_text, Graph and explain."""

import re

import pytest
import torch


@pytest.fixture
def tensors(remote):
    torch.manual_seed(0)
    return torch.randn(4, 3, device=remote), torch.randn(3, 5, device=remote)


def recorded(x, w):
    with torch.remote.trace() as trace:
        y = torch.relu(x @ w)
        z = y[1:] + 1.5
    return trace, y, z


def test_a_trace_is_one_graph_with_lines(tensors):
    trace, y, z = recorded(*tensors)
    assert trace.graph.ops == {"aten::mm": 1, "aten::relu": 1, "aten::add.Tensor": 1}
    assert len(trace.graph) == 3
    assert re.search(r"test_graphs.py:\d+ in recorded", trace.to_text())
    assert torch.equal(z.cpu(), y.cpu()[1:] + 1.5)  # the traced ops also ran


@pytest.mark.parametrize("change", ["as it is", "optimized", "text", "text, optimized"])
def test_a_graph_runs_again(tensors, change):
    trace, y, _ = recorded(*tensors)
    graph = trace.graph
    if "text" in change:
        graph = torch.remote.from_text(str(graph))
    if "optimized" in change:
        graph = graph.optimized()
    x = tensors[0] * 2
    for mine, its in zip(graph.run(x, tensors[1]), (2 * y, y[1:] * 2 + 1.5), strict=True):
        torch.testing.assert_close(mine.cpu(), its.cpu())


def test_a_graph_by_hand(remote):
    graph = torch.remote.from_text("""
        graph(rows, cols, factor) {
          cells = rows * cols
          bytes = cells * 4
          b0: input survives
          b1: fresh(bytes) survives
          %0: f32[rows, cols] @b0
          %1: f32[rows, cols] @b1 = aten::mul.Tensor(%0, number(factor: f64))
          aten::neg_(%0!)
        }""")
    x = torch.arange(6.0, device=remote).reshape(2, 3)
    (y,) = graph.run(x, params={2: 0.5})
    assert torch.equal(y.cpu(), torch.arange(6.0).reshape(2, 3) * 0.5)
    assert torch.equal(x.cpu(), -torch.arange(6.0).reshape(2, 3))
    assert x._version > 0
    with pytest.raises(ValueError, match=r"parameter s2 of the graph has no value; give it with params="):
        graph.run(x)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda x, w: [x], "more input buffers than the 1 tensors given"),
        (lambda x, w: [x, w, w], "2 input buffers, but 3 tensors"),
        (lambda x, w: [x.half(), w], "input 0 must be a tensor of Float with 2 dims, got one of Half"),
        (lambda x, w: [x.cpu(), w], "input 0 of the graph is on cpu; move it"),
    ],
)
def test_wrong_inputs(tensors, arguments, message):
    trace, *_ = recorded(*tensors)
    with pytest.raises(ValueError, match=message):
        trace.graph.run(*arguments(*tensors))


def test_inputs_that_were_never_written_while_builds_need_the_gil(script, tmp_path):
    """Their memory is filled with zeros. With these variables that op waits for a build, which reads source lines."""
    script(
        """
    import torch, torch_remote
    x = torch.ones(8, device="remote")
    with torch.remote.trace() as trace:
        y = x + 1
    assert trace.graph.run(torch.empty(8, device="remote"))[0].shape == y.shape
    double = torch.compile(lambda x: x * 2, backend="remote")
    assert double(torch.empty(9, device="remote")).cpu().shape == (9,)
    """,
        TORCH_REMOTE_SYNC="1",
        TORCH_REMOTE_DUMP=str(tmp_path / "dumps"),
    )


def test_inputs_on_several_devices(script):
    script(
        """
    import torch, torch_remote
    x, w = torch.ones(2, 2, device="remote:0"), torch.ones(2, 2, device="remote:0")
    with torch.remote.trace() as trace:
        y = x @ w
    assert torch.equal(trace.graph.run(x, w)[0], y)
    try:
        trace.graph.run(x, w.to("remote:1"))
    except RuntimeError as error:
        assert "same device" in str(error) and "input 1 of the graph is on remote:1" in str(error), error
        assert ".to(" in str(error), error
    else:
        raise AssertionError
    """,
        TORCH_REMOTE_WORKER="local,local",
    )


def test_a_device_without_an_index_is_the_current_one(script):
    script(
        """
    import torch, torch_remote
    with torch.remote.device(1), torch.remote.trace("remote") as trace:
        y = torch.ones(2, device="remote").neg()
    assert y.device.index == 1 and trace.graph.ops["aten::neg"] == 1, str(trace)
    try:
        torch.remote.trace("cpu")
    except ValueError as error:
        assert "Expected a remote device, but got: cpu" in str(error), error
    else:
        raise AssertionError
    """,
        TORCH_REMOTE_WORKER="local,local",
    )


def test_bad_text_names_line_and_column():
    with pytest.raises(ValueError, match=r"^2:7: "):
        torch.remote.from_text("graph(a) {\n  b0: inputt\n}")


def test_waiting_splits_a_trace(tensors):
    x, w = tensors
    with torch.remote.trace() as trace:
        if (x @ w).sum().item() < 1e9:
            x = x + 1
    assert [list(graph.ops) for graph in trace.graphs] == [["aten::mm", "aten::sum"], ["aten::add.Tensor"]]
    with pytest.raises(ValueError, match="recorded 2 graphs"):
        _ = trace.graph


def test_trace_of_a_compiled_function(remote):
    torch._dynamo.reset()
    x = torch.randn(5, device=remote)
    function = torch.compile(lambda x: x.sin() * 2, backend="remote", dynamic=True)
    function(x)
    with torch.remote.trace() as trace:
        function(x)
    assert trace.graph.ops == {"aten::sin": 1, "aten::mul.Tensor": 1}
    (y,) = trace.graph.run(x)
    assert torch.equal(y.cpu(), (x.sin() * 2).cpu())


def test_saved_graphs(tensors, tmp_path):
    trace, y, _ = recorded(*tensors)
    trace.save(tmp_path / "graph.txt")
    again = torch.remote.from_text((tmp_path / "graph.txt").read_text())
    assert torch.equal(again.run(*tensors)[0].cpu(), y.cpu())
    trace.graph.save(tmp_path / "graph.program")
    assert (tmp_path / "graph.program").read_bytes()[4:8] == b"TRPR"


def test_explain(remote):
    x = torch.randn(7, device=remote)

    def function(x):
        if (x * 2).sum().item() < 1e9:
            x = x + 1
        return x.cpu()

    explanation = torch.remote.explain(function, x)
    assert torch.equal(explanation.result, x.cpu() + 1)
    assert explanation.ops == {"aten::mul.Tensor": 2, "aten::sum": 2, "aten::add.Tensor": 2}
    assert [(f.call, f.reason, f.ops, f.miss is None) for f in explanation.flushes][2:] == [
        (1, "item", 2, True),
        (1, "copy to cpu", 1, True),
    ]
    assert [s.reason for s in explanation.syncs] == ["item", "copy to cpu"] * 2
    assert all("test_graphs.py" in s.line and s.line.endswith(".function") for s in explanation.syncs)
    assert explanation.stats[1]["programs_built"] == 0
    report = str(explanation)
    assert "sent because of 'item' at" in report
    assert "fell back to this process's CPU: nothing" in report
    with pytest.raises(ValueError, match="calls must be at least 1"):
        torch.remote.explain(function, x, calls=0)


def test_explain_counts_the_waits_of_an_op_as_one(remote):
    x = torch.randn(20, 30, device=remote)

    def prints(x):
        repr(x)
        return x.sum().item()

    explanation = torch.remote.explain(prints, x, calls=1)
    printed, summed = explanation.syncs
    assert printed.waits > 10 and printed.reason.split(", ") == ["dynamic", "item", "copy to cpu"]
    assert printed.line != summed.line and (summed.waits, summed.reason) == (1, "item")
    assert f" ({printed.waits} times) for 'dynamic, item, copy to cpu' at {printed.line}" in str(explanation)

    def loops(x):
        for _ in range(3):
            x = x * 0.5
            x.sum().item()

    explanation = torch.remote.explain(loops, x)
    assert [sync.waits for sync in explanation.syncs] == [1] * 6
    assert [stats["round_trips"] for stats in explanation.stats] == [3, 3]  # none of the profile's own


def test_a_graph_takes_no_lazy_conjugate(remote):
    x = torch.tensor([1 + 2j], device=remote)
    with torch.remote.trace() as trace:
        y = x * 2
    for lazy in (x.conj(), x.conj().imag):
        with pytest.raises(ValueError, match=r"input 0 of the graph is a lazy conjugate or negative; call"):
            trace.graph.run(lazy)
    (again,) = trace.graph.run(x.conj().resolve_conj())
    assert torch.equal(again.cpu(), y.cpu().conj())
