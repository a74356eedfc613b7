"""The data that a function call sends and returns: tensors as parts of memory, results as JSON (function.py)."""

from __future__ import annotations

import base64
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

_ALIGNED = 64  # bytes; alignment of a part's beginning
_GAPS = 4  # the only tensor of a storage is sent without gaps if these are more than three quarters of it


def dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


@dataclass
class Part:
    """A piece of memory that is sent to the worker: the bytes of a storage that tensors share, or the elements of one
    tensor."""

    tensor: torch.Tensor  # on the device; uint8, unless `packed`
    begin: int  # offset of these bytes in the storage
    packed: bool
    members: list[int]  # indices of the tensors in this part


class Arguments:
    """The tensors of a call, and the parts that are sent for them."""

    def __init__(self, given: Sequence[torch.Tensor], here: Sequence[torch.Tensor]) -> None:
        self.given, self.here = given, here  # the user's tensors; the same with copies on the device for CPU tensors
        self.parts: list[Part] = []
        self.where: list[list[Any]] = [[] for _ in here]  # per tensor: part, sizes, strides, and offset in the part
        shared: dict[int, list[int]] = {}
        for i, tensor in enumerate(here):
            shared.setdefault(tensor.untyped_storage().data_ptr(), []).append(i)
        for members in shared.values():
            self._add(members)

    def _add(self, members: list[int]) -> None:
        tensors = [self.here[i].detach() for i in members]
        spans = [_span(tensor) for tensor in tensors]
        begin = min(span[0] for span in spans) // _ALIGNED * _ALIGNED
        nbytes = max(0, max(span[1] for span in spans) - begin)
        tensor = tensors[0]
        packed = len(members) == 1 and nbytes > _GAPS * tensor.nbytes + 4096
        if packed:
            part = tensor
        else:
            part = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            part.set_(tensor.untyped_storage(), begin, (nbytes,), (1,))
        for i, tensor in zip(members, tensors, strict=True):
            offset = tensor.storage_offset() - begin // tensor.element_size()
            strides = list(tensor.stride()) if not packed else None
            self.where[i] = [len(self.parts), list(tensor.shape), strides, 0 if packed or not nbytes else offset]
        self.parts.append(Part(part, begin, packed, members))

    def write(self, changed: Sequence[int], bytes_of: Sequence[torch.Tensor], clones: dict[int, torch.Tensor]) -> None:
        """Applies the changes that a function made to its arguments. `clones` gets the old contents of each changed
        part."""
        for number in changed:
            part: Part = _at(self.parts, number)
            moved = [i for i in part.members if self.given[i] is not self.here[i]]
            for i in moved:
                storage = self.given[i].untyped_storage().data_ptr()
                others = [t for j, t in enumerate(self.given) if j != i and t.untyped_storage().data_ptr() == storage]
                if others:
                    raise RuntimeError(
                        "remote: the function changed a tensor of the CPU in place that shares memory with another "
                        "one of its tensors; move both to the device, or return a new tensor"
                    )
        with torch.no_grad():
            for number, new in zip(changed, bytes_of, strict=True):
                part = self.parts[number]
                clones[number] = part.tensor.clone()
                part.tensor.copy_(new.view(part.tensor.dtype).view(part.tensor.shape) if part.packed else new)
                for i in part.members:
                    if self.given[i] is not self.here[i]:
                        self.given[i].detach().copy_(self.here[i].detach())
                    elif not part.packed:
                        torch.autograd.graph.increment_version(self.given[i])

    def view(
        self, number: int, owner: int | None, dtype: str, sizes: list[int], strides: list[int], offset: int
    ) -> torch.Tensor:
        """A result that is in a part. If `owner` is an argument, the result is a view of it for autograd."""
        part: Part = _at(self.parts, number)
        wanted = dtype_of(dtype)
        offset += part.begin // wanted.itemsize
        if owner is not None:
            return _at(self.here, owner).as_strided(sizes, strides, offset)
        for i in part.members:
            if self.here[i].dtype == wanted:
                return self.here[i].detach().as_strided(sizes, strides, offset)
        made = torch.empty(0, dtype=wanted, device=part.tensor.device)
        return made.set_(part.tensor.untyped_storage(), offset, sizes, strides)


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The range of bytes that the tensor uses in its storage: first, and one after the last."""
    size, offset = tensor.element_size(), int(tensor.storage_offset())
    if tensor.numel() == 0:
        return offset * size, offset * size
    last = sum((int(count) - 1) * stride for count, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return offset * size, (offset + last + 1) * size


class DamagedError(RuntimeError):
    """The answer has not the format that python_process.py sends."""

    def __init__(self, what: object) -> None:
        super().__init__(f"remote: a function's answer is damaged: {what}")


def dtype_of(name: object) -> torch.dtype:
    """The dtype with this name; rejects other attributes of torch."""
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise DamagedError(f"{name!r} is not a dtype")
    return found


def decode(value: Any, tensors: Sequence[torch.Tensor], arguments: Arguments) -> Any:
    """Decodes what python_process.py encoded. The worker may send anything, so invalid data raises DamagedError."""
    try:
        return _decode(value, tensors, arguments)
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, _MissingClassError):
            raise TypeError(str(error)) from None
        raise DamagedError(error) from error


def _at(items: Sequence[Any], index: object) -> Any:
    if type(index) is not int or not 0 <= index < len(items):
        raise DamagedError(f"{index!r} is not an index of {len(items)} tensors")
    return items[index]


def _texts(*values: object) -> None:
    for value in values:
        if not isinstance(value, str):
            raise DamagedError(f"{value!r} is not a string")


def _decode(value: Any, tensors: Sequence[torch.Tensor], arguments: Arguments) -> Any:
    again = functools.partial(_decode, tensors=tensors, arguments=arguments)
    kind, *rest = value
    if kind == "value":
        if not isinstance(rest[0], (str, bool, type(None))):
            raise DamagedError(f"{rest[0]!r} is not a string")
        return rest[0]
    if kind == "tensor":
        return _at(tensors, rest[0])
    if kind == "argument":
        return _at(arguments.given, rest[0])
    if kind == "view":
        return arguments.view(*rest)
    if kind in ("int", "float", "bytes", "bytearray"):
        _texts(rest[0])
    if kind == "int":
        return int(rest[0], 0)
    if kind == "float":
        return float(rest[0]) if rest[0] in ("inf", "-inf", "nan") else float.fromhex(rest[0])
    if kind == "complex":
        return complex(again(rest[0]), again(rest[1]))
    if kind == "bytes":
        return base64.b64decode(rest[0])
    if kind == "bytearray":
        return bytearray(base64.b64decode(rest[0]))
    if kind == "dtype":
        return dtype_of(rest[0])
    if kind == "size":
        return torch.Size(rest[0])
    if kind == "numpy":
        array = _at(tensors, rest[0]).cpu().numpy()
        return array[()] if rest[1] else array
    if kind in _CONTAINERS:
        return _CONTAINERS[kind](again(item) for item in rest[0])
    if kind == "named":
        return _named_tuple(*rest[:3])([again(item) for item in rest[3]])
    if kind == "dict":
        return {again(key): again(item) for key, item in rest[0]}
    raise DamagedError(f"it has a value of the kind {kind!r}, which this version does not know")


_CONTAINERS: dict[str, Callable[..., Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


class _MissingClassError(TypeError):
    pass


def _named_tuple(module: str, name: str, fields: list[str] | None) -> Callable[[list[Any]], Any]:
    """The constructor of this named tuple; its class must already be imported here."""
    _texts(module, name, *(fields or ()))
    if fields is None:  # a class of torch's own
        found = getattr(torch.return_types, name, None)
        if isinstance(found, type) and issubclass(found, tuple):
            return found
    else:
        found = functools.reduce(lambda at, part: getattr(at, part, None), name.split("."), sys.modules.get(module))
        if isinstance(found, type) and issubclass(found, tuple) and getattr(found, "_fields", None) == tuple(fields):
            return functools.partial(tuple.__new__, found)
    raise _MissingClassError(
        f"remote: the function returned a {module}.{name}, a class that does not exist in this process; return a tuple"
    )
