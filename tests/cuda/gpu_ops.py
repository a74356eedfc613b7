"""torch's own samples of its ops, on a worker that has kernels and libraries but no ATen: what it does equals CPU, the
rest it refuses by name. gpu_ops.json says which is which.

bazel run //tests/cuda:gpu_ops                measures all, and writes gpu_ops.json
bazel run //tests/cuda:gpu_ops -- --only X    measures the ops whose names contain X, and prints them
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from gpu_programs import REFUSED
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_flatten, tree_map

DTYPES = ("float32", "bfloat16", "int64", "complex64")
SAMPLES = 2
# Marks of an op in a dtype: all samples equal CPU, some do and others are refused, all are refused; no sample, or
# nothing to compare.
EQUAL, SOME, REFUSES, NONE = "=", "s", "r", "."
TOLERANCE = {torch.float32: (2e-4, 2e-5), torch.float64: (1e-6, 1e-7), torch.bfloat16: (0.05, 0.05),
             torch.float16: (0.01, 0.01), torch.complex64: (2e-4, 2e-5), torch.complex128: (1e-6, 1e-7)}  # fmt: skip
# Depend on the seed, on memory that nobody wrote, on what more than one answer is right for, or on a tensor of the CPU.
NOT_COMPARED = (
    "empty", "new_empty", "rand", "normal", "bernoulli", "multinomial", "dropout", "rrelu", "uniform", "cauchy",
    "exponential", "geometric", "log_normal", "svd", "eig", "pca_lowrank", "gumbel", "fractional", "scaled_dot",
    "resize", "argsort", "set_", "_efficientzerotensor", "to_sparse", "sparse", "jiterator", "_flash_attention",
    "_efficient_attention", "multi_head_attention_forward", "tensor_split",
)  # fmt: skip
# CPU computes places in bfloat16: its f32 tells what is right.
ROUNDED_ON_CPU = ("grid_sampler_2d", "grid_sampler_3d", "nn.functional.grid_sample")
FIRST_OF_EQUALS = ("mode", "median", "nanmedian", "kthvalue", "topk", "sort", "msort")


def name_of(op: OpInfo) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


@cache
def ops() -> dict[str, OpInfo]:
    return {name_of(op): op for op in op_db if not any(part in op.name for part in NOT_COMPARED)}


def there(tree: Any, device: str) -> Any:
    def leaf(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            if x.device.type != "cpu":
                return x
            x = x.detach().resolve_conj().resolve_neg()
            flat = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
            return flat.to(device).as_strided(x.shape, x.stride(), x.storage_offset())
        if isinstance(x, torch.device) and x.type == "cpu":
            return torch.device(device)
        return device if isinstance(x, str) and x == "cpu" else x

    return tree_map(leaf, tree)


def difference(got: Any, expected: Any, dtype: torch.dtype, values: bool) -> str | None:
    mine, its = (
        [x for x in tree_flatten(t)[0] if isinstance(x, (torch.Tensor, int, float, complex))] for t in (got, expected)
    )
    if len(mine) != len(its):
        return f"{len(mine)} results, {len(its)} on CPU"
    for i, (a, b) in enumerate(zip(mine, its, strict=True)):
        a, b = (x.detach().cpu() if isinstance(x, torch.Tensor) else torch.tensor(x) for x in (a, b))
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"result {i}: {a.dtype} {list(a.shape)}, on CPU {b.dtype} {list(b.shape)}"
        if b.layout != torch.strided or not (values or i == 0):
            continue
        rtol, atol = TOLERANCE.get(b.dtype, (0, 0))
        if dtype in (torch.bfloat16, torch.float16):
            rtol, atol = TOLERANCE[dtype] if b.dtype.is_floating_point else (0, 0)
        try:
            torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as error:
            return f"result {i}: {' '.join(str(error).split())[:200]}"
    return None


def check(op: OpInfo, dtype: torch.dtype, device: str, refused: dict[str, str]) -> tuple[str, list[str]]:
    """The op's mark, and what is wrong. `refused`: by op of the table, an example."""
    done = refusals = 0
    wrong: list[str] = []
    if dtype not in op.dtypes:
        return NONE, wrong
    torch.manual_seed(0)
    for number, sample in enumerate(islice(op.sample_inputs("cpu", dtype), SAMPLES)):
        arguments = ((sample.input, *sample.args), sample.kwargs)
        leaves = [x for x in tree_flatten(arguments)[0] if isinstance(x, torch.Tensor)]
        if any(t.layout != torch.strided or t.is_nested or t.is_quantized for t in leaves):
            continue
        args, kwargs = there(arguments, device)  # before CPU's op writes to them
        given = arguments
        if dtype == torch.bfloat16 and op.name in ROUNDED_ON_CPU:
            given = tree_map(lambda x: x.float() if isinstance(x, torch.Tensor) else x, arguments)
        try:
            expected = op.op(*given[0], **given[1])
            if given is not arguments:
                expected = expected.to(dtype)
        except Exception:  # (what CPU does not do is not compared)
            continue
        try:
            found = difference(op.op(*args, **kwargs), expected, dtype, op.name not in FIRST_OF_EQUALS)
        except Exception as error:  # (whatever the device raises is what is wrong)
            text = str(error)
            known = REFUSED.search(text)
            if known is None:
                wrong.append(f"sample {number}: {type(error).__name__}: {text[:300]}")
                continue
            refusals += 1
            refused.setdefault(known[1] or known[2], f"{name_of(op)} {dtype}: {text.splitlines()[0][:200]}")
            continue
        done += 1
        if found is not None:
            wrong.append(f"sample {number}: {found}")
    try:
        torch.remote.synchronize()
    except Exception as error:
        if REFUSED.search(str(error)) is None:
            wrong.append(f"later: {str(error)[:300]}")
    return (EQUAL if not refusals else SOME) if done else REFUSES if refusals else NONE, wrong


def check_all(name: str, device: str, refused: dict[str, str]) -> tuple[str, list[str]]:
    """An op's marks, one a dtype."""
    row, all_wrong = "", []
    for dtype in DTYPES:
        mark, wrong = check(ops()[name], getattr(torch, dtype), device, refused)
        row += mark
        all_wrong += [f"{name} {dtype} {what}" for what in wrong]
    return row, all_wrong


def load() -> dict[str, str]:
    return json.loads((Path(__file__).parent / "gpu_ops.json").read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    import torch_remote  # noqa: F401

    begin, marks, refused, failed = time.perf_counter(), {}, {}, 0
    for name in sorted(ops()):
        if args.only not in name:
            continue
        row, wrong = check_all(name, "remote", refused)
        failed += len(wrong)
        for what in wrong:
            print(f"WRONG {what}", flush=True)
        if args.only:
            print(name, row)
        marks[name] = row
    for op_name, example in sorted(refused.items()):
        print(f"refused {op_name}   e.g. {example}")
    counts = {mark: sum(row.count(mark) for row in marks.values()) for mark in (EQUAL, SOME, REFUSES, NONE)}
    print(f"{len(marks)} ops, {counts}, {failed} wrong, {time.perf_counter() - begin:.0f} s")
    if not args.only:
        text = ",\n".join(f'  {json.dumps(name)}: "{row}"' for name, row in sorted(marks.items()))
        folder = Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY", "."))
        (folder / "tests/cuda/gpu_ops.json").write_text("{\n" + text + "\n}\n")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
