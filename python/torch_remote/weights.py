"""Weights from safetensors files to a device (`torch.remote.load_file`).

If the worker may read the file, it reads it itself, and only the header comes to this process. Otherwise the file is
mapped and sent in pieces. Their pages are released once the bytes are being sent, and the connection's back-pressure
limits the bytes in flight. So this process holds no second copy, however large the file is.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torch_remote import _C, enabled

_PIECE = 32 << 20  # bytes
_ON_THE_WAY = 64 << 20  # bytes
_MOST_HEADER = 100 << 20  # limit of the format
_SHOW_FROM = 256 << 20  # bytes from which on a terminal shows a progress bar
_SUFFIXES = {".safetensors", ".json"}
Version = tuple[int, int, int]  # bytes, inode, ns since 1970
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64, "BOOL": torch.bool, "C64": torch.complex64,
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A tensor's location in its file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int  # bytes from the beginning of the file
    end: int


def _damaged(path: Path, why: str) -> ValueError:
    return ValueError(
        f"remote: {path} is not a complete safetensors file: {why}; download it again, or load what torch.save wrote "
        "with torch.load(path, map_location='remote', mmap=True)"
    )


def _header_size(path: Path, begin: bytes, size: int) -> int:
    """The header's size in a file of `size` bytes with these first bytes."""
    if len(begin) < 8:
        raise _damaged(path, f"it has {size} bytes")
    length = int.from_bytes(begin, "little")
    if length > min(_MOST_HEADER, size - 8):
        raise _damaged(path, f"its header would have {length} bytes")
    return length


def _read_header(path: Path, header: bytes, size: int) -> dict[str, Entry]:
    """The tensors of a file of `size` bytes. They must be contiguous, and reach to the end of the file."""
    base = 8 + len(header)
    try:
        described = json.loads(header)
        entries = {}
        for name, info in described.items():
            if name == "__metadata__":
                continue
            if info["dtype"] not in _DTYPES:
                raise _damaged(path, f"{name!r} has the dtype {info['dtype']!r}, which torch does not have")
            begin, end = info["data_offsets"]
            shape = tuple(info["shape"])
            if not all(type(n) is int and n >= 0 for n in (begin, end, *shape)):
                raise TypeError("sizes are not numbers")
            entries[name] = Entry(_DTYPES[info["dtype"]], shape, base + begin, base + end)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if str(error).startswith("remote:"):
            raise
        raise _damaged(path, f"its header is not understood ({error})") from error
    last = base
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.end - entry.begin != math.prod(entry.shape) * entry.dtype.itemsize:
            raise _damaged(path, f"{name!r} has another number of bytes than its shape needs")
        if entry.begin != last:
            raise _damaged(path, f"{name!r} does not begin where the tensor before it ends")
        last = entry.end
    if last != size:
        raise _damaged(path, f"it has {size} bytes, but its header describes {last}")
    return entries


class LocalFile:
    """A safetensors file that this process has mapped: header, bytes."""

    on_worker = False

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < 8:
                raise _damaged(path, f"it has {size} bytes")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # never written
        try:
            length = _header_size(path, self._map[:8], size)
            self.entries = _read_header(path, self._map[8 : 8 + length], size)
        except BaseException:
            self._map.close()
            raise

    def close(self) -> None:
        with contextlib.suppress(BufferError):  # an error's traceback may hold a piece
            self._map.close()

    def pieces(self, entry: Entry) -> Iterator[torch.Tensor]:
        """A tensor's elements, flat. Each piece is valid until the next one."""
        step = _PIECE // entry.dtype.itemsize * entry.dtype.itemsize
        for begin in range(entry.begin, entry.end, step):
            end = min(begin + step, entry.end)
            piece = torch.frombuffer(self._map, dtype=torch.uint8, count=end - begin, offset=begin)
            if piece.data_ptr() % entry.dtype.itemsize:  # the file's writer did not pad its header
                piece = piece.clone()
            yield piece.view(entry.dtype)
            del piece
            first = begin // mmap.PAGESIZE * mmap.PAGESIZE
            self._map.madvise(mmap.MADV_DONTNEED, first, end - first)


