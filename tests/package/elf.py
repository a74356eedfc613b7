"""The system libraries and symbol versions that native files need."""

import re
import subprocess
from pathlib import Path

# PEP 600's manylinux_2_28, as in auditwheel; the same limit as for torch's wheels.
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}
OF_EVERY_SYSTEM = re.compile(
    r"(ld-linux-x86-64\.so\.2|lib(c|m)\.so\.6|lib(dl\.so\.2|rt\.so\.1|pthread\.so\.0)|libgcc_s\.so\.1)"
)


def native_files(folder: Path) -> list[Path]:
    return [
        file
        for file in folder.rglob("*")
        if file.is_file() and not file.is_symlink() and file.read_bytes()[:4] == b"\x7fELF"
    ]


def needed(file: Path) -> set[str]:
    said = subprocess.run(["readelf", "-d", file], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", said))


def wanted(file: Path) -> dict[str, tuple[int, ...]]:
    """The newest version of each family that a symbol needs."""
    said = subprocess.run(["objdump", "-T", file], capture_output=True, text=True, check=True).stdout
    newest: dict[str, tuple[int, ...]] = {}
    for family, number in re.findall(r"\*UND\*.*?\b([A-Z]+)_(\d+(?:\.\d+)*)\)? ", said):
        newest[family] = max(newest.get(family, ()), tuple(map(int, number.split("."))))
    return newest


def too_new(file: Path) -> dict[str, tuple[int, ...]]:
    return {family: number for family, number in wanted(file).items() if number > NEWEST[family]}


def undefined(file: Path) -> set[str]:
    """The names that it takes from other libraries."""
    said = subprocess.run(["objdump", "-T", file], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in said.splitlines() if "*UND*" in line}
