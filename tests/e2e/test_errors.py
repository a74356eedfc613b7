"""Invalid use: the error must state what was wrong, where, and how to fix it."""

import os
import re
import threading

import pytest
import torch
import torch.nn.functional as F


def line_of(text):
    """The number of the first line of this file that contains `text`."""
    with open(__file__) as file:
        return next(i for i, line in enumerate(file, 1) if text in line)


def test_mixed_devices(remote):
    with pytest.raises(RuntimeError, match=r"(?s)remote.*cpu|cpu.*remote"):
        torch.ones(2, device=remote) + torch.ones(2)
    with pytest.raises(RuntimeError, match=r"(?s)remote.*cpu|cpu.*remote"):
        torch.ones(2, 2) @ torch.ones(2, 2, device=remote)
    with pytest.raises(RuntimeError, match=r"\.to\("):
        F.linear(torch.ones(2, 2, device=remote), torch.ones(2, 2))
    # 0-dim CPU tensors count as numbers.
    assert (torch.ones(2, device=remote) + torch.tensor(2)).tolist() == [3, 3]


def test_numbers_of_the_cpu(device, equal):
    """0-dim CPU tensors are accepted where CUDA accepts them, too."""
    x, number = torch.rand(3, 4), torch.tensor(0.3)
    functions = (
        lambda x: F.binary_cross_entropy_with_logits(x, x, pos_weight=number),
        lambda x: F.binary_cross_entropy_with_logits(x, x, weight=number),
        lambda x: x.masked_fill(x > 0.5, number),
        lambda x: x[:, ::2].masked_fill_(x[:, ::2] > 0.5, torch.tensor(7)),
        lambda x: x.index_fill(0, torch.tensor([0, 2], device=x.device), number),
        lambda x: torch.ldexp(x, torch.tensor(2)),
        lambda x: torch.ldexp(number, x),
    )
    for function in functions:
        equal(function(x.to(device)), function(x.clone()))


def test_bools_are_not_subtracted(device):
    x, on_device = torch.ones(3, device=device), torch.tensor(True, device=device)
    for other in (torch.tensor(True), on_device, True):
        assert (x - 1).tolist() == [0, 0, 0]  # a number may be subtracted
        for function in (torch.sub, torch.rsub, lambda x, other: other - x, lambda x, other: x.clone().sub_(other)):
            with pytest.raises(RuntimeError, match="with a bool tensor is not supported"):
                function(x, other)
    assert (x * on_device).tolist() == [1, 1, 1]


SHAPE_ERRORS = {
    "add": lambda a, b: a + b,
    "matmul": lambda a, b: a @ b,
    "view": lambda a, b: a.view(5),
    "cat": lambda a, b: torch.cat([a, b], 0),
    "reduce": lambda a, b: a.sum(7),
    "in_place": lambda a, b: a.add_(b),
    "cast": lambda a, b: a.int().add_(1.5),
    "overlap": lambda a, b: a[0].expand(4, 3).add_(1),
    "stack": lambda a, b: torch.stack([a, b]),
    "select": lambda a, b: a[9],
    "permute": lambda a, b: a.permute(0, 0),
    "expand": lambda a, b: a.expand(3, 3),
    "conv": lambda a, b: F.conv2d(a[None, None], b[None, None, None]),
    "channels": lambda a, b: F.conv2d(a[None, None], b[None, None].expand(1, 2, 4, 5)),
    "transposed_channels": lambda a, b: F.conv_transpose1d(a[None], b[None]),
    "bool_minus": lambda a, b: (a > 0) - (a > 1),
}


@pytest.mark.parametrize("name", SHAPE_ERRORS)
def test_shape_errors_raise_at_the_call_with_torchs_message(device, name):
    a, b = torch.ones(2, 3), torch.ones(4, 5)
    with pytest.raises((RuntimeError, IndexError, TypeError)) as expected:
        SHAPE_ERRORS[name](a, b)
    with pytest.raises(type(expected.value)) as got:
        SHAPE_ERRORS[name](a.to(device), b.to(device))
    first = str(expected.value).splitlines()[0]
    assert str(got.value).splitlines()[0].startswith(first[:50])


