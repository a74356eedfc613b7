"""Gets what compiling for a version of torch needs, and prints its folder and the exact version:

fetch_torch.py VERSION|FOLDER

VERSION ("2.14.1") is downloaded from the package index once. FOLDER is that of an installed torch
(".../site-packages/torch"). The result has torch/include, torchgen, and stubs: libraries without code, which linkers
accept in place of torch's. It is kept below ~/.cache/torch-remote.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

LIBRARIES = ("libc10.so", "libtorch_cpu.so", "libtorch_python.so")


def _wanted(name: str) -> bool:
    return name.startswith(("torch/include/", "torchgen/")) or name == "torch/version.py"


def _from_wheel(version: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as downloads:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
        subprocess.run(
            [*pip, "--only-binary=:all:", "-d", downloads, f"torch=={version}"], check=True, stdout=sys.stderr
        )
        (wheel,) = Path(downloads).glob("torch-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if _wanted(name)])


def _from_installation(torch: Path, folder: Path) -> None:
    (folder / "torch").mkdir()
    (folder / "torch/include").symlink_to(torch / "include")
    (folder / "torchgen").symlink_to(torch.parent / "torchgen")
    shutil.copy(torch / "version.py", folder / "torch/version.py")


def _add_stubs(folder: Path) -> None:
    (folder / "stubs").mkdir()
    for name in LIBRARIES:
        stub = ["gcc", "-shared", "-nostdlib", "-x", "c", "/dev/null", f"-Wl,-soname,{name}"]
        subprocess.run([*stub, "-o", folder / "stubs" / name], check=True, stdout=sys.stderr)


def main() -> None:
    wanted = sys.argv[1]
    installed = Path(wanted) if "/" in wanted else None
    if installed is not None and not (installed / "include").is_dir():
        raise SystemExit(f"{installed} is not the folder of an installed torch: include/ is missing")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch-remote/torch"
    folder = cache / re.sub(r"[^\w.+-]", "_", wanted.strip("/"))
    if not (folder / "stubs" / LIBRARIES[-1]).exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if installed is None:
            _from_wheel(wanted, folder)
        else:
            _from_installation(installed, folder)
        _add_stubs(folder)
    version = re.search(r"__version__ = '(.*)'", (folder / "torch/version.py").read_text(encoding="utf-8"))
    print(folder, version[1])


if __name__ == "__main__":
    main()
