"""The worker's archive, unpacked in an empty folder, serves clients without Python and torch. No NVIDIA library is
loaded unless a GPU is requested."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
import torch

from tests.package.elf import OF_EVERY_SYSTEM, native_files, needed, too_new, wanted

TORCH_LIB = Path(torch.__file__).resolve().parent / "lib"
PACKAGE = Path("python/torch_remote").resolve()
NVIDIA = re.compile(r"lib(cuda|cublas|cublasLt|cudnn\w*|nvJitLink|nvrtc|cudart|nvidia-\w+)\.so")
LINES = """
import json, re, torch, torch_remote
def libraries(pid):
    return sorted(set(re.findall(r"(/\\S+\\.so\\S*)$", open(f"/proc/{pid}/maps").read(), re.MULTILINE)))
x = torch.arange(12.0).view(3, 4)
there = x.to("remote")
assert torch.equal((there @ there.T).cpu(), x @ x.T)
torch.testing.assert_close(torch.softmax(there * 2 - 1, -1).cpu(), torch.softmax(x * 2 - 1, -1))
w = torch.ones(4, device="remote", requires_grad=True)
(there * w).sum().backward()
assert w.grad.tolist() == x.sum(0).tolist()
worker = torch.remote.get_device_properties().worker
session = re.search(r"pid (\\d+)", worker)[1]
print(json.dumps({"worker": worker, "session": libraries(session), "client": libraries("self")}))
"""


@pytest.fixture(scope="module")
def archive():
    (path,) = PACKAGE.glob("torch-remote-worker-*.tar.gz")
    return path


@pytest.fixture(scope="module")
def folder(archive, tmp_path_factory):
    place = tmp_path_factory.mktemp("empty")
    with tarfile.open(archive) as packed:
        packed.extractall(place, filter="data")
    (folder,) = place.iterdir()
    return folder


@contextlib.contextmanager
def serving(binary, url, *arguments, **variables):
    """Starts a worker with an empty environment. Returns its address."""
    errors = binary.parent / "errors"
    with errors.open("w") as log:
        process = subprocess.Popen(
            [binary, "--listen", url, *arguments], env={"PATH": "/nonexistent", **variables}, stdout=subprocess.PIPE,
            stderr=log, text=True, cwd="/",
        )  # fmt: skip
        try:
            if url.endswith(":0"):
                url = process.stdout.readline().strip()
            while not (url.startswith("tcp://") or Path(url.removeprefix("unix://")).exists()):
                assert process.poll() is None, errors.read_text()
                time.sleep(0.01)
            yield url
        finally:
            process.kill()
            process.wait()


def client(address, **variables):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TORCH_REMOTE")}
    path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)
    result = subprocess.run(
        [sys.executable, "-c", LINES], text=True, capture_output=True, timeout=120,
        env={**clean, "PYTHONPATH": path, "TORCH_REMOTE_WORKER": address, **variables},
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr
    return json.loads(result.stdout)


def test_what_is_inside(archive, folder):
    assert archive.stat().st_size <= 80e6
    names = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert {"README.md", "LICENSE", "bin/torch-remote-worker", "torch_remote/bin/torch-remote-worker"} <= names
    assert "torch_remote/lib/python_process.py" in names
    assert not [name for name in names if re.search(r"libc\.so|ld-linux|libstdc|libtorch_cpu|libpython", name)]
    for owner in (
        "LLVM-MLIR",
        "OpenSSL",
        "FlatBuffers",
        "CLI11",
        "Asio",
        "spdlog",
        "fmt",
        "zlib",
        "Zstandard",
        "GCC-s-C++-library",
        "GPL-3",
    ):
        assert (folder / "licenses" / owner).stat().st_size > 500, owner


def test_it_runs_with_c_libraries_as_old_as_its_readme_says(folder):
    files = native_files(folder)
    assert len(files) == 3
    for file in files:
        assert wanted(file)["GLIBC"] >= (2, 14) and not too_new(file), (file, wanted(file))
        strange = {name for name in needed(file) if not OF_EVERY_SYSTEM.fullmatch(name)}
        # The plugin is for machines with torch, which needs a C++ library, too.
        torchs = {"libtorch_cpu.so", "libc10.so", "libstdc++.so.6"} if file.name == "libaten_plugin.so" else set()
        assert strange == torchs, file
    assert "glibc 2.28 or later" in (folder / "README.md").read_text()
    assert "glibc 2.28 or newer" in Path("docs/install.md").read_text()


def test_it_starts_with_nothing_around_it(folder):
    binary = folder / "bin/torch-remote-worker"
    said = subprocess.run([binary, "--version"], env={}, cwd="/", capture_output=True, text=True)
    assert said.returncode == 0 and "op table" in said.stdout, said
    said = subprocess.run([binary, "--probe"], env={"PATH": "/nonexistent"}, cwd="/", capture_output=True, text=True)
    assert said.returncode in (0, 1, 2) and str(folder / "torch_remote/lib/libtorch_remote_codegen.so") in said.stdout


def test_the_driver_is_named_where_it_is_missing(folder, tmp_path):
    """The worker fails before it listens."""
    result = subprocess.run(
        [folder / "bin/torch-remote-worker", "--listen", f"unix://{tmp_path}/w", "--device", "cuda:99"],
        env={"PATH": "/nonexistent"}, text=True, capture_output=True, timeout=120, cwd="/",
    )  # fmt: skip
    assert result.returncode == 1 and not (tmp_path / "w").exists()
    if not Path("/proc/driver/nvidia/version").exists():
        assert "there is no driver" in result.stderr and "nvidia-driver" in result.stderr, result.stderr


@pytest.mark.parametrize("scheme", ["tcp", "unix"])
def test_it_serves_a_client(folder, tmp_path, scheme):
    url = f"unix://{tmp_path}/worker.sock" if scheme == "unix" else "tcp://127.0.0.1:0"
    binary = folder / "bin/torch-remote-worker"
    with serving(binary, url, TORCH_REMOTE_TORCH_LIB=str(TORCH_LIB)) as address:
        said = client(address)
    # libtorch of a CUDA build loads some of NVIDIA's libraries itself.
    mapped = {name for name in said["session"] if torch.version.cuda is None or "/nvidia/" not in name}
    assert f"ATen {torch.__version__[:4]}" in said["worker"]
    assert not NVIDIA.search("\n".join(mapped)), mapped
    system = re.compile(r"/(ld-linux|lib(c|m|dl|rt|pthread|util|stdc\+\+|gcc_s))[-.\w]*\.so")
    elsewhere = {name for name in mapped if not system.search(name)}
    assert all(name.startswith((str(folder), str(TORCH_LIB))) for name in elsewhere), elsewhere


def test_it_serves_a_program_on_the_gpu_in_software(folder, tmp_path):
    """The same files, except for the executable, which has the emulated driver."""
    there = tmp_path / "bundle"
    shutil.copytree(folder, there, symlinks=True)
    program = there / "torch_remote/bin/torch-remote-worker"
    program.unlink()
    shutil.copy("tests/emulated_gpu/worker", program)
    with serving(there / "bin/torch-remote-worker", f"unix://{tmp_path}/w", "--device", "cuda:0") as address:
        said = client(address, TORCH_REMOTE_FUSION="1")
    assert said["session"] and not [name for name in said["session"] if "libtorch_cpu" in name or "python" in name]
    assert "ATen" not in said["worker"], said["worker"]


TORCH = f"torch{torch.__version__[:4]}"
FILES = [f"{TORCH}/_C.so", "bin/torch-remote-worker", f"{TORCH}/libaten_plugin.so", "lib/libtorch_remote_codegen.so",
         "lib/libtorch_remote_inproc.so"]  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_nothing_of_nvidias_is_linked(name):
    file = PACKAGE / name
    needs = subprocess.run(["objdump", "-p", file], capture_output=True, text=True, check=True).stdout
    assert "NEEDED" in needs and not NVIDIA.search(needs), needs
    symbols = subprocess.run(["nm", "-D", "--undefined-only", file], capture_output=True, text=True, check=True).stdout
    assert not re.findall(r"\b(?:cu[A-Z]\w*|cuda[A-Z]\w*|cublas\w+|cudnn\w+|nvJitLink\w+)", symbols)


def test_a_client_loads_nothing_of_nvidias(folder, tmp_path):
    if "+cpu" not in torch.__version__:
        pytest.skip("torch itself brings NVIDIA's libraries")
    binary = folder / "bin/torch-remote-worker"
    with serving(binary, f"unix://{tmp_path}/w", TORCH_REMOTE_TORCH_LIB=str(TORCH_LIB)) as address:
        said = client(address)
    assert any(name.endswith("_C.so") for name in said["client"]) and not NVIDIA.search("\n".join(said["client"]))
