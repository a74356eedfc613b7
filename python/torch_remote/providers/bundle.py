"""The files that a machine without torch_remote needs to run a worker: the program and its libraries, named by content.

There are two archives: the *worker* (program, plugin, code generator), and *libtorch* (the libraries that the plugin is
linked against). A machine with the same torch needs only the first one.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import subprocess
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from torch_remote.providers.provider import MachineError
from torch_remote.version import plugin, torch_minor

_package = Path(__file__).parent.parent
# Every Linux with glibc has these libraries, and their versions must match each other. The other ones exist on every
# machine that runs C++ programs.
_OF_THE_SYSTEM = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|nsl|stdc\+\+|gcc_s))\.so\b.*")
_PIECE = 1 << 20


@dataclass(frozen=True)
class Archive:
    """Files by their names in the archive."""

    files: dict[str, Path]

    @cached_property
    def digest(self) -> str:
        """A hash of names and contents."""
        total = hashlib.sha256()
        for name, file in sorted(self.files.items()):
            total.update(f"{name}\0{_digest(file)}\0".encode())
        return total.hexdigest()[:32]

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.stat().st_size for file in self.files.values())

    def packed(self) -> Iterator[bytes]:
        """The archive, tar in gzip, in pieces that are not stored. Equal files give equal bytes."""
        gzip = zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
        for name, file in sorted(self.files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = file.stat().st_size
            entry.mode = 0o755 if name.startswith("bin/") else 0o644
            yield gzip.compress(entry.tobuf(tarfile.GNU_FORMAT))
            with file.open("rb") as source:
                while piece := source.read(_PIECE):
                    yield gzip.compress(piece)
            yield gzip.compress(bytes(-entry.size % tarfile.BLOCKSIZE))
        yield gzip.compress(bytes(2 * tarfile.BLOCKSIZE)) + gzip.flush()

    def needs_glibc(self) -> tuple[int, int]:
        """The oldest version of glibc that these files run with."""
        versions = {(2, 28)}  # required by torch itself
        for file in self.files.values():
            for match in re.finditer(rb"GLIBC_(\d+)\.(\d+)\0", _dynamic_strings(file)):
                versions.add((int(match[1]), int(match[2])))
        return max(versions)


def worker() -> Archive:
    """Program, plugin, code generator."""
    files = {
        "bin/torch-remote-worker": Path(
            os.environ.get("TORCH_REMOTE_WORKER_BINARY") or _package / "bin/torch-remote-worker"
        ),
        f"torch{torch_minor(torch.__version__)}/libaten_plugin.so": plugin(torch.__version__),
        "lib/libtorch_remote_codegen.so": _package / "lib/libtorch_remote_codegen.so",
        "lib/python_process.py": _package / "lib/python_process.py",
    }
    for file in list(files.values()):
        if not file.exists():
            raise MachineError(f"remote: {file} is missing; install torch_remote again")
    return Archive({name: file.resolve() for name, file in files.items()})


def libtorch() -> Archive:
    """torch's own library and the libraries next to it that it needs."""
    folder = Path(torch.__file__).parent / "lib"
    needed = {"libtorch_cpu.so": folder / "libtorch_cpu.so"}
    for name, library in _needed(folder / "libtorch_cpu.so", folder).items():
        if library.parent == folder.resolve() or not library.is_relative_to("/lib"):
            needed.setdefault(name, library)
    return Archive({name: file.resolve() for name, file in needed.items()})


def torch_version() -> str:
    """The version that a machine's libtorch must have, without the part after a plus."""
    return torch.__version__.partition("+")[0]


def _needed(file: Path, folder: Path) -> dict[str, Path]:
    """The shared libraries that a file of this machine needs, by name, without the system's."""
    path = os.pathsep.join([str(folder), os.environ.get("LD_LIBRARY_PATH", "")]).strip(os.pathsep)
    try:
        output = subprocess.run(
            ["ldd", str(file.resolve())],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "LD_LIBRARY_PATH": path},
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise MachineError(f"remote: cannot find out which libraries {file} needs: {error}") from error
    found = {}
    for name, where in re.findall(r"^\s*(\S+) => (/\S+) ", output, flags=re.MULTILINE):
        if not _OF_THE_SYSTEM.fullmatch(name):
            found[name] = Path(where).resolve()
    return found


def _dynamic_strings(file: Path) -> bytes:
    """The bytes that contain .dynstr, which has the names of symbol versions: it is near the beginning or the end of a
    library."""
    most = 16 << 20
    with file.open("rb") as source:
        begin = source.read(most)
        source.seek(max(most, os.fstat(source.fileno()).st_size - most))
        return begin + source.read()


def _digest(file: Path) -> str:
    """The SHA-256 of a file, cached until its size or times change."""
    info = file.stat()
    key = f"{file} {info.st_size} {info.st_mtime_ns} {info.st_ino}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch-remote" / "digests.json"
    known: dict[str, str] = {}
    with contextlib.suppress(OSError, json.JSONDecodeError):
        known = json.loads(cache.read_text())
    if key not in known:
        with file.open("rb") as source:
            known[key] = hashlib.file_digest(source, "sha256").hexdigest()
        with contextlib.suppress(OSError):  # it is only a cache
            cache.parent.mkdir(parents=True, exist_ok=True)
            partial = cache.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps(dict(list(known.items())[-256:])))
            partial.replace(cache)
    return known[key]


def write(archive: Archive, file: io.RawIOBase | io.BufferedIOBase) -> None:
    """Writes the archive as one file, to be copied by hand."""
    for piece in archive.packed():
        file.write(piece)
