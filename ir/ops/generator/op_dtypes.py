"""Writes the part of docs/operators.md on the dtypes in which ops equal CPU, from the results of //tests/ops:matrix."""

from __future__ import annotations

from collections import Counter
from typing import Any

from op_entries import Op

SHORT = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int64": "i64", "int32": "i32",
    "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "bool", "complex64": "c64", "complex128": "c128",
}  # fmt: skip
NONE = "."
RANKS = ".*=frd"  # from best to worst; an entry gets the worst mark of its overloads
SHOWN = {"=": "=", "*": "*", "f": "f", "r": "**r**", "d": "**d**", NONE: ""}


def worst(rows: list[str]) -> str:
    return "".join(max(marks, key=RANKS.index) for marks in zip(*rows, strict=True))


def table(title: str, rows: dict[str, str], dtypes: list[str]) -> list[str]:
    lines = ["", f"| {title} | " + " | ".join(SHORT[d] for d in dtypes) + " |", "|---|" + ":-:|" * len(dtypes)]
    return lines + [f"| `{name}` | " + " | ".join(SHOWN[m] for m in marks) + " |" for name, marks in rows.items()]


def counted(rows: dict[str, str]) -> str:
    counts = Counter("".join(rows.values()))
    runs = sum(counts.values()) - counts[NONE]
    equal = counts["="] + counts["*"]
    part = 100 * equal / max(runs, 1)
    text = f"{equal:,} of {runs:,} are equal ({part:.2f} %; {counts['*']:,} of these are marked `*`)"
    return f"{text}, {counts['r']:,} refused, {counts['d']:,} different, {counts['f']:,} computed by the client"


def docs(ops: list[Op], matrix: dict[str, Any]) -> str:
    dtypes = matrix["dtypes"]
    entry_of = {op.name: op.entry for op in ops}
    by_entry: dict[str, list[str]] = {}
    opaque: dict[str, str] = {}
    for name, marks in matrix["overloads"].items():
        if name in entry_of:
            by_entry.setdefault(entry_of[name], []).append(marks)
        else:
            opaque[name.removeprefix("aten::")] = marks
    entries = {name: worst(rows) for name, rows in sorted(by_entry.items())}
    lines = [
        "",
        "## Dtypes",
        "",
        "Each op was compared with CPU by `./bazelw run //tests/ops:matrix` (some 20 minutes on two cores). This writes"
        " tests/ops/matrix.json, from",
        "which `./bazelw run //ir/ops:update_docs` writes this page. Samples are those of torch's own op tests and"
        " ours. *Equal* means: for each call",
        "that CPU accepts, the results, and the operands afterwards, have the same bits, sizes, strides and dtypes as"
        " on CPU, and share memory in",
        "the same way. A call counts for the dtype of its first tensor.",
        "",
        "`=` equal · `*` equal, but values were not compared: they depend on the seed, or are what was in memory ·"
        " **r** refused · **d** different ·",
        "empty: CPU accepts no sample. Reasons are below the tables.",
        "",
        f"- pairs of an overload and a dtype: {counted(matrix['overloads'])}.",
        "- pairs of an op of torch's tests (with its in-place form, `out=` and gradients) and a dtype:"
        f" {counted(matrix['ops'])}.",
        "",
        "### Ops of the table",
        *table("op", entries, dtypes),
        "",
        "No sample reaches " + ", ".join(f"`{name}`" for name in sorted(set(entry_of.values()) - set(entries))) + ".",
        "",
        "### Other overloads of ATen",
        *table("overload", opaque, dtypes),
        "",
        "### Ops of torch's tests that are not equal everywhere",
    ]
    uneven = {name: marks for name, marks in matrix["ops"].items() if set(marks) - set("=*.")}
    lines += table("op", uneven, dtypes) if uneven else ["", "None."]
    lines += ["", "### Reasons", ""]
    reasons: dict[str, list[str]] = {}
    for part in ("overloads", "ops"):
        for key, reason in matrix["reasons"][part].items():
            name, dtype = key.split()
            reasons.setdefault(f"`{name.removeprefix('aten::')}`: {reason}", []).append(SHORT[dtype])
    lines += [f"- {text} ({', '.join(where)})" for text, where in reasons.items()] or ["None."]
    return "\n".join(lines) + "\n"
