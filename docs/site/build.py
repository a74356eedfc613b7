"""Builds the documentation as a site, offline, with warnings as errors.

    ./bazelw run //docs:site                  writes HTML to .cache/site
    ./bazelw run //docs:site -- --output DIR  writes it to DIR

The pages are the Markdown files of this repository. The API reference is made of docstrings.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "ir/ops/README.md", "tests/README.md",
         "tests/ops/README.md", "docs")  # fmt: skip
REDIRECT = (
    '<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html"><a href="docs/index.html">docs</a>\n'
)


def stage(source: Path, pages: Path) -> None:
    """Copies what the site is made of."""
    for name in PAGES:
        if (source / name).is_dir():
            ignore = shutil.ignore_patterns("site", "BUILD.bazel")
            shutil.copytree(source / name, pages / name, ignore=ignore)
        else:
            (pages / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, pages / name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    output = parser.parse_args().output
    source = Path(__file__).absolute().parent.parent.parent  # in the runfiles
    output = Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY", ".")) / (output or ".cache/site")
    with tempfile.TemporaryDirectory() as folder:
        pages = Path(folder) / "pages"
        stage(source, pages)
        os.environ["DOCS_PAGES"] = str(pages)
        from sphinx.cmd.build import build_main

        status = build_main(
            ["-q", "-W", "--keep-going", "-b", "html", "-c", str(source / "docs/site"), "-d", f"{folder}/doctrees",
             str(pages), str(output)]
        )  # fmt: skip
    (output / "index.html").write_text(REDIRECT)
    if status == 0:
        print(f"wrote {output}/index.html")
    return status


if __name__ == "__main__":
    sys.exit(main())
