"""The op table's shape rules for elementwise ops give the sizes, strides and dtype of torch's kernels."""

import itertools

import op_table
import pytest
import torch
from torch._prims_common import compute_elementwise_output_strides

# These need more specific arguments than the calls below make.
LEFT_OUT = [
    "embedding_renorm_",
    "fill_",
    "index_fill",
    "index_put",
    "_index_put_impl",
    "_unsafe_index_put",
    "put",
    "random_",
]
ROWS = [
    op
    for op in op_table.functional_rows()
    if op["shape_rule"] in ("pointwise", "comparison", "like")
    and op["entry"] not in LEFT_OUT
    and not op["name"].startswith("remote::")  # torch does not know these
]
LAYOUTS = {
    "contiguous": lambda: torch.rand(2, 3, 4, 5),
    "channels_last": lambda: torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "permuted": lambda: torch.rand(5, 2, 4, 3).permute(1, 3, 2, 0),
    "with gaps": lambda: torch.rand(2, 3, 8, 5)[:, :, ::2],
    "broadcast": lambda: torch.rand(3, 1, 5),
    "expanded": lambda: torch.rand(2, 1, 1, 5).expand(2, 3, 4, 5),
}
TENSORS = ("Tensor", "OptionalTensor")
NUMBERS = {
    "Scalar": 1,
    "Float": 0.5,
    "Int": 1,
    "IntList": [0],
    "Bool": False,
    "String": "none",
    "OptionalString": "floor",
}


def call(op: dict, tensors: list[torch.Tensor]):
    """Runs the op; None if it does not support such tensors."""
    tensors = list(tensors)
    positional, keywords = [], {}
    for arg in op["args"]:
        if arg["kind"] in TENSORS:
            value = tensors.pop(0)
        elif arg["name"] in ("min", "max"):
            value = 0
        elif arg["kind"] in NUMBERS:
            value = NUMBERS[arg["kind"]]
        else:
            continue
        if arg["keyword_only"]:
            keywords[arg["name"]] = value
        else:
            positional.append(value)
    try:
        return op_table.overload(op["name"])(*positional, **keywords)
    except (RuntimeError, IndexError):
        return None


def make_operands(op: dict, layouts: tuple[str, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    names = [arg["name"] for arg in op["args"] if arg["kind"] in TENSORS]
    tensors = [LAYOUTS[layout]().to(dtype) for layout in layouts]
    return [
        torch.empty_strided(t.shape, t.stride(), dtype=torch.bool).fill_(True) if n in ("mask", "condition") else t
        for n, t in zip(names, tensors, strict=True)
    ]


@pytest.mark.parametrize("op", ROWS, ids=lambda op: op["name"].removeprefix("aten::"))
def test_elementwise_rule(op):
    ran = 0
    count = sum(arg["kind"] in TENSORS for arg in op["args"])
    for layouts in itertools.product(LAYOUTS, repeat=count):
        for dtype in (torch.float32, torch.int64):
            tensors = make_operands(op, layouts, dtype)
            strides = [t.stride() for t in tensors]
            result = call(op, tensors)
            if result is None:
                continue
            if op["shape_rule"] == "like":
                expected = torch.empty_like(tensors[0])
                assert (result.shape, result.stride(), result.dtype) == (
                    expected.shape,
                    expected.stride(),
                    expected.dtype,
                ), layouts
            else:
                assert result.shape == torch.broadcast_shapes(*(t.shape for t in tensors)), layouts
                operands = [t.expand(result.shape) for t in tensors]
                assert result.stride() == compute_elementwise_output_strides(*operands), (layouts, strides)
                if op["shape_rule"] == "comparison":
                    assert result.dtype == torch.bool
            ran += 1
            break
    assert ran > 0, "no layout worked"
