"""The worked examples of docs/tools.md do what the page shows."""

import re
from pathlib import Path

import docs_examples
import pytest

PAGE = Path("docs/tools.md")


def sections():
    """By title: the blocks of the section."""
    text = PAGE.read_text().split("## Worked examples", 1)[1].split("\n## ", 1)[0]
    titles = re.split(r"^### (.*)$", text, flags=re.MULTILINE)[1:]
    return {title: docs_examples.blocks(body) for title, body in zip(titles[::2], titles[1::2], strict=True)}


SECTIONS = sections() if PAGE.exists() else {}


def test_the_page_is_found():
    assert len(SECTIONS) == 4


@pytest.mark.parametrize("title", SECTIONS)
def test_example(title, tmp_path):
    tools = {f"remote-{name}": Path(f"tools/testing/remote-{name}-miscompiling") for name in ("replay", "reduce")}
    docs_examples.check(SECTIONS[title], tmp_path, docs_examples.environment(tmp_path, tools))