class WorkerFile:
    """A safetensors file that a device's worker reads."""

    on_worker = True

    def __init__(self, path: Path, device: int, version: Version) -> None:
        self.path, self._device, self._version = path, device, version
        size = version[0]
        begin = self.read(0, (min(size, 8),), torch.uint8)
        length = _header_size(path, bytes(begin.tolist()), size)
        header = self.read(8, (length,), torch.uint8).cpu()
        self.entries = _read_header(path, header.numpy().tobytes(), size)

    def close(self) -> None:
        """Does nothing: there is nothing to close."""

    def read(self, offset: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor on the device with the bytes from `offset` on. If the worker cannot read them, using the tensor
        raises."""
        return _C.read_file(self._device, str(self.path), self._version, offset, shape, dtype)

    def pieces(self, entry: Entry) -> Iterator[torch.Tensor]:
        """A tensor's elements, flat."""
        step = _PIECE // entry.dtype.itemsize * entry.dtype.itemsize
        for begin in range(entry.begin, entry.end, step):
            count = (min(begin + step, entry.end) - begin) // entry.dtype.itemsize
            yield self.read(begin, (count,), entry.dtype)


class Reader:
    """Opens files: through the worker if it may read them, otherwise in this process.

    Args:
        on_worker: True: only through the worker. False: only in this process. None: through the worker if it sees the
            same file, or if this process sees none.
    """

    def __init__(self, device: torch.device, on_worker: bool | None) -> None:
        self._on_worker = on_worker
        self._device: int | None = None
        if device.type == "remote" and on_worker is not False and enabled.is_enabled():
            self._device = _C.current_device() if device.index is None else device.index
        if os.environ.get("TORCH_REMOTE_CAPTURE") and on_worker is None:
            self._device = None  # a replay has only the client's messages, not other files
        if on_worker and self._device is None:
            raise ValueError(f"remote: on_worker=True is for tensors on a remote device, not on {device}")

    def _version(self, path: Path) -> tuple[Version | None, str]:
        """The version of the file that the worker sees, if that file should be read; otherwise None and the reason."""
        if self._device is None:
            return None, ""
        try:
            info = path.stat()
        except OSError:
            here = None
        else:
            here = (info.st_size, info.st_ino, info.st_mtime_ns)
        there, allowed, why = _C.find_file(self._device, str(path if here is None else path.resolve()))
        if there is None:
            if self._on_worker:
                raise (FileNotFoundError if allowed else PermissionError)(why)
            return None, why
        if here is not None and here != there and self._on_worker is None:
            return None, f"remote: {path} is a different file on the worker's machine"
        return there, ""

    def open(self, path: Path) -> File:
        version, why = self._version(path)
        if version is not None:
            assert self._device is not None
            return WorkerFile(path.resolve() if path.exists() else path, self._device, version)
        if why and not path.exists():
            raise FileNotFoundError(f"remote: there is no {path} here, and {why.removeprefix('remote: ')}")
        return LocalFile(path)

    def _exists(self, path: Path) -> bool:
        if self._on_worker is not True and path.exists():
            return True
        return self._device is not None and _C.find_file(self._device, str(path))[0] is not None

    def _text(self, path: Path) -> str:
        if path.exists() and self._on_worker is not True:
            return path.read_text()
        version, why = self._version(path)
        if version is None:
            raise FileNotFoundError(why or f"remote: there is no {path}")
        assert self._device is not None
        text = _C.read_file(self._device, str(path), version, 0, (version[0],), torch.uint8)
        return text.cpu().numpy().tobytes().decode()

    def files(self, path: Path) -> dict[Path, list[str] | None]:
        """The files that a path refers to, with the names of the tensors to take from each (None: all)."""
        folder = path.is_dir() if self._on_worker is not True and path.exists() else path.suffix not in _SUFFIXES
        if folder:
            for name in ("model.safetensors.index.json", "model.safetensors"):
                if self._exists(path / name):
                    return self.files(path / name)
            if path.is_dir() and self._on_worker is not True:
                found = sorted([*path.glob("*.safetensors.index.json")] or path.glob("*.safetensors"))
                if len(found) != 1:
                    raise FileNotFoundError(
                        f"remote: {path} has {len(found) or 'no'} safetensors files without an index; name one of them"
                    )
                return self.files(found[0])
        if path.suffix != ".json":
            return {path: None}
        text = self._text(path)
        try:
            names = json.loads(text)["weight_map"]
            files: dict[Path, list[str] | None] = {}
            for name, shard in names.items():
                if Path(shard).name != shard:
                    raise ValueError(f"{shard!r} is outside of its folder")
                files.setdefault(path.parent / shard, []).append(name)  # type: ignore[union-attr]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"remote: {path} is not an index of safetensors files ({error}); name a file instead"
            ) from error
        return files


