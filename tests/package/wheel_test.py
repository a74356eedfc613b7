"""The wheel, installed by pip next to torch in an otherwise empty environment, works without the checkout."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import torch

from tests.package.elf import OF_EVERY_SYSTEM, native_files, needed, too_new, undefined, wanted

SCRIPT = """
import os, sys, torch, torch_remote
from importlib.metadata import requires, version

assert torch_remote.__file__.startswith(sys.prefix), torch_remote.__file__
assert version("torch_remote") == torch_remote.__version__
assert any(r.startswith("torch") for r in requires("torch_remote"))

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
x, y = torch.randn(5, 8), torch.tensor([0, 1, 2, 1, 0])
losses = {}
for device in ("cpu", "remote"):
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    net.load_state_dict(model.state_dict())
    net.to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    losses[device] = []
    for _ in range(4):
        loss = torch.nn.functional.cross_entropy(net(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses[device].append(loss.item())
torch.testing.assert_close(losses["remote"], losses["cpu"], rtol=1e-5, atol=1e-6)

compiled = torch.compile(model.to("remote"), backend="remote")  # an entry point of the package
torch.testing.assert_close(compiled(x.to("remote")).cpu(), model(x.to("remote")).cpu())

(child,) = open(f"/proc/self/task/{os.getpid()}/children").read().split()
binary = os.readlink(f"/proc/{child}/exe")
assert binary.startswith(os.path.realpath(sys.prefix)), binary
libraries = open(f"/proc/{child}/maps").read()
assert os.path.realpath(os.path.dirname(torch.__file__)) in libraries, "the worker uses another libtorch"
print("ok")
"""


@pytest.fixture(scope="module")
def wheel():
    (path,) = Path("python/torch_remote").glob("*.whl")
    return path.resolve()


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """A virtual environment with links to torch's packages, and the wheel installed."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = next((folder / "lib").glob("python*")) / "site-packages"
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(("torch_remote", "pip", "_distutils", "distutils")):
            (packages / entry.name).symlink_to(entry)
    # Without the build's paths, as for a user.
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "RUNFILES", "TORCH_REMOTE", "BAZEL"))}
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "install", "--quiet", "--no-deps",
         "--no-index", "--disable-pip-version-check", str(wheel)],
        check=True, env=clean, cwd=folder,
    )  # fmt: skip
    return folder, clean


def test_a_script_runs_from_the_installed_wheel(environment):
    folder, clean = environment
    script = folder / "script.py"
    script.write_text(SCRIPT)
    result = subprocess.run(
        [str(folder / "bin/python"), str(script)], env=clean, cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0 and result.stdout == "ok\n", result.stdout + result.stderr


GRAPH = """graph(s0) {
  b0: input survives
  %0: f32[s0]{1} @b0
  aten::relu_(%0!)
}
"""


@pytest.mark.parametrize("tool", ["remote-dump", "remote-opt", "remote-viz"])
def test_the_tools_run_without_torch(environment, tool):
    folder, clean = environment
    result = subprocess.run(
        [str(folder / "bin" / tool)], input=GRAPH, env=clean, cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0 and "aten::relu_" in result.stdout, result.stdout + result.stderr


@pytest.mark.parametrize("tool", ["remote-reduce", "remote-replay"])
def test_the_tools_that_run_programs_find_worker_and_torch(environment, tool):
    folder, clean = environment
    script = folder / "captured.py"
    script.write_text('import torch, torch_remote\nprint((torch.ones(3, device="remote") * 2).sum().item())')
    capture = {**clean, "TORCH_REMOTE_CAPTURE": str(folder / "captured.rreplay")}
    subprocess.run([str(folder / "bin/python"), str(script)], env=capture, check=True, timeout=120)
    arguments = {"remote-replay": ["--compare", "recorded"], "remote-reduce": ["--mismatch"]}[tool]
    result = subprocess.run(
        [str(folder / "bin" / tool), "captured.rreplay", *arguments],
        env=clean, cwd=folder, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    expected = {"remote-replay": (0, "compared   1 reads, 0 differ"), "remote-reduce": (1, "none of its runs fails")}
    assert (result.returncode, True) == (expected[tool][0], expected[tool][1] in result.stdout + result.stderr), result


def test_contents(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in (
        "torch_remote_autoload.py",
        "torch_remote_tools.py",
        "torch_remote/__init__.py",
        "torch_remote/integrations/accelerate.py",
        "torch_remote/_C.pyi",
        "torch_remote/py.typed",
        f"torch_remote/torch{torch.__version__[:4]}/_C.so",
        "torch_remote/bin/torch-remote-worker",
        f"torch_remote/torch{torch.__version__[:4]}/libaten_plugin.so",
    ):
        assert name in names
    assert not [n for n in names if "test" in n or n.endswith((".cpp", ".h"))]


def test_only_the_extension_depends_on_python(wheel, tmp_path):
    """The wheels for other Pythons have the same files otherwise: the worker and the plugin use nothing of Python."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    users = {file.name for file in native_files(tmp_path) if any(re.match("_?Py", name) for name in undefined(file))}
    assert users == {"_C.so"}


def test_the_bug_made_for_tests_is_not_inside(wheel):
    for name in (archive := zipfile.ZipFile(wheel)).namelist():
        assert b"test-miscompile" not in archive.read(name), name


def test_nothing_of_the_build_machine_is_inside(wheel):
    """No path of the checkout or its environment may be inside, because the wheel must work elsewhere."""
    marks = [sys.prefix.encode(), b"/execroot/"]
    for name in (archive := zipfile.ZipFile(wheel)).namelist():
        data = archive.read(name)
        assert not [mark for mark in marks if mark in data], name


def test_its_name_says_on_which_systems_it_runs(wheel):
    tag = re.fullmatch(r"torch_remote-[\d.]+-(cp3\d+-cp3\d+-manylinux_2_28_x86_64)\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/WHEEL")]
        assert tag and f"\nTag: {tag[1]}\n" in archive.read(name).decode()


def test_nothing_of_the_system_is_needed_but_what_torch_needs(environment):
    folder, _ = environment
    package = next((folder / "lib").glob("python*")) / "site-packages/torch_remote"
    files = native_files(package)
    assert len(files) == 10
    # Exceptions and objects pass between these files and torch.
    with_torch = {"_C.so", "libaten_plugin.so", "libtorch_remote_inproc.so"}
    for file in files:
        assert wanted(file)["GLIBC"] >= (2, 14) and not too_new(file), (file, wanted(file))
        strange = {
            n for n in needed(file) if not OF_EVERY_SYSTEM.fullmatch(n) and not n.startswith(("libtorch", "libc10"))
        }
        assert strange == ({"libstdc++.so.6"} if file.name in with_torch else set()), file


def test_what_is_inside_is_told(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (bill,) = [name for name in names if name.endswith(".dist-info/sboms/torch_remote.cdx.json")]
        told = json.loads(archive.read(bill))
    known = {component["name"]: component for component in told["components"]}
    assert {"LLVM, MLIR", "OpenSSL", "FlatBuffers", "CLI11", "spdlog", "fmt", "zlib", "Zstandard"} <= set(known)
    info = bill.split("/")[0]
    for component in known.values():
        assert component["version"] and component["purl"].startswith("pkg:deb/")
        (licence,) = component["licenses"]
        assert f"{info}/{licence['license']['name']}" in names
    assert told["bomFormat"] == "CycloneDX" and told["metadata"]["component"]["name"] == "torch_remote"
