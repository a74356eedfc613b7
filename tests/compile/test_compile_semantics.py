"""Compiled functions compute what eager functions compute on CPU: control flow, aliases, data-dependent sizes."""

import logging
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map

import torch_remote.compile.compiler as compiler


def loop(x):
    start = torch.zeros((), dtype=torch.int64, device=x.device)
    return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 1.5 + 1), (start, x))


def size_of_data(x, n):
    count = n.item()
    torch._check(count >= 0)
    torch._check(count <= x.shape[0])
    return x[:count] * 2, torch.zeros(count, device=x.device) + 1


FUNCTIONS = {
    "while_loop": (loop, [torch.randn(4)]),
    "scan": (
        lambda x: scan(lambda carry, y: (carry + y, (carry * y).clone()), torch.zeros(3, device=x.device), x),
        [torch.randn(5, 3)],
    ),
    "map": (lambda x: map_(lambda y: y.sin() + 1, x), [torch.randn(5, 3)]),
    "associative scan": (
        lambda x: associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic"),
        [torch.randn(5, 3)],
    ),
    "cond": (lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), [torch.randn(4)]),
    "nonzero": (lambda x: (x.nonzero().float() * 2).sum(0), [torch.tensor([1.0, 0, 3, 0])]),
    "item": (lambda x: x * x.sum().item(), [torch.randn(4)]),
    "an int of data": (lambda x: x.item(), [torch.tensor([7])]),
    "size of data": (size_of_data, [torch.randn(6), torch.tensor(4)]),
    "mask": (lambda x: x[x > 0].exp(), [torch.randn(20)]),
    "unique": (lambda x: torch.unique(x) + 1, [torch.tensor([3.0, 1, 1, 2])]),
    "complex": (lambda x: torch.view_as_real(torch.view_as_complex(x) * 2j).sum(), [torch.randn(3, 2)]),
    "lazy conjugates": (
        lambda x, y: (x.conj(), x.conj() @ y, x.conj().imag, (x * 2).mH, x.expand(2, 3, 4).conj().sum(0)),
        [torch.randn(3, 4, dtype=torch.complex64), torch.randn(4, 3, dtype=torch.complex64)],
    ),
    "lazy and computed conjugates of one view": (
        lambda x: (x.t().conj() @ x, torch.conj_physical(x.t()), x.sum()),
        [torch.randn(3, 4, dtype=torch.complex64)],
    ),
    "views of inputs as other dtypes": (
        lambda x, y: (torch.view_as_real(x[1:])[1:] * 2, x.imag.add_(1), y[1:].view(torch.uint8) + 1),
        [torch.randn(3, 4, dtype=torch.complex64), torch.randn(3, 4)],
    ),
    "lists of views": (lambda x: [*(a * 2 for a in x.split(2)), *x.chunk(3)], [torch.randn(6, 2)]),
    "a bool": (lambda x, up: x + 1 if up else x - 1, [torch.randn(3), True]),
    "an int": (lambda x, n: x * n + x.shape[0], [torch.randn(3), 7]),
    "results on the CPU": (
        lambda x, f: (x * f, torch.tensor(f).sqrt() + 1, torch.tensor(2.0, dtype=torch.float64) / f),
        [torch.randn(3), 0.37],
    ),
    "a float": (lambda x, f: x * f + f, [torch.randn(3), 0.37]),
    "in place": (lambda x: (x.add_(1), x.view(-1).mul_(2), x.t())[2] + 0, [torch.randn(3, 2)]),
    "views of inputs": (lambda x: (x.expand(4, 3), x[None], x), [torch.randn(3)]),
    "sizes of convolution": (lambda x: F.conv2d(x, x[:1, :, :3, :3], stride=2), [torch.randn(2, 3, 9, 9)]),
    "index_put": (
        lambda x, i: x.index_put((i,), torch.ones((), device=x.device), accumulate=True),
        [torch.randn(5), torch.tensor([1, 1, 3])],
    ),
    "vmap": (lambda x: torch.vmap(lambda row: row.dot(row))(x), [torch.randn(3, 4)]),
    "grad": (lambda x: torch.func.grad(lambda y: (y**3).sum())(x), [torch.randn(3)]),
    "memory nobody wrote": (lambda x: torch.empty_like(x).fill_(2) + x, [torch.randn(3)]),
    "constants": (
        lambda x: (
            x + torch.tensor([1.0, 2, 3], device=x.device) + torch.tensor(2.5),
            torch.tensor(4, device=x.device),
        ),
        [torch.randn(3)],
    ),
    "dtypes by default": (
        lambda x: (x + torch.randperm(4, device=x.device).sort().values, torch.tril_indices(3, 4, device=x.device)),
        [torch.randn(4)],
    ),
    "numbers of the CPU": (lambda x, n: x * n.sqrt() + n, [torch.randn(3), torch.tensor(2.25)]),
}