class _Progress:
    """tqdm's progress bar, if it is wanted and tqdm is installed."""

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
    on_worker: bool | None = None,
) -> dict[str, torch.Tensor]:
    """Puts the tensors of a safetensors file on a device, without a second copy of them in this process.

        model.load_state_dict(torch.remote.load_file("model.safetensors", dtype=torch.bfloat16), assign=True)

    Args:
        filename: a file, an index of several files (*.safetensors.index.json), or a folder with one of these.
        device: default: the current remote device.
        dtype: the dtype that floating-point tensors are converted to; other tensors keep their dtype.
        progress: whether to show a progress bar (with tqdm). None: on a terminal, if at least 256 MB are sent from
            here.
        on_worker: whether the worker reads the file; it must have been started with --allow-files (local workers are).
            None: the worker reads it if it sees the same file as this process, or if this process sees none. Otherwise
            the bytes are sent from here.

    Raises:
        FileNotFoundError: the file does not exist.
        PermissionError: on_worker=True, and the worker reads no files for its clients.
        ValueError: a file is damaged, or has another format.
        KeyError: an index names a tensor that its file lacks.
    """
    if dtype is not None and not dtype.is_floating_point:
        raise ValueError(f"remote: dtype={dtype} is not a floating point type; give torch.bfloat16, torch.float16, ...")
    if device is None or isinstance(device, int):
        device = torch.device("remote", _C.current_device() if device is None else device)
    target = torch.device(device)
    path = Path(filename)
    reader = Reader(target, on_worker)
    with contextlib.ExitStack() as stack:
        wanted: list[tuple[File, str, Entry]] = []
        for one, names in reader.files(path).items():
            file = reader.open(one)
            stack.callback(file.close)
            for name in file.entries if names is None else names:
                if name not in file.entries:
                    raise KeyError(f"remote: {path} names {one} as the file of {name!r}, which it does not contain")
                wanted.append((file, name, file.entries[name]))
        sent = sum(entry.end - entry.begin for file, _, entry in wanted if progress or not file.on_worker)
        bar = _Progress(progress, sent, path.name)
        stack.callback(bar.close)
        sender = Sender(target, dtype, bar.step)
        loaded = {name: sender.load(file, entry) for file, name, entry in wanted}
        if any(file.on_worker for file, _, _ in wanted):
            sender.wait()  # reports errors of the files here
        return loaded


class Sender:
    """Makes the tensors, and waits from time to time, so that few bytes are in flight."""

    def __init__(
        self, device: torch.device, dtype: torch.dtype | None, step: Callable[[int], None] = lambda count: None
    ) -> None:
        self._device, self._dtype, self._step = device, dtype, step
        self._sent = 0

    def wait(self) -> None:
        """Waits until all requested work is done."""
        if self._device.type == "remote":
            _C.synchronize(_C.current_device() if self._device.index is None else self._device.index)

    def _put(self, piece: torch.Tensor, to: torch.dtype) -> torch.Tensor:
        """Puts a piece on the device."""
        self._step(piece.nbytes)
        if piece.device.type == "remote":
            return piece.to(to)
        if to.itemsize < piece.dtype.itemsize:  # to send fewer bytes
            piece = piece.to(to)
        self._sent += piece.nbytes
        there = piece.to(self._device, copy=True).to(to)
        if self._sent >= _ON_THE_WAY:
            self._sent = 0
            self.wait()
        return there

    def load(self, file: File, entry: Entry) -> torch.Tensor:
        to = self._dtype if self._dtype is not None and entry.dtype.is_floating_point else entry.dtype
        if isinstance(file, WorkerFile) and to == entry.dtype:
            self._step(entry.end - entry.begin)
            return file.read(entry.begin, entry.shape, to)
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


File = LocalFile | WorkerFile
