"""`torch-remote-worker --probe`, and the diagnosis of `torch-remote doctor`."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

SOFTWARE = Path("tests/emulated_gpu/worker").resolve()
WORKER = Path("python/torch_remote/bin/torch-remote-worker").resolve()
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("TORCH_REMOTE", "CUDA"))}


def probe(binary, *arguments, **variables):
    return subprocess.run(
        [binary, "--probe", *arguments], env=CLEAN | variables, capture_output=True, text=True, timeout=60
    )


def doctor(**variables):
    path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)
    result = subprocess.run(
        [sys.executable, "-m", "torch_remote_cli", "doctor", "--quick", "--json"],
        env={**CLEAN, "PYTHONPATH": path, **variables}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return {check["check"]: check for check in json.loads(result.stdout)["checks"]}


def test_on_the_gpu_in_software():
    package = str(WORKER.parent.parent)
    said = probe(SOFTWARE, "--json", TORCH_REMOTE_PACKAGE=package)
    found = json.loads(said.stdout)
    assert said.returncode == 0 and found["usable"] and found["complete"], said
    assert [gpu["device"] for gpu in found["gpus"]] == ["cuda:0", "cuda:1"]
    assert all(gpu["sm"] >= 80 and 0 < gpu["free_memory"] <= gpu["all_memory"] for gpu in found["gpus"])
    parts = {part["name"]: part for part in found["parts"]}
    assert set(parts) == {"driver", "cuBLASLt", "cuDNN", "NVRTC", "nvJitLink", "compiler"}
    assert parts["driver"]["version"].startswith("CUDA 1") and parts["cuDNN"]["version"].startswith("9.")
    older = json.loads(probe(SOFTWARE, "--json", TORCH_REMOTE_PACKAGE=package, TORCH_REMOTE_TEST_DRIVER="12040").stdout)
    assert older["parts"][0]["version"] == "CUDA 12.4"
    text = probe(SOFTWARE, TORCH_REMOTE_PACKAGE=package).stdout
    assert "cuda:1" in text and "Nothing is missing" in text
    checks = doctor(TORCH_REMOTE_WORKER_BINARY=str(SOFTWARE), TORCH_REMOTE_PACKAGE=package)
    assert checks["GPU"]["state"] == checks["cuDNN"]["state"] == "ok" and "cuda:" in checks["GPU"]["found"]


def self_test(**variables):
    said = subprocess.run(
        [SOFTWARE, "--probe", "--self-test", "--json"],
        env=CLEAN | {"TORCH_REMOTE_PACKAGE": str(WORKER.parent.parent)} | variables,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    return said.returncode, {row["name"]: row for row in json.loads(said.stdout)["self_test"]}


def test_the_self_test_passes():
    status, rows = self_test()
    assert status == 0 and {row["state"] for row in rows.values()} == {"ok"}, rows
    assert {"load sort.cu", "run sort.cu", "GEMM (cuBLASLt)", "CUDA graph", "all-reduce (NCCL)"} <= set(rows)


def test_the_self_test_names_a_missing_library_and_goes_on():
    status, rows = self_test(TORCH_REMOTE_TEST_WITHOUT_CUDNN="1", TORCH_REMOTE_TEST_NCCL="missing")
    convolution = rows["convolution (cuDNN)"]
    assert status == 1 and convolution["state"] == "failed" and "aten::convolution" in convolution["program"], rows
    assert "no libcudnn.so" in convolution["reason"] and "pip install" in convolution["reason"]
    assert rows["CUDA graph"]["state"] == "ok" and rows["all-reduce (NCCL)"]["state"] == "skipped"


def test_the_self_test_names_a_driver_that_is_too_old():
    status, rows = self_test(TORCH_REMOTE_TEST_DRIVER="11080")
    driver = rows["driver"]
    assert status == 1 and driver["state"] == "failed", rows
    assert "CUDA 11.8" in driver["reason"] and "install NVIDIA's driver 525.60" in driver["reason"]


def test_the_bundle_has_no_secrets(tmp_path):
    path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)
    home = tmp_path / "home-of-somebody"
    home.mkdir()
    result = subprocess.run(
        [sys.executable, "-m", "torch_remote_cli", "doctor", "--gpu", "--json"],
        env={
            **CLEAN, "PYTHONPATH": path, "HOME": str(home), "TORCH_REMOTE_WORKER_BINARY": str(SOFTWARE),
            "TORCH_REMOTE_PACKAGE": str(WORKER.parent.parent), "TORCH_REMOTE_TOKEN": "a-token-that-is-secret",
            "TORCH_REMOTE_CUDA_LIB": f"{home}/lib", "TORCH_REMOTE_TEST_WITHOUT_CUDNN": "1",
        },
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    checks = {check["check"]: check for check in json.loads(result.stdout)["checks"]}
    assert result.returncode == 1 and checks["convolution (cuDNN)"]["state"] == "failed", checks
    with tarfile.open(tmp_path / "gpu-report.tar.gz") as archive:
        files = {member.name: archive.extractfile(member).read().decode() for member in archive}
    text = "".join(files.values())
    assert any(name.startswith("failed/") for name in files) and "TORCH_REMOTE_CUDA_LIB=~/lib" in text
    assert "a-token-that-is-secret" not in text and "home-of-somebody" not in text and "GPU-e" not in text


def test_devices_are_listed_with_their_uuids():
    said = subprocess.run([SOFTWARE, "--list-devices"], env=CLEAN, capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said
    listed = json.loads(said.stdout)
    assert [gpu["device"] for gpu in listed["devices"]] == ["cuda:0", "cuda:1"] and not listed["missing"]
    assert listed["devices"][1]["id"].startswith("GPU-e1e1") and "software 1" in listed["devices"][1]["name"]


def test_what_is_missing_is_told_with_the_command_to_install_it(tmp_path):
    said = probe(SOFTWARE, "--json", TORCH_REMOTE_PACKAGE=str(tmp_path))  # a package without its compiler
    compiler = json.loads(said.stdout)["parts"][-1]
    assert said.returncode == 1 and "lib/libtorch_remote_codegen.so" in compiler["missing"] and compiler["fix"], said
    checks = doctor(TORCH_REMOTE_WORKER_BINARY=str(SOFTWARE), TORCH_REMOTE_PACKAGE=str(tmp_path))
    assert checks["compiler"]["state"] == "note" and "no kernels" in checks["compiler"]["found"]


def test_without_any_gpu(tmp_path):
    # no Python environment whose packages the worker could find
    place = {"TORCH_REMOTE_CUDA_LIB": str(tmp_path), "PATH": str(tmp_path), "VIRTUAL_ENV": "", "CONDA_PREFIX": ""}
    said = probe(WORKER, "--json", **place)
    found = json.loads(said.stdout)
    if found["usable"]:
        pytest.skip("this machine has a GPU")
    assert said.returncode == 2 and not found["complete"] and not said.stderr, said
    parts = {part["name"]: part for part in found["parts"]}
    assert "nvidia-driver" in parts["driver"]["fix"]
    packages = {
        "cuBLASLt": "nvidia-cublas",
        "cuDNN": "nvidia-cudnn-cu13",
        "NVRTC": "nvidia-cuda-nvrtc",
        "nvJitLink": "nvidia-nvj",
    }
    for name, package in packages.items():
        assert str(tmp_path) in parts[name]["missing"] and f"pip install {package}" in parts[name]["fix"], parts[name]
    assert not parts["compiler"]["missing"] and parts["compiler"]["path"].endswith("libtorch_remote_codegen.so")
    text = probe(WORKER, **place).stdout
    assert "-> install it: pip install nvidia-cublas" in text and text.endswith("No GPU can be used.\n")
    assert "no NVIDIA driver here" in doctor()["GPU"]["found"]


def test_the_plugin_of_the_cpu_is_looked_at_too(tmp_path):
    binary = tmp_path / "bin/torch-remote-worker"
    binary.parent.mkdir()
    shutil.copy(WORKER, binary)
    cpu = json.loads(probe(binary, "--json").stdout)["cpu"]
    assert "libaten_plugin.so" in cpu["missing"] and cpu["fix"] and cpu["without"] == "--device cpu does not work"


def test_it_goes_with_no_client():
    said = probe(WORKER, "--stdio")
    assert said.returncode != 0 and "--stdio excludes --probe" in said.stderr + said.stdout
    said = subprocess.run([WORKER, "--json"], env=CLEAN, capture_output=True, text=True)
    assert said.returncode != 0 and "--json requires --probe" in said.stderr + said.stdout
