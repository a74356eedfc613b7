"""Python functions that run where the worker is (`torch_remote.function`).

A function goes there pickled (cloudpickle), and the tensors of the device that it is given, or that it refers to, stay
there: the worker hands their elements to a Python process of its own, which calls the function in plain torch
(python_process.py). What it returns comes back as tensors of the device and plain values; nothing is unpickled here.
For gradients it is called once more, with the same random numbers, so that nothing has to be kept there.
"""

from __future__ import annotations

import asyncio
import base64
import builtins
import functools
import inspect
import io
import json
import pickle
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, overload

import torch

from torch_remote import _C, enabled
from torch_remote.errors import FunctionError

__all__ = ["RemoteFunction", "function"]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(==[A-Za-z0-9.+!-]+)?")
_PATIENCE = 3.0  # seconds that an interrupted function has to end


def _pickle(function: Any, args: Any, kwargs: Any) -> tuple[bytes, list[torch.Tensor]]:
    """The call without the device's tensors, and these."""
    try:
        import cloudpickle
    except ImportError as error:
        raise ModuleNotFoundError(
            "remote: functions need the package cloudpickle, here and where the worker is: pip install cloudpickle"
        ) from error
    tensors: list[torch.Tensor] = []
    numbers: dict[int, int] = {}

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc, name-defined, unused-ignore]
        def persistent_id(self, value: object) -> int | None:
            if not isinstance(value, torch.Tensor) or value.device.type != "remote":
                return None
            if id(value) not in numbers:
                numbers[id(value)] = len(tensors)
                tensors.append(value)
            return numbers[id(value)]

    data = io.BytesIO()
    Pickler(data, protocol=pickle.DEFAULT_PROTOCOL).dump((function, args, kwargs))
    return data.getvalue(), tensors


