"""The process beside a worker that calls Python functions for its client (torch_remote/function.py, worker/python.h).

It imports torch, and of torch_remote nothing. What is called comes in memory of parts, whose first is a pickle of a
header and the pickled function; the others are tensors' elements. What is returned goes back likewise, the first part
as JSON: the client unpickles nothing.
"""

import base64
import contextlib
import importlib.metadata
import io
import json
import linecache
import math
import mmap
import os
import pickle
import signal
import socket
import struct
import sys
import traceback

_SOCKET = 3
_PART = struct.Struct("<QQ")


def _parts(descriptor):
    """Of the client: views of writable memory."""
    memory = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
    (count,) = struct.unpack_from("<Q", memory)
    table = [_PART.unpack_from(memory, 8 + i * _PART.size) for i in range(count)]
    return [memory[offset : offset + size] for offset, size in table]


def _send(connection, parts):
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


def _check_packages(packages):
    for package in packages:
        name, _, version = package.partition("==")
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found = None
        if found is None or (version and version != found):
            has = f"has {name} {found}" if found else f"has no {name}"
            raise ModuleNotFoundError(
                f"remote: the worker's Python ({sys.executable}) {has}, and the function asks for {package}; install "
                f"it there: {sys.executable} -m pip install {package}",
                name=name,
            )


def _tensor(torch, part, about):
    dtype, sizes, is_parameter, wants_grad = about
    dtype = getattr(torch, dtype)
    made = torch.frombuffer(part, dtype=dtype).view(sizes) if len(part) else torch.empty(sizes, dtype=dtype)
    if is_parameter:
        return torch.nn.Parameter(made, requires_grad=wants_grad)
    return made.requires_grad_(wants_grad)


class _Unpickler(pickle.Unpickler):
    def __init__(self, data, tensors):
        super().__init__(io.BytesIO(data))
        self._tensors = tensors

    def persistent_load(self, number):
        return self._tensors[number]


class _Encoder:
    """What a function returned, for JSON: each value as [kind, ...], tensors by their number."""

    def __init__(self, torch):
        self._torch = torch
        self.tensors = []

    def encode(self, value):
        torch = self._torch
        if value is None or type(value) in (bool, str):
            return ["value", value]
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            return ["tensor", len(self.tensors) - 1]
        if type(value) is int:
            return ["int", str(value)]
        if type(value) is float:
            return ["float", value.hex() if math.isfinite(value) else str(value)]
        if type(value) is complex:
            return ["complex", self.encode(value.real), self.encode(value.imag)]
        if type(value) in (bytes, bytearray):
            return ["bytes", base64.b64encode(value).decode()]
        if isinstance(value, torch.dtype):
            return ["dtype", str(value).removeprefix("torch.")]
        if isinstance(value, torch.Size):
            return ["size", list(value)]
        if isinstance(value, (list, tuple)):
            return ["list" if isinstance(value, list) else "tuple", [self.encode(item) for item in value]]
        if isinstance(value, dict):
            return ["dict", [[self.encode(key), self.encode(item)] for key, item in value.items()]]
        raise TypeError(
            f"remote: the function returned a {type(value).__module__}.{type(value).__qualname__}, which cannot come "
            "back; return tensors, numbers, text, bytes, None, or lists, tuples and dicts of these"
        )


def _elements(torch, tensor):
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise TypeError(f"remote: the function returned a tensor of layout {tensor.layout}; return dense ones")
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return tensor.view(-1).view(torch.uint8).numpy().data if tensor.numel() else b""


def _call(parts):
    """(JSON, parts) of the answer."""
    header, pickled = pickle.loads(parts[0])
    here = list(sys.version_info[:2])
    if header["python"] != here:
        raise RuntimeError(
            f"remote: the worker's Python ({sys.executable}) is {here[0]}.{here[1]}, and this process's is "
            f"{header['python'][0]}.{header['python'][1]}: functions only go between the same; start the worker with "
            f"--allow-python=python{header['python'][0]}.{header['python'][1]}"
        )
    sys.path += [path for path in header["path"] if path not in sys.path and os.path.exists(path)]
    _check_packages(["torch", "cloudpickle", *header["packages"]])
    import torch

    for name, lines in header["sources"].items():
        linecache.cache[name] = (len(lines), None, lines.splitlines(True), name)
    torch.manual_seed(header["seed"])
    inputs = [_tensor(torch, part, about) for part, about in zip(parts[1:], header["tensors"], strict=True)]
    count = header["arguments"]
    function, args, kwargs = _Unpickler(pickled, inputs[:count]).load()
    encoder = _Encoder(torch)
    backward = header["gradients"] is not None
    with torch.set_grad_enabled(header["grad_enabled"]):
        result = encoder.encode(function(*args, **kwargs))
    outputs = encoder.tensors
    if backward:
        given = [(outputs[i], gradient) for i, gradient in zip(header["gradients"], inputs[count:], strict=True)]
        given = [(output, gradient.to(output.device)) for output, gradient in given if output.requires_grad]
        wanted = [tensor for tensor in inputs[:count] if tensor.requires_grad]
        found = [None] * len(wanted)
        if given:
            targets, gradients = zip(*given, strict=True)
            found = torch.autograd.grad(targets, wanted, gradients, allow_unused=True)
        outputs = [gradient for gradient in found if gradient is not None]
        result = [gradient is not None for gradient in found]
    tensors = [_elements(torch, tensor) for tensor in outputs]
    about = [
        [str(t.dtype).removeprefix("torch."), list(t.shape), t.requires_grad and not backward] for t in outputs
    ]
    return {"result": result, "tensors": about}, tensors


def _describe(error):
    """An exception for JSON, without the frames of this file."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file_name__]
    text = "".join(traceback.format_list(frames))
    return {
        "type": type(error).__name__,
        "module": type(error).__module__,
        "message": str(error),
        "traceback": text + "".join(traceback.format_exception_only(type(error), error)),
    }


def main():
    """Calls one function after the other until the worker's end is closed."""
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    os.set_inheritable(_SOCKET, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=_SOCKET)
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
        if not data or not descriptors:
            return
        printed = io.StringIO()
        parts = []
        try:
            received = _parts(descriptors[0])
            os.close(descriptors[0])
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                signal.signal(signal.SIGINT, signal.default_int_handler)
                try:
                    answer, parts = _call(received)
                finally:
                    signal.signal(signal.SIGINT, signal.SIG_IGN)
        except BaseException as error:  # whatever it is, the client gets it
            answer, parts = {"error": _describe(error)}, []
        answer["printed"] = printed.getvalue()
        _send(connection, [json.dumps(answer).encode(), *parts])
        received = parts = None


__file_name__ = sys.argv[1]
main()
