#!/usr/bin/env python3
"""Counts what makes comments and docs hard to read, and compares with the counts that are allowed.

    tools/language.py             fails if a folder has more of something than tools/language_allowed.toml says
    tools/language.py --update    writes the counts there, unless one has grown
    tools/language.py --show PATH...    every finding in these files

The rules: no doc sentence of more than 25 words, no doc paragraph of more than 720 characters, no sentence that begins
with "Of", "That", "Those" or "Likewise", and no word that has a standard term (the list below names it). Code, tables
and headings are left out. The words are also searched for in messages: string literals of three or more words, outside
of tests. In addition, each relative link of a page must lead to a file.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = ROOT / "tools/language_allowed.toml"
MOST_WORDS, MOST_CHARACTERS = 25, 720
RULES = ("long sentences", "long paragraphs", "openings", "words")

WORDS = {
    r"products? of matrices|matrix products?": "matmul, GEMM",
    r"turned": "transposed, strided",
    r"at rest": "in eval mode",
    r"(?:(?<!hand-)written|own) kernels?|kernels? written by hand": "hand-written kernels",
    r"proposals?|favou?rites?": "heuristic results, first choice",
    r"lies? plain": "contiguous",
    r"(?<!standard )deviations?": "standard deviation",
    r"whole numbers?": "integers",
    r"greetings?|verdicts?": "hello, result",
    r"rooms?": "component",
    r"in software": "emulator",
    r"made again": "recomputed",
    r"(?:is|are|was|were|be|been) told|tells?": "reports, raises, prints",
    r"nobody reads": "unused",
    r"beside": "next to; compared with; in addition to",
    r"likewise": "(repeat the noun)",
}
COINED = re.compile(r"\b(?:" + "|".join(f"(?P<w{i}>{word})" for i, word in enumerate(WORDS)) + r")\b", re.IGNORECASE)
OPENING = re.compile(r"^(?:Of|That|Those|Likewise)\b")
# Tests: their literals are inputs, and names of cases.
TEST = re.compile(r"^tests/|/testing/|(?:^|/)(?:test_\w+|conftest)\.py$|_test\.(?:cpp|py)$")
# Comments and character literals are tokens, too, so that their quotation marks begin no string.
CPP_TOKEN = re.compile(
    r'//[^\n]*|R"(?P<d>\w*)\((?P<raw>.*?)\)(?P=d)"|(?P<strings>(?:"(?:[^"\\\n]|\\.)*"\s*)+)|'
    r"'(?:[^'\\\n]|\\.)+'|[^\"'/\nR]+|.|\n",
    re.DOTALL,
)
# A full stop, a question mark or a semicolon is not enough: "e.g. this", "2.13".
SENTENCE = re.compile(r"(?<=[.!?])[)\"]?\s+(?=[A-Z0-9`(\"*\[])")


@dataclass
class Block:
    """Prose without a break: a paragraph, or comments on neighboring lines."""

    line: int
    text: str
    kind: Literal["doc", "comment", "message"]


@dataclass
class Finding:
    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


def paragraphs(text: str) -> Iterator[Block]:
    text = re.sub(r"^```.*?^```", lambda m: "\n" * m[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    lines: list[str] = []
    began = 0
    for number, line in enumerate([*text.split("\n"), ""], 1):
        item = re.match(r"\s*(?:[-*]|\d+\.)\s+", line)
        is_prose = line.strip() and not re.match(r"(?: {4}|\t|\||#|<|\[.*\]:)", line)
        if lines and (not is_prose or item):
            yield Block(began, " ".join(lines), "doc")
            lines = []
        if is_prose:
            if not lines:
                began = number
            lines.append(line[item.end() :] if item else line.strip())


def comments_of_cpp(text: str) -> Iterator[Block]:
    lines: list[str] = []
    began = 0
    for number, line in enumerate([*text.split("\n"), ""], 1):
        found = re.match(r"\s*//\s?(.*)$", line)
        if found is None and lines:
            yield Block(began, " ".join(lines), "comment")
            lines = []
        if found is not None:
            if not lines:
                began = number
            lines.append(found[1])
        elif (behind := re.search(r"[;,{})]\s+//\s(.*)$", line)) is not None:
            yield Block(number, behind[1], "comment")


def messages_of_cpp(text: str) -> Iterator[Block]:
    """String literals. Adjacent ones, which the compiler joins, are one message."""
    line = 1
    for token in CPP_TOKEN.finditer(text):
        if token["strings"]:
            yield Block(line, "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', token["strings"])), "message")
        elif token["raw"]:
            yield Block(line, token["raw"], "message")
        line += token[0].count("\n")


def comments_of_python(text: str, tree: ast.Module) -> Iterator[Block]:
    lines: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        if lines and token.start[0] != last + 1:
            yield Block(last, " ".join(lines), "comment")
            lines = []
        last = token.start[0]
        lines.append(token.string.lstrip("#! "))
    if lines:
        yield Block(last, " ".join(lines), "comment")
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and (doc := ast.get_docstring(node)):
            yield Block(getattr(node, "lineno", 1), re.sub(r"^ {4}.*$", "", doc, flags=re.MULTILINE), "comment")


def messages_of_python(tree: ast.Module) -> Iterator[Block]:
    """String literals except docstrings. An f-string is one message, with `x` for each value."""
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            inside.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            inside |= {id(part) for part in node.values}
            parts = [str(p.value) if isinstance(p, ast.Constant) else "`x`" for p in node.values]
            yield Block(node.lineno, "".join(parts), "message")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield Block(node.lineno, node.value, "message")


def blocks(path: str) -> Iterator[Block]:
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".md"):
        yield from paragraphs(text)
    elif path.endswith((".cpp", ".h", ".cu")):
        yield from comments_of_cpp(text)
        if not TEST.search(path):
            yield from messages_of_cpp(text)
    else:
        tree = ast.parse(text)
        yield from comments_of_python(text, tree)
        if not TEST.search(path):
            yield from messages_of_python(tree)


def coined_words(path: str, line: int, text: str) -> Iterator[Finding]:
    for found in COINED.finditer(text):
        better = list(WORDS.values())[int(str(found.lastgroup)[1:])]
        yield Finding(path, line, "words", f"'{found[0]}': {better}")


def findings(path: str) -> Iterator[Finding]:
    for block in blocks(path):
        if block.kind == "message":
            if block.text.count(" ") >= 2:
                yield from coined_words(path, block.line, block.text)
            continue
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", block.text)
        text = re.sub(r"`[^`]*`", "`x`", text)
        if block.kind == "doc" and len(text) > MOST_CHARACTERS:
            yield Finding(path, block.line, "long paragraphs", f"{len(text)} characters")
        for sentence in SENTENCE.split(text):
            words = re.findall(r"[\w`][\w'`.,/-]*", sentence)
            if block.kind == "doc" and len(words) > MOST_WORDS:
                yield Finding(path, block.line, "long sentences", f"{len(words)} words: {sentence[:100]}")
            if OPENING.match(sentence):
                yield Finding(path, block.line, "openings", sentence[:100])
            yield from coined_words(path, block.line, sentence)


def tracked() -> list[str]:
    patterns = ["*.md", "*.cpp", "*.h", "*.cu", "*.py"]
    listing = subprocess.run(["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    # The rules name the words, and the op reference is generated.
    left_out = {"tools/language.py", "docs/operators.md"}
    return [path for path in listing.stdout.split() if path not in left_out and (ROOT / path).exists()]


def broken_links() -> Iterator[str]:
    """Relative links of pages to files that are not there. Links to headings: tests/e2e/test_docs_pages.py."""
    listing = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    for page in listing.stdout.split():
        if not (ROOT / page).exists():
            continue
        text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\((?!https?:|mailto:)([^)#\s]+)(?:#[^)]*)?\)", text):
            if not ((ROOT / page).parent / target).exists():
                yield f"{page}: there is no {target}"


def folder_of(path: str) -> str:
    return path if path.endswith(".md") else str(Path(path).parent)


def write(counts: dict[str, Counter[str]]) -> None:
    lines = ["# How often a folder, or a page, breaks a rule of tools/language.py: " + ", ".join(RULES) + ".", ""]
    for folder in sorted(counts):
        lines.append(f'"{folder}" = [{", ".join(str(counts[folder][rule]) for rule in RULES)}]')
    ALLOWED.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--show", nargs="+", metavar="PATH", default=[])
    options = parser.parse_args()
    if options.show:
        for path in options.show:
            for finding in findings(str(Path(path).resolve().relative_to(ROOT))):
                print(finding)
        return 0
    if broken := list(broken_links()):
        print("\n".join(broken))
        return 1
    counts: dict[str, Counter[str]] = {}
    found: dict[tuple[str, str], list[Finding]] = {}
    for path in tracked():
        for finding in findings(path):
            folder = folder_of(path)
            counts.setdefault(folder, Counter())[finding.rule] += 1
            found.setdefault((folder, finding.rule), []).append(finding)
    allowed = tomllib.loads(ALLOWED.read_text(encoding="utf-8")) if ALLOWED.exists() else None
    grown = shrunk = 0
    for folder in sorted(counts.keys() | (allowed or {}).keys()) if allowed is not None else ():
        for rule, may in zip(RULES, allowed.get(folder, [0] * len(RULES)), strict=True):
            have = counts.get(folder, Counter())[rule]
            shrunk += have < may
            if have <= may:
                continue
            grown += 1
            print(f"{folder}: {have} {rule}, allowed are {may}:")
            for finding in found[folder, rule][-10:]:
                print(f"  {finding}")
    if grown:
        print("tools/language.py --show FILE prints every finding of a file", file=sys.stderr)
        return 1
    if options.update or allowed is None:
        write(counts)
    elif shrunk:
        print(f"{shrunk} counts have fallen: run tools/language.py --update", file=sys.stderr)
        return 1
    total = sum(counts.values(), Counter())
    print("language: " + ", ".join(f"{total[rule]:,} {rule}" for rule in RULES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
