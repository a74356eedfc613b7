"""bazel/release.sh and the workflows of .github: what they refuse, who may publish, and whether they are complete."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

WORKFLOWS = sorted(Path(".github/workflows").glob("*.yml"))


def load(path):
    """The workflow. YAML 1.1 reads the key `on` as true."""
    workflow = yaml.safe_load(path.read_text())
    workflow["on"] = workflow.pop(True)
    return workflow


def steps(workflow):
    return [(name, step) for name, job in workflow["jobs"].items() for step in job["steps"]]


@pytest.fixture(scope="module")
def release():
    return load(Path(".github/workflows/release.yml"))


def test_there_are_workflows():
    assert {path.name for path in WORKFLOWS} >= {"ci.yml", "docs.yml", "release.yml", "weekly.yml"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_is_well_formed(path):
    workflow = load(path)
    assert workflow["name"] == path.stem and workflow["permissions"], "the default permissions are too many"
    for name, job in workflow["jobs"].items():
        needs = job.get("needs", [])
        for other in [needs] if isinstance(needs, str) else needs:
            assert other in workflow["jobs"], (name, other)
        named = set(job.get("strategy", {}).get("matrix", {})) - {"include"}
        for entry in job.get("strategy", {}).get("matrix", {}).get("include", []):
            named |= set(entry)
        assert set(re.findall(r"\bmatrix\.(\w+)", yaml.dump(job))) == named, name
    for name, step in steps(workflow):
        assert len({"run", "uses"} & set(step)) == 1, (name, step)
        assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v1)", step.get("uses", "a/b@v1")), step


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_what_a_workflow_runs_is_in_the_tree(path):
    """Shell is in files that run elsewhere, too; all that remains is what a container needs before a checkout."""
    for command in (step["run"].strip() for _, step in steps(load(path)) if "run" in step):
        if not command.startswith(("git ", "apt-get ")):
            program, *arguments = command.split()
            script = arguments[0] if program == "python3" else program
            allowed = os.R_OK if program == "python3" else os.X_OK
            assert os.access(script, allowed) and "\n" not in command, command
        # The text of an expression would become a part of the command. Variables do not.
        assert not re.search(r"\$\{\{(?! *matrix\.)", command), command


def test_only_one_job_can_publish_and_only_for_a_tag(release):
    assert set(release["on"]) == {"push", "workflow_dispatch"} and release["on"]["push"] == {"tags": ["v*"]}
    assert release["permissions"] == {"contents": "read"}
    publishing = [name for name, step in steps(release) if "pypi-publish" in step.get("uses", "")]
    assert publishing == ["publish"]
    publish = release["jobs"]["publish"]
    assert publish["environment"]["name"] == "pypi" and publish["permissions"] == {"id-token": "write"}
    assert publish["if"] == "github.event_name == 'push'"
    assert [name for name, job in release["jobs"].items() if "environment" in job] == ["publish"]
    # What comes after it is skipped with it.
    assert release["jobs"]["draft"]["needs"] == "publish" and release["jobs"]["attest"]["needs"] == "wheel"
    assert "permissions" not in release["jobs"]["wheel"], "the job that runs the build needs no rights"


def test_only_the_wheels_are_uploaded_to_the_index(release):
    uploaded = {
        step["with"]["name"]: step["with"]["path"].split()
        for _, step in steps(release)
        if "upload-artifact" in step.get("uses", "")
    }
    downloads = [step["with"] for step in release["jobs"]["publish"]["steps"] if "download" in step["uses"]]
    assert [step["pattern"] for step in downloads] == ["wheel-*"] and downloads[0]["path"] == "dist"
    assert uploaded["wheel-${{ matrix.python }}"] == ["dist/*.whl"]
    assert uploaded["other-${{ matrix.python }}"] == ["dist/*.cdx.json", "dist/*.tar.gz"]


def test_one_entry_makes_the_worker_bundle(release):
    entries = release["jobs"]["wheel"]["strategy"]["matrix"]["include"]
    assert ["--wheel-only" in entry["options"] for entry in entries] == [False] + [True] * (len(entries) - 1)
    assert len({entry["python"] for entry in entries}) == len(entries)


def test_the_weekly_tests_have_the_same_versions_of_torch():
    (weekly,) = re.findall(r"\$\{TORCH_VERSIONS:-(.*?)\}", Path(".ci/weekly").read_text())
    (released,) = re.findall(r"\$\{TORCH_REMOTE_TORCH-(.*?)\}", Path("bazel/release.sh").read_text())
    assert released.split(",") == weekly.split()


CHANGES = """# Changelog