@pytest.fixture(autouse=True)
def data_dependent():
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        yield


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_same_as_on_cpu(remote, name, dynamic):
    function, arguments = FUNCTIONS[name]
    compiled = torch.compile(function, backend="remote", fullgraph=True, dynamic=dynamic)
    keep = {"numbers of the CPU": 1, "size of data": 1}.get(name)
    for _ in range(2):
        here = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
        there = [a.to(remote) if isinstance(a, torch.Tensor) and i != keep else a for i, a in enumerate(here)]
        result = compiled(*there)
        expected = function(*here)
        to_cpu = tree_map(lambda r: r.cpu() if isinstance(r, torch.Tensor) else r, [result, there])
        torch.testing.assert_close(to_cpu, [expected, here], rtol=1e-4, atol=1e-5)


def test_lazy_conjugates_stay_lazy(remote):
    """This holds for arguments, results and gradients, also if the graph was made for other ones."""
    x, y = torch.randn(3, 4, dtype=torch.complex64), torch.randn(4, 3, dtype=torch.complex64)
    compiled = torch.compile(lambda x, y: (x.conj(), (x * 2).conj(), x @ y), backend="remote", fullgraph=True)
    results = compiled(x.to(remote).conj(), y.to(remote))
    for result, lazy, expected in zip(results, (False, True, False), (x, (x * 2), x.conj() @ y), strict=True):
        assert result.is_conj() == lazy
        torch.testing.assert_close(result.cpu().resolve_conj(), expected)
    square = torch.compile(lambda x: x * x, backend="remote", fullgraph=True)
    for gradient in (torch.full((3, 4), 1j), torch.full((3, 4), 1j).conj()):
        there = x.to(remote).requires_grad_()
        its = gradient.resolve_conj().to(remote)
        (got,) = torch.autograd.grad(square(there), there, its.conj_physical().conj() if gradient.is_conj() else its)
        torch.testing.assert_close(got.cpu().resolve_conj(), (2 * x).conj() * gradient)


def test_gradients_of_data_dependent_sizes(remote):
    def function(x, mask, value):
        return torch.index_put(x, (mask,), value).sin()

    x, mask, value = torch.randn(5), torch.tensor([True, False, True, True, False]), torch.tensor([2.0])
    here = [x.clone().requires_grad_(), mask, value.clone().requires_grad_()]
    there = [t.detach().to(remote).requires_grad_(t.requires_grad) for t in here]
    function(*here).sum().backward()
    torch.compile(function, backend="remote", dynamic=True)(*there).sum().backward()
    for i in (0, 2):
        torch.testing.assert_close(there[i].grad.cpu(), here[i].grad)


