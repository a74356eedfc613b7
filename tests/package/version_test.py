"""The package, the wheel and the change log state the same version."""

import re
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from importlib.metadata import distribution
from pathlib import Path

import pytest
import torch

import torch_remote
from torch_remote.version import __version__, check_torch, sorted_minors, torch_minor, torch_minors


@pytest.fixture(scope="module")
def wheel():
    (path,) = Path("python/torch_remote").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def project():
    return tomllib.loads(Path("pyproject.toml").read_text())["project"]


def test_the_package_tells_the_version():
    assert torch_remote.__version__ == __version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)


def test_the_wheel_has_it_in_name_folder_and_metadata(wheel):
    assert wheel.name.split("-")[:2] == ["torch_remote", __version__]
    archive = zipfile.ZipFile(wheel)
    folders = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
    assert folders == {f"torch_remote-{__version__}.dist-info"}
    metadata = message_from_bytes(archive.read(f"torch_remote-{__version__}.dist-info/METADATA"))
    assert metadata["Version"] == __version__


def test_the_metadata_of_the_wheel_are_the_projects(wheel, project):
    assert "version" in project["dynamic"] and "version" not in project  # version.py is the only place
    metadata = message_from_bytes(zipfile.ZipFile(wheel).read(f"torch_remote-{__version__}.dist-info/METADATA"))
    assert metadata["Name"] == project["name"]
    assert metadata["Requires-Python"] == project["requires-python"]
    extras = project["optional-dependencies"]
    needs = [requirement for requirement in project["dependencies"] if not requirement.startswith("torch")]
    assert len(needs) == len(project["dependencies"]) - 1
    assert metadata.get_all("Requires-Dist")[1:] == needs + [
        f'{requirement} ; extra == "{extra}"' for extra, requirements in extras.items() for requirement in requirements
    ]
    assert metadata.get_all("Provides-Extra") == list(extras)
    assert metadata["License-Expression"] == project["license"]
    assert "# torch-remote" in metadata.get_payload()


def test_entry_points_of_the_build_tree_and_of_the_wheel_are_the_projects(wheel, project):
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    expected = {(group, name, target) for group, entries in groups.items() for name, target in entries.items()}
    found = {(point.group, point.name, point.value) for point in distribution("torch_remote").entry_points}
    assert found == expected
    text = zipfile.ZipFile(wheel).read(f"torch_remote-{__version__}.dist-info/entry_points.txt").decode()
    assert all(f"{name} = {target}\n" in text for _, name, target in expected)


def test_the_change_log_begins_with_it():
    releases = re.findall(r"^## \[(.*?)\]", Path("CHANGELOG.md").read_text(), re.M)
    assert releases[0] == __version__
    assert len(releases) == len(set(releases))


TORCH = torch_minor(torch.__version__)


def test_versions_are_sorted_as_numbers():
    assert sorted_minors(["2.13", "2.9", "3.0", "2.10"]) == ["2.9", "2.10", "2.13", "3.0"]


def test_the_wheel_needs_a_torch_that_it_is_built_for(wheel):
    minors = torch_minors()
    assert TORCH in minors
    metadata = message_from_bytes(zipfile.ZipFile(wheel).read(f"torch_remote-{__version__}.dist-info/METADATA"))
    (found,) = [r for r in metadata.get_all("Requires-Dist") if r.startswith("torch")]
    major, last = minors[-1].split(".")
    assert found == f"torch>={minors[0]},<{major}.{int(last) + 1}"


def fake_torch(folder):
    """The parts of torch that are imported before the version check."""
    fake = folder / "fake" / "torch"
    (fake / "utils").mkdir(parents=True)
    (fake / "__init__.py").write_text(f"__version__ = '{TORCH}.0'\n")
    (fake / "utils" / "__init__.py").write_text("")
    (fake / "utils" / "backend_registration.py").write_text(
        "def generate_methods_for_privateuse1_backend(): ...\ndef rename_privateuse1_backend(): ...\n"
    )
    return fake


def test_another_torch_is_told_by_name(wheel, tmp_path):
    """Next to another torch, the wheel reports the required and the present version, not a missing symbol."""
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    fake = fake_torch(tmp_path)
    for version in ("2.12.1+cpu", "2.130.0", "3.0.0a0"):
        (fake / "__init__.py").write_text(f"__version__ = {version!r}\n")
        run = subprocess.run(
            [sys.executable, "-S", "-c", "import torch_remote"],
            env={"PYTHONPATH": f"{site}:{fake.parent}", "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
        )
        (last,) = run.stderr.splitlines()[-1:]
        assert run.returncode == 1 and last.startswith("ImportError: "), run.stderr
        built = " and ".join(torch_minors())
        assert f"torch_remote {__version__} ({site}/torch_remote) is built for torch {built}, but" in last
        assert f"but torch {version} is installed ({fake})" in last
        assert f"pip install 'torch=={torch_minors()[-1]}.*'" in last


def test_another_python_is_told(wheel, tmp_path):
    """The wheel's files on the path of another Python must not load _C.so, which was compiled with other headers."""
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    fake = fake_torch(tmp_path)
    for version in ((3, 9, 18), (3, 99, 0)):
        run = subprocess.run(
            [sys.executable, "-S", "-c", f"import sys; sys.version_info = {version}; import torch_remote"],
            env={"PYTHONPATH": f"{site}:{fake.parent}", "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
        )
        (last,) = run.stderr.splitlines()[-1:]
        major, minor = sys.version_info[:2]
        assert run.returncode == 1 and last.startswith("ImportError: "), run.stderr
        assert f"torch_remote {__version__} ({site}/torch_remote) is built for Python {major}.{minor}, but" in last
        assert f"this is Python {'.'.join(map(str, version))} ({sys.executable})" in last
        assert f"built for Python 3.{version[1]} (its wheel is called …-cp3{version[1]}-…)" in last


def test_this_torch_is_not_refused():
    check_torch(torch.__version__, torch.__file__)
    check_torch(f"{TORCH}.7+cu130", torch.__file__)