def test_the_device_works_on_after_shape_errors(device):
    x = torch.ones(2, 3, device=device)
    for _ in range(20):
        with pytest.raises(RuntimeError):
            x @ x
        x.add_(1)
    assert x.sum().item() == 126


def test_an_error_of_the_worker_names_op_shapes_and_line(remote):
    good = torch.ones(3, device=remote) * 2
    table = torch.randn(5, 4, device=remote)
    index = torch.tensor([1, 7], device=remote)
    bad = table.index_select(0, index)  # the line that fails
    dependent = bad + 1
    with pytest.raises((IndexError, RuntimeError)) as error:
        bad.sum().item()
    message = str(error.value)
    assert "index_select" in message
    assert "5, 4" in message or "5x4" in message or "[5" in message
    assert re.search(rf"test_errors\.py.*\b{line_of('# the line that fails')}\b", message), message
    # Tensors that do not depend on it are right; dependent tensors raise the same error.
    assert good.tolist() == [2, 2, 2]
    with pytest.raises((IndexError, RuntimeError), match="index_select"):
        dependent.cpu()
    assert (good + 1).tolist() == [3, 3, 3] and table.shape == (5, 4) and table.isfinite().all().item()


def test_the_exceptions_class_is_torchs(remote):
    x = torch.ones(4, device=remote)
    with pytest.raises(IndexError):
        x[torch.tensor([9], device=remote)].cpu()
    with pytest.raises(RuntimeError):
        torch.linalg.inv(torch.zeros(2, 2, device=remote)).cpu()
    assert x.sum().item() == 4


def test_an_error_in_backward_names_the_forward_line(remote):
    x = torch.randn(3, 3, device=remote, requires_grad=True)
    target = torch.tensor([0, 1, 9], device=remote)
    loss = F.nll_loss(x.log_softmax(1), target)  # forward line
    with pytest.raises((IndexError, RuntimeError)) as error:
        loss.backward()
        torch.remote.synchronize()
    assert str(line_of("# forward line")) in str(error.value)


def test_synchronize_reports_an_error_once(remote):
    x = torch.ones(4, device=remote)
    bad = x[torch.tensor([9], device=remote)]
    with pytest.raises(IndexError):
        torch.remote.synchronize()
    torch.remote.synchronize()
    with pytest.raises(IndexError):
        bad.cpu()
    assert (x + 1).sum().item() == 8


def test_a_failed_check_raises_at_the_next_sync_whatever_is_read(remote):
    x = torch.ones(4, device=remote)
    for _ in range(3):
        torch._assert_async((x > 2).all(), "too small")  # the check
        with pytest.raises(RuntimeError, match=rf"(?s)too small.*test_errors.py:{line_of('# the check')}\b"):
            (x * 2).sum().item()
        assert (x * 2).sum().item() == 8


def test_unrelated_work_in_the_same_trace_is_done(remote):
    x = torch.ones(4, device=remote)
    before = x * 2
    bad = x[torch.tensor([9], device=remote)]
    after = x * 3
    x.add_(1)
    with pytest.raises(IndexError):
        bad.cpu()
    assert before.tolist() == [2] * 4 and after.tolist() == [3] * 4 and x.tolist() == [2] * 4


def test_sync_mode_raises_at_the_call(script, remote):
    script(
        """
    import traceback, torch, torch_remote
    x = torch.ones(4, device="remote")
    try:
        x[torch.tensor([9], device="remote")]  # here
        raise SystemExit("nothing was raised")
    except IndexError:
        assert "# here" in traceback.format_exc()
    assert (x + 1).sum().item() == 8
    """,
        TORCH_REMOTE_SYNC="1",
    )


FIRST_USE = """
    import torch, torch_remote
    try:
        torch.ones(2, device="remote").sum().item()
    except Exception as error:
        print(type(error).__name__, error)
        raise SystemExit(3)
"""


