"""torch's own samples of its ops, on a worker that has kernels and libraries but no ATen. The ops that it executes
equal CPU, including gradients; it refuses the others by name. gpu_ops.json lists both.

bazel run //tests/gpu/emulated:gpu_ops                    measures all ops, and writes gpu_ops.json
bazel run //tests/gpu/emulated:gpu_ops -- --only X        measures the ops whose names contain X, and prints them
bazel run //tests/gpu/emulated:gpu_ops -- --samples 1000  checks all samples of each op, and prints the errors
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from gpu_programs import REFUSED
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_flatten, tree_map

# A row has a mark for each dtype, then one for each dtype with gradients. Spaces separate the groups.
GROUPS = (
    (torch.float64, torch.float32, torch.float16, torch.bfloat16),
    (torch.complex128, torch.complex64),
    (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
WITH_GRADIENTS = GROUPS[:2]
SAMPLES = 2
# Marks of an op in a dtype. EQUAL: all samples equal CPU. SOME: some do, and others are refused. REFUSES: all are
# refused. UNSUPPORTED_BY_CUDA: all are refused, and torch for CUDA does not list the dtype either. NONE: there is no
# sample, or nothing to compare.
EQUAL, SOME, REFUSES, UNSUPPORTED_BY_CUDA, NONE = "=", "s", "r", "c", "."
MARKS = (EQUAL, SOME, REFUSES, UNSUPPORTED_BY_CUDA, NONE)
TOLERANCE = {torch.float32: (2e-4, 2e-5), torch.float64: (1e-6, 1e-7), torch.bfloat16: (0.05, 0.05),
             torch.float16: (0.01, 0.01), torch.complex64: (2e-4, 2e-5), torch.complex128: (1e-6, 1e-7)}  # fmt: skip
HALVES = (torch.float16, torch.bfloat16)
# CPU rounds intermediate values, so the reference is computed in a wider dtype
ROUNDED = (*HALVES, torch.float32, torch.complex64)
# The wider dtypes, also for dtypes that CPU does not support.
WIDER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
    torch.bool: torch.uint8,
    **dict.fromkeys((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64), torch.float64),
}
# Depends on the seed, on uninitialized memory, or on a CPU tensor, or several answers are right.
NOT_COMPARED = (
    "empty", "new_empty", "rand", "normal", "bernoulli", "multinomial", "dropout", "rrelu", "uniform", "cauchy",
    "exponential", "geometric", "log_normal", "svd", "eig", "pca_lowrank", "gumbel", "fractional", "scaled_dot",
    "resize", "argsort", "set_", "_efficientzerotensor", "to_sparse", "sparse", "jiterator", "_flash_attention",
    "_efficient_attention", "multi_head_attention_forward", "tensor_split",
)  # fmt: skip
FIRST_OF_EQUALS = ("mode", "median", "nanmedian", "kthvalue", "topk", "sort", "msort")


def name_of(op: OpInfo) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


@cache
def ops() -> dict[str, OpInfo]:
    return {name_of(op): op for op in op_db if not any(part in op.name for part in NOT_COMPARED)}


def copied(tree: Any, device: str, dtypes: dict[torch.dtype, torch.dtype] | None = None) -> Any:
    """The arguments on `device`, with dtypes replaced according to `dtypes`."""

    def leaf(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            if x.device.type != "cpu":
                return x
            grad = x.requires_grad
            x = x.detach().resolve_conj().resolve_neg()
            flat = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
            flat = (flat.clone() if device == "cpu" else flat.to(device)).as_strided(
                x.shape, x.stride(), x.storage_offset()
            )
            return flat.to((dtypes or {}).get(x.dtype, x.dtype)).detach().requires_grad_(grad)
        if isinstance(x, torch.dtype):
            return (dtypes or {}).get(x, x)
        if isinstance(x, torch.device) and x.type == "cpu":
            return torch.device(device)
        return device if isinstance(x, str) and x == "cpu" else x

    return tree_map(leaf, tree)


def some_gradient(tensor: torch.Tensor) -> torch.Tensor:
    """A different value for each element."""
    values = torch.linspace(0.5, 1.5, tensor.numel(), dtype=torch.float64).reshape(tensor.shape)
    if tensor.is_complex():
        values = torch.complex(values, 1.75 - values)
    return values.to(tensor.dtype).to(tensor.device)


def called(op: OpInfo, arguments: Any, gradients: bool, gradient: Callable = some_gradient) -> Any:
    """The op's results, and the gradients of all arguments that require one. `gradient` makes the upstream gradient of
    a result."""
    args, kwargs = arguments
    result = op.op(*args, **kwargs)
    if not gradients:
        return result
    inputs = [x for x in tree_flatten(arguments)[0] if isinstance(x, torch.Tensor) and x.requires_grad]
    outputs = [x for x in tree_flatten(result)[0] if isinstance(x, torch.Tensor) and x.requires_grad]
    if not inputs or not outputs:
        return None
    return result, torch.autograd.grad(outputs, inputs, [gradient(x) for x in outputs], allow_unused=True)


def difference(got: Any, expected: Any, dtype: torch.dtype, values: bool, narrowed: bool = False) -> str | None:
    """Describes the difference. Without `values`, integers (indices) count only in the first result. `narrowed`: the
    expected values were computed in a wider dtype."""
    mine, its = (
        [x for x in tree_flatten(t)[0] if isinstance(x, (torch.Tensor, int, float, complex))] for t in (got, expected)
    )
    if len(mine) != len(its):
        return f"{len(mine)} results, {len(its)} on CPU"
    for i, (a, b) in enumerate(zip(mine, its, strict=True)):
        a, b = (x.detach().cpu() if isinstance(x, torch.Tensor) else torch.tensor(x) for x in (a, b))
        b = b.to(a.dtype) if narrowed else b
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"result {i}: {a.dtype} {list(a.shape)}, on CPU {b.dtype} {list(b.shape)}"
        if b.layout != torch.strided or not (values or i == 0 or b.is_floating_point() or b.is_complex()):
            continue
        rtol, atol = TOLERANCE.get(b.dtype, (0, 0))
        if dtype in HALVES:
            rtol, atol = TOLERANCE[dtype] if b.dtype.is_floating_point else (0, 0)
        try:
            torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as error:
            return f"result {i}: {' '.join(str(error).split())[:200]}"
    return None


def check_sample(
    op: OpInfo, sample: Any, dtype: torch.dtype, gradients: bool, device: str, gradient: Callable = some_gradient
) -> str | None:
    """Describes the error; raises the device's exceptions. LookupError: there is no reference."""
    arguments = ((sample.input, *sample.args), sample.kwargs)
    values = op.name not in FIRST_OF_EQUALS
    there = copied(arguments, device)
    expected, known = None, dtype in (op.supported_backward_dtypes("cpu") if gradients else op.dtypes)
    if known:
        try:
            expected = called(op, copied(arguments, "cpu"), gradients, gradient)
        except Exception as error:
            raise LookupError from error
        if gradients and expected is None:
            raise LookupError
    got = called(op, there, gradients, gradient)
    found = difference(got, expected, dtype, values) if known else None
    if known and (found is None or dtype not in ROUNDED):
        return found
    try:
        wide = called(op, copied(arguments, "cpu", {dtype: WIDER[dtype]}), gradients, gradient)
    except Exception as error:
        if found is not None:
            return found
        raise LookupError from error
    if wide is None:
        raise LookupError
    text = difference(got, wide, dtype, values, narrowed=True)
    if text is None or (known and is_nearer(got, expected, wide)):
        return None
    return found or text