def test_a_number_that_a_program_fixes(remote, caplog):
    """A stride that Dynamo left symbolic: there is a single program, and another stride makes another program."""
    x, w = torch.randn(2, 3, 9, 9), torch.randn(4, 3, 3, 3)
    here, there = [w.clone().requires_grad_(), w.to(remote).requires_grad_()]
    compiled = torch.compile(lambda x, w, s: F.conv2d(x, w, stride=s).relu(), backend="remote", dynamic=True)
    caplog.set_level(logging.DEBUG, "torch_remote.compile.compiler")
    for stride in (2, 3, 2):
        expected = F.conv2d(x, here, stride=stride).relu()
        got = compiled(x.to(remote), there, stride)
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-5)
        expected.sum().backward()
        got.sum().backward()
        torch.testing.assert_close(there.grad.cpu(), here.grad, rtol=1e-4, atol=1e-4)
    assert "outside" not in caplog.text


@pytest.mark.parametrize("backend", [None, "remote"])
def test_a_kernel_that_changes_its_list_of_indices(remote, backend):
    """The kernel may do this, and a program that runs again passes the same list."""

    def function(x, mask, i, j):
        return torch.ops.aten._unsafe_masked_index(x, mask, [i, j], 0.0)

    there = torch.compile(function, backend=backend, dynamic=True) if backend else function
    for n in (4, 5, 5):
        x, mask = torch.randn(6, 6), torch.randn(n, n) > 0
        i, j = torch.randint(6, (n, 1)), torch.randint(6, (1, n))
        got = there(*(t.to(remote) for t in (x, mask, i, j)))
        torch.testing.assert_close(got.cpu(), function(x, mask, i, j))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings(remote, mode, last):
    """The tensors that torch saves for the gradients have different sizes on CPU and on devices."""

    def function(table, indices, offsets):
        return F.embedding_bag(indices, table, offsets, mode=mode, include_last_offset=last)

    indices, offsets = torch.tensor([1, 2, 2, 7, 4]), torch.tensor([0, 2, 5] if last else [0, 2])
    here = torch.randn(10, 4, requires_grad=True)
    there = here.detach().to(remote).requires_grad_()
    expected = function(here, indices, offsets)
    got = torch.compile(function, backend="remote", fullgraph=True)(there, indices.to(remote), offsets.to(remote))
    torch.testing.assert_close(got.cpu(), expected)
    expected.pow(2).sum().backward()
    got.pow(2).sum().backward()
    torch.testing.assert_close(there.grad.cpu(), here.grad)


