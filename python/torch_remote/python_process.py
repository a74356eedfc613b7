"""The process next to a worker that calls Python functions for its client.

Clients call torch_remote/function.py; the worker's half is worker/server/python.h.

It imports torch, but nothing of torch_remote. A call arrives in memory with several parts. The first part is a pickle
of a header and the pickled function; the others are tensors' elements. The answer has the same form, with JSON as the
first part: the client unpickles nothing.
"""

import base64
import contextlib
import ctypes
import faulthandler
import gc
import hashlib
import importlib.machinery
import importlib.metadata
import io
import json
import linecache
import math
import mmap
import os
import pickle
import random
import signal
import socket
import struct
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

_SOCKET = 3
_MOST_RESULTS = 2048  # as many arguments may have changed
_PART = struct.Struct("<QQ")


def _parts(descriptor: int) -> list[memoryview]:
    """Returns the parts of a call, as views of memory that this process may write."""
    memory = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
    (count,) = struct.unpack_from("<Q", memory)
    table = [_PART.unpack_from(memory, 8 + i * _PART.size) for i in range(count)]
    return [memory[offset : offset + size] for offset, size in table]


def _send(connection: socket.socket, parts: Sequence[bytes | memoryview]) -> None:
    end = (8 + len(parts) * _PART.size + 63) // 64 * 64
    table = b""
    for part in parts:
        table += _PART.pack(end, len(part))
        end += (len(part) + 63) // 64 * 64
    descriptor = os.memfd_create("torch-remote-answer", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, end)
        with mmap.mmap(descriptor, end) as memory:
            memory[:8] = struct.pack("<Q", len(parts))
            memory[8 : 8 + len(table)] = table
            for i, part in enumerate(parts):
                offset, size = _PART.unpack_from(table, i * _PART.size)
                memory[offset : offset + size] = part
        socket.send_fds(connection, [b"\0"], [descriptor])
    finally:
        os.close(descriptor)


def _check_packages(packages: list[str]) -> None:
    for package in packages:
        name, _, version = package.partition("==")
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found = None
        if found is None or (version and version not in (found, found.partition("+")[0])):  # "2.13.0" of "2.13.0+cpu"
            has = f"has {name} {found}" if found else f"has no {name}"
            raise ModuleNotFoundError(
                f"remote: the worker's Python ({sys.executable}) {has}, but the function needs {package}; install "
                f"it there: {sys.executable} -m pip install {package}",
                name=name,
            )


def _digest(file: str) -> bytes:
    try:
        return hashlib.sha256(Path(file).read_bytes()).digest()
    except OSError:
        return b""


class _UncachedLoader(importlib.machinery.SourceFileLoader):
    """Reads the source: a .pyc file may be of an older source with the same size, written within the same second."""

    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self.get_data(self.path), self.path)


class _UserModules:
    """The imported modules that are neither installed nor Python's own. They are imported again after an edit.

    This object is in sys.meta_path: it finds what the other finders find, and stores the digests of sources.
    """

    def __init__(self) -> None:
        self._installed = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib"))
        self._sources: dict[str, tuple[str, bytes]] = {}  # by module: file and digest
        self._edited: set[str] = set()
        self._reloads: int | None = 0

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                self._note(spec)
                return spec
        return None

    def _note(self, spec: importlib.machinery.ModuleSpec) -> None:
        file = spec.origin or ""
        installed = "/site-packages/" in file or "/dist-packages/" in file or file.startswith(self._installed)
        if file.endswith(".py") and not installed:
            self._sources[spec.name] = (file, _digest(file))
            if spec.name in self._edited and type(spec.loader) is importlib.machinery.SourceFileLoader:
                spec.loader = _UncachedLoader(spec.name, file)

    def forget_edited(self, reloads: int | None) -> None:
        """Forgets all user modules if the source of one has changed, because they may have objects of each other.

        reloads: how often the client has reloaded modules; None: it reloads edited modules automatically. Sources are
        compared only after a reload: a long run is not to import files that are being edited."""
        if reloads is not None and reloads == self._reloads:
            return
        self._reloads = reloads
        edited = {name for name, (file, digest) in self._sources.items() if digest != _digest(file)}
        if not edited:
            return
        self._edited |= edited
        for name in self._sources:
            sys.modules.pop(name, None)
        self._sources.clear()
        importlib.invalidate_caches()