def is_nearer(got: Any, expected: Any, wide: Any) -> bool:
    """Whether all numbers are as close as CPU's to the values in a wider dtype."""
    mine, its, right = ([x for x in tree_flatten(t)[0] if isinstance(x, torch.Tensor)] for t in (got, expected, wide))
    for a, b, c in zip(mine, its, right, strict=True):
        a, b, c = (x.detach().cpu() for x in (a, b, c))
        if not (c.is_floating_point() or c.is_complex()):
            if not torch.equal(a, b):
                return False
        elif c.numel() != 0 and not (a.to(c.dtype) - c).abs().max() <= (b.to(c.dtype) - c).abs().max():
            return False
    return True


def check(
    op: OpInfo, dtype: torch.dtype, gradients: bool, device: str, refused: dict[str, str], samples: int = SAMPLES
) -> tuple[str, list[str]]:
    """The op's mark, and the errors. `refused` collects an example for each op of the table."""
    done = refusals = 0
    wrong: list[str] = []
    cuda, cpu = set(op.dtypesIfCUDA), set(op.dtypes)
    if gradients:
        cuda, cpu = (set(op.supported_backward_dtypes(name)) for name in ("cuda", "cpu"))
    if dtype not in cuda | cpu or (gradients and not op.supports_autograd):
        return NONE, wrong
    torch.manual_seed(0)
    for number, sample in enumerate(islice(op.sample_inputs("cpu", dtype, requires_grad=gradients), samples)):
        leaves = [x for x in tree_flatten((sample.input, sample.args, sample.kwargs))[0] if isinstance(x, torch.Tensor)]
        if any(t.layout != torch.strided or t.is_nested or t.is_quantized for t in leaves):
            continue
        what = f"sample {number}{' gradient' if gradients else ''}"
        try:
            found = check_sample(op, sample, dtype, gradients, device)
        except LookupError:
            continue
        except Exception as error:  # any exception of the device counts as an error
            text = str(error)
            known = REFUSED.search(text)
            if known is None:
                wrong.append(f"{what}: {type(error).__name__}: {text[:300]}")
                continue
            refusals += 1
            refused.setdefault(known[1], f"{name_of(op)} {dtype}: {text.splitlines()[0][:200]}")
            continue
        done += 1
        if found is not None:
            wrong.append(f"{what}: {found}")
    try:
        torch.remote.synchronize()
    except Exception as error:
        if REFUSED.search(str(error)) is None:
            wrong.append(f"later: {str(error)[:300]}")
    if done:
        return SOME if refusals else EQUAL, wrong
    return (REFUSES if dtype in cuda else UNSUPPORTED_BY_CUDA) if refusals else NONE, wrong