## [1.2.3] - 2030-01-02

New things.

### Added

- One.

## [1.2.2] - 2029-01-02

Old.
"""

BAZEL = """#!/bin/sh
echo "$@" >> called
exit 3
"""


@pytest.fixture
def checkout(tmp_path):
    """A repository of version 1.2.3 with release.sh, in which bazelw only notes that it was called."""
    for name in ("bazel", "python/torch_remote"):
        (tmp_path / name).mkdir(parents=True)
    script = tmp_path / "bazel/release.sh"
    script.write_text(Path("bazel/release.sh").read_text())
    (tmp_path / "bazelw").write_text(BAZEL)
    for file in (script, tmp_path / "bazelw"):
        file.chmod(0o755)
    (tmp_path / "python/torch_remote/version.py").write_text('"""Version."""\n__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "All")
    git(tmp_path, "tag", "v1.2.3")
    return tmp_path


def git(folder, *arguments):
    name = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *name, *arguments], cwd=folder, check=True, capture_output=True)


def run(checkout, *arguments):
    """The exit status, stdout, stderr, and what bazelw was called with."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TORCH_REMOTE")}
    done = subprocess.run(
        [checkout / "bazel/release.sh", *arguments], capture_output=True, text=True, env=clean, timeout=60
    )
    called = checkout / "called"
    return done.returncode, done.stdout, done.stderr, called.read_text() if called.exists() else ""


def test_a_release_is_built_from_its_tag(checkout):
    status, _, errors, called = run(checkout, "v1.2.3")
    assert status == 3 and called == "build --config=release //:wheel //:worker_bundle\n", errors
    assert run(checkout, "v1.2.3", "--wheel-only")[3].splitlines()[1] == "build --config=release //:wheel"


def test_another_tag_than_that_of_the_version_is_refused(checkout):
    git(checkout, "tag", "v1.2.4")
    status, _, errors, called = run(checkout, "v1.2.4")
    assert status == 1 and "the tag is v1.2.4, but python/torch_remote/version.py has 1.2.3" in errors and not called


def test_a_tag_of_another_commit_is_refused(checkout):
    git(checkout, "commit", "-q", "--allow-empty", "-m", "Later")
    status, _, errors, called = run(checkout, "v1.2.3")
    assert status == 1 and "HEAD is not at v1.2.3" in errors and not called
    assert run(checkout, "--dry-run")[3], "a dry run needs no tag"
    git(checkout, "tag", "-d", "v1.2.3")
    assert "HEAD is not at v1.2.3" in run(checkout, "v1.2.3")[2]


def test_files_that_are_not_committed_are_refused(checkout):
    (checkout / "bazelw").write_text(BAZEL + "# more\n")
    status, _, errors, called = run(checkout, "v1.2.3")
    assert status == 1 and "files differ from v1.2.3" in errors and not called


@pytest.mark.parametrize("line", ["## [1.2.3] - Unreleased", "## [Unreleased]", "## [1.2.3]"])
def test_a_release_has_a_date_in_the_change_log(checkout, line):
    log = checkout / "CHANGELOG.md"
    log.write_text(log.read_text().replace("## [1.2.3] - 2030-01-02", line))
    git(checkout, "commit", "-qam", "Log")
    git(checkout, "tag", "-f", "v1.2.3")
    status, _, errors, called = run(checkout, "v1.2.3")
    assert status == 1 and "CHANGELOG.md has no line '## [1.2.3] - YYYY-MM-DD'" in errors and not called
    assert ("1.2.3" in line) == bool(run(checkout, "--dry-run")[3]), "a dry run needs a section, but no date"


def test_notes_are_the_section_of_the_version(checkout):
    status, printed, _, _ = run(checkout, "--notes", "v1.2.3")
    assert status == 0 and printed.strip() == "New things.\n\n### Added\n\n- One."
    status, _, errors, _ = run(checkout, "--notes", "v1.2.2")
    assert status == 1 and "not 'v1.2.2'" in errors


@pytest.mark.parametrize("arguments", [[], ["1.2.3"], ["--out", "x"], ["--dry-run", "--unknown"]])
def test_wrong_arguments_print_the_usage(checkout, arguments):
    status, _, errors, called = run(checkout, *arguments)
    assert status == 2 and "bazel/release.sh TAG" in errors and not called
