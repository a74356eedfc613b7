"""Python functions that run where the worker is (`torch_remote.function`).

The function is sent pickled (cloudpickle). Tensors of the device that it is given, or that it refers to, stay with the
worker: the worker passes their bytes to a Python process, which calls the function in plain torch (python_process.py).
The results come back as tensors of the device and plain values; nothing is unpickled here. For gradients the function
is called once more, with the same random numbers, so that nothing must be saved there.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import functools
import inspect
import io
import json
import os
import pickle
import re
import sys
import sysconfig
import threading
import time
import types
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, overload

import torch

from torch_remote import _C, enabled
from torch_remote.errors import FunctionError
from torch_remote.function_parts import Arguments, DamagedError, decode, dtype_name, dtype_of
from torch_remote.ipython_shell import is_autoreload_on
from torch_remote.providers import registry

__all__ = ["RemoteFunction", "function"]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(==[A-Za-z0-9.+!-]+)?")
_MOST_ARGUMENTS = 2048
_AT_ONCE = 0.5  # seconds to wait for an interrupted function
_PATIENCE = 3.0  # seconds that an interrupted function has before its process is killed

_pickling = threading.Lock()  # cloudpickle's list of modules is global to the process


def _pickle(function: Any, args: Any, kwargs: Any) -> tuple[bytes, list[torch.Tensor], bool]:
    """Pickles the call. Returns the pickle, its tensors, and whether it contains an optimizer."""
    try:
        import cloudpickle  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ModuleNotFoundError(
            "remote: functions need the package cloudpickle here and on the worker's machine; pip install cloudpickle"
        ) from error
    tensors: list[torch.Tensor] = []
    numbers: dict[int, int] = {}
    optimizers = False

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc, name-defined, unused-ignore]
        def persistent_id(self, value: object) -> int | None:
            if not isinstance(value, torch.Tensor) or not _is_argument(value):
                return None
            if id(value) not in numbers:
                numbers[id(value)] = len(tensors)
                tensors.append(value)
            return numbers[id(value)]

        def reducer_override(self, value: object) -> Any:
            nonlocal optimizers
            optimizers = optimizers or isinstance(value, torch.optim.Optimizer)
            if isinstance(value, RemoteFunction):  # on the worker's side it is called directly
                return functools.partial, (value.__wrapped__,)
            if isinstance(value, types.CodeType):
                # From 3.1.3 on cloudpickle omits the file name, by which tracebacks find the lines.
                make, parts = self.dispatch_table[types.CodeType](value)
                return make, tuple(value.co_filename if part == "<dynamic-code>" else part for part in parts)
            return super().reducer_override(value)

    data = io.BytesIO()
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    with _pickling, contextlib.ExitStack() as after:
        # Pickles the function's module by value, in its current state, even if the worker could import it.
        if module is not None and module.__name__ not in ("__main__", *cloudpickle.list_registry_pickle_by_value()):
            cloudpickle.register_pickle_by_value(module)
            after.callback(cloudpickle.unregister_pickle_by_value, module)
        Pickler(data, protocol=pickle.DEFAULT_PROTOCOL).dump((function, args, kwargs))
    return data.getvalue(), tensors, optimizers


_installed: set[str] = set()  # names of modules that nobody edits
_specs: dict[str, Any] = {}  # of the other modules, at the last call; a reload replaces a module's spec
_reload_count = 0
_PACKAGES = ("/site-packages/", "/dist-packages/", f"{sysconfig.get_path('stdlib')}/")


def _reloads() -> int | None:
    """How often modules of this process were reloaded between calls, as far as is known; None: edited modules are
    reloaded automatically (IPython's %autoreload)."""
    global _reload_count
    if is_autoreload_on():
        return None
    for name in sys.modules.keys() - _installed:
        spec = getattr(sys.modules.get(name), "__spec__", None)
        known = _specs.get(name)
        if known is spec:
            continue
        file = getattr(spec, "origin", None) or ""
        if not file.endswith(".py") or any(folder in file for folder in _PACKAGES):
            _installed.add(name)
            continue
        _specs[name] = spec
        _reload_count += known is not None
    return _reload_count


def _with_gradients(tensors: list[torch.Tensor]) -> list[tuple[int, int]]:
    """Appends the tensors' `.grad`s. Returns pairs: the index of a tensor, the index of its gradient."""
    numbers = {id(tensor): i for i, tensor in enumerate(tensors)}
    pairs = []
    for i, tensor in enumerate(list(tensors)):
        gradient = tensor.grad if tensor.is_leaf else None
        if gradient is None or gradient.layout != torch.strided or not _is_argument(gradient):
            continue
        if id(gradient) not in numbers:
            numbers[id(gradient)] = len(tensors)
            tensors.append(gradient)
        pairs.append((i, numbers[id(gradient)]))
    return pairs


def _is_argument(tensor: torch.Tensor) -> bool:
    """Whether the tensor is sent as bytes; other tensors are pickled by torch."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
    if tensor.device.type == "remote" and not plain:
        raise TypeError(
            f"remote: a function takes dense tensors, got {type(tensor).__qualname__} of layout {tensor.layout}; pass "
            "its parts (x.values(), x.to_dense())"
        )
    if plain and tensor.device.type in ("remote", "cpu") and not tensor.is_quantized:
        return True
    if tensor.requires_grad and torch.is_grad_enabled():
        raise TypeError(
            "remote: a function got a tensor that requires a gradient and is not dense on the device or the CPU "
            f"({type(tensor).__qualname__} on {tensor.device}); move it to the device, or call under torch.no_grad()"
        )
    return False


def _error(info: dict[str, Any]) -> BaseException:
    """The exception that the function raised, of the same class if that is one of Python's built-in exceptions."""
    cause = FunctionError(f"\n{info['traceback']}")
    kind = getattr(builtins, info["type"], None) if info["module"] == "builtins" else None
    error: BaseException = FunctionError(f"{info['type']}: {info['message']}")
    if isinstance(kind, type) and issubclass(kind, (Exception, KeyboardInterrupt)):
        with contextlib.suppress(TypeError):  # the class needs other arguments
            error = kind(*info["args"])
    error.__cause__ = cause
    return error


class _SentCall:
    """One call: sends it, waits for it, interrupts it."""

    def __init__(
        self, device: int, header: dict[str, Any], pickled: bytes, parts: Sequence[torch.Tensor], prints: bool
    ) -> None:
        self._device, self._prints = device, prints
        self._session, self._ticket, self._first_result_id = _C.call_function(
            device, pickle.dumps((header, pickled)), list(parts)
        )
        self._ended = False

    def interrupt(self) -> None:
        """Makes the call end soon: interrupts it as Ctrl-C does, and kills its process if that does not help. Any
        thread may call this."""
        with contextlib.suppress(Exception):  # the worker may be gone
            _C.cancel_function(self._device, self._session, self._ticket, False)
        last = threading.Timer(_PATIENCE, self._kill)
        last.daemon = True
        last.start()

    def _kill(self) -> None:
        with contextlib.suppress(Exception):
            if not self._ended:
                _C.cancel_function(self._device, self._session, self._ticket, True)

    def wait(self, timeout: float | None) -> tuple[dict[str, Any], list[torch.Tensor]]:
        """Returns the answer and its tensors; those of changed arguments come last."""
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            answer = self._wait(deadline)
            if answer is None:
                raise TimeoutError(f"remote: the function did not end within {timeout:g} s")
        except BaseException:
            self._give_up()
            raise
        text, sizes = answer
        info = json.loads(text)
        kinds = info["tensors"]
        if len(kinds) != len(sizes):
            raise DamagedError(f"it has {len(sizes)} tensors, but describes {len(kinds)}")
        tensors = [
            _C.result_tensor(self._device, self._session, self._first_result_id + i, size, shape, dtype_of(dtype))
            for i, (size, (dtype, shape, _)) in enumerate(zip(sizes, kinds, strict=True))
        ]
        self._print(info)
        return info, tensors

    def _print(self, info: dict[str, Any]) -> None:
        for is_error, text in info["printed"] if self._prints else ():
            stream = sys.stderr if is_error else sys.stdout
            if stream is not None:
                stream.write(text)

    def _wait(self, deadline: float | None) -> tuple[bytes, list[int]] | None:
        seconds = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            answer = _C.wait_function(self._device, self._session, self._ticket, seconds)
        except KeyboardInterrupt:
            raise
        except Exception:  # the call has ended: the worker or the function's process failed
            self._ended = True
            raise
        self._ended = answer is not None
        return answer

    def _give_up(self) -> None:
        """Abandons the call and its results."""
        if self._ended:
            return
        try:
            self.interrupt()
            with contextlib.suppress(Exception):
                if (answer := self._wait(time.monotonic() + _AT_ONCE)) is not None:
                    self._print(json.loads(answer[0]))
        finally:
            with contextlib.suppress(Exception):
                _C.drop_function_results(self._device, self._session, self._ticket, self._first_result_id)


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        call.run_forward()
        ctx.call = call
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        kinds = call.info["tensors"]
        ctx.mark_non_differentiable(*(r for r, (_, _, wants) in zip(call.results, kinds, strict=True) if not wants))
        return tuple(call.results)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        tensors = ctx.saved_tensors  # unchanged since the forward pass
        return (None, *ctx.call.run_backward(tensors, gradients))


class _Call:
    """A function with its arguments."""

    def __init__(self, owner: RemoteFunction[Any, Any], args: Any, kwargs: Any) -> None:
        self._owner = owner
        self._pickled, given, self._optimizers = _pickle(owner.__wrapped__, args, kwargs)
        self._count = len(given)  # their gradients follow, which autograd does not see
        self._grads = _with_gradients(given)
        devices = {tensor.device.index for tensor in given if tensor.device.type == "remote"}
        if len(devices) > 1:
            names = ", ".join(f"remote:{i}" for i in sorted(devices))
            raise ValueError(f"remote: {owner!r} got tensors of several devices ({names}); move them to one")
        self._device = devices.pop() if devices else _C.current_device()
        self._seed = int(torch.randint(2**62, (), device="cpu").item())  # whatever the default device is
        self._grad_enabled = torch.is_grad_enabled()
        self._wants_grad = [tensor.requires_grad and self._grad_enabled for tensor in given[: self._count]]
        self._wants_grad += [False] * (len(given) - self._count)
        here = [tensor if tensor.device.type == "remote" else tensor.to(f"remote:{self._device}") for tensor in given]
        if len(given) > _MOST_ARGUMENTS:
            raise ValueError(
                f"remote: a function takes at most {_MOST_ARGUMENTS} tensors, got {len(given)}; stack some"
            )
        self._arguments = Arguments(given, here)
        self._clones: dict[int, torch.Tensor] = {}
        self.sent_call: _SentCall | None = None
        self.cancelled = False
        self.info: dict[str, Any] = {}
        self.results: list[torch.Tensor] = []

    def _run(
        self, arguments: Arguments, parts: list[torch.Tensor], gradients: list[int] | None, given: Arguments
    ) -> tuple[dict[str, Any], list[torch.Tensor]]:
        def describe(tensor: torch.Tensor, where: list[Any], first: int, wants_grad: bool, own: torch.Tensor) -> Any:
            return {
                "part": first + where[0], "sizes": where[1], "strides": where[2], "offset": where[3],
                "dtype": dtype_name(tensor), "conj": tensor.is_conj(), "neg": tensor.is_neg(),
                "parameter": isinstance(own, torch.nn.Parameter), "grad": wants_grad, "leaf": own.is_leaf,
            }  # fmt: skip

        tensors = [
            describe(tensor, where, 0, wants, own)
            for tensor, where, wants, own in zip(
                arguments.here, arguments.where, self._wants_grad, self._arguments.given, strict=False
            )
        ]
        first = len(parts)
        tensors += [
            describe(tensor, where, first, False, tensor) for tensor, where in zip(given.here, given.where, strict=True)
        ]
        header = {
            "python": list(sys.version_info[:2]),
            "path": [path or os.getcwd() for path in sys.path] if registry.is_own(self._device) else [],
            "packages": self._owner.packages,
            "reloads": _reloads(),
            "sources": self._owner.sources(),
            "seed": self._seed,
            "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
            "arguments": len(arguments.here),
            "parts": len(parts),
            "grad_enabled": self._grad_enabled,
            "gradients": gradients,
            "grads": self._grads if gradients is None else [],
            "optimizers": self._optimizers,
            "tensors": tensors,
        }
        everything = [*parts, *(part.tensor for part in given.parts)]
        self.sent_call = _SentCall(self._device, header, self._pickled, everything, prints=gradients is None)
        if self.cancelled:
            self.sent_call.interrupt()
        return self.sent_call.wait(self._owner.timeout)

    def run_forward(self) -> None:
        """Calls the function. Sets `info` and `results`, and updates changed arguments."""
        arguments = self._arguments
        info, tensors = self._run(arguments, [part.tensor for part in arguments.parts], None, Arguments([], []))
        changed = info["changed"]
        count = len(tensors) - len(changed)
        arguments.write(changed, tensors[count:], self._clones)
        if "error" in info:
            self._take_grads(info["grads"], tensors[:count])
            raise _error(info["error"])
        info["tensors"] = info["tensors"][:count]
        self.info, self.results = info, tensors[:count]

    def _take_grads(self, grads: Sequence[Any], tensors: Sequence[torch.Tensor]) -> None:
        """Assigns the `.grad`s that the function has set."""
        for i, encoded in grads:
            tensor, gradient = self._arguments.given[i], decode(encoded, tensors, self._arguments)
            tensor.grad = None if gradient is None else gradient.detach().to(tensor.device)

    def run_backward(
        self, tensors: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        """Computes the gradients of the arguments: calls the function again with the same arguments."""
        arguments = self._arguments if self._clones else Arguments(tensors, tensors)
        parts = [self._clones.get(i, part.tensor) for i, part in enumerate(arguments.parts)]
        there = [i for i, gradient in enumerate(gradients) if gradient is not None]
        given = [gradient for gradient in gradients if gradient is not None]
        info, results = self._run(arguments, parts, there, Arguments(given, given))
        if "error" in info:
            raise _error(info["error"])
        found = iter(results)
        made = iter([next(found) if has else None for has in info["result"]])
        return [next(made) if wants else None for wants in self._wants_grad[: self._count]]

    def __call__(self) -> Any:
        if any(self._wants_grad):
            results: Sequence[torch.Tensor] = _Differentiable.apply(self, *self._arguments.here[: self._count])
        else:
            self.run_forward()
            results = self.results
        self.results = []
        result = decode(self.info["result"], results, self._arguments)
        self._take_grads(self.info["grads"], results)
        if not any(tensor.requires_grad for tensor in results):
            self._clones = {}
        return result


class RemoteFunction(Generic[_P, _R]):
    """A function that runs where its tensors are; `torch_remote.function` returns it."""

    def __init__(self, function: Callable[_P, _R], packages: Sequence[str], timeout: float | None) -> None:
        if inspect.iscoroutinefunction(function):
            raise TypeError("remote: a remote function must not be async; define it with def, and `await f.aio(...)`")
        if inspect.isgeneratorfunction(function):
            raise TypeError("remote: a remote function must not be a generator; return a list")
        if not callable(function):
            raise TypeError(f"remote: torch_remote.function is for functions, not for {type(function).__name__}")
        if isinstance(packages, str):
            raise TypeError(f"remote: packages must be a list of names; write packages=[{packages!r}]")
        for package in packages:
            if not _PACKAGE.fullmatch(package):
                raise ValueError(f"remote: packages has {package!r}; write 'name' or 'name==version'")
        if timeout is not None and not timeout > 0:
            raise ValueError(f"remote: timeout={timeout!r} is not a number of seconds above 0")
        functools.update_wrapper(self, function)
        self.__wrapped__ = function
        self.packages, self.timeout = list(packages), timeout
        self._code: object = None
        self._sources: dict[str, str] = {}
        self.sources()  # the file may be edited later

    def sources(self) -> dict[str, str]:
        """The source of the function's file, by file name: for the lines of tracebacks."""
        code = getattr(self.__wrapped__, "__code__", None)  # %autoreload replaces it
        if self._code is None or self._code is not code:
            self._code, self._sources = code, {}
            with contextlib.suppress(OSError, TypeError):
                file = inspect.getsourcefile(self.__wrapped__)
                lines, _ = inspect.findsource(self.__wrapped__)
                if file is not None:
                    self._sources[file] = "".join(lines)
        return self._sources

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        if not enabled.is_enabled():
            return self.__wrapped__(*args, **kwargs)
        return _Call(self, args, kwargs)()

    async def aio(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Calls the function without blocking the event loop. Cancelling the task interrupts the function."""
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
            if call.sent_call is not None:
                threading.Thread(target=call.sent_call.interrupt, daemon=True).start()
            waiting.add_done_callback(lambda future: future.exception())
            raise

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is None:
            return self
        bound: Any = functools.partial(self, instance)  # type: ignore[arg-type]
        bound.aio = functools.partial(self.aio, instance)  # type: ignore[arg-type]
        return bound

    def __repr__(self) -> str:
        return f"<remote function {getattr(self, '__qualname__', self.__wrapped__)}>"


@overload
def function(
    function: Callable[_P, _R], /, *, packages: Sequence[str] = (), timeout: float | None = None
) -> RemoteFunction[_P, _R]: ...
@overload
def function(
    function: None = None, /, *, packages: Sequence[str] = (), timeout: float | None = None
) -> Callable[[Callable[_P, _R]], RemoteFunction[_P, _R]]: ...
def function(function: Any = None, /, *, packages: Sequence[str] = (), timeout: float | None = None) -> Any:
    """Makes a function run where the worker is, in Python and plain torch there. Tensors of the device stay there.

        @torch_remote.function(packages=["scipy"])
        def smooth(x, sigma):
            import scipy.ndimage
            return torch.from_numpy(scipy.ndimage.gaussian_filter(x.numpy(), sigma))

        y = smooth(x, 2.0)  # x and y are tensors on the device

    The worker must have been started with --allow-python; local workers are. The function gets CPU tensors for all
    tensors among the arguments, at any depth, and for tensors that it refers to (a module's parameters). In-place
    changes of these tensors and of their `.grad` are applied here. Other arguments are copied. Results may be tensors,
    which are put on the device, numpy arrays, numbers, text, bytes, None, and lists, tuples, sets and dicts of these.
    An exception is raised here, with its traceback; printed text is printed here. For gradients of torch's operations
    the function is called again, with the same random numbers. `await f.aio(...)` does not block.

    Args:
        packages: packages that the worker's Python must have: "name" or "name==version".
        timeout: seconds after which the function is interrupted and TimeoutError is raised.
    """
    if function is None:
        return functools.partial(RemoteFunction, packages=packages, timeout=timeout)
    return RemoteFunction(function, packages, timeout)