def check_all(
    name: str, device: str, refused: dict[str, str], samples: int = SAMPLES, dtypes: str = ""
) -> tuple[str, list[str]]:
    """An op's row of marks. `dtypes`: names of the dtypes to check; none means all."""
    row, all_wrong = [], []
    for groups, gradients in ((GROUPS, False), (WITH_GRADIENTS, True)):
        for group in groups:
            marks = ""
            for dtype in group:
                if dtypes and str(dtype).removeprefix("torch.") not in dtypes.split(","):
                    marks += NONE
                    continue
                mark, wrong = check(ops()[name], dtype, gradients, device, refused, samples)
                marks += mark
                all_wrong += [f"{name} {dtype} {what}" for what in wrong]
            row.append(marks)
    return " ".join(row), all_wrong


def load() -> dict[str, str]:
    return json.loads((Path(__file__).parent / "gpu_ops.json").read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="of each op in each dtype")
    parser.add_argument("--dtypes", default="", help="float32,int64: these alone")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    import torch_remote  # noqa: F401

    begin, marks, refused, failed = time.perf_counter(), {}, {}, 0
    for name in sorted(ops()):
        if args.only not in name:
            continue
        row, wrong = check_all(name, "remote", refused, args.samples, args.dtypes)
        failed += len(wrong)
        for what in wrong:
            print(f"WRONG {what}", flush=True)
        print(name, row, flush=True)
        marks[name] = row
    for op_name, example in sorted(refused.items()):
        print(f"refused {op_name}   e.g. {example}")
    for what, groups in (("results", slice(0, 3)), ("gradients", slice(3, 5))):
        text = "".join("".join(row.split()[groups]) for row in marks.values())
        print(f"{what}: { ({mark: text.count(mark) for mark in MARKS}) }")
    print(f"{len(marks)} ops, {failed} wrong, {time.perf_counter() - begin:.0f} s")
    if not args.only and not args.dtypes and args.samples == SAMPLES:
        text = ",\n".join(f'  {json.dumps(name)}: "{row}"' for name, row in sorted(marks.items()))
        folder = Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY", "."))
        (folder / "tests/gpu/emulated/gpu_ops.json").write_text("{\n" + text + "\n}\n")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
