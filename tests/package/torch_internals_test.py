"""docs/torch-internals.md lists the private parts of torch that the package uses, and this torch has them."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import torch_remote

PACKAGE = Path(torch_remote.__file__).parent
PAGE = Path("docs/torch-internals.md").read_text()


def is_private(part: str) -> bool:
    """Whether a name is private, by its form or because torch does not document it."""
    return (part.startswith("_") and not part.startswith("__")) or part == "py_kernels"


def of_torch(name: str | None) -> bool:
    return name is not None and name.split(".")[0] in ("torch", "functorch") and any(map(is_private, name.split(".")))


def defined(trees: list[ast.Module]) -> set[str]:
    """Private names that the package itself defines."""
    found = set()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch_remote"):
                found.update(alias.asname or alias.name for alias in node.names)
            elif (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and ast.unparse(node.value) == "self"
            ):
                found.add(node.attr)
    return found | {"_replace"}  # a method of named tuples


def uses(tree: ast.Module, own: set[str]) -> Iterator[str]:
    """Dotted torch names with a private part, up to that part. For other objects, `._name` if the package does not
    define the attribute."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def dotted(node: ast.expr) -> str | None:
        if isinstance(node, ast.Name):
            return names.get(node.id)
        if isinstance(node, ast.Attribute) and (base := dotted(node.value)):
            return f"{base}.{node.attr}"
        return None

    for node in ast.walk(tree):  # such as aten = torch.ops.aten
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and (name := dotted(node.value)):
            names[node.targets[0].id] = name
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            for name in names.values():
                if of_torch(name):
                    yield name
        elif isinstance(node, ast.Attribute):
            name = dotted(node)
            if name is None:
                if is_private(node.attr) and node.attr not in own:
                    yield f".{node.attr}"
            elif name.startswith("torch.ops."):  # torch.ops.LIBRARY.OP.OVERLOAD
                yield from (f".{part}" for part in name.split(".")[5:] if is_private(part))
            elif id(node) not in inner and of_torch(name):
                yield name


def used() -> set[str]:
    # those have docs/integrations.md
    files = [f for f in sorted(PACKAGE.rglob("*.py")) if "integrations" not in f.parts]
    trees = [ast.parse(file.read_text()) for file in files]
    own = defined(trees)
    return {name for tree in trees for name in uses(tree, own)}


LISTED = re.findall(r"^\| `([\w.]+)` \|", PAGE, re.MULTILINE)


def covered(name: str) -> bool:
    return any(name == listed or name.startswith(f"{listed}.") for listed in LISTED)


def test_all_that_is_used_is_listed_with_its_reason():
    assert sorted(name for name in used() if not covered(name)) == []
    assert all(reason.strip() for reason in re.findall(r"^\| `[\w.]+` \|[^|]*\|([^|]*)\|$", PAGE, re.MULTILINE))


def test_all_that_is_listed_is_used():
    found = used()
    assert [listed for listed in LISTED if not any(n == listed or n.startswith(f"{listed}.") for n in found)] == []


@pytest.mark.parametrize("name", [listed for listed in LISTED if not listed.startswith(".")])
def test_this_torch_has_it(name):
    value, parts = torch, name.split(".")
    for i in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:i]))
        except ModuleNotFoundError:
            continue
        break
    for part in parts[i:]:
        value = getattr(value, part)


def test_the_page_names_the_torch_that_it_is_about():
    assert f"torch {'.'.join(torch.__version__.split('.')[:2])}" in PAGE


def test_tracing_leaves_torchs_operators_as_they_were(remote):
    """Operators that tracing replaces are restored afterwards, also after an error."""
    from torch_remote.compile.undecomposed_ops import undecomposed_ops

    ops = [torch.ops.aten.upsample_nearest2d.vec, torch.ops.aten.scaled_dot_product_attention.default]
    before = {op: dict(op.py_kernels) for op in ops}
    with pytest.raises(ZeroDivisionError), undecomposed_ops():
        assert any(dict(op.py_kernels) != kernels for op, kernels in before.items())
        1 / 0  # noqa: B018
    assert {op: dict(op.py_kernels) for op in before} == before