@pytest.mark.parametrize("url", ["nonsense", "ftp://host", "http://localhost:1", "localx"])
def test_wrong_worker_urls_name_the_right_ones(script, remote, url):
    output = script(FIRST_USE, status=3, TORCH_REMOTE_WORKER=url).stdout
    assert "TORCH_REMOTE_WORKER" in output and url in output and "unix://" in output and "local" in output


def test_a_socket_that_nobody_listens_on(script, remote, tmp_path):
    path = tmp_path / "nobody"
    output = script(FIRST_USE, status=3, TORCH_REMOTE_WORKER=f"unix://{path}").stdout
    assert str(path) in output and "torch-remote-worker" in output


def test_a_missing_worker_binary(script, remote, tmp_path):
    """A package without its worker, as after a broken installation: the error names the file."""
    import shutil

    import torch_remote

    package = tmp_path / "broken" / "torch_remote"
    shutil.copytree(os.path.dirname(torch_remote.__file__), package, symlinks=False)
    shutil.rmtree(package / "bin")
    path = os.pathsep.join([str(package.parent), os.environ.get("PYTHONPATH", "")])
    output = script(FIRST_USE, status=3, PYTHONPATH=path).stdout
    assert "torch-remote-worker" in output and str(package) in output
    assert "install" in output or "build" in output


def test_in_process_worker(script, remote):
    script(
        """
    import os, torch, torch_remote
    x = torch.arange(4.0, device="remote", requires_grad=True)
    (x * x).sum().backward()
    assert x.grad.tolist() == [0, 2, 4, 6]
    children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
    assert not children, children
    """,
        TORCH_REMOTE_WORKER="inproc",
    )


CUSTOM_OP = """
import warnings, torch, torch_remote

@torch.library.custom_op("mylib::scale", mutates_args=(), device_types="cpu")
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor

@scale.register_fake
def _(x, factor):
    return torch.empty_like(x)

@torch.library.custom_op("mylib::shift_", mutates_args=("x",), device_types="cpu")
def shift_(x: torch.Tensor, by: float) -> None:
    x.add_(by)

x = torch.arange(6.0).view(2, 3).t().to("remote")
"""


def test_custom_ops_of_this_process_raise(script):
    script(
        CUSTOM_OP
        + """
try:
    scale(x, 2.0)
except NotImplementedError as error:
    assert "mylib::scale" in str(error) and "TORCH_REMOTE_FALLBACK=allow" in str(error), error
else:
    raise AssertionError("no error")
assert x.sum().item() == 15  # the session goes on
assert torch.remote.stats()["client_fallbacks"] == 0
"""
    )


def test_custom_ops_may_be_defined_again(script):
    """As a notebook does whose cell runs again, with another schema or with the same one."""
    script(
        """
import torch, torch_remote

def define(function, schema=None):
    return torch.library.custom_op("mylib::f", function, mutates_args=(), device_types="cpu", schema=schema)

def why(op, *args):
    try:
        op(*args)
    except NotImplementedError as error:
        return str(error).split(";")[0].split("' ")[1]

def of_lists(x, others=None):
    return x + 1

def of_three(x: torch.Tensor, a: float, b: float) -> torch.Tensor:
    return x * a + b

def of_one(x: torch.Tensor) -> torch.Tensor:
    return x + 2

x = torch.ones(3, device="remote")
of_lists = define(of_lists, "(Tensor x, Tensor[]? others=None) -> Tensor")
assert why(of_lists, x) == "has an argument or result of a type that cannot be recorded"
for _ in range(3):
    assert why(define(of_three), x, 2.0, 3.0) == "is registered in this process, but not in the worker's"
    assert why(define(of_one), x) == "was defined with another schema before in this process"
assert x.sum().item() == 3
"""
    )


def test_a_custom_op_whose_library_was_destroyed(script):
    """Graphs keep their operators, so they may ask for one that the dispatcher no longer has."""
    script(
        """
import torch, torch_remote
from torch_remote import _C

def define(name):
    library = torch.library.Library("mylib", "DEF")
    library.define(name + "(Tensor x) -> Tensor")
    return library, getattr(torch.ops.mylib, name).default

library, op = define("f")
assert not _C.is_program_op(op, 0)  # the worker does not have it
round_trips = torch.remote.stats()["round_trips"]
library._destroy()
for i in range(20):  # may reuse the memory of the operator
    other, _ = define(f"g{i}")
    assert not _C.is_program_op(op, 0) and not _C.is_single_op(op)
    other._destroy()
assert torch.remote.stats()["round_trips"] == round_trips  # no worker is asked
"""
    )


