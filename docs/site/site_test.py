"""The generated pages are up to date, and the site builds from them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path("docs/site")


@pytest.mark.parametrize("command", ["commands.py", "coverage.py", "pictures.py"])
def test_what_is_generated_is_up_to_date(command):
    subprocess.run([sys.executable, HERE / command, "--check"], check=True)


def test_the_site_builds_without_a_warning(tmp_path):
    result = subprocess.run(
        [sys.executable, HERE / "build.py", "--output", tmp_path / "site"], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    site = tmp_path / "site"
    assert 'url=docs/index.html"' in (site / "index.html").read_text()
    commands = (site / "docs/reference/commands.html").read_text()
    assert "torch-remote worker serve" in commands and "remote-replay" in commands
    api = (site / "docs/reference/api.html").read_text()
    assert 'id="torch_remote.remote.profile"' in api and 'id="torch_remote.RemoteMachine"' in api
    assert (site / "search.html").exists() and (site / "searchindex.js").stat().st_size > 100_000
    pages = {path.relative_to(site) for path in site.rglob("*.html")}
    for page in pages:  # no link of a page leads nowhere
        for target in re.findall(r'href="([^"#:]+\.html)(?:#[^"]*)?"', (site / page).read_text()):
            assert (site / page).parent.joinpath(target).exists(), f"{page}: {target}"
