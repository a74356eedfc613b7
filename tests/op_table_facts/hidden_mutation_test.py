"""Ops write exactly what the op table states. Schemas are incomplete, for example about batch norm's running
statistics.

The test watches every ATen call below autograd that OpInfo samples, backward passes, optimizers and gradient scaling
make on CPU. It compares the contents and versions of the inputs before and after the call with the table.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict

import op_table
import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode

SAMPLES = 4


def tensors_in(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in tensors_in(item)]
    return []


def bits(tensor: torch.Tensor) -> bytes:
    """The contents as bytes: NaN equals NaN, and -0.0 differs from 0.0."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


class Watch(TorchDispatchMode):
    """Checks each call of an op in the table."""

    def __init__(self):
        super().__init__()
        self.calls: dict[str, int] = defaultdict(int)
        self.written: dict[str, set[str]] = defaultdict(set)  # arguments that changed
        self.wrong: dict[str, str] = {}
        self.aliased: set[str] = set()  # results that are new according to the table, but share memory with an argument

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = op_table.schema_name(function)
        row = op_table.ops().get(name)
        if row is None:
            return function(*args, **kwargs)
        given = dict(zip((a.name for a in function._schema.arguments), args, strict=False)) | kwargs
        operands = {a: [t for t in tensors_in(v) if t.layout is torch.strided] for a, v in given.items()}
        before = {a: [(bits(t), t._version) for t in ts] for a, ts in operands.items()}
        result = function(*args, **kwargs)
        self.calls[name] += 1
        self.check_aliases(row, operands, result)
        may_write = {a["name"] for a in row["args"] if a["writes"]}
        storages = {t.untyped_storage()._cdata for a in may_write for t in operands.get(a, [])}
        for argument, tensors in operands.items():
            for tensor, (content, version) in zip(tensors, before[argument], strict=True):
                if tensor.untyped_storage()._cdata in storages and argument not in may_write:
                    continue  # overlaps a written argument
                if bits(tensor) == content and tensor._version == version:
                    continue
                self.written[name].add(argument)
                if argument not in may_write:
                    self.wrong[name] = f"{name} wrote {argument!r}: add it to `writes` in ir/ops/{row['file']}"
        return result

    def check_aliases(self, row: dict, operands: dict[str, list[torch.Tensor]], result) -> None:
        results = result if isinstance(result, tuple) else (result,)
        given = {t.untyped_storage()._cdata for ts in operands.values() for t in ts}
        for described, value in zip(row["results"], results, strict=False):
            if described["alias"] < 0 and any(t.untyped_storage()._cdata in given for t in tensors_in(value)):
                self.aliased.add(row["name"])


def first_dtype(info) -> torch.dtype | None:
    dtypes = info.supported_dtypes("cpu")
    return next((d for d in (torch.float32, torch.int64, torch.complex64, torch.bool) if d in dtypes), None)


def run_op_info(info) -> None:
    dtype = first_dtype(info)
    if dtype is None:
        return
    grad = info.supports_autograd and dtype.is_floating_point
    samples = info.sample_inputs("cpu", dtype, requires_grad=grad)
    for sample in itertools.islice(samples, SAMPLES):
        result = info.op(sample.input, *sample.args, **sample.kwargs)
        if grad:
            outputs = [t for t in tensors_in(result) if t.requires_grad]
            if outputs:
                torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])
        if info.inplace_variant and not sample.broadcasts_input:
            with torch.no_grad():
                info.inplace_variant(sample.input.detach().clone(), *sample.args, **sample.kwargs)