@pytest.mark.parametrize("setting", ["warn", "allow"])
def test_custom_ops_of_this_process_run_on_cpu_if_asked(script, setting):
    script(
        CUSTOM_OP
        + f"""
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    y = scale(scale(x, 2.0), 2.0)
    shift_(x, 1.0)
assert y.device.type == "remote" and torch.equal(y.cpu(), torch.arange(6.0).view(2, 3).t() * 4)
assert torch.equal(x.cpu(), torch.arange(6.0).view(2, 3).t() + 1)
assert torch.remote.stats()["client_fallbacks"] == 3
names = sorted(str(w.message).split("'")[1] for w in caught)
assert names == ({["mylib::scale", "mylib::shift_"] if setting == "warn" else []}), names
""",
        TORCH_REMOTE_FALLBACK=setting,
    )


def test_each_worker_is_asked_once_for_a_custom_op(script):
    script(
        CUSTOM_OP
        + """
def asked(x):
    before = torch.remote.stats()["round_trips"]
    try:
        scale(x, 2.0)
    except NotImplementedError:
        return torch.remote.stats()["round_trips"] - before

y = torch.ones(2, device="remote:1")
assert [asked(x), asked(x), asked(y), asked(y)] == [1, 0, 1, 0]
torch.remote.restart(1)
y = torch.ones(2, device="remote:1")
assert [asked(x), asked(y), asked(y)] == [0, 1, 0]
""",
        TORCH_REMOTE_WORKER="local,local",
    )


@pytest.mark.parametrize("dump", [False, True])
def test_each_worker_is_asked_once_for_a_custom_op_of_a_graph(script, tmp_path, dump):
    """With dumps, the answer comes after a program whose build needs the GIL."""
    script(
        CUSTOM_OP
        + """
import sys
sys.setswitchinterval(5)

def asked(index):
    y = torch.ones(2 + index, device=f"remote:{index}") * 2
    torch_remote._C.flush(index)
    before = torch.remote.stats()["round_trips"]
    assert not torch_remote._C.is_program_op(torch.ops.mylib.scale.default, index)
    return torch.remote.stats()["round_trips"] - before

assert [asked(0), asked(0), asked(1), asked(1)] == [1, 0, 1, 0]
torch.remote.restart(1)
assert [asked(0), asked(1), asked(1)] == [0, 1, 0]
""",
        TORCH_REMOTE_WORKER="local,local",
        TORCH_REMOTE_DUMP=str(tmp_path) if dump else "",
    )


def test_wrong_fallback_setting(script):
    """Set after the first use. (test_environment.py tests it before the first use.)"""
    script(
        CUSTOM_OP
        + """
import os
os.environ["TORCH_REMOTE_FALLBACK"] = "yes"
try:
    scale(x, 2.0)
except RuntimeError as error:
    assert "use 'error' (the default), 'warn' or 'allow'" in str(error), error
else:
    raise AssertionError("no error")
"""
    )


def test_fallbacks_are_not_silent(remote):
    assert torch.remote.stats()["client_fallbacks"] == 0


OTHER_LAYOUTS = {
    "sparse": lambda x: x.to_sparse().cumsum(0),
    "sparse, compressed": lambda x: x.to_sparse_csr().cumsum(0),
    "sparse, in blocks": lambda x: x.detach().to_sparse_bsr((1, 1)).normal_(),
    "nested": lambda x: torch.nested.nested_tensor([x, x]) * 2,
    "nested, by the worker": lambda x: torch._nested_tensor_from_mask(x[None].detach(), x[None, :, 0] > -9),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8),
    "mkldnn": lambda x: x.to_mkldnn(),
}


