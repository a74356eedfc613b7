"""Writes stub libraries, so that linked programs run with older C libraries than this machine's: make_stubs FOLDER

A stub has the names of one of this machine's libraries, each with the newest version that target machines have
(inside.VERSIONS), and no code. So a program that is linked against it needs no more from the machine where it runs.
No stub has names that were added later, so that links which need them fail.
"""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from inside import VERSIONS

LOADER = "ld-linux-x86-64.so.2"
C_LIBRARY = ["libc.so.6", "libm.so.6", LOADER]
CXX_LIBRARY = "libstdc++.so.6"
UNWINDER = "libgcc_s.so.1"

# libc.so.6 contains what these libraries contained until glibc 2.33. A name that moved got a new version then, or is
# only kept for old programs. The old version is still in libc.so.6, and the old library still exists as a dependency.
MOVED = (2, 32)
HOMES = {
    "libdl.so.2": re.compile(r"dl(addr1?|close|error|info|mopen|open|sym|vsym)"),
    "librt.so.1": re.compile(r"(__)?(aio|lio|mq|shm|timer)_\w+"),
    "libpthread.so.0": re.compile(r"(_*pthread|sem|thrd|mtx|cnd|tss)_\w+|call_once"),
}
# Names of libanl, libresolv and libutil, which nothing here uses.
DROPPED = re.compile(r"gai_\w+|getaddrinfo_a|(__)?(res|dn)_\w+|ns_name_\w+|forkpty|openpty|log(in|in_tty|out|wtmp)")


class Symbol(NamedTuple):
    name: str
    version: str
    is_default: bool
    is_data: bool
    size: int


def parse_version(version: str) -> tuple[str, tuple[int, ...]] | None:
    """A version's family and number; None for another kind (GLIBC_PRIVATE, GLIBCXX_LDBL_3.4)."""
    match = re.fullmatch(r"([A-Z]+)_(\d+(?:\.\d+)*)", version)
    return (match[1], tuple(map(int, match[2].split(".")))) if match and match[1] in VERSIONS else None


def exported(library: Path) -> dict[str, list[Symbol]]:
    """All versions of each name."""
    listing = subprocess.run(
        ["readelf", "-W", "--dyn-syms", library], capture_output=True, text=True, check=True
    ).stdout
    found = defaultdict(list)
    for line in listing.splitlines():
        fields = line.split()
        if len(fields) < 8 or fields[6] in ("UND", "ABS", "Ndx") or fields[3] == "TLS" or "@" not in fields[7]:
            continue
        name, _, version = fields[7].partition("@")
        is_default = version.startswith("@")
        version = version.removeprefix("@")
        if parse_version(version):
            found[name].append(Symbol(name, version, is_default, fields[3] == "OBJECT", int(fields[2], 0)))
    return found


def supported_symbols(library: Path) -> dict[str, list[Symbol]]:
    """The symbols that are old enough, by the library that contained them."""
    homes = defaultdict(list)
    for name, symbols in exported(library).items():
        numbers = {symbol: parse_version(symbol.version) for symbol in symbols}
        old = [symbol for symbol, (family, number) in numbers.items() if number <= VERSIONS[family]]
        if not old:
            continue
        home = library.name
        if home == "libc.so.6" and not any(s.is_default and number < MOVED for s, (_, number) in numbers.items()):
            if DROPPED.fullmatch(name):
                continue
            home = next((other for other, names in HOMES.items() if names.fullmatch(name)), home)
        homes[home].append(max(old, key=lambda symbol: numbers[symbol]))
    return homes


def write_stub(file: Path, name: str, symbols: list[Symbol]) -> None:
    code, data, versions = [".text"], [".bss"], defaultdict(list)
    for symbol in sorted(symbols):
        versions[symbol.version].append(symbol.name)
        kind = "object" if symbol.is_data else "function"
        lines = data if symbol.is_data else code
        lines += [f".globl {symbol.name}", f".type {symbol.name}, @{kind}", f"{symbol.name}:"]
        if symbol.is_data:  # a program copies data of this size
            lines += [f".size {symbol.name}, {symbol.size}", f".skip {max(symbol.size, 1)}", ".balign 32"]
        else:
            lines += ["ud2"]
    source, script = file.with_suffix(".s"), file.with_suffix(".map")
    source.write_text("\n".join([*code, *data, '.section .note.GNU-stack,"",@progbits', ""]))
    script.write_text("".join(f"{version} {{ {'; '.join(names)}; }};\n" for version, names in sorted(versions.items())))
    subprocess.run(
        ["gcc", "-shared", "-nostdlib", "-B/usr/lib/llvm-19/bin", "-fuse-ld=lld", f"-Wl,-soname,{name}", "-Wl,-s",
         "-Wl,--build-id=none", f"-Wl,--version-script={script}", "-o", file, source], check=True,
    )  # fmt: skip
    source.unlink()
    script.unlink()


def find_library(name: str) -> Path:
    """The path at which the compiler finds the library."""
    said = subprocess.run(
        ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if "/" not in said:
        sys.exit(f"{name} is not on this machine")
    return Path(said).resolve().with_name(name) if name.endswith(".a") else Path(said)


def main(folder: Path) -> None:
    stubs: dict[str, list[Symbol]] = defaultdict(list)
    for name in [*C_LIBRARY, CXX_LIBRARY, UNWINDER]:
        for home, symbols in supported_symbols(find_library(name)).items():
            stubs[home] += symbols
    for name, symbols in stubs.items():
        write_stub(folder / name, name, symbols)
    # Writes linker scripts under the names that the compiler uses. They take additions of later versions of the C++
    # library from its archive.
    moved = " ".join([*HOMES, LOADER])
    archive = find_library("libstdc++.a")
    scripts = {
        "libc.so": f"GROUP(libc.so.6 {find_library('libc_nonshared.a')} AS_NEEDED({moved}))",
        "libm.so": "INPUT(libm.so.6)",
        "libpthread.so": "INPUT(AS_NEEDED(libpthread.so.0))",
        "libdl.so": "INPUT(AS_NEEDED(libdl.so.2))",
        "librt.so": "INPUT(AS_NEEDED(librt.so.1))",
        "libgcc_s.so": f"INPUT({UNWINDER})",
        "shared/libstdc++.so": f"GROUP(../{CXX_LIBRARY} {archive})",
        "static/libstdc++.so": f"INPUT({archive})",
    }
    for name, text in scripts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
