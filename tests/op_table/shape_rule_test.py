"""The shape rules that the op table gives to elementwise ops are what torch's kernels do: sizes, strides and dtype."""

import itertools

import op_table
import pytest
import torch
from torch._prims_common import compute_elementwise_output_strides

ROWS = [op for op in op_table.functional_rows() if op["shape"] in ("pointwise", "comparison", "like")]
LAYOUTS = {
    "contiguous": lambda: torch.rand(2, 3, 4, 5),
    "channels_last": lambda: torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "permuted": lambda: torch.rand(5, 2, 4, 3).permute(1, 3, 2, 0),
    "with gaps": lambda: torch.rand(2, 3, 8, 5)[:, :, ::2],
    "broadcast": lambda: torch.rand(3, 1, 5),
    "expanded": lambda: torch.rand(2, 1, 1, 5).expand(2, 3, 4, 5),
}
NUMBERS = {"Scalar": 1, "Float": 0.5, "Int": 1, "IntList": [0], "Bool": False, "String": "none"}


def call(op: dict, tensors: list[torch.Tensor]):
    """Runs the op; None for one that does not take such tensors."""
    tensors = list(tensors)
    positional, keywords = [], {}
    for arg in op["args"]:
        if arg["kind"] == "Tensor":
            value = tensors.pop(0)
            if arg["name"] in ("mask", "condition"):
                value = value.bool()
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


def operand_count(op: dict) -> int:
    return sum(arg["kind"] == "Tensor" for arg in op["args"])


@pytest.mark.parametrize("op", ROWS, ids=lambda op: op["name"].removeprefix("aten::"))
def test_elementwise_rule(op):
    if any(arg["kind"] in ("OptionalTensorList", "TensorList") for arg in op["args"]):
        pytest.skip("takes lists of tensors")
    ran = 0
    for layouts in itertools.product(LAYOUTS, repeat=operand_count(op)):
        for dtype in (torch.float32, torch.int64):
            tensors = [LAYOUTS[layout]().to(dtype) for layout in layouts]
            strides = [t.stride() for t in tensors]
            result = call(op, tensors)
            if result is None:
                continue
            if op["shape"] == "like":
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
                if op["shape"] == "comparison":
                    assert result.dtype == torch.bool
            ran += 1
            break
    assert ran > 0, "no layout worked"