def _decode(value: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """What python_process.py encoded."""
    kind, *rest = value
    if kind == "value":
        return rest[0]
    if kind == "tensor":
        return tensors[rest[0]]
    if kind == "int":
        return int(rest[0])
    if kind == "float":
        return float(rest[0]) if rest[0] in ("inf", "-inf", "nan") else float.fromhex(rest[0])
    if kind == "complex":
        return complex(_decode(rest[0], ()), _decode(rest[1], ()))
    if kind == "bytes":
        return base64.b64decode(rest[0])
    if kind == "dtype":
        return getattr(torch, rest[0])
    if kind == "size":
        return torch.Size(rest[0])
    if kind in ("list", "tuple"):
        items = [_decode(item, tensors) for item in rest[0]]
        return items if kind == "list" else tuple(items)
    if kind == "dict":
        return {_decode(key, tensors): _decode(item, tensors) for key, item in rest[0]}
    raise RuntimeError(f"remote: a function's result has a value of the kind {kind!r}, which this version does not know")


def _error(about: dict[str, str]) -> BaseException:
    """What the function raised: an exception of the same class if that is Python's own."""
    cause = FunctionError(f"\n{about['traceback']}")
    kind = getattr(builtins, about["type"], None) if about["module"] == "builtins" else None
    error: BaseException
    if isinstance(kind, type) and issubclass(kind, (Exception, KeyboardInterrupt)):
        try:
            error = kind(about["message"])
        except TypeError:  # a class that wants other arguments
            error = FunctionError(f"{about['type']}: {about['message']}")
    else:
        error = FunctionError(f"{about['type']}: {about['message']}")
    error.__cause__ = cause
    return error


class _Attempt:
    """One call: sent, waited for, interrupted."""

    def __init__(self, device: int, header: dict[str, Any], pickled: bytes, tensors: Sequence[torch.Tensor]) -> None:
        self._device = device
        request = pickle.dumps((header, pickled))
        self._ticket, self._base = _C.call(device, request, list(tensors))
        self._ended = False

    def end(self) -> None:
        """Ends it, from any thread."""
        if not self._ended:
            _C.end_call(self._device, self._ticket, False)

    def wait(self, timeout: float | None) -> tuple[dict[str, Any], list[torch.Tensor]]:
        """The answer and its tensors."""
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            answer = self._wait(deadline)
            if answer is None:
                raise TimeoutError(f"remote: the function did not end within {timeout:g} s")
        except BaseException:
            self._give_up()
            raise
        text, sizes = answer
        about = json.loads(text)
        kinds = about.get("tensors", [])
        if len(kinds) != len(sizes):
            raise RuntimeError("remote: a function's answer is damaged")
        tensors = [
            _C.result_tensor(self._device, self._base + i, size, shape, getattr(torch, dtype))
            for i, (size, (dtype, shape, _)) in enumerate(zip(sizes, kinds, strict=True))
        ]
        if about["printed"] and sys.stderr is not None:
            sys.stderr.write(about["printed"])
        if "error" in about:
            raise _error(about["error"])
        return about, tensors

    def _wait(self, deadline: float | None) -> tuple[bytes, list[int]] | None:
        seconds = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
        answer = _C.wait_call(self._device, self._ticket, seconds)
        self._ended = self._ended or answer is not None
        return answer

    def _give_up(self) -> None:
        """Nobody waits any more: the function is interrupted, or its process ended."""
        if self._ended:
            return
        try:
            _C.end_call(self._device, self._ticket, False)
            if self._wait(time.monotonic() + _PATIENCE) is None:
                _C.end_call(self._device, self._ticket, True)
        except Exception:  # noqa: S110 (it is over, in whatever way)
            pass
        finally:
            self._ended = True
            _C.forget_call(self._device, self._ticket, self._base)


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        about, results = call.run(tensors, None, ())
        call.about = about
        ctx.call, ctx.random = call, None
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(
            *(r for r, (_, _, wants) in zip(results, about["tensors"], strict=True) if not wants)
        )
        return tuple(results)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        there = [i for i, gradient in enumerate(gradients) if gradient is not None]
        tensors = ctx.saved_tensors
        about, results = ctx.call.run(tensors, there, [gradients[i] for i in there])
        found = iter(results)
        made = iter([next(found) if has else None for has in about["result"]])
        return (None, *(next(made) if wants else None for wants in ctx.call.wants_grad))


class _Call:
    """A function with its arguments."""

    def __init__(self, owner: RemoteFunction[Any, Any], args: Any, kwargs: Any) -> None:
        self._owner = owner
        self._pickled, self.tensors = _pickle(owner.__wrapped__, args, kwargs)
        devices = {tensor.device.index for tensor in self.tensors}
        if len(devices) > 1:
            raise ValueError(
                f"remote: {owner.__name__} got tensors of several devices ({', '.join(f'remote:{i}' for i in sorted(devices))})"
            )
        self._device = devices.pop() if devices else _C.current_device()
        self._seed = int(torch.randint(2**62, ()).item())
        self._grad_enabled = torch.is_grad_enabled()
        self.wants_grad = [tensor.requires_grad and self._grad_enabled for tensor in self.tensors]
        self.attempt: _Attempt | None = None
        self.cancelled = False
        self.about: dict[str, Any] = {}

    def run(
        self, tensors: Sequence[torch.Tensor], gradients: list[int] | None, given: Sequence[torch.Tensor]
    ) -> tuple[dict[str, Any], list[torch.Tensor]]:
        """Calls it; with `given`, gradients of these results, for the gradients of its tensors."""
        kinds = zip(self.tensors, self.wants_grad, strict=True)
        header = {
            "python": list(sys.version_info[:2]),
            "path": [path for path in sys.path if path],
            "packages": self._owner.packages,
            "sources": self._owner.sources,
            "seed": self._seed,
            "arguments": len(tensors),
            "grad_enabled": self._grad_enabled,
            "gradients": gradients,
            "tensors": [
                [str(t.dtype).removeprefix("torch."), list(t.shape), isinstance(t, torch.nn.Parameter), wants]
                for t, wants in kinds
            ]
            + [[str(t.dtype).removeprefix("torch."), list(t.shape), False, False] for t in given],
        }
        self.attempt = _Attempt(self._device, header, self._pickled, [*(t.detach() for t in tensors), *given])
        if self.cancelled:
            self.attempt.end()
        return self.attempt.wait(self._owner.timeout)

    def __call__(self) -> Any:
        if any(self.wants_grad):
            results: Sequence[torch.Tensor] = _Differentiable.apply(self, *self.tensors)
            about = self.about
        else:
            about, results = self.run(self.tensors, None, ())
        return _decode(about["result"], results)


class RemoteFunction(Generic[_P, _R]):
    """A function that runs where its tensors are: what `torch_remote.function` returns."""

    def __init__(
        self, function: Callable[_P, _R], packages: Sequence[str], timeout: float | None
    ) -> None:
        if inspect.iscoroutinefunction(function):
            raise TypeError("remote: a remote function is a plain one; `await f.aio(...)` is how to wait for it")
        for package in packages:
            if not _PACKAGE.fullmatch(package):
                raise ValueError(f"remote: packages has {package!r}; write 'name' or 'name==version'")
        functools.update_wrapper(self, function)
        self.__wrapped__ = function
        self.packages, self.timeout = list(packages), timeout
        self.sources: dict[str, str] = {}
        try:  # for the lines of its tracebacks
            file = inspect.getsourcefile(function)
            lines, _ = inspect.findsource(function)
            if file is not None:
                self.sources[file] = "".join(lines)
        except (OSError, TypeError):
            pass

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        if not enabled.is_enabled():
            return self.__wrapped__(*args, **kwargs)
        return _Call(self, args, kwargs)()  # type: ignore[no-any-return]

    async def aio(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """The same without blocking the event loop. A task that is cancelled interrupts the function."""
        if not enabled.is_enabled():
            return await asyncio.to_thread(self.__wrapped__, *args, **kwargs)
        call = _Call(self, args, kwargs)
        grad_enabled = torch.is_grad_enabled()

        def run() -> Any:
            with torch.set_grad_enabled(grad_enabled):
                return call()

        waiting = asyncio.get_running_loop().run_in_executor(None, run)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            call.cancelled = True
            if call.attempt is not None:
                threading.Thread(target=call.attempt.end, daemon=True).start()
            waiting.add_done_callback(lambda future: future.exception())
            raise

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<remote function {self.__qualname__}>"


@overload
def function(
    function: Callable[_P, _R], /, *, packages: Sequence[str] = (), timeout: float | None = None
) -> RemoteFunction[_P, _R]: ...
@overload
def function(
    function: None = None, /, *, packages: Sequence[str] = (), timeout: float | None = None
) -> Callable[[Callable[_P, _R]], RemoteFunction[_P, _R]]: ...
def function(
    function: Any = None, /, *, packages: Sequence[str] = (), timeout: float | None = None
) -> Any:
    """Makes a function run where the worker is, in Python and plain torch there; tensors of the device stay there.

        @torch_remote.function(packages=["scipy"])
        def smooth(x, sigma):
            import scipy.ndimage
            return torch.from_numpy(scipy.ndimage.gaussian_filter(x.numpy(), sigma))

        y = smooth(x, 2.0)  # x and y are tensors on the device; gradients go through

    The worker must have been started with --allow-python; local ones are. Tensors of the device among the arguments,
    however deep, and those that the function refers to (a module's parameters) are given to it as CPU tensors; what it
    changes in them stays there. Results are tensors, which come to the device, numbers, text, bytes, None, and lists,
    tuples and dicts of these. What it raises is raised here, with its traceback; what it prints goes to standard error.
    For gradients it is called again, with the same random numbers. `await f.aio(...)` does not block.

    Args:
        packages: what the worker's Python must have: "name" or "name==version".
        timeout: seconds until the function is interrupted; then it is a TimeoutError.
    """
    if function is None:
        return functools.partial(RemoteFunction, packages=packages, timeout=timeout)
    return RemoteFunction(function, packages, timeout)
