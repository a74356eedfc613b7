"""torch_remote.function: Python functions that run where the worker is."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

import torch_remote
from torch_remote.errors import FunctionError


def both(function, *args):
    """Results here and there, with gradients of the first tensor."""
    here = [a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a for a in args]
    there = [a.detach().to("remote").requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a for a in args]
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
    assert stats["bytes_downloaded"] == 0 and stats["bytes_uploaded"] < 10_000
    assert torch.equal(y.cpu(), torch.arange(300_000.0) * 2 + 1)
    assert torch.equal((y + x)[5:].cpu(), (torch.arange(300_000.0) * 3 + 1)[5:])


def test_arguments_and_results_of_all_kinds(remote):
    @torch_remote.function
    def f(tree):
        a, (b, c) = tree["a"], tree["more"]
        return {
            "sum": a + b, 3: [a.sum().item(), None, True, "text", b"\0\xff", 1 + 2j, float("inf"), 2**80],
            "nothing": torch.empty(0, 3), "scalar": c, "half": a.half(), "dtype": a.dtype, "size": a.shape,
        }  # fmt: skip

    a = torch.arange(12.0, device="remote").view(3, 4).t()[1:]  # a view that is not contiguous
    out = f({"a": a, "more": (torch.ones_like(a), torch.tensor(7, device="remote"))})
    assert torch.equal(out["sum"].cpu(), a.cpu() + 1)
    assert out[3] == [a.sum().item(), None, True, "text", b"\0\xff", 1 + 2j, float("inf"), 2**80]
    assert out["nothing"].shape == (0, 3) and out["scalar"].item() == 7 and out["half"].dtype == torch.half
    assert out["dtype"] == torch.float32 and out["size"] == torch.Size((3, 3))


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
    with pytest.raises(TypeError, match="returned a builtins.object, which cannot come back"):
        torch_remote.function(lambda: object())()
    assert x.sum().item() == 2


def test_packages(remote):
    @torch_remote.function(packages=["numpy", "no-such-package"])
    def f():
        return 1

    with pytest.raises(ModuleNotFoundError, match=r"has no no-such-package.*pip install no-such-package"):
        f()
    with pytest.raises(ModuleNotFoundError, match=r"has torch .*, and the function asks for torch==0\.1"):
        torch_remote.function(packages=["torch==0.1"])(lambda: 1)()
    assert torch_remote.function(packages=["torch"])(lambda: 1)() == 1
    with pytest.raises(ValueError, match="write 'name' or 'name==version'"):
        torch_remote.function(packages=["torch>2; rm"])(lambda: 1)


def test_failed_tensors_are_told(remote):
    x = torch.ones(2, device="remote")[torch.tensor([7], device="remote")]
    with pytest.raises(IndexError):
        torch_remote.function(lambda x: x)(x)


def test_prints(remote, capfd):
    torch_remote.function(lambda: print("from there"))()
    assert capfd.readouterr().err.endswith("from there\n")


def test_two_at_once(remote):
    @torch_remote.function
    def wait(mine, other, x):
        import pathlib
        import time

        pathlib.Path(mine).touch()
        while not pathlib.Path(other).exists():  # only where both run at once
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
        return x

    x = torch.ones(2, device="remote")

    async def main():
        call = asyncio.create_task(wait.aio(str(tmp_path / "go"), x))
        await asyncio.sleep(0.1)
        assert (x * 3).sum().item() == 6 and not call.done()
        x.zero_()  # after the call: it got the ones
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
    torch_remote.function(lambda: 0)()  # the process is there
    begin = time.monotonic()
    with pytest.raises(TimeoutError, match=r"did not end within 0\.5 s"):
        wait(60, x)
    assert time.monotonic() - begin < 20
    assert torch_remote.function(lambda x: x + 1)(x).tolist() == [2, 2]


def test_ctrl_c(remote):
    @torch_remote.function
    def wait():
        import time

        time.sleep(60)

    torch_remote.function(lambda: 0)()
    import _thread

    timer = threading.Timer(0.5, _thread.interrupt_main)
    timer.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        wait()
    assert time.monotonic() - begin < 20
    assert torch_remote.function(lambda: 5)() == 5


@pytest.mark.parametrize("how", ["os._exit(3)", "os.kill(os.getpid(), 9)"])
def test_the_process_dies_and_the_session_lives(remote, how):
    @torch_remote.function
    def die(x, how):
        import os

        exec(how, {"os": os})

    x = torch.ones(2, device="remote")
    with pytest.raises(RuntimeError, match=r"exited with status 3|was killed by signal 9"):
        die(x, how)
    assert x.sum().item() == 2
    assert torch_remote.function(lambda x: x * 2)(x).tolist() == [2, 2]


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
        worker = subprocess.Popen(
            [sys.executable, "-m", "torch_remote.worker", "--listen", "tcp://127.0.0.1:0", *flag],
            env=environment, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            environment["TORCH_REMOTE_WORKER"] = worker.stdout.readline().strip()
            result = subprocess.run(
                [sys.executable, "-c", FORBIDDEN], env=environment, capture_output=True, text=True, check=False
            )
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
