"""The metadata of the wheel, as a package index and pip read them, and those of a release, which also has links."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from torch_remote.version import __version__

URL = "https://github.com/someone/torch-remote"
PYTHON = "Programming Language :: Python :: "


def read(wheel):
    """The metadata, by the rules of the standard: an unknown or wrong field is an error."""
    with zipfile.ZipFile(wheel) as archive:
        return Metadata.from_email(archive.read(f"torch_remote-{__version__}.dist-info/METADATA"), validate=True)


@pytest.fixture(scope="module")
def wheel():
    (path,) = Path("python/torch_remote").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def metadata(wheel):
    return read(wheel)


@pytest.fixture(scope="module")
def project():
    return tomllib.loads(Path("pyproject.toml").read_text())["project"]


def make_wheel(folder, *options, readme="README.md"):
    """The wheel that make_wheel makes of one text file."""
    module = folder / "module.py"
    module.write_text("")
    out = folder / "made.whl"
    run = subprocess.run(
        [sys.executable, "bazel/make_wheel.py", *options, out, "torch_remote", __version__, "cp311", "any",
         "pyproject.toml", readme, "LICENSE", f"torch_remote/torch2.13/module.py={module}"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return out


def test_it_says_what_the_project_is(metadata, project):
    assert metadata.name == "torch-remote" and str(metadata.version) == __version__
    assert metadata.summary == project["description"] and len(metadata.summary) < 120
    assert metadata.license_expression == "Apache-2.0"
    assert metadata.keywords == project["keywords"] and metadata.classifiers == project["classifiers"]
    assert not [text for text in metadata.classifiers if text.startswith("License ::")]  # not next to an expression
    assert {"Operating System :: POSIX :: Linux", "Typing :: Typed"} <= set(metadata.classifiers)


def test_the_pythons_are_those_that_a_release_is_built_and_tested_with(metadata):
    named = {text.removeprefix(PYTHON) for text in metadata.classifiers if re.fullmatch(PYTHON + r"3\.\d+", text)}
    release = yaml.safe_load(Path(".github/workflows/release.yml").read_text())
    built = {entry["python"] for entry in release["jobs"]["wheel"]["strategy"]["matrix"]["include"]}
    assert named == built
    assert all(metadata.requires_python.contains(f"{version}.0") for version in named)
    assert metadata.requires_python == SpecifierSet(">=3.11,<3.15")


def test_its_licenses_are_inside(metadata, wheel):
    folder = f"torch_remote-{__version__}.dist-info/licenses/"
    inside = {name.removeprefix(folder) for name in zipfile.ZipFile(wheel).namelist() if name.startswith(folder)}
    assert set(metadata.license_files) == inside
    assert {"LICENSE", "LLVM-MLIR", "OpenSSL"} <= inside


def test_extras_need_what_they_are_for(metadata):
    extras = {extra: set() for extra in metadata.provides_extra}
    for requirement in metadata.requires_dist:
        for extra, names in extras.items():
            if requirement.marker and requirement.marker.evaluate({"extra": extra}):
                names.add(requirement.name)
    assert set(extras) == {"cuda", "cuda12", "function", "kubernetes", "modal", "ray"}
    assert extras["cuda"] == {"nvidia-cublas", "nvidia-cuda-nvrtc", "nvidia-cudnn-cu13", "nvidia-nvjitlink"}
    assert extras["cuda12"] == {f"nvidia-{name}-cu12" for name in ("cublas", "cuda-nvrtc", "cudnn", "nvjitlink")}
    plain = {requirement.name for requirement in metadata.requires_dist if not requirement.marker}
    assert plain == {"torch", "typer", "rich"}
    assert all(isinstance(requirement, Requirement) for requirement in metadata.requires_dist)


def test_the_readme_is_the_description(metadata, tmp_path):
    assert metadata.description_content_type == "text/markdown"
    assert metadata.description.startswith("# torch-remote\n")
    without_url = read(make_wheel(tmp_path))  # the wheel of a release has one
    assert without_url.description.strip() == Path("README.md").read_text().strip() and not without_url.project_urls


def test_a_release_has_links_to_its_repository(tmp_path):
    metadata = read(make_wheel(tmp_path, "--repository", URL))
    urls = metadata.project_urls
    assert set(urls) == {"Source", "Documentation", "Changelog", "Issues"} and urls["Source"] == URL
    for name in ("Documentation", "Changelog"):
        path = urls[name].removeprefix(f"{URL}/blob/v{__version__}/")
        assert path in ("docs/index.md", "CHANGELOG.md"), urls


def test_links_of_the_description_of_a_release_work_elsewhere(tmp_path):
    text = read(make_wheel(tmp_path, "--repository", URL)).description
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)\s]+)\)", text)
    assert len(links) > 10 and all(target.startswith(("https://", "#")) for _, target in links), links
    assert ("!", f"{URL}/raw/v{__version__}/docs/profile.png") in links
    assert ("", f"{URL}/blob/v{__version__}/docs/install.md") in links
    # Nothing but the links differs.
    assert re.sub(rf"{URL}/(raw|blob)/v[^/]+/", "", text) == read(make_wheel(tmp_path)).description


def test_other_links_of_the_description_stay_as_they_are(tmp_path):
    text = "[a](https://pytorch.org/x) [b](#more) ![c](https://pytorch.org/x.png) [d](mailto:d@e)\n"
    (tmp_path / "other.md").write_text(text + "[e](docs/e.md#f)")
    description = read(make_wheel(tmp_path, "--repository", URL, readme=tmp_path / "other.md")).description
    assert description == f"{text}[e]({URL}/blob/v{__version__}/docs/e.md#f)"


def test_a_wrong_url_is_refused(tmp_path):
    for url in ("github.com/someone/torch-remote", URL + "/"):
        with pytest.raises(AssertionError, match="is like https://host/owner/name, not"):
            make_wheel(tmp_path, "--repository", url)