@pytest.mark.filterwarnings("ignore")  # prototypes
@pytest.mark.parametrize("name", OTHER_LAYOUTS)
def test_tensors_that_the_device_does_not_have(remote, name):
    x = torch.randn(2, 3, device=remote, requires_grad=True)
    with pytest.raises(NotImplementedError, match=r"^remote: .*device (has no|does not support)"):
        OTHER_LAYOUTS[name](x)
        torch.remote.synchronize()
    assert (x + 1).shape == (2, 3)
    torch.remote.synchronize()


# -- which call raises an error ----------------------------------------------------------------------------------------


def bad_index(device):
    return torch.arange(4.0, device=device)[torch.full((4,), 9, device=device)]


def test_a_good_tensor_never_fails_for_anothers_sake(remote):
    bad = bad_index(remote)
    good = torch.ones(3, device=remote)
    assert "1." in repr(good) and good.sum().item() == 3 and (good * 2).tolist() == [2] * 3
    assert good.nonzero().shape == (3, 1)
    with pytest.raises(IndexError):
        torch.accelerator.synchronize()
    torch.accelerator.synchronize()
    assert "1." in repr(good)
    with pytest.raises(IndexError):
        repr(bad)


@pytest.mark.parametrize("wait", ["stream", "event", "module"])
def test_each_way_to_synchronize_raises_what_nobody_was_told(remote, wait):
    event = torch.Event(remote)
    bad = bad_index(remote)
    event.record()
    waits = {
        "stream": lambda: torch.Stream(remote).synchronize(),
        "event": event.synchronize,
        "module": torch.remote.synchronize,
    }
    with pytest.raises(IndexError):
        waits[wait]()
    waits[wait]()
    del bad


def test_one_synchronize_names_all_failures(remote):
    kept = [bad_index(remote) for _ in range(3)]
    kept.append(torch.zeros(2, 3, device=remote).index_select(0, torch.tensor([5], device=remote)))
    with pytest.raises(IndexError) as error:
        torch.remote.synchronize()
    assert "3 other failures had not been raised" in str(error.value)
    assert str(error.value).count("aten::index.Tensor") == 3 and "aten::index_select(f32[2, 3]" in str(error.value)
    torch.remote.synchronize()


def test_data_from_before_a_failed_check_can_be_read(remote):
    x = torch.ones(4, device=remote)
    before = x * 2
    torch._assert_async((x > 2).all(), "too small")
    after = x * 3
    assert before.tolist() == [2] * 4
    with pytest.raises(RuntimeError, match="too small"):
        after.tolist()
    assert after.tolist() == [3] * 4


FAILS_UNSEEN = """
    import torch, torch_remote
    x = torch.arange(4.0, device="remote"); x.sum().item()  # without a worker, nothing has failed
    kept = [x[torch.full((4,), 9, device="remote")] for _ in range({count})]  # the line that fails
    {then}
"""


@pytest.mark.parametrize("worker", ["local", "inproc"])
def test_failures_that_nobody_saw_are_printed_at_exit(script, remote, worker):
    result = script(FAILS_UNSEEN.format(count=2, then=""), TORCH_REMOTE_WORKER=worker)
    assert "remote: 2 ops failed on the worker" in result.stderr
    assert "index 9 is out of bounds" in result.stderr and "script.py:4 in" in result.stderr
    assert "aten::index.Tensor(f32[4]" in result.stderr


def test_failures_that_were_seen_are_not_printed_at_exit(script, remote):
    seen = """try:
        torch.remote.synchronize()
    except IndexError:
        pass"""
    assert script(FAILS_UNSEEN.format(count=2, then=seen)).stderr == ""
    assert "failed on the worker" not in script(FAILS_UNSEEN.format(count=1, then="kept[0].cpu()"), status=1).stderr


# -- the user's frames -------------------------------------------------------------------------------------------------


def outer(x, index):
    return inner(x, index)  # the outer call


def inner(x, index):
    return torch.nn.Sequential(Picks(index))(x)  # the inner call


class Picks(torch.nn.Module):
    def __init__(self, index):
        super().__init__()
        self.index = index

    def forward(self, x):
        return x.index_select(0, self.index)  # the op


