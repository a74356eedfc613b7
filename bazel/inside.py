"""Which software of others is in native files, or must lie beside them, and under which licences."""

import re
import subprocess
import sys
from pathlib import Path

# Every Linux with glibc has these, and they must be of one version.
C_LIBRARY = re.compile(r"(ld-linux.*|linux-vdso|lib(c|m|dl|rt|pthread|resolv|util|nsl))\.so\b.*")
TORCH = ("libtorch", "libc10")

# Debian packages whose code is inside: linked into the files, or beside them. Their licences go in.
LINKED_IN = {
    "LLVM, MLIR": "llvm-19-dev",
    "OpenSSL": "libssl-dev",
    "FlatBuffers": "libflatbuffers-dev",
    "CLI11": "libcli11-dev",
    "Asio": "libasio-dev",
}
BESIDE = {
    "libspdlog": ("spdlog", "libspdlog-dev"),
    "libfmt": ("fmt", "libfmt-dev"),
    "libz.": ("zlib", "zlib1g"),
    "libzstd": ("Zstandard", "libzstd1"),
    "libstdc++": ("GCC's C++ library", "libstdc++6"),
    "libgcc_s": ("GCC's run-time library", "libgcc-s1"),
}


def needed(file: Path) -> dict[str, Path]:
    """The shared libraries that a file needs: by name."""
    output = subprocess.run(["ldd", file.resolve()], capture_output=True, text=True, check=True).stdout
    found = {}
    for name, where in re.findall(r"^\s*(\S+) => (.*?)(?: \(0x.*)?$", output, flags=re.MULTILINE):
        if C_LIBRARY.fullmatch(name) or name.startswith(TORCH):
            continue
        if not where.startswith("/"):
            sys.exit(f"{file} needs {name}, which is not here")
        found[name] = Path(where)
    return found


def licences(libraries: list[str]) -> dict[str, Path]:
    """By whose they are, or by their own names."""
    packages = dict(LINKED_IN)
    for library in libraries:
        matching = [entry for start, entry in BESIDE.items() if library.startswith(start)]
        if not matching:
            sys.exit(f"{library} is in the bundle, and nothing says under which licence; add it to {__file__}")
        packages.update(matching)
    files = {name: Path("/usr/share/doc") / package / "copyright" for name, package in packages.items()}
    # Whole texts that those files only name.
    named = "".join(file.read_text() for file in files.values())
    texts = sorted(set(re.findall(r"/usr/share/common-licenses/([\w.-]*\w)", named)))
    return files | {text: Path("/usr/share/common-licenses") / text for text in texts}


def version(package: str) -> str:
    """As its makers call it."""
    command = ["dpkg-query", "--showformat=${Version}", "--show", package]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return re.sub(r"^\d+:|[-~+](?:[^-]*)$", "", said)


def components(libraries: list[str]) -> list[dict[str, object]]:
    """Of a list of what is inside (CycloneDX). libraries: files that lie beside."""
    found: list[dict[str, object]] = []
    beside = [next(entry for start, entry in BESIDE.items() if library.startswith(start)) for library in libraries]
    for name, package in sorted({*LINKED_IN.items(), *beside}):
        known = version(package)
        identity = f"pkg:deb/debian/{package}@{known}"
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
