"""The examples of the user documentation do what the pages show."""

import re
from pathlib import Path

import docs_examples
import pytest

PAGES = {"install": 2, "workers": 17, "limits": 4, "machines": 9, "python-api": 8}


@pytest.mark.parametrize("page", PAGES)
def test_examples(page, tmp_path):
    blocks = docs_examples.blocks(Path(f"docs/{page}.md").read_text())
    assert len(blocks) == PAGES[page]
    docs_examples.check(blocks, tmp_path, docs_examples.environment(tmp_path, {}))


def test_relative_links_lead_somewhere():
    top = [Path(f"{page}.md") for page in ("README", "CONTRIBUTING", "SECURITY", "CHANGELOG")]
    for page in [*top, *sorted(Path("docs").rglob("*.md"))]:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page.read_text()):
            file = page.parent / target if target else page
            if file.suffix not in (".md", ".png", ".svg"):  # tools/language.py looks at links to sources
                continue
            assert file.exists(), f"{page}: {target}"
            if anchor:
                titles = re.findall(r"^#+ (.*)$", file.read_text(), flags=re.MULTILINE)
                anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
                assert anchor in anchors, f"{page}: {target}#{anchor}"
