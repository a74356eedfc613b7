"""torch_remote.function: Python functions that run on the worker's machine."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from python_processes import Python, run_python

import torch_remote
from torch_remote.errors import FunctionError


def both(function, *args):
    """Results on CPU and on the device, with gradients of the first tensor."""
    here = [a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a for a in args]
    there = [
        a.detach().to("remote").requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a for a in args
    ]
    return (function(*here), here), (torch_remote.function(function)(*there), there)


def test_tensors_stay_there(remote):
    @torch_remote.function
    def f(x, scale, *, add):
        assert x.device.type == "cpu" and type(x) is torch.Tensor
        return x * scale + add

    x = torch.arange(300_000.0, device="remote")
    torch.remote.synchronize()
    torch.remote.reset_stats()
    y = f(x, 2.0, add=torch.ones(1, device="remote"))
    assert y.device == x.device and y.shape == x.shape
    stats = torch.remote.stats()
    assert stats["bytes_downloaded"] < 10_000 and stats["bytes_uploaded"] < 20_000, stats
    assert torch.equal(y.cpu(), torch.arange(300_000.0) * 2 + 1)
    assert torch.equal((y + x)[5:].cpu(), (torch.arange(300_000.0) * 3 + 1)[5:])


def test_arguments_and_results_of_all_kinds(remote):
    @torch_remote.function
    def f(tree):
        a, (b, c) = tree["a"], tree["more"]
        return {
            "sum": a + b, 3: [a.sum().item(), None, True, "text", b"\0\xff", 1 + 2j, float("inf"), 2**80],
            "nothing": torch.empty(0, 3), "scalar": c, "half": a.half(), "dtype": a.dtype, "size": a.shape,
            "long": [-(10**5000), -5],
        }  # fmt: skip

    a = torch.arange(12.0, device="remote").view(3, 4).t()[1:]  # a non-contiguous view
    out = f({"a": a, "more": (torch.ones_like(a), torch.tensor(7, device="remote"))})
    assert torch.equal(out["sum"].cpu(), a.cpu() + 1)
    assert out[3] == [a.sum().item(), None, True, "text", b"\0\xff", 1 + 2j, float("inf"), 2**80]
    assert out["nothing"].shape == (0, 3) and out["scalar"].item() == 7 and out["half"].dtype == torch.half
    assert out["dtype"] == torch.float32 and out["size"] == torch.Size((3, 3))
    assert out["long"] == [-(10**5000), -5]


def test_gradients(remote):
    def f(x, w):
        return torch.nn.functional.softmax(x @ w, -1).cumsum(0), (x * x).sum()

    x, w = torch.randn(5, 4, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    ((a, b), here), ((c, d), there) = both(f, x, w)
    torch.testing.assert_close(c.cpu(), a)
    ((a.square().sum() + b) * 2).backward()
    ((c.square().sum() + d) * 2).backward()
    for i, j in zip(here, there, strict=True):
        torch.testing.assert_close(j.grad.cpu(), i.grad)


def test_gradients_of_some(remote):
    @torch_remote.function
    def f(x, y, z):
        return x * 2, (y * z).detach(), y.argmax()

    x, y, z = (torch.randn(3, device="remote", requires_grad=i != 2) for i in range(3))
    a, b, c = f(x, y, z)
    assert a.requires_grad and not b.requires_grad and not c.requires_grad
    a.sum().backward()
    assert x.grad.tolist() == [2, 2, 2] and y.grad is None and z.grad is None
    with torch.no_grad():
        assert not f(x, y, z)[0].requires_grad


def test_random_numbers_are_the_same_in_backward(remote):
    @torch_remote.function
    def f(x):
        return torch.nn.functional.dropout(x, 0.5)

    x = torch.ones(1000, device="remote", requires_grad=True)
    torch.manual_seed(5)
    y = f(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    torch.manual_seed(5)
    assert torch.equal(f(x), y)
    assert not torch.equal(f(x), y)


def test_a_module_and_what_a_function_refers_to(remote):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2).to("remote")
    shift = torch.ones(2, device="remote")

    @torch_remote.function
    def f(x):
        assert isinstance(model.weight, torch.nn.Parameter)
        return model(x) + shift

    x = torch.randn(3, 4)
    y = f(x.to("remote"))
    y.sum().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    expected = model(x.to("remote")) + shift
    expected.sum().backward()
    torch.testing.assert_close(y, expected)
    for got, parameter in zip(grads, model.parameters(), strict=True):
        torch.testing.assert_close(got, parameter.grad)


class Own(Exception):
    pass


def test_exceptions_come_back(remote):
    @torch_remote.function
    def wrong(x, kind):
        if kind == "key":
            return {}[kind]
        if kind == "own":
            raise Own("mine")
        raise ValueError(f"not {x.tolist()}")

    x = torch.ones(2, device="remote")
    with pytest.raises(ValueError, match=r"not \[1\.0, 1\.0\]") as caught:
        wrong(x, "value")
    cause = str(caught.value.__cause__)
    assert "in wrong" in cause and 'raise ValueError(f"not {x.tolist()}")' in cause and "python_process" not in cause
    with pytest.raises(KeyError):
        wrong(x, "key")
    with pytest.raises(FunctionError, match="Own: mine"):
        wrong(x, "own")
    with pytest.raises(TypeError, match=r"returned a builtins\.object, which cannot be sent back"):
        torch_remote.function(lambda: object())()
    assert x.sum().item() == 2


def test_packages(remote):
    @torch_remote.function(packages=["numpy", "no-such-package"])
    def f():
        return 1

    with pytest.raises(ModuleNotFoundError, match=r"has no no-such-package.*pip install no-such-package"):
        f()
    with pytest.raises(ModuleNotFoundError, match=r"has torch .*, but the function needs torch==0\.1"):
        torch_remote.function(packages=["torch==0.1"])(lambda: 1)()
    assert torch_remote.function(packages=["torch"])(lambda: 1)() == 1
    public = torch.__version__.partition("+")[0]  # "2.13.0" of "2.13.0+cpu"
    assert torch_remote.function(packages=[f"torch=={public}"])(lambda: 1)() == 1
    with pytest.raises(ValueError, match="write 'name' or 'name==version'"):
        torch_remote.function(packages=["torch>2; rm"])(lambda: 1)


def test_failed_tensors_are_told(remote):
    x = torch.ones(2, device="remote")[torch.tensor([7], device="remote")]
    with pytest.raises(IndexError):
        torch_remote.function(lambda x: x)(x)


def test_prints(remote, capsys):
    @torch_remote.function
    def f(x):
        import sys

        print("out")
        print("error", file=sys.stderr)
        print("more")
        return x * 2

    x = torch.ones(1, device="remote", requires_grad=True)
    y = f(x)
    said = capsys.readouterr()
    assert said.out == "out\nmore\n" and said.err == "error\n"
    y.backward()
    said = capsys.readouterr()
    assert said.out == "" and said.err == ""  # the second call prints nothing


def test_in_place_changes_arrive(remote):
    @torch_remote.function
    def f(x, row, view, same, array, wide):
        x.mul_(2)  # visible in row and view
        row += 1
        assert same is x
        array.numpy()[1] = 7  # torch does not count this write
        wide[:] = 3
        return view.clone()

    x = torch.arange(6.0, device="remote").view(2, 3)
    array = torch.zeros(3, device="remote", dtype=torch.int16)
    big = torch.zeros(4000, 16, device="remote")
    y = f(x, x[1], x.t(), x, array, big[:, 2])
    assert x.tolist() == [[0, 2, 4], [7, 9, 11]] and y.tolist() == [[0, 7], [2, 9], [4, 11]]
    assert array.tolist() == [0, 7, 0]
    assert big[:, 2].eq(3).all().item() and big.sum().item() == 3 * 4000
    here = torch.ones(3)
    torch_remote.function(lambda a: a.zero_())(here)
    assert here.tolist() == [0, 0, 0]
    with pytest.raises(RuntimeError, match="shares memory with another"):
        torch_remote.function(lambda a, b: a.add_(1) is None)(here, here[:2])
    with pytest.raises(RuntimeError, match="another shape or dtype"):
        torch_remote.function(lambda a: a.unsqueeze_(0) is None)(array)


def test_changes_of_a_failed_call_arrive(remote):
    @torch_remote.function
    def f(x):
        x.add_(1)
        raise ValueError("afterwards")

    x = torch.zeros(2, device="remote")
    version = x._version
    with pytest.raises(ValueError, match="afterwards"):
        f(x)
    assert x.tolist() == [1, 1] and x._version > version


def test_a_failed_call_that_left_a_sparse_gradient(remote):
    @torch_remote.function
    def f(weight, x):
        x.add_(1)
        torch.nn.functional.embedding(torch.tensor([1]), weight, sparse=True).sum().backward()
        raise ValueError("afterwards")

    weight = torch.ones(3, 2, device="remote", requires_grad=True)
    x = torch.zeros(2, device="remote")
    with pytest.raises(ValueError, match="afterwards"):
        f(weight, x)
    assert x.tolist() == [1, 1] and weight.grad is None


def test_gradients_and_in_place_changes(remote):
    @torch_remote.function
    def f(x, count):
        y = x * count.clone()
        count.add_(1)
        return y

    x, count = torch.ones(2, device="remote", requires_grad=True), torch.full((1,), 3.0, device="remote")
    y = f(x, count)
    assert count.item() == 4
    y.sum().backward()
    assert x.grad.tolist() == [3, 3] and count.item() == 4  # the function saw 3, and the write is applied once
    with pytest.raises(RuntimeError, match="leaf Variable"):
        torch_remote.function(lambda x: x.mul_(2))(x)
    with pytest.raises(RuntimeError, match="changed it in place with a tensor that requires one"):
        torch_remote.function(lambda x, count: count.mul_(x.sum()))(x, count)
    y = f(x, count)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_an_optimizer_step_there(remote):
    model, copy = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    copy.load_state_dict(model.state_dict())
    model.to("remote")
    model.norm, copy.norm = torch.nn.BatchNorm1d(2).to("remote"), torch.nn.BatchNorm1d(2)

    def step(model, x):
        loss = model.norm(model(x)).square().sum() + model(x).sum()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.data = parameter.data - 0.1 * gradient
        return loss.item()

    x = torch.randn(5, 3)
    for _ in range(2):
        there = torch_remote.function(step)(model, x.to("remote"))
        assert there == pytest.approx(step(copy, x))
    for name, value in copy.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name].cpu(), value)


def test_gradients_that_a_function_leaves_arrive(remote):
    def step(model, w, x, repeat):
        for _ in range(repeat):
            loss = (model(x) * w).square().mean()
            loss.backward()
        return loss.detach()

    def gradients(model, w):
        return [None if t.grad is None else t.grad.cpu() for t in (*model.parameters(), w)]

    def run_both(call, *args):
        for f, (model, w), x in ((torch_remote.function(call), there, x_there), (call, here, x_here)):
            f(model, w, x, *args)
        torch.testing.assert_close(gradients(*there), gradients(*here))

    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    here = model, torch.ones(2, requires_grad=True)
    there = torch.nn.Linear(3, 2).to(remote), torch.ones(2, device=remote, requires_grad=True)
    there[0].load_state_dict(model.state_dict())
    x_here = torch.randn(4, 3)
    x_there = x_here.to(remote)
    for repeat in (1, 2):  # gradients accumulate
        run_both(step, repeat)
    kept = there[1].grad

    def scale(model, w, x):
        w.grad *= 2
        model.bias.grad = None
        model.weight.grad = w.grad.sum() * torch.ones(2, 3)

    run_both(scale)
    assert there[1].grad is kept and there[0].bias.grad is None

    def fails(model, w, x):
        model(x).sum().backward()
        raise ValueError

    for f, (net, w), x in ((torch_remote.function(fails), there, x_there), (fails, here, x_here)):
        with pytest.raises(ValueError):
            f(net, w, x)
    torch.testing.assert_close(gradients(*there), gradients(*here))

    # A gradient exists, and another one arrives before the function is called again.
    w = torch.ones(2, device=remote, requires_grad=True)
    w.sum().backward()
    y = torch_remote.function(lambda w: w.square())(w)
    w.sum().backward()
    y.sum().backward()
    assert w.grad.tolist() == [4, 4]

    @torch_remote.function
    def of_the_cpu(w):
        (w * 3).sum().backward()

    w = torch.ones(2, requires_grad=True)
    of_the_cpu(w)
    assert w.grad.device.type == "cpu" and w.grad.tolist() == [3, 3]
    with pytest.raises(RuntimeError, match="computed before the call"):
        of_the_cpu(w * 2)


def test_an_optimizers_state_is_not_lost(remote):
    def step(model, optimizer, x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    model, x = torch.nn.Linear(3, 2).to(remote), torch.ones(1, 3, device=remote)
    before = model.weight.detach().clone()
    torch_remote.function(step)(model, torch.optim.SGD(model.parameters(), 0.1), x)  # plain SGD has no state
    assert not torch.equal(model.weight, before)
    optimizer = torch.optim.Adam(model.parameters())
    with pytest.raises(RuntimeError, match="whose new state would be lost"):
        torch_remote.function(step)(model, optimizer, x)
    optimizer.step()  # uses the existing gradients
    assert len(optimizer.state) == 2
    exponential = optimizer.state[model.weight]["exp_avg"].clone()
    torch_remote.function(step)(model, optimizer, x)
    assert not torch.equal(optimizer.state[model.weight]["exp_avg"], exponential)


def test_views_and_arguments_come_back_as_such(remote):
    @torch_remote.function
    def f(x, w):
        y = w * 2
        return x, x[1:], y, y, w[0], w.detach().view(torch.int32)

    x = torch.arange(4.0, device="remote")[1:]
    w = torch.ones(2, 2, device="remote", requires_grad=True)
    same, view, y, again, row, bits = f(x, w)
    assert same is x and y is again
    assert row.requires_grad and row.tolist() == [1, 1] and bits.tolist() == [[0x3F800000] * 2] * 2
    (row.sum() * 3 + y.sum()).backward()
    assert w.grad.tolist() == [[5, 5], [2, 2]]
    view.zero_()
    assert x.tolist() == [1, 0, 0]


def test_tensors_of_the_cpu_and_numpy(remote):
    import numpy

    @torch_remote.function
    def f(x, y):
        return x * y, (x * 2).numpy() if not x.requires_grad else None, numpy.float32(1.5)

    x = torch.ones(2, requires_grad=True)
    y, _, number = f(x, torch.full((2,), 3.0, device="remote"))
    y.sum().backward()
    assert y.device.type == "remote" and x.grad.tolist() == [3, 3]
    assert isinstance(number, numpy.float32) and number == 1.5
    _, array, _ = f(torch.ones(2), torch.ones(2))
    assert isinstance(array, numpy.ndarray) and array.tolist() == [2, 2]


class Pair(NamedTuple):
    first: torch.Tensor
    second: int


def test_named_tuples_and_functions_that_call_functions(remote):
    @torch_remote.function
    def inner(x):
        return Pair(x + 1, 2)

    @torch_remote.function
    def outer(x):
        return inner(x), x.max(0), {1, 2}

    pair, largest, numbers = outer(torch.arange(3.0, device="remote"))
    assert type(pair) is Pair and pair.first.tolist() == [1, 2, 3] and pair.second == 2
    assert largest.indices.item() == 2 and type(largest) is torch.return_types.max and numbers == {1, 2}


def test_conjugates_halves_and_nothing(remote):
    @torch_remote.function
    def f(c, h, n, b, e):
        return c + 0, h * 2, n, ~b, e + 1, h.sum().item()

    c = torch.tensor([1 + 2j, 3j], device="remote")
    out = f(
        c.conj(), torch.ones(3, device="remote", dtype=torch.bfloat16), torch.empty(0, 2, device="remote"),
        torch.tensor([True, False], device="remote"), torch.ones(1, device="remote").expand(3),
    )  # fmt: skip
    assert out[0].tolist() == [1 - 2j, -3j] and out[1].dtype == torch.bfloat16 and out[2].shape == (0, 2)
    assert out[3].tolist() == [False, True] and out[4].tolist() == [2, 2, 2] and out[5] == 3
    assert torch_remote.function(lambda x: x.shape)(torch.empty(4, 5, device="remote")) == (4, 5)


def test_what_cannot_go(remote):
    with pytest.raises(TypeError, match="takes dense tensors"):
        torch_remote.function(lambda x: None)(torch.eye(2).to_sparse().to("remote"))
    with pytest.raises(TypeError, match="must not be a generator"):

        @torch_remote.function
        def g():
            yield 1

    with pytest.raises(ValueError, match="not a number of seconds"):
        torch_remote.function(timeout=0)(lambda: 1)


def test_results_that_nobody_wants_are_freed(remote):
    @torch_remote.function(timeout=0.3)
    def slow(x):
        import time

        try:
            time.sleep(60)
        except KeyboardInterrupt:
            time.sleep(1.2)
        return [x.clone() for _ in range(4)]

    x = torch.ones(1 << 20, device="remote")
    torch_remote.function(lambda: 0)()
    torch.remote.synchronize()
    before = torch.remote.memory_allocated()
    with pytest.raises(TimeoutError):
        slow(x)
    time.sleep(1.5)
    assert torch_remote.function(lambda x: x.sum().item())(x) == 1 << 20
    assert torch.remote.memory_allocated() <= before + (1 << 20)


def test_two_at_once(remote):
    @torch_remote.function
    def wait(mine, other, x):
        import pathlib
        import time

        pathlib.Path(mine).touch()
        while not pathlib.Path(other).exists():  # ends only if both run at once
            time.sleep(0.01)
        return x + 1

    folder = Path(os.environ.get("TEST_TMPDIR", "/tmp")) / f"function{os.getpid()}"
    folder.mkdir(exist_ok=True)
    results = {}

    def call(i):
        x = torch.full((3,), float(i), device="remote")
        results[i] = wait(str(folder / str(i)), str(folder / str(1 - i)), x).tolist()

    threads = [threading.Thread(target=call, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {0: [1, 1, 1], 1: [2, 2, 2]}


def test_the_device_works_meanwhile(remote, tmp_path):
    @torch_remote.function
    def wait(path, x):
        import pathlib
        import time

        while not pathlib.Path(path).exists():
            time.sleep(0.01)
        return x + 0

    x = torch.ones(2, device="remote")

    async def main():
        call = asyncio.create_task(wait.aio(str(tmp_path / "go"), x))
        await asyncio.sleep(0.1)
        assert (x * 3).sum().item() == 6 and not call.done()
        x.zero_()  # after the call, which must see the ones
        torch.remote.synchronize()
        (tmp_path / "go").touch()
        return (await call).tolist()

    assert asyncio.run(main()) == [1, 1]


def test_time_outs(remote):
    @torch_remote.function(timeout=0.5)
    def wait(seconds, x):
        import time

        time.sleep(seconds)
        return x

    x = torch.ones(2, device="remote")
    torch_remote.function(lambda: 0)()  # starts the function process
    begin = time.monotonic()
    with pytest.raises(TimeoutError, match=r"did not end within 0\.5 s"):
        wait(60, x)
    assert time.monotonic() - begin < 10
    assert torch_remote.function(lambda x: x + 1)(x).tolist() == [2, 2]


@pytest.mark.parametrize("seconds", [0.02, 0.3, 1.5])
def test_the_call_after_one_that_timed_out(remote, seconds):
    """The call is interrupted while its process starts, while torch is imported, or while it runs. The process may
    end."""

    @torch_remote.function(timeout=seconds)
    def wait(x):
        import time

        time.sleep(60)

    x = torch.ones(2, device="remote")
    torch.remote.restart()
    x = torch.ones(2, device="remote")
    for i in range(2):
        with pytest.raises(TimeoutError):
            wait(x)
        for _ in range(3):
            assert torch_remote.function(lambda x, i: x + i)(x, i).tolist() == [1 + i, 1 + i]
        torch.remote.restart()
        x = torch.ones(2, device="remote")


def test_a_call_of_an_earlier_worker_is_over(remote):
    """Each worker numbers its calls from the start, so a late kill must not end a call of the next worker."""
    from torch_remote import _C

    x = torch.ones(2, device="remote")
    session, ticket, first_result_id = _C.call_function(0, b"no call", [x])
    torch.remote.restart()
    x = torch.ones(2, device="remote")
    assert torch_remote.function(lambda: 0)() == 0  # its function process exists

    def end_calls():
        time.sleep(0.5)
        for number in range(64):
            _C.cancel_function(0, session, number, True)
            _C.drop_function_results(0, session, number, first_result_id)

    def sleep(x):
        import time

        time.sleep(1.5)
        return x

    thread = threading.Thread(target=end_calls)
    thread.start()
    assert torch_remote.function(sleep)(x).tolist() == [1, 1]
    thread.join()
    with pytest.raises(torch.remote.WorkerLost, match="restarted before the function ended"):
        _C.wait_function(0, session, ticket, 20.0)


MODULE = """
import torch_remote
import only_here

