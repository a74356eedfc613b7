"""Access to the op table for tests."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import torch


@functools.cache
def ops() -> dict[str, dict]:
    """Rows by schema name, as in ir/ops/op_list.json."""
    return {op["name"]: op for op in json.loads(Path("ir/ops/op_list.json").read_text(encoding="utf-8"))}


def overload(name: str) -> torch._ops.OpOverload:
    packet, _, suffix = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), suffix or "default")


def schema_name(function: torch._ops.OpOverload) -> str:
    return function.name().removesuffix(".default")


def functional_rows() -> list[dict]:
    return [op for op in ops().values() if op["functional"] == op["name"] and not {"InPlace", "Out"} & set(op["flags"])]