def frames_of(message):
    return [
        (m[1], int(m[2])) for m in re.finditer(r"(called from|recorded at|   ) [^\n]*test_errors\.py:(\d+) in", message)
    ]


def test_an_error_has_the_frames_that_led_to_it(remote):
    x, bad, good = torch.ones(4, device=remote), torch.tensor([9], device=remote), torch.tensor([1], device=remote)
    outer(x, good)
    result = outer(x, bad)  # the failing call
    outer(x, good)
    with pytest.raises(IndexError) as error:
        result.cpu()
    message = str(error.value)
    frames = [line for _, line in frames_of(message)]
    assert frames[-4:] == [line_of(f"# the {what}") for what in ("failing call", "outer call", "inner call", "op")]
    assert re.search(r"\n    \.\.\. \d+ frames of torch\n  recorded at ", message), message


def test_each_call_has_its_own_frames(remote):
    """The same line, called from several others."""
    x, bad = torch.ones(4, device=remote), torch.tensor([9], device=remote)
    results = []
    for _ in range(3):
        results.append(outer(x, bad))  # first caller
        results.append(inner(x, bad))  # second caller
    for i, result in enumerate(results):
        with pytest.raises(IndexError) as error:
            result.cpu()
        frames = [line for _, line in frames_of(str(error.value))]
        expected = (
            ["first caller", "outer call", "inner call", "op"] if i % 2 == 0 else ["second caller", "inner call", "op"]
        )
        assert frames[-len(expected) :] == [
            line_of(f"# {'' if 'caller' in what else 'the '}{what}") for what in expected
        ]


def test_frames_of_recursion_and_generators(remote):
    x, bad = torch.ones(4, device=remote), torch.tensor([9], device=remote)

    def deep(n):
        return deep(n - 1) if n else x.index_select(0, bad)  # recursion

    def items():
        while True:
            yield x.index_select(0, bad)  # generator

    generator = items()
    for result in (deep(3), deep(300), next(generator), next(generator)):
        with pytest.raises(IndexError) as error:
            result.cpu()
        assert str(line_of("# recursion")) in str(error.value) or str(line_of("# generator")) in str(error.value)
        assert len(str(error.value).splitlines()) < 40


def test_the_backward_pass_names_the_frames_of_the_forward_pass(remote):
    def model(x, index):
        return x.gather(0, index).sum()  # gathered

    x = torch.ones(3, device=remote, requires_grad=True)
    index = torch.tensor([0, 1, 2], device=remote)
    loss = model(x, index)  # the model
    index.data.fill_(9)
    loss.backward()
    with pytest.raises((IndexError, RuntimeError)) as error:
        x.grad.cpu()
    message = str(error.value)
    assert re.search(rf"recorded in the backward pass of .*test_errors\.py:{line_of('# gathered')} in", message), (
        message
    )
    assert f"test_errors.py:{line_of('# the model')} in" in message


def test_the_backward_pass_names_the_frames_of_its_own_thread(remote):
    def one(x, index):
        return x.gather(0, index).sum()  # in one thread

    def another(x, index):
        return x.gather(0, index).sum()  # in another thread

    x = torch.ones(3, device=remote, requires_grad=True)
    index = torch.tensor([0, 1, 2], device=remote)
    losses = []
    for function in (one, another):
        thread = threading.Thread(target=lambda function: losses.append(function(x, index)), args=(function,))
        thread.start()
        thread.join()
    index.data.fill_(9)
    losses[0].backward()
    with pytest.raises((IndexError, RuntimeError)) as error:
        x.grad.cpu()
    assert f"test_errors.py:{line_of('# in one thread')} in" in str(error.value), error.value


def test_a_compiled_graph_names_its_frames(remote):
    @torch.compile(backend="remote")
    def model(x, index):
        return outer(x, index)

    result = model(torch.ones(4, device=remote), torch.tensor([9], device=remote))
    with pytest.raises(IndexError) as error:
        result.cpu()
    frames = [line for _, line in frames_of(str(error.value))]
    assert frames[-3:] == [line_of(f"# the {what}") for what in ("outer call", "inner call", "op")], str(error.value)
