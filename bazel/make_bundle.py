"""Writes the archive of a worker for machines without Python: make_bundle OUT VERSION README LICENSE NAME_IN_IT=FILE...

Beside the files that are named it has the shared libraries of this machine that they need, but for the C library and
torch's, and the licences of all that is inside. The oldest C library that it runs with is written into README.
"""

import argparse
import gzip
import io
import os
import re
import subprocess
import sys
import tarfile
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


def needs_glibc(files: list[Path]) -> str:
    versions = {(2, 17)}
    for file in files:
        output = subprocess.run(["objdump", "-p", file.resolve()], capture_output=True, text=True, check=True).stdout
        versions.update((int(major), int(minor)) for major, minor in re.findall(r"\bGLIBC_(\d+)\.(\d+)", output))
    return ".".join(map(str, max(versions)))


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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("version")
    parser.add_argument("readme", type=Path)
    parser.add_argument("license", type=Path)
    parser.add_argument("files", nargs="+")
    args = parser.parse_args()

    files = {name: Path(file) for name, _, file in (entry.partition("=") for entry in args.files)}
    libraries: dict[str, Path] = {}
    native = [file for name, file in files.items() if not name.endswith(".py")]
    for file in native:
        libraries.update(needed(file))
    files.update({f"torch_remote/lib/system/{name}": file for name, file in libraries.items()})
    glibc = needs_glibc([*native, *libraries.values()])
    owners = licences(list(libraries))
    files.update({f"licenses/{re.sub('[^A-Za-z0-9+]+', '-', name)}": file for name, file in owners.items()})
    files["LICENSE"] = args.license
    readme = args.readme.read_text().replace("{version}", args.version).replace("{glibc}", glibc)
    readme = readme.replace("{inside}", ", ".join(name for name, file in owners.items() if file.name == "copyright"))

    root = f"torch-remote-worker-{args.version}"
    with open(args.out, "wb") as out, gzip.GzipFile("", "wb", 9, out, mtime=0) as packed:  # the same bytes each time
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for name, file in sorted(files.items()):
                entry = tarfile.TarInfo(f"{root}/{name}")
                entry.size = os.stat(file).st_size  # of what links lead to
                entry.mode = 0o755 if "/bin/" in name else 0o644
                with file.open("rb") as source:
                    archive.addfile(entry, source)
            entry = tarfile.TarInfo(f"{root}/README.md")
            entry.size = len(readme.encode())
            archive.addfile(entry, io.BytesIO(readme.encode()))
            entry = tarfile.TarInfo(f"{root}/bin/torch-remote-worker")
            entry.type = tarfile.SYMTYPE
            entry.linkname = "../torch_remote/bin/torch-remote-worker"
            archive.addfile(entry)


if __name__ == "__main__":
    main()
