"""Weights from safetensors files to a device, a piece at a time (`torch.remote.load_file`).

A file is mapped, and its pages are given back when their bytes are on the way; what is on the way is bounded by the
connection's back-pressure. So this process holds no second copy, however large the file is.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from torch_remote import _C

_PIECE = 32 << 20  # bytes
_ON_THE_WAY = 64 << 20  # bytes
_MOST_HEADER = 100 << 20  # the format's own limit
_SHOW_FROM = 256 << 20  # bytes from which a terminal sees how far it is
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64, "BOOL": torch.bool, "C64": torch.complex64,
}  # fmt: skip


@dataclass(frozen=True)
class _Entry:
    """Where a tensor is in its file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int  # bytes from the file's beginning
    end: int


class _File:
    """A mapped safetensors file: header, bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < 8:
                raise self._damaged(f"it has {size} bytes")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # nobody writes
        try:
            length = int.from_bytes(self._map[:8], "little")
            if length > min(_MOST_HEADER, size - 8):
                raise self._damaged(f"its header would have {length} bytes")
            self.entries = self._read(self._map[8 : 8 + length], 8 + length, size)
        except BaseException:
            self._map.close()
            raise

    def _damaged(self, why: str) -> ValueError:
        return ValueError(
            f"remote: {self.path} is no whole safetensors file: {why}; fetch it again, or load what torch.save wrote "
            "with torch.load(path, map_location='remote', mmap=True)"
        )

    def _read(self, header: bytes, base: int, size: int) -> dict[str, _Entry]:
        try:
            described = json.loads(header)
            entries = {}
            for name, about in described.items():
                if name == "__metadata__":
                    continue
                if about["dtype"] not in _DTYPES:
                    raise self._damaged(f"{name!r} has the dtype {about['dtype']!r}, which torch has not")
                begin, end = about["data_offsets"]
                shape = tuple(about["shape"])
                if not all(type(n) is int and n >= 0 for n in (begin, end, *shape)):
                    raise TypeError("sizes are no numbers")
                entries[name] = _Entry(_DTYPES[about["dtype"]], shape, base + begin, base + end)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if str(error).startswith("remote:"):
                raise
            raise self._damaged(f"its header is not understood ({error})") from error
        last = base
        for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
            if entry.end - entry.begin != math.prod(entry.shape) * entry.dtype.itemsize:
                raise self._damaged(f"{name!r} has another number of bytes than its shape says")
            if entry.begin != last:
                raise self._damaged(f"{name!r} does not begin where the tensor before it ends")
            last = entry.end
        if last != size:
            raise self._damaged(f"it has {size} bytes, and its header speaks of {last}")
        return entries

    def __enter__(self) -> _File:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(BufferError):  # an error's traceback may hold a piece
            self._map.close()

    def pieces(self, entry: _Entry) -> Iterator[torch.Tensor]:
        """A tensor's elements, flat. Each is valid until the next one."""
        step = _PIECE // entry.dtype.itemsize * entry.dtype.itemsize
        for begin in range(entry.begin, entry.end, step):
            end = min(begin + step, entry.end)
            piece = torch.frombuffer(self._map, dtype=torch.uint8, count=end - begin, offset=begin)
            if piece.data_ptr() % entry.dtype.itemsize:  # of a writer that did not pad its header
                piece = piece.clone()
            yield piece.view(entry.dtype)
            del piece
            first = begin // mmap.PAGESIZE * mmap.PAGESIZE
            self._map.madvise(mmap.MADV_DONTNEED, first, end - first)


def _files(path: Path) -> dict[Path, list[str] | None]:
    """The files that a path means, with the names to take from each (None: all)."""
    if path.is_dir():
        for name in ("model.safetensors.index.json", "model.safetensors"):
            if (path / name).exists():
                return _files(path / name)
        found = sorted([*path.glob("*.safetensors.index.json")] or path.glob("*.safetensors"))
        if len(found) != 1:
            raise FileNotFoundError(
                f"remote: {path} has {len(found) or 'no'} safetensors files without an index; name one of them"
            )
        return _files(found[0])
    if path.suffix != ".json":
        return {path: None}
    try:
        names = json.loads(path.read_text())["weight_map"]
        files: dict[Path, list[str] | None] = {}
        for name, shard in names.items():
            if Path(shard).name != shard:
                raise ValueError(f"{shard!r} is outside of its folder")
            files.setdefault(path.parent / shard, []).append(name)  # type: ignore[union-attr]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"remote: {path} is no index of safetensors files ({error}); name a file instead") from error
    return files