def test_ops_that_read_an_operand_twice(remote):
    """Their results are not made in the operand's memory, although nothing needs the operand afterwards."""

    def gradients(device, compiled):
        x, w = (t.to(device, copy=True).requires_grad_() for t in operands)
        compiled(x, w).square().sum().backward()
        return x.grad.cpu(), w.grad.cpu()

    def gate(x, w):
        return F.glu(x * w)

    operands = torch.randn(6, 8), torch.randn(6, 8)
    compiled = torch.compile(gate, backend="remote", fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(gradients(remote, compiled), gradients("cpu", gate))
    parts = torch.compile(lambda x: torch.frexp(x * 2), backend="remote", fullgraph=True)
    for got, expected in zip(parts(operands[0].to(remote)), torch.frexp(operands[0] * 2), strict=True):
        torch.testing.assert_close(got.cpu(), expected)


def test_windows_of_a_number_that_are_written(remote):
    """Torch's decomposition of the gradient would give the number a dimension."""

    def scale(x):
        y = torch.relu(x)
        y.unfold(-1, 0, 2).mul_(2)
        return y

    # Functionalization writes 0 where no window is.
    assert torch.compile(scale, backend="remote")(torch.tensor(3.0, device=remote)).tolist() == 0


def test_a_module_partly_on_cpu(remote):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.near, self.far = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            far = self.far.weight.device
            return self.far(torch.relu(self.near(x)).to(far)).to(x.device)

    torch.manual_seed(0)
    here, split = Net(), Net()
    split.load_state_dict(here.state_dict())
    split.far.to(remote)
    x = torch.randn(3, 4)
    torch.compile(split, backend="remote")(x).sum().backward()
    here(x).sum().backward()
    for mine, its in zip(split.parameters(), here.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.cpu(), its.grad, rtol=1e-4, atol=1e-5)


def test_other_strides_than_the_graph_was_made_for(remote):
    """A tensor that the graph writes and whose strides differ from the example's is copied, and copied back."""
    compiled = torch.compile(lambda x: x.mul_(2).sum(), backend="remote", dynamic=False)
    for x in (torch.randn(3, 4), torch.randn(4, 3).t(), torch.randn(3, 8)[:, ::2]):
        there = x.to(remote)
        result = compiled(there)
        torch.testing.assert_close(there.cpu(), x * 2)
        torch.testing.assert_close(result.cpu(), (x * 2).sum())


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("sizes", [(2, 3, 4, 8), (1, 2, 5, 1), (2, 1, 6, 4)], ids=str)
def test_gradients_of_attention_have_the_strides_of_eager_code(remote, sizes, dynamic):
    def function(x):
        return F.scaled_dot_product_attention(x * 1, x * 2, x * 3)

    x = torch.randn(sizes)
    strides = []
    for device, called in (("cpu", function), (remote, torch.compile(function, backend="remote", dynamic=dynamic))):
        leaf = x.to(device).detach().requires_grad_()
        (gradient,) = torch.autograd.grad(called(leaf).double().sum(), leaf)
        strides.append([stride for stride, size in zip(gradient.stride(), sizes, strict=True) if size > 1])
    assert strides[0] == strides[1]


def test_a_result_that_is_returned_twice_is_one_tensor(remote):
    """For an aliased result, AOTAutograd also keeps the base. An op that resizes one must resize the other."""

    def function(a, b):
        count = torch.count_nonzero(a, 0)
        view = count.view(1)
        torch.eq(b, b, out=count)
        return count, view

    for device in ("cpu", remote):
        compiled = torch.compile(function, backend="remote" if device == remote else "aot_eager")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # out= is resized
            count, view = compiled(torch.ones(3, device=device), torch.ones(7, device=device))
        assert (count.shape, view.shape) == ((7,), (1,))
        assert count.cpu().tolist() == [1] * 7


def test_one_message_a_call(remote, counted):
    layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(15))).to(remote)
    x = torch.randn(5, 8, device=remote)
    compiled = torch.compile(layers, backend="remote", dynamic=True)
    with torch.no_grad():
        compiled(x)
        with counted() as c:
            y = compiled(x)
        assert c["flushes"] == c["program_hits"] == 1
        assert c["ops_recorded"] == c["programs_built"] == c["round_trips"] == 0
        assert c["bytes_sent"] < 200
        # Ops that are recorded before and after are in the same queue.
        z = compiled(x + 1) - y
    torch.testing.assert_close(z.cpu(), (layers(x + 1) - layers(x)).detach().cpu(), rtol=1e-3, atol=1e-5)


def test_numbers_of_the_cpu_do_not_split_a_graph(remote):
    """dynamic=True makes floats symbolic: they become 0-dim CPU tensors, which are saved for the backward pass."""

    def f(x, scale):
        root = torch.tensor(scale, dtype=torch.float64).sqrt().float()
        return x.softmax(-1) * scale * root, root * 2

    torch.remote.reset_stats()
    compiled = torch.compile(f, backend="remote", dynamic=True)
    for scale in (0.5, 0.75, 3.0):
        x = torch.randn(3, 4)
        mine, theirs = x.to(remote).requires_grad_(), x.clone().requires_grad_()
        got, number = compiled(mine, scale)
        want, its = f(theirs, scale)
        assert number.device.type == "cpu" and torch.equal(number, its)
        torch.testing.assert_close(got.cpu(), want)
        got.sum().backward()
        want.sum().backward()
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad)
    stats = torch.remote.stats()
    assert stats["compiled_graphs"] >= 2 and stats["compiled_graph_splits"] == 0


