"""torch.compile without a backend: backend="remote" compiles graphs on the device."""

import logging

import pytest
import torch

import torch_remote.compile.compiler as compiler


@pytest.fixture
def chosen(monkeypatch):
    """The options with which graphs were compiled for the device."""
    seen = []
    compile_as_ever = compiler._with_aot

    def with_aot(options):
        seen.append({name for name, value in vars(options).items() if value})
        return compile_as_ever(options)

    monkeypatch.setattr(compiler, "_with_aot", with_aot)
    torch._dynamo.reset()
    return seen


@pytest.mark.parametrize(
    ("how", "options"),
    [
        ({}, set()),
        ({"backend": "inductor", "fullgraph": True}, set()),
        ({"mode": "reduce-overhead"}, {"low_latency"}),
        ({"mode": "max-autotune"}, {"low_latency", "tune"}),
        ({"mode": "max-autotune-no-cudagraphs"}, {"tune"}),
    ],
    ids=str,
)
def test_a_model_trains_as_on_cpu(remote, classifier, examples, chosen, how, options):
    x, y = examples
    losses = {}
    for device in (torch.device("cpu"), remote):
        model = classifier().to(device)
        run = torch.compile(model, **how) if device == remote else model
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        losses[device.type] = []
        for _ in range(3):
            loss = torch.nn.functional.cross_entropy(run(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[device.type].append(loss.item())
    assert losses["remote"] == pytest.approx(losses["cpu"], rel=1e-5)
    assert chosen == [options]


def test_a_graph_that_makes_its_tensors_on_the_device(remote, chosen, equal):
    @torch.compile
    def function():
        return torch.arange(4.0, device="remote") * 2

    equal(function(), torch.arange(4.0) * 2)
    assert chosen == [set()]


def test_options_of_inductor_are_ignored_with_a_warning(remote, chosen, caplog, equal):
    with caplog.at_level(logging.WARNING, logger="torch_remote"):
        equal(torch.compile(torch.neg, options={"epilogue_fusion": True})(torch.ones(2, device=remote)), -torch.ones(2))
    (record,) = caplog.records
    assert "torch.compile's options epilogue_fusion are Inductor's; backend='remote'" in record.getMessage()


def test_graphs_elsewhere_are_inductors(remote, chosen):
    """Inductor is stopped before it needs a C++ compiler."""
    import torch._inductor.compile_fx as compile_fx

    seen = []

    def inner(graph, inputs, **kwargs):
        seen.append(type(graph).__name__)
        return graph

    assert compile_fx.compile_fx.__wrapped__  # replaced by the bridge
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    result = compile_fx.compile_fx(graph, [torch.ones(2)], inner_compile=inner)(torch.ones(2))
    assert seen and not chosen
    assert (result[0] if isinstance(result, list | tuple) else result).tolist() == [2, 2]