_user_modules = _UserModules()


def _bytes(torch: Any, part: memoryview) -> Any:
    return torch.frombuffer(part, dtype=torch.uint8) if len(part) else torch.empty(0, dtype=torch.uint8)


def _tensor(torch: Any, storages: list[Any], info: dict[str, Any]) -> Any:
    dtype, sizes, strides = getattr(torch, info["dtype"]), info["sizes"], info["strides"]
    if strides is None:
        strides = [math.prod(max(1, size) for size in sizes[i + 1 :]) for i in range(len(sizes))]
    made = torch.empty(0, dtype=dtype)
    if math.prod(sizes):
        made.set_(storages[info["part"]].untyped_storage(), info["offset"], sizes, strides)
    else:
        made = torch.empty_strided(sizes, strides, dtype=dtype)
    if info["conj"]:
        made = made.conj()
    if info["neg"]:
        made = torch._neg_view(made)
    if info["parameter"]:
        return torch.nn.Parameter(made, requires_grad=info["grad"])
    return made.requires_grad_(info["grad"])


def _is_same(torch: Any, part: memoryview, original: memoryview) -> bool:
    a, b = _bytes(torch, part), _bytes(torch, original)
    words = len(a) // 8 * 8
    return torch.equal(a[:words].view(torch.int64), b[:words].view(torch.int64)) and torch.equal(a[words:], b[words:])


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, tensors: list[Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._tensors = tensors

    def persistent_load(self, number: int) -> Any:
        return self._tensors[number]


class _Encoder:
    """Encodes what a function returned for JSON: each value as [kind, ...], tensors by their number."""

    def __init__(self, torch: Any, inputs: list[Any], infos: list[dict[str, Any]], storages: list[Any]) -> None:
        self._torch = torch
        self._inputs, self._infos = inputs, infos
        self._parts = {s.untyped_storage().data_ptr(): i for i, s in enumerate(storages) if s.numel()}
        self._numbers: dict[int, int] = {}
        self.tensors: list[Any] = []

    def encode(self, value: Any) -> list[Any]:
        torch = self._torch
        kind = type(value)
        if value is None or kind in (bool, str):
            return ["value", value]
        if isinstance(value, torch.Tensor):
            return self._encode_tensor(value)
        if kind is int:
            # Python refuses to print integers of more than 4300 digits in decimal.
            return ["int", str(value) if value.bit_length() < 10_000 else hex(value)]
        if kind is float:
            return ["float", value.hex() if math.isfinite(value) else str(value)]
        if kind is complex:
            return ["complex", self.encode(value.real), self.encode(value.imag)]
        if kind in (bytes, bytearray):
            return [kind.__name__, base64.b64encode(value).decode()]
        if kind is torch.dtype:
            return ["dtype", str(value).removeprefix("torch.")]
        if kind is torch.Size:
            return ["size", list(value)]
        if kind in (list, tuple, set, frozenset):
            return [kind.__name__, [self.encode(item) for item in value]]
        if isinstance(value, tuple) and (kind.__module__ == "torch.return_types" or hasattr(kind, "_fields")):
            fields = getattr(kind, "_fields", None)
            return ["named", kind.__module__, kind.__qualname__, fields, [self.encode(item) for item in value]]
        if kind is dict:
            return ["dict", [[self.encode(key), self.encode(item)] for key, item in value.items()]]
        numpy = sys.modules.get("numpy")
        if numpy is not None and (kind is numpy.ndarray or isinstance(value, numpy.generic)):
            return ["numpy", self._add(torch.from_numpy(numpy.array(value))), isinstance(value, numpy.generic)]
        raise TypeError(
            f"remote: the function returned a {kind.__module__}.{kind.__qualname__}, which cannot be sent back; return "
            "tensors, numpy's arrays, numbers, text, bytes, None, or lists, tuples, sets and dicts of these"
        )

    def _add(self, tensor: Any) -> int:
        if len(self.tensors) == _MOST_RESULTS:
            raise ValueError(f"remote: a function returns {_MOST_RESULTS} tensors at most; stack some of them")
        self._numbers[id(tensor)] = len(self.tensors)
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def _encode_tensor(self, value: Any) -> list[Any]:
        for i, given in enumerate(self._inputs):
            if value is given:
                return ["argument", i]
        if id(value) in self._numbers:
            return ["tensor", self._numbers[id(value)]]
        shared = None
        if value.layout == self._torch.strided and value.device.type == "cpu" and not value.is_quantized:
            shared = self._parts.get(value.untyped_storage().data_ptr())
        if shared is not None and value.numel() and not value.is_conj() and not value.is_neg():
            owners = [i for i, given in enumerate(self._inputs) if value._base is given]
            packed = any(info["part"] == shared and info["strides"] is None for info in self._infos)
            plain = all(not (self._infos[i]["conj"] or self._infos[i]["neg"]) for i in owners)
            same = all(value.dtype == self._inputs[i].dtype for i in owners)
            if not packed and plain and (not value.requires_grad or (owners and same)):
                dtype, offset = str(value.dtype).removeprefix("torch."), value.storage_offset()
                owner = owners[0] if value.requires_grad else None
                return ["view", shared, owner, dtype, list(value.shape), list(value.stride()), offset]
        return ["tensor", self._add(value)]


def _elements(torch: Any, tensor: Any) -> Any:
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise TypeError(f"remote: the function returned a tensor of layout {tensor.layout}; return dense ones")
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return tensor.view(-1).view(torch.uint8).numpy().data if tensor.numel() else b""


def _load(parts: list[memoryview]) -> tuple[Any, dict[str, Any], bytes, list[Any], list[Any]]:
    """Returns torch, header, pickled call, tensors' bytes, tensors."""
    header, pickled = pickle.loads(parts[0])
    here = list(sys.version_info[:2])
    if header["python"] != here:
        raise RuntimeError(
            f"remote: the worker's Python ({sys.executable}) is {here[0]}.{here[1]}, but this process runs "
            f"{header['python'][0]}.{header['python'][1]}; functions need the same version on both sides; start the "
            "worker with "
            f"--allow-python=python{header['python'][0]}.{header['python'][1]}"
        )
    # Only clients that started this worker themselves send their path.
    sys.path += [path for path in header["path"] if path not in sys.path]
    _check_packages(["torch", "cloudpickle", *header["packages"]])
    import torch

    if _user_modules not in sys.meta_path:
        sys.meta_path.insert(0, _user_modules)
    _user_modules.forget_edited(header["reloads"])
    for name, lines in header["sources"].items():
        linecache.cache[name] = (len(lines), None, lines.splitlines(True), name)
    torch.set_default_dtype(getattr(torch, header["dtype"]))
    torch.manual_seed(header["seed"])
    random.seed(header["seed"])
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(header["seed"] % 2**32)
    storages = [_bytes(torch, part) for part in parts[1:]]
    inputs = [_tensor(torch, storages, info) for info in header["tensors"]]
    return torch, header, pickled, storages, inputs


def _changed(
    torch: Any,
    parts: list[memoryview],
    original: list[memoryview],
    arguments: list[Any],
    homes: list[Any],
    wants: list[bool],
) -> list[int]:
    """Returns the parts that the function has changed. homes: the original tensor of each argument."""
    with torch.no_grad():
        for tensor, home, wants_grad in zip(arguments, homes, wants, strict=True):
            if tensor.requires_grad and not wants_grad:
                raise RuntimeError(
                    "remote: the function made one of its tensors require a gradient, or changed it in place with a "
                    "tensor that requires one; return the result instead"
                )
            moved = tensor.untyped_storage().data_ptr() != home.untyped_storage().data_ptr()
            what = (tensor.dtype, tensor.shape, None if moved else (tensor.stride(), tensor.storage_offset()))
            if what != (home.dtype, home.shape, None if moved else (home.stride(), home.storage_offset())):
                raise RuntimeError(
                    "remote: the function gave one of its tensors another shape or dtype; return a new one"
                )
            if moved and tensor.numel():
                home.copy_(tensor)  # x.data = ...
    return [i for i, (part, old) in enumerate(zip(parts, original, strict=True)) if not _is_same(torch, part, old)]


@contextlib.contextmanager
def _interrupted_afterwards() -> Iterator[None]:
    """Delays an interruption until the imports in this context are complete. (Half a module would remain, and torch
    continues where numpy could not be imported.)"""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def _call(parts: list[memoryview], original: list[memoryview]) -> tuple[dict[str, Any], list[Any]]:
    """Returns the answer: (JSON, parts)."""
    with _interrupted_afterwards():
        torch, header, pickled, storages, inputs = _load(parts)
    count = header["arguments"]
    arguments, infos = inputs[:count], header["tensors"][:count]
    homes, wants = [tensor.detach() for tensor in arguments], [info["grad"] for info in infos]
    for i, j in header["grads"]:
        arguments[i].grad = arguments[j]
    mine, old = parts[1 : 1 + header["parts"]], original[1 : 1 + header["parts"]]
    backward = header["gradients"] is not None
    encoder = _Encoder(torch, arguments, infos, storages[: header["parts"]])
    answer: dict[str, Any] = {}
    try:
        with _interrupted_afterwards():
            function, args, kwargs = _Unpickler(pickled, arguments).load()
        optimizers = _optimizers(torch) if header["optimizers"] else []
        with torch.set_grad_enabled(header["grad_enabled"]):
            result = encoder.encode(function(*args, **kwargs))
        if backward:
            return _gradients(torch, header, encoder.tensors, inputs)
        answer["grads"] = _grads(arguments, header, encoder)
        if any(len(optimizer.state) != count for optimizer, count in optimizers):
            raise RuntimeError(
                "remote: the function called step() of an optimizer that it was given, which is a copy whose new state "
                "would be lost; return the gradients, or leave them in .grad, and call step() outside"
            )
        answer["result"], outputs = result, encoder.tensors
        tensors = [_elements(torch, tensor) for tensor in outputs]
        answer["tensors"] = [[str(t.dtype).removeprefix("torch."), list(t.shape), t.requires_grad] for t in outputs]
        answer["changed"] = _changed(torch, mine, old, arguments, homes, wants)
    except BaseException as error:
        if backward:
            raise
        # Changes that it made before the exception remain, as in a local call.
        answer, tensors = {"error": _describe(error), "tensors": [], "changed": [], "grads": []}, []
        if not isinstance(error, KeyboardInterrupt):
            encoder = _Encoder(torch, arguments, infos, storages[: header["parts"]])
            with contextlib.suppress(RuntimeError, TypeError):  # TypeError: a sparse gradient
                answer["changed"] = _changed(torch, mine, old, arguments, homes, wants)
                grads = _grads(arguments, header, encoder)
                tensors = [_elements(torch, tensor) for tensor in encoder.tensors]
                kinds = [[str(t.dtype).removeprefix("torch."), list(t.shape), False] for t in encoder.tensors]
                answer["grads"], answer["tensors"] = grads, kinds
    for i in answer["changed"]:
        answer["tensors"].append(["uint8", [len(parts[1 + i])], False])
        tensors.append(parts[1 + i])
    return answer, tensors


def _optimizers(torch: Any) -> list[tuple[Any, int]]:
    """Returns the unpickled optimizers, each with the number of parameters that have state."""
    kind = torch.optim.Optimizer
    return [(found, len(found.state)) for found in gc.get_objects() if issubclass(type(found), kind)]


def _grads(arguments: list[Any], header: dict[str, Any], encoder: _Encoder) -> list[Any]:
    """Returns the tensors whose `.grad` has changed: (the tensor's number, the encoded gradient)."""
    before, found = {i: arguments[j] for i, j in header["grads"]}, []
    for i, tensor in enumerate(arguments):
        gradient = tensor.grad if tensor.is_leaf else None
        if gradient is before.get(i):
            continue
        if not header["tensors"][i]["leaf"]:
            raise RuntimeError(
                "remote: the function called backward() through a tensor that was computed before the call, where the "
                "backward pass ends; return the loss, and call backward() outside"
            )
        if gradient is not None and gradient.requires_grad:
            gradient = gradient.detach()
        found.append([i, encoder.encode(gradient)])
    return found


def _gradients(
    torch: Any, header: dict[str, Any], outputs: list[Any], inputs: list[Any]
) -> tuple[dict[str, Any], list[Any]]:
    count = header["arguments"]
    given = [(outputs[i], gradient) for i, gradient in zip(header["gradients"], inputs[count:], strict=True)]
    given = [(output, gradient.to(output.device)) for output, gradient in given if output.requires_grad]
    wanted = [tensor for tensor in inputs[:count] if tensor.requires_grad]
    found: Sequence[Any] = [None] * len(wanted)
    if given and wanted:
        targets, gradients = zip(*given, strict=True)
        found = torch.autograd.grad(targets, wanted, gradients, allow_unused=True)
    made = [gradient for gradient in found if gradient is not None]
    kinds = [[str(t.dtype).removeprefix("torch."), list(t.shape), False] for t in made]
    answer = {"result": [gradient is not None for gradient in found], "tensors": kinds, "changed": []}
    return answer, [_elements(torch, tensor) for tensor in made]


def _describe(error: BaseException) -> dict[str, Any]:
    """Describes an exception for JSON, without the frames of this file."""
    told = traceback.TracebackException.from_exception(error)
    chain: list[traceback.TracebackException | None] = [told]
    seen: set[int] = set()
    while chain:
        one = chain.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.stack = traceback.StackSummary.from_list([f for f in one.stack if f.filename != __file_name__])
        chain += [one.__cause__, one.__context__]
    plain = all(value is None or type(value) in (str, int, float, bool) for value in error.args)
    return {
        "type": type(error).__name__,
        "module": type(error).__module__,
        "message": str(error),
        "args": list(error.args) if plain else [str(error)],
        "traceback": "".join(told.format()),
    }


class _Printed(io.TextIOBase):
    """Collects printed text, in order."""

    def __init__(self, kept: list[tuple[bool, list[str]]], is_error: bool) -> None:
        self._kept, self._is_error = kept, is_error

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._kept and self._kept[-1][0] == self._is_error:
            self._kept[-1][1].append(text)
        else:
            self._kept.append((self._is_error, [text]))
        return len(text)


def _end_with_the_worker() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def main() -> None:
    """Calls one function after the other until the worker closes its end."""
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    os.set_inheritable(_SOCKET, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_the_worker()
    faulthandler.enable()
    connection = socket.socket(fileno=_SOCKET)
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
        if not data or not descriptors:
            return
        connection.send(b"\1")  # the call is accepted: it fails if this process ends before its answer
        printed: list[tuple[bool, list[str]]] = []
        parts: list[Any] = []
        try:
            received, original = _parts(descriptors[0]), _parts(descriptors[0])
            os.close(descriptors[0])
            out, err = _Printed(printed, False), _Printed(printed, True)
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                signal.signal(signal.SIGINT, signal.default_int_handler)
                try:
                    answer, parts = _call(received, original)
                finally:
                    signal.signal(signal.SIGINT, signal.SIG_IGN)
        except BaseException as error:  # any exception is sent to the client
            answer, parts = {"error": _describe(error), "tensors": [], "changed": [], "grads": []}, []
        answer["printed"] = [(is_error, "".join(texts)) for is_error, texts in printed]
        _send(connection, [json.dumps(answer).encode(), *parts])
        received, original, parts = [], [], []  # frees the memory of the call


__file_name__ = sys.argv[1]
main()
