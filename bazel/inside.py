"""Lists the third-party software in native files, its licenses, and what the files need from machines."""

import platform
import re
import subprocess
import sys
from pathlib import Path

# The libraries of a manylinux_2_28 machine (PEP 600), and the newest versions of their symbols.
LIBRARIES = re.compile(r"(ld-linux-x86-64|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s))\.so\.\d+")
VERSIONS = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}
GLIBC = ".".join(map(str, VERSIONS["GLIBC"]))
TORCH = ("libtorch", "libc10")

# Packages of Debian or Ubuntu whose code is linked into the files. Their licenses are included.
LINKED_IN = {
    "LLVM, MLIR": "llvm-19-dev",
    "OpenSSL": "libssl-dev",
    "FlatBuffers": "libflatbuffers-dev",
    "CLI11": "libcli11-dev",
    "Asio": "libasio-dev",
    "spdlog": "libspdlog-dev",
    "fmt": "libfmt-dev",
    "zlib": "zlib1g-dev",
    "Zstandard": "libzstd-dev",
}


def packages() -> dict[str, str]:
    """LINKED_IN, with the C++ library of this machine's compiler."""
    compiler = subprocess.run(["gcc", "-dumpversion"], capture_output=True, text=True, check=True).stdout.strip()
    return LINKED_IN | {"GCC's C++ library": f"libstdc++-{compiler.partition('.')[0]}-dev"}


def unsupported_dependencies(file: Path) -> list[str]:
    """Returns what a file needs, apart from torch's libraries, that machines may lack."""
    said = subprocess.run(["objdump", "-p", file.resolve()], capture_output=True, text=True, check=True).stdout
    libraries = re.findall(r"^\s*NEEDED\s+(\S+)", said, flags=re.MULTILINE)
    found = [name for name in libraries if not LIBRARIES.fullmatch(name) and not name.startswith(TORCH)]
    for version, family, number in re.findall(r"\b(([A-Z]+)_(\d+(?:\.\d+)*))$", said, flags=re.MULTILINE):
        if family in VERSIONS and tuple(map(int, number.split("."))) > VERSIONS[family]:
            found.append(version)
    return found


def check(files: list[Path]) -> None:
    for file in files:
        if found := unsupported_dependencies(file):
            sys.exit(f"{file} is to run with glibc {GLIBC}, and asks for {', '.join(found)}: see bazel/glibc.bzl")


def license_files() -> dict[str, Path]:
    """Returns license files by the software that they cover, or by their own names."""
    files = {name: Path("/usr/share/doc") / package / "copyright" for name, package in packages().items()}
    # These are full texts that those files only refer to.
    named = "".join(file.read_text() for file in files.values())
    texts = sorted(set(re.findall(r"/usr/share/common-licenses/([\w.-]*\w)", named)))
    return files | {text: Path("/usr/share/common-licenses") / text for text in texts}


def version(package: str) -> str:
    """The upstream version of the package."""
    command = ["dpkg-query", "--showformat=${Version}", "--show", package]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return re.sub(r"^\d+:|[-~+](?:[^-]*)$", "", said)


def components() -> list[dict[str, object]]:
    """The components of the CycloneDX bill of materials."""
    found: list[dict[str, object]] = []
    system = platform.freedesktop_os_release()["ID"]
    for name, package in sorted(packages().items()):
        known = version(package)
        identity = f"pkg:deb/{system}/{package}@{known}"
        licence = {"license": {"name": f"licenses/{file_name(name)}"}}
        found.append(
            {
                "type": "library",
                "bom-ref": identity,
                "name": name,
                "version": known,
                "purl": identity,
                "licenses": [licence],
            }
        )
    return found


def file_name(owner: str) -> str:
    return re.sub("[^A-Za-z0-9+]+", "-", owner)