@torch_remote.function
def f(x):
    return x + only_here.value
"""


def test_modules_of_this_process_are_there_for_its_own_worker_only(script, remote, tmp_path):
    (tmp_path / "only").mkdir()
    (tmp_path / "only/only_here.py").write_text("value = 5\n")
    (tmp_path / "only/mine.py").write_text(MODULE)
    source = f"""
        import sys; sys.path.append({str(tmp_path / "only")!r})
        import torch, torch_remote, mine
        x = torch.ones(2, device="remote")
        try:
            print(mine.f(x).tolist())
        except ModuleNotFoundError as error:
            print(error)
    """
    for name in ("local", "inproc", "local://"):
        assert script(source, TORCH_REMOTE_WORKER=name).stdout == "[6.0, 6.0]\n", name
    path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)
    listen = ["--listen", "tcp://127.0.0.1:0", "--allow-python=" + sys.executable]
    worker = Python(
        [sys.executable, "-m", "torch_remote.worker", *listen],
        env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        url = worker.stdout.readline().strip()
        assert script(source, TORCH_REMOTE_WORKER=url).stdout == "No module named 'only_here'\n"
    finally:
        worker.kill()
        worker.wait()


@pytest.mark.parametrize(
    ("encoded", "error"),
    [
        (["dtype", "save"], "'save' is not a dtype"),
        (["dtype", 3], "3 is not a dtype"),
        (["view", 0, None, "nn", [1], [1], 0], "'nn' is not a dtype"),
        (["tensor", -1], "-1 is not an index of 1 tensors"),
        (["argument", True], "True is not an index of 1 tensors"),
        (["view", 7, None, "float32", [1], [1], 0], "7 is not an index of 1 tensors"),
        (["view", 0, 5, "float32", [1], [1], 0], "5 is not an index of 1 tensors"),
        (["value", {"a": 1}], "is not a string"),
        (["int", 3], "3 is not a string"),
        (["int", "three"], "damaged"),
        (["bytes", None], "None is not a string"),
        (["list", [["list", 5]]], "damaged"),
        (["named", "torch.return_types", "sys", None, []], "a class that does not exist"),
        (["named", "os", 3, None, []], "3 is not a string"),
        (["what"], "the kind 'what'"),
        ([], "damaged"),
    ],
)
def test_answers_that_are_none(remote, encoded, error):
    from torch_remote.function_parts import Arguments, decode

    given = [torch.ones(2, device="remote")]
    with pytest.raises((RuntimeError, TypeError), match=error):
        decode(encoded, [torch.zeros(1)], Arguments(given, given))


@pytest.mark.parametrize("stubborn", [False, True])
def test_ctrl_c(remote, stubborn):
    @torch_remote.function
    def wait(stubborn):
        import signal
        import time

        if stubborn:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        time.sleep(60)

    torch_remote.function(lambda: 0)()
    pressed = []

    def press():
        pressed.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.5, press)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        wait(stubborn)
    assert time.monotonic() - pressed[0] < max(1, os.getloadavg()[0] / os.cpu_count())
    assert torch_remote.function(lambda: 5)() == 5


class Scale:
    def __init__(self, factor):
        self.factor = factor

    @torch_remote.function
    def of(self, x):
        return x * self.factor


def test_methods(remote):
    x = torch.ones(2, device="remote")
    scale = Scale(3)
    assert scale.of(x).tolist() == [3, 3]
    assert asyncio.run(scale.of.aio(x)).tolist() == [3, 3]


def test_the_default_device_does_not_matter(remote):
    x = torch.ones(2, device="remote")
    with torch.device("meta"):
        y = torch_remote.function(lambda x: x + 1)(x)
    assert y.tolist() == [2, 2]


def test_a_cancelled_task(remote):
    @torch_remote.function
    def wait():
        import time

        time.sleep(60)

    torch_remote.function(lambda: 0)()
    begin = time.monotonic()

    async def main():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(wait.aio(), 0.3)

    asyncio.run(main())
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("how", ["os._exit(3)", "os.kill(os.getpid(), 9)", "ctypes.string_at(0)"])
def test_the_process_dies_and_the_session_lives(remote, how):
    @torch_remote.function
    def die(x, how):
        import os

        exec(how, {"os": os, "ctypes": __import__("ctypes")})

    x = torch.ones(2, device="remote")
    with pytest.raises(RuntimeError, match=r"exited with status 3|was killed by signal (9|11)"):
        die(x, how)
    assert x.sum().item() == 2
    assert torch_remote.function(lambda x: x * 2)(x).tolist() == [2, 2]


def test_reloaded_modules_are_reloaded_there(script, remote, tmp_path):
    """Edits alone change nothing: a long run may go on while files are edited. test_notebook.py has %autoreload."""
    result = script(
        f"""
        import importlib, pathlib, sys, torch, torch_remote
        sys.path.append({str(tmp_path)!r})
        files = [pathlib.Path({str(tmp_path)!r}, name) for name in ("inner.py", "outer.py")]
        files[0].write_text("factor = 2\\n")
        files[1].write_text("import inner\\ndef scale(x):\\n    return x * inner.factor\\n")
        import inner, outer

        @torch_remote.function
        def f(x):
            return outer.scale(x)

        x = torch.ones((), device="remote")
        print(f(x).item())
        files[0].write_text("factor = 3\\n")  # the same size, and perhaps within the same second
        print(f(x).item())
        importlib.invalidate_caches()
        importlib.reload(inner)
        print(f(x).item())
        print(f(x).item())
        """
    )
    assert result.stdout.split() == ["2.0", "2.0", "3.0", "3.0"]


FORBIDDEN = """
import torch, torch_remote
x = torch.ones(2, device="remote")
try:
    torch_remote.function(lambda x: x)(x)
except RuntimeError as error:
    print(error)
print(x.sum().item())
"""


def test_a_worker_that_listens_calls_none_unless_told(remote, tmp_path):
    path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)
    for flag in ([], [f"--allow-python={sys.executable}"]):
        environment = {**os.environ, "PYTHONPATH": path}
        worker = Python(
            [sys.executable, "-m", "torch_remote.worker", "--listen", "tcp://127.0.0.1:0", *flag],
            env=environment, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            environment["TORCH_REMOTE_WORKER"] = worker.stdout.readline().strip()
            result = run_python("-c", FORBIDDEN, env=environment)
        finally:
            worker.kill()
            worker.wait()
        assert result.returncode == 0, result.stderr
        lines = result.stdout.splitlines()
        assert lines[-1] == "2.0"
        assert ("start it with --allow-python" in lines[0]) == (not flag) and len(lines) == (1 if flag else 2)


def test_on_the_cpu(remote):
    with pytest.raises(TypeError, match=r"await f\.aio"):

        @torch_remote.function
        async def f():
            pass