@pytest.mark.parametrize(
    ("op", "dims", "options"),
    [
        ("upsample_nearest1d", 1, {"scale_factor": 2}),
        ("upsample_nearest2d", 2, {"size": (7, 9)}),
        ("_upsample_nearest_exact3d", 3, {"scale_factor": 1.5, "mode": "nearest-exact"}),
        ("upsample_bilinear2d", 2, {"scale_factor": 2.5, "mode": "bilinear"}),
        ("upsample_bicubic2d", 2, {"scale_factor": 2.0, "mode": "bicubic", "align_corners": True}),
        ("_upsample_bicubic2d_aa", 2, {"size": (4, 5), "mode": "bicubic", "antialias": True}),
    ],
)
def test_interpolation_is_one_op_and_one_program(remote, counted, op, dims, options):
    compiled = torch.compile(lambda x: F.interpolate(x * 1, **options), backend="remote", fullgraph=True)
    for more in (0, 1, 3, 4):
        there = torch.randn(2 + more, 3, *range(5 + more, 5 + more + dims), requires_grad=True)
        here = there.detach().to(remote).requires_grad_()
        with counted() as c, torch.remote.trace() as trace:
            result = compiled(here)
            result.sin().sum().backward()
        assert c["programs_built"] == 0 or more < 3
        text = "".join(graph.to_text() for graph in trace.graphs)
        assert f"{op}(" in text and f"{op}_backward(" in text
        expected = F.interpolate(there, **options)
        expected.sin().sum().backward()
        torch.testing.assert_close(result.cpu(), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(here.grad.cpu(), there.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic", "area"])
def test_interpolation_of_permuted_images(remote, mode):
    """Position embeddings of vision transformers; the gradient is channels last."""

    def function(table):
        images = table.reshape(1, 4, 4, 3).permute(0, 3, 1, 2)
        return F.interpolate(images, size=(6, 5), mode=mode).permute(0, 2, 3, 1)

    here = torch.randn(1, 16, 3, requires_grad=True)
    there = here.detach().to(remote).requires_grad_()
    gradient = torch.randn(1, 6, 5, 3)
    expected, result = function(here), torch.compile(function, backend="remote")(there)
    expected.backward(gradient)
    result.backward(gradient.to(remote))
    torch.testing.assert_close(result.cpu(), expected)
    torch.testing.assert_close(there.grad.cpu(), here.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "norm",
    [
        lambda x, w, b: F.layer_norm(x, (6,), w[:6], b[:6]),
        lambda x, w, b: F.layer_norm(x, (6,)) * w[0] + b[0],
        lambda x, w, b: F.layer_norm(x, (6,), w[:6].float(), b[:6].float()).to(x.dtype),
        lambda x, w, b: F.batch_norm(x, torch.zeros_like(w), torch.ones_like(w), w, b, training=True),
        lambda x, w, b: F.batch_norm(x, torch.zeros_like(w), torch.ones_like(w), w, b),
        lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
        lambda x, w, b: F.group_norm(x, 2, w, b),
        lambda x, w, b: F.rms_norm(x, (6,), w[:6]) + b[0],
    ],
    ids=["layer", "layer, plain", "layer, mixed", "batch", "batch at rest", "instance", "group", "rms"],
)
def test_norms_in_half_precision(remote, norm, dtype):
    """torch predicts float32 statistics on devices other than the CPU."""
    there = [torch.randn(s, dtype=dtype, requires_grad=True) for s in [(4, 8, 6), (8,), (8,)]]
    here = [t.detach().to(remote).requires_grad_() for t in there]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rms_norm of another dtype than the weight's
        result, expected = torch.compile(norm, backend="remote", fullgraph=True)(*here), norm(*there)
    torch.testing.assert_close(result.cpu(), expected, rtol=2e-2, atol=2e-2)
    for loss in (result, expected):
        loss.float().sin().sum().backward()
    for mine, its in zip(here, there, strict=True):
        torch.testing.assert_close(mine.grad.cpu(), its.grad, rtol=5e-2, atol=5e-2)


def test_values_die_when_nothing_needs_them(remote, compiled_graphs):
    """Tensors are freed early, also in a graph of more than one program."""
    alive = []

    @torch.library.custom_op("testlib::look", mutates_args=())
    def look(here: torch.Tensor) -> torch.Tensor:
        alive.extend(weak() is not None for weak in weaks)
        return here * 1

    look.register_fake(torch.empty_like)

    def f(x):
        return look((x * 2).cpu()).to(x.device) + 1

    compiled = torch.compile(f, backend="remote", fullgraph=True)
    weaks = []
    expected = compiled(torch.ones(8, device=remote)).cpu()
    (plan,) = compiled_graphs
    assert type(plan).__name__ == "Plan"
    arguments = [torch.ones(8, device=remote)]
    weaks.append(weakref.ref(arguments[0]))
    (result,) = plan(arguments)
    assert arguments == [] and alive == [False] and torch.equal(result.cpu(), expected)


def test_values_of_the_cpu_are_those_before_it_was_written(remote):
    """This includes values that nothing on the device needs."""

    def f(step, x):
        doubled = step * 2
        step.add_(1)
        return doubled, x * step

    for function in (f, torch.compile(f, backend="remote", fullgraph=True)):
        step = torch.tensor(3.0)
        doubled, product = function(step, torch.ones(2, device=remote))
        assert (doubled.item(), step.item(), product.tolist()) == (6, 4, [4, 4])


def test_explain_shows_where_nodes_are_computed(remote):
    def f(x):
        return x.nonzero() + 1

    explanation = torch.remote.explain(torch.compile(f, backend="remote"), torch.ones(3, device=remote))
    (graph,) = explanation.graphs
    found = {node.op: (node.where, node.why) for node in graph}
    assert found["aten.nonzero.default"] == ("outside", "its results depend on data")
    assert found["aten.add.Tensor"] == ("program 0", "")
    assert "nonzero (aten.nonzero.default) runs outside: its results depend on data" in str(explanation)


def test_an_error_names_the_line(remote):
    def function(x, i):
        return x[i] * 2

    compiled = torch.compile(function, backend="remote")
    x = torch.randn(4, device=remote)
    with pytest.raises(IndexError, match=r"out of bounds[^\0]*recorded at .*test_compile_semantics.py:\d+ in function"):
        compiled(x, torch.tensor([7], device=remote)).cpu()
    assert compiled(x, torch.tensor([3], device=remote)).cpu() == x[3].cpu() * 2


def test_checks_of_linear_algebra_are_in_the_program(remote, counted):
    """torch checks them with effectful ops, including tokens."""

    def function(x):
        square = x @ x.T + torch.eye(3, device=x.device)
        return torch.linalg.cholesky(square) + torch.linalg.inv(square), torch.linalg.solve(square, x)

    compiled = torch.compile(function, backend="remote", dynamic=True)
    x = torch.randn(3, 3)
    mine, its = x.to(remote).requires_grad_(), x.clone().requires_grad_()
    got, want = compiled(mine), function(its)
    torch.testing.assert_close([r.cpu() for r in got], list(want), rtol=1e-4, atol=1e-4)
    sum(r.sum() for r in got).backward()
    sum(r.sum() for r in want).backward()
    torch.testing.assert_close(mine.grad.cpu(), its.grad, rtol=1e-3, atol=1e-3)
    x = x.to(remote)
    compiled(x)
    with counted() as c:
        compiled(x)
    assert c["flushes"] == c["program_hits"] == 1 and c["ops_recorded"] == c["round_trips"] == 0
    cholesky = torch.compile(lambda x: torch.linalg.cholesky(x * 1), backend="remote")  # contains the check
    bad = cholesky(-torch.eye(3, device=remote))
    with pytest.raises(torch.linalg.LinAlgError, match=r"(?s)not positive-definite.*test_compile_semantics.py:\d+"):
        bad.cpu()


def test_results_that_no_program_holds(remote):
    """A CPU argument that a graph returns unchanged."""

    def function(here, there):
        return here, there + 1

    here, there = torch.ones(3), torch.ones(2, device=remote)
    graph = make_fx(function, tracing_mode="fake")(here, there)
    same, more = compiler.compile_graph(graph, guarded=False)([here, there])
    assert same is here and more.tolist() == [2, 2]


def test_an_input_that_no_program_takes_determines_no_size(remote):
    """The graph does not know the row stride of `x`, which has as many rows as `y`."""
    wide, there = torch.randn(10, 20), torch.randn(10)
    arguments = [wide.to(remote)[:, :7], there.to(remote)]
    graph = make_fx(lambda x, y: (x.sin(), y.cos()), tracing_mode="symbolic")(*arguments)
    sin, cos = compiler.compile_graph(graph, guarded=True)(arguments)
    torch.testing.assert_close(sin.cpu(), wide[:, :7].sin())
    torch.testing.assert_close(cos.cpu(), there.cos())


def test_a_mask_that_selects_another_number_than_torch_assumed(remote):
    """The sum makes torch assume that two elements are selected, and torch does not check it."""

    def function(x):
        selected = x[x > 0]
        return selected, selected + torch.tensor([1.0, 2.0], device=x.device)

    compiled = torch.compile(function, backend="remote")
    selected, total = compiled(torch.tensor([1.0, 3, -1], device=remote))
    assert selected.tolist() == [1, 3] and total.tolist() == [2, 5]
    for other in ([1.0, -1, -1], [1.0, 3, 5], [-1.0, -1, -1]):
        with pytest.raises(RuntimeError, match="dim 0 must be 2"):
            compiled(torch.tensor(other, device=remote))


CONSTANTS = {
    "made there": lambda x: x + torch.tensor([1.0, 2.0], device=x.device),
    "moved there": lambda x: x + torch.tensor([1.0, 2.0], dtype=torch.float64).to(x.device, x.dtype),
    "in a plan": lambda x: x[x > 0] + torch.tensor([1.0, 2.0], device=x.device),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants(remote, counted, compiled_graphs, name):
    """Constants are sent once, and again to a new worker; a result does not alias a constant."""
    compiled = torch.compile(CONSTANTS[name], backend="remote")
    x = torch.ones(2, device=remote)
    compiled(x).add_(5)
    with counted() as c:
        assert compiled(x).tolist() == [2, 3]
    assert c["bytes_uploaded"] == 0
    assert {type(graph).__name__ for graph in compiled_graphs} == {"Plan" if name == "in a plan" else "CompiledGraph"}
    torch.remote.restart()
    for _ in range(2):
        assert compiled(torch.ones(2, device=remote)).tolist() == [2, 3]


def test_a_constant_that_is_returned_is_new_each_time(remote):
    compiled = torch.compile(lambda x: (x + 1, torch.tensor([1.0, 2.0]).to(x.device)), backend="remote")
    for _ in range(2):
        _, constant = compiled(torch.ones(2, device=remote))
        assert constant.tolist() == [1, 2]
        constant.zero_()


def test_after_a_restart(remote):
    compiled = torch.compile(lambda x: x * 3, backend="remote")
    x = torch.randn(4, device=remote)
    compiled(x)
    torch.remote.restart()
    with pytest.raises(RuntimeError, match="lost with the worker"):
        compiled(x)
    assert torch.equal(compiled(torch.ones(4, device=remote)).cpu(), torch.full((4,), 3.0))


def test_metas_of_gradients_accept_symbolic_sizes(remote):
    from torch.fx.experimental.proxy_tensor import make_fx

    def function(grad, x, target):
        return torch.ops.aten.multi_margin_loss_backward(grad, x, target, 1, 1)

    grad, x, target = torch.ones((), device=remote), torch.rand(5, 4, device=remote), torch.zeros(5, device=remote)
    graph = make_fx(function, tracing_mode="symbolic")(grad, x, target.long()).graph
    (node,) = (node for node in graph.nodes if node.target is torch.ops.aten.multi_margin_loss_backward.default)
    assert all(isinstance(size, torch.SymInt) for size in node.meta["val"].shape)