def training_steps() -> None:
    """Covers what OpInfo does not reach: optimizers, gradient scaling, clipping, statistics."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.RReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 3)
    )
    parameters = list(model.parameters())
    optimizers = [
        kind(parameters, lr=0.01, **options)
        for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)
        for options in ({"foreach": True}, {"fused": True}, {"foreach": False})
    ]
    optimizers.append(torch.optim.Adam(parameters, lr=0.01, amsgrad=True, fused=True))
    optimizers.append(torch.optim.SGD(parameters, lr=0.01, momentum=0.9, fused=True))
    for optimizer in optimizers:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(2, 1, 8, 8)).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(parameters, 0.1)
            optimizer.step()
    grads = [torch.randn(3), torch.tensor([torch.inf, 1.0])]
    found, scale = torch.zeros(1), torch.full((1,), 4.0)
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found, torch.full((1,), 0.25))
    torch._amp_update_scale_(scale, torch.zeros(1, dtype=torch.int32), found, 2.0, 0.5, 1)
    torch.ops.aten.embedding_renorm_(torch.randn(4, 3), torch.tensor([0, 2]), 0.5, 2.0)
    mean, variance, count = torch.zeros(2), torch.ones(2), 0.1
    torch.ops.aten.batch_norm_update_stats(torch.randn(3, 2, 4), mean, variance, count)
    torch.ops.aten._native_batch_norm_legit(torch.randn(3, 2, 4), None, None, mean, variance, True, 0.1, 1e-5)


def multi_tensor_calls() -> None:
    """Every _foreach_ overload, functional and in place."""
    for row in op_table.ops().values():
        if not row["entry"].startswith("_foreach_") or "Out" in row["flags"]:
            continue
        values = {
            "TensorList": lambda: [torch.rand(2, 2), torch.rand(2, 2)],
            "Tensor": lambda: torch.tensor(0.5),
            "ScalarList": lambda: [0.5, 2.0],
            "Scalar": lambda: 2.0,
        }
        given = [(a["keyword_only"], a["name"], values[a["kind"]]()) for a in row["args"] if a["kind"] in values]
        positional = [value for keyword, _, value in given if not keyword]
        keywords = {name: value for keyword, name, value in given if keyword}
        if "addc" in row["entry"] and row["name"].endswith(".Tensor"):
            positional[-1] = torch.tensor([0.5, 2.0])  # one scalar per tensor
        op_table.overload(row["name"])(*positional, **keywords)


@functools.cache
def watched() -> Watch:
    watch = Watch()
    torch.manual_seed(0)
    with watch:
        training_steps()
        multi_tensor_calls()
        for info in op_db:
            try:
                run_op_info(info)
            except (RuntimeError, NotImplementedError, ValueError, TypeError, AssertionError):
                continue  # torch itself refuses the sample here
    return watch


def test_no_op_writes_what_the_table_does_not_say():
    assert list(watched().wrong.values()) == []


def test_no_result_shares_memory_with_an_argument_unless_the_table_says_so():
    assert watched().aliased == set()


def test_much_of_the_table_was_watched():
    """Otherwise the tests above would prove nothing."""
    bases = {name.partition(".")[0] for name in watched().calls}
    assert len(watched().calls) > 700 and len(bases) > 600, (len(watched().calls), len(bases))


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("aten::native_batch_norm", "running_mean"),
        ("aten::native_batch_norm", "running_var"),
        ("aten::batch_norm_update_stats", "running_mean"),
        ("aten::batch_norm_update_stats", "running_var"),
        ("aten::rrelu_with_noise", "noise"),
        ("aten::_amp_foreach_non_finite_check_and_unscale_", "self"),
        ("aten::_amp_foreach_non_finite_check_and_unscale_", "found_inf"),
        ("aten::_fused_adamw_", "exp_avgs"),
        ("aten::_fused_adam_", "max_exp_avg_sqs"),
        ("aten::_fused_sgd_", "momentum_buffer_list"),
        ("aten::embedding_renorm_", "self"),
    ],
)
def test_the_watch_sees_writes(name, argument):
    assert argument in watched().written[name]


def test_hidden_writes_of_the_table_are_real():
    """A `writes` entry that no kernel needs would keep an op from being merged or dropped."""
    for name, row in op_table.ops().items():
        if "HiddenMutation" not in row["flags"] or watched().calls.get(name, 0) == 0:
            continue
        schema = op_table.overload(name)._schema
        hidden = {
            a["name"] for a, s in zip(row["args"], schema.arguments, strict=False) if a["writes"] and not s.is_write
        }
        assert hidden <= watched().written[name], (name, hidden, watched().written[name])