class _Progress:
    """tqdm's bar, if it is wanted and to be had."""

    def __init__(self, wanted: bool | None, total: int, name: str) -> None:
        self._bar: Any = None
        if wanted is None:
            wanted = total >= _SHOW_FROM and sys.stderr is not None and sys.stderr.isatty()
        if wanted:
            with contextlib.suppress(ImportError):
                from tqdm.auto import tqdm

                self._bar = tqdm(total=total, desc=name, unit="B", unit_scale=True)

    def step(self, count: int) -> None:
        if self._bar is not None:
            self._bar.update(count)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def load_file(
    filename: str | os.PathLike[str],
    device: torch.device | str | int | None = None,
    dtype: torch.dtype | None = None,
    *,
    progress: bool | None = None,
) -> dict[str, torch.Tensor]:
    """Puts the tensors of a safetensors file on a device, without a second copy of them in this process.

        model.load_state_dict(torch.remote.load_file("model.safetensors", dtype=torch.bfloat16), assign=True)

    Args:
        filename: a file, an index of several (*.safetensors.index.json), or a folder with one of these.
        device: default: the current remote device.
        dtype: what tensors of floating point become on the way; those of other types stay as they are.
        progress: whether a bar is shown (with tqdm); None: on a terminal, from 256 MB on.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a file is damaged, or none of that format.
        KeyError: an index names what its file has not.
    """
    if dtype is not None and not dtype.is_floating_point:
        raise ValueError(f"remote: dtype={dtype} is no floating point type; give torch.bfloat16, torch.float16, ...")
    if device is None or isinstance(device, int):
        device = torch.device("remote", _C.current_device() if device is None else device)
    target = torch.device(device)
    path = Path(filename)
    with contextlib.ExitStack() as stack:
        wanted: list[tuple[_File, str, _Entry]] = []
        for one, names in _files(path).items():
            file = stack.enter_context(_File(one))
            for name in file.entries if names is None else names:
                if name not in file.entries:
                    raise KeyError(f"remote: {path} says that {one} has {name!r}, which it has not")
                wanted.append((file, name, file.entries[name]))
        bar = _Progress(progress, sum(entry.end - entry.begin for _, _, entry in wanted), path.name)
        stack.callback(bar.close)
        sender = _Sender(target, dtype, bar.step)
        return {name: sender.load(file, entry) for file, name, entry in wanted}


class _Sender:
    """Makes the tensors, and waits now and then, so that little is on its way."""

    def __init__(self, device: torch.device, dtype: torch.dtype | None, step: Callable[[int], None]) -> None:
        self._device, self._dtype, self._step = device, dtype, step
        self._sent = 0

    def _put(self, piece: torch.Tensor, to: torch.dtype) -> torch.Tensor:
        """A copy on the device."""
        self._step(piece.nbytes)
        if to.itemsize < piece.dtype.itemsize:  # fewer bytes go out
            piece = piece.to(to)
        self._sent += piece.nbytes
        there = piece.to(self._device, copy=True).to(to)
        if self._sent >= _ON_THE_WAY:
            self._sent = 0
            if self._device.type == "remote":
                _C.synchronize(_C.current_device() if self._device.index is None else self._device.index)
        return there

    def load(self, file: _File, entry: _Entry) -> torch.Tensor:
        to = self._dtype if self._dtype is not None and entry.dtype.is_floating_point else entry.dtype
        if entry.end - entry.begin <= _PIECE:
            for piece in file.pieces(entry):
                return self._put(piece.view(entry.shape), to)
            return torch.empty(entry.shape, dtype=to, device=self._device)
        made = torch.empty(entry.shape, dtype=to, device=self._device)
        flat, done = made.view(-1), 0
        for piece in file.pieces(entry):
            flat[done : done + piece.numel()] = self._put(piece, to)
            done += piece.numel()
        return made
