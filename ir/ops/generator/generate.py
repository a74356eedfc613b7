"""Builds the op table, and the lists that accompany it, from ir/ops/*.toml: checks every entry against torch's schemas
and writes the requested outputs.

    generate.py --table_header ir/ops/op_table.h --conventions ir/ops/conventions.toml \
        [--torch_version V] [--header OUT] [--source OUT] [--json OUT] [--docs OUT] [--composed OUT]
        [--call_checks OUT] [--kernel_dtypes OUT] [--expansions OUT] [--relations OUT] [--cuda_plans OUT]
        [--aten_kernels OUT] [--hazards OUT] [--casts OUT] [--data_errors OUT] \
        [--matrix tests/ops/matrix.json] ir/ops/pointwise.toml ...
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from pathlib import Path

import op_dtypes
import op_emit
import op_kernels
import op_lists
import op_relations
from op_entries import TableError, load_table, read_vocabulary
from op_schemas import load_overloads, torch_version


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--table_header", required=True, help="ir/ops/op_table.h, for the names of families and shape rules"
    )
    parser.add_argument("--conventions", required=True)
    parser.add_argument("--torch_version", help="fail if another torch is installed")
    for output in (
        "header",
        "source",
        "json",
        "docs",
        "composed",
        "call_checks",
        "kernel_dtypes",
        "expansions",
        "relations",
        "cuda_plans",
        "aten_kernels",
        "hazards",
        "casts",
        "data_errors",
    ):
        parser.add_argument(f"--{output}")
    parser.add_argument("--matrix", help="tests/ops/matrix.json, for the docs: which op equals CPU in which dtype")
    parser.add_argument("tables", nargs="+", help="the *.toml files")
    options = parser.parse_args()
    if options.torch_version and options.torch_version.partition("+")[0] != torch_version():
        print(
            f"the build is for torch {options.torch_version}, installed is {torch_version()}: run ./bazelw",
            file=sys.stderr,
        )
        return 1
    try:
        vocabulary = read_vocabulary(options.table_header, options.conventions)
        folder = Path(options.conventions).parent
        overloads = load_overloads(folder / "older_schemas.toml")
        ops = load_table(options.tables, overloads, vocabulary)
        conventions = tomllib.loads(Path(options.conventions).read_text(encoding="utf-8"))
        functions = {name: value["doc"] for name, value in conventions["functions"].items()}
        outputs = {
            "header": lambda: op_emit.header(ops),
            "source": lambda: op_emit.source(ops),
            "json": lambda: op_emit.json_list(ops),
            "composed": lambda: op_lists.composed(folder / "composed.toml", options.table_header, ops, overloads),
            "call_checks": lambda: op_lists.call_checks(folder / "call_checks.toml", overloads),
            "kernel_dtypes": lambda: op_lists.kernel_dtypes(folder / "kernel_dtypes.toml", overloads),
            "expansions": lambda: op_lists.expansions(folder / "fusion.toml", options.table_header, ops),
            "relations": lambda: op_relations.relations(folder / "relations.toml", ops, overloads),
            "cuda_plans": lambda: op_kernels.cuda_plans(folder / "composed.toml", ops),
            "aten_kernels": lambda: op_kernels.aten_kernels(folder / "composed.toml", ops),
            "hazards": lambda: op_kernels.hazards(ops),
            "casts": lambda: op_kernels.casts(ops),
            "data_errors": lambda: op_kernels.data_errors(folder / "composed.toml", ops),
            "docs": lambda: (
                op_emit.docs(ops, vocabulary, functions)
                + op_dtypes.docs(ops, json.loads(Path(options.matrix).read_text(encoding="utf-8")))
            ),
        }
        for output, make in outputs.items():
            if path := getattr(options, output):
                Path(path).write_text(make(), encoding="utf-8")
    except TableError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
