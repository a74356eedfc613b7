"""Ops in dtypes that CUDA kernels support and CPU kernels do not, by torch's own lists. The device computes them as CPU
does in a wider dtype, or refuses them by name. Libraries choose these dtypes on every device but CPU."""

import itertools

import pytest
import torch
from harness import attempt, copy_tree, difference, is_random, moves, op_name, some_gradient
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map

WIDER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.complex32: torch.complex64,
    torch.bool: torch.uint8,
    **dict.fromkeys((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64), torch.float64),
}
ROUNDING = {torch.float16: 0.01, torch.bfloat16: 0.04, torch.complex32: 0.01}
REFUSED = {
    "torch.ops.aten._flash_attention_forward": "one of CUDA's kernels for attention by its own name",
    "torch.ops.aten._efficient_attention_forward": "one of CUDA's kernels for attention by its own name",
}
TRANSFORMS = {op_name(op) for op in op_db if op.name.startswith("fft.") or op.name in ("stft", "istft")}
SAMPLES = 6
COMPILED = 12  # every COMPILED-th case also runs with torch.compile


def cases():
    for op in op_db:
        if op.name.startswith("sparse."):
            continue  # of sparse tensors
        for dtype in sorted(set(op.dtypesIfCUDA) - set(op.dtypes), key=str):
            if dtype == torch.bfloat16 and op_name(op) in TRANSFORMS:
                continue  # test_transforms_of_bfloat16_are_refused
            yield pytest.param(op, dtype, id=f"{op_name(op)}-{str(dtype)[6:]}")


CASES = list(cases())


def samples_of(op, dtype):
    grad = op.supports_autograd and dtype in op.backward_dtypesIfCUDA and (dtype.is_floating_point or dtype.is_complex)
    found = itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=grad), SAMPLES)
    return [((s.input, *s.args), dict(s.kwargs)) for s in found if moves(s)], grad


def widened(arguments, dtype):
    """The same arguments with a wider dtype in place of `dtype`, in tensors and as an argument."""

    def leaf(x):
        if isinstance(x, torch.Tensor) and x.dtype == dtype:
            return x.detach().to(WIDER.get(dtype, dtype)).requires_grad_(x.requires_grad)
        return WIDER.get(dtype, dtype) if x is dtype else x

    return tree_map(leaf, arguments)


def reference(op, dtype):
    """The function that computes the expected result in the wider dtype."""
    if op.name in ("nansum", "nanmean") and dtype.is_complex:
        function = torch.sum if op.name == "nansum" else torch.mean
        # CPU has no such kernel; the samples have no NaN
        return lambda x, *args, **kwargs: function(x, *args, **kwargs)
    return op.op


def with_gradients(function, arguments, grad):
    args, kwargs = arguments
    result = function(*args, **kwargs)
    if not grad:
        return result
    inputs = [t for t in tree_flatten(arguments)[0] if isinstance(t, torch.Tensor) and t.requires_grad]
    outputs = [t for t in tree_flatten(result)[0] if isinstance(t, torch.Tensor) and t.requires_grad]
    if not inputs or not outputs:
        return result, ()
    return result, torch.autograd.grad(outputs, inputs, [some_gradient(t) for t in outputs], allow_unused=True)


def narrowed(got, want):
    """`want` in the dtypes of `got`, which are checked elsewhere."""
    got, shape = tree_flatten(got)
    want = [
        w.to(g.dtype) if isinstance(g, torch.Tensor) and isinstance(w, torch.Tensor) else w
        for g, w in zip(got, tree_flatten(want)[0], strict=True)
    ]
    return torch.utils._pytree.tree_unflatten(want, shape)


def dtypes(tree):
    return [t.dtype for t in tree_flatten(tree)[0] if isinstance(t, torch.Tensor)]


@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_computed_wider_or_refused(remote, op, dtype):
    samples, grad = samples_of(op, dtype)
    assert samples
    for arguments in samples:
        there = copy_tree(arguments, remote)
        if op_name(op) in REFUSED:
            with pytest.raises(NotImplementedError, match=f"remote: .* torch has no 'aten::{op.name.split('.')[-1]}'"):
                op.op(*there[0], **there[1])
                torch.remote.synchronize()
            continue
        got = with_gradients(op.op, there, grad)
        want = with_gradients(reference(op, dtype), widened(copy_tree(arguments, "cpu"), dtype), grad)
        predicted, error = attempt(lambda arguments=arguments: op.op(*on_meta(arguments)[0], **on_meta(arguments)[1]))
        if error is None:
            assert dtypes(got[0] if grad else got)[: len(dtypes(predicted))] == dtypes(predicted)
        random = is_random(op, widened(copy_tree(arguments, "cpu"), dtype))
        text = far_from(got, narrowed(got, want), values=not random)
        assert text is None, text


def far_from(got, want, values):
    """Differences beyond the rounding of several ops in a row in the narrow dtype, as in composite ops. Formulas of
    gradients also overflow earlier in the narrow dtype."""
    got, want = (tree_flatten(x)[0] for x in (got, want))
    for i, (mine, its) in enumerate(zip(got, want, strict=True)):
        if not isinstance(its, torch.Tensor):
            continue
        mine, its = mine.detach().cpu(), its.detach()
        if i > 0 and (its.is_floating_point() or its.is_complex()):
            wide = WIDER.get(its.dtype, its.dtype)
            finite = torch.isfinite(mine.to(wide)) & torch.isfinite(its.to(wide))
            assert finite.any() or finite.numel() <= 1
            mine, its = (t.to(wide).where(finite, 0).to(t.dtype) for t in (mine, its))
        scale = its.abs().max().item() if values and its.numel() and its.dtype in ROUNDING else 0
        scale = max(scale, 1) if scale and i > 0 else scale  # terms of gradients may cancel
        tolerance = {"rtol": ROUNDING[its.dtype], "atol": ROUNDING[its.dtype] * scale} if scale else {}
        text = difference(mine, its, f"result {i}", values, tolerance, strides=False)
        if text is not None:
            return text
    return None


def on_meta(arguments):
    return tree_map(lambda x: x.to("meta") if isinstance(x, torch.Tensor) else x, arguments)


@pytest.mark.parametrize(("op", "dtype"), [c for c in CASES if op_name(c.values[0]) not in REFUSED][::COMPILED])
def test_compiled_as_recorded(remote, op, dtype):
    samples, grad = samples_of(op, dtype)
    for arguments in samples[:2]:
        recorded = with_gradients(op.op, copy_tree(arguments, remote), grad)
        torch.compiler.reset()
        compiled = torch.compile(lambda *args, **kwargs: op.op(*args, **kwargs), backend="remote")
        got = with_gradients(compiled, copy_tree(arguments, remote), grad)
        here = tree_map(lambda x: x.cpu() if isinstance(x, torch.Tensor) else x, recorded)
        text = difference(got, here, "result", tolerance={}, strides=False)
        assert text is None, text


def test_transforms_of_bfloat16_are_refused(remote):
    """From torch 2.14 on, CUDA computes them. Their results are of the experimental dtype bcomplex32."""
    x = torch.ones(16, dtype=torch.bfloat16, device=remote)
    for transform in (torch.fft.fft, torch.fft.rfft, torch.fft.ihfft):
        with pytest.raises(RuntimeError, match="BFloat16"):
            transform(x)
    with pytest.raises(RuntimeError, match="BFloat16"):
        torch.stft(x, 8, window=torch.ones(8, dtype=torch.bfloat16, device=remote), return_complex=True).cpu()


def same(got, want):
    assert got.dtype == want.dtype
    assert torch.equal(torch.view_as_real(got.cpu()), torch.view_as_real(want))


def test_in_place_and_out(remote):
    z = torch.tensor([1 + 2j, -0.5j], dtype=torch.complex32)
    there = z.to(remote)
    view = there[1:]
    view.cos_()
    same(there, torch.cat([z[:1], z[1:].to(torch.complex64).cos().to(torch.complex32)]))
    out = torch.empty(0, dtype=torch.complex32, device=remote)
    torch.fft.fft(torch.arange(6.0).half().to(remote), out=out)
    same(out, torch.fft.fft(torch.arange(6.0)).to(torch.complex32))
    torch._foreach_exp_(views := [there[:1], there[1:]])
    assert views[0].dtype == torch.complex32
    assert torch.isfinite(torch.view_as_real(there).float()).all()


def test_nansum_of_complex_numbers(remote):
    z = torch.tensor([[1 + 1j, complex("nan")], [2j, 3]], dtype=torch.complex64)
    assert torch.equal(z.to(remote).nansum(dim=0).cpu(), torch.tensor([1 + 3j, 3], dtype=torch.complex64))
    assert z.to(remote).nansum().item() == 4 + 3j


def test_counts_of_integers_are_exact(remote):
    values = torch.tensor([0, 3, 4, 7, 8, 11, 12, 12, -1], dtype=torch.int32)
    assert torch.histc(values.to(remote), bins=4, min=0, max=12).tolist() == [1, 2, 2, 3]


MATMULS = {  # shapes of the operands; the added one comes first
    "mm": ((3, 4), (4, 5)),
    "bmm": ((2, 3, 4), (2, 4, 5)),
    "addmm": ((5,), (3, 4), (4, 5)),
    "baddbmm": ((2, 1, 5), (2, 3, 4), (2, 4, 5)),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", MATMULS)
def test_product_in_another_dtype(remote, name, dtype):
    tensors = [torch.rand(shape).to(dtype) for shape in MATMULS[name]]
    factors = {"beta": 0.5, "alpha": 2.0} if "add" in name else {}
    here, there = ([t.to(device) for t in tensors] for device in ("cpu", remote))
    want = getattr(torch, name)(*(t.float() for t in here), **factors)
    got = getattr(torch, name)(*there, out_dtype=torch.float32, **factors)
    assert difference(got, want, name, device=remote) is None
    out = torch.empty_like(got)
    getattr(torch.ops.aten, name).dtype_out(*there, torch.float32, **factors, out=out)
    assert difference(out, want, name, device=remote) is None
    if factors:  # the added operand may have either dtype
        got = getattr(torch, name)(there[0].float(), *there[1:], out_dtype=torch.float32, **factors)
        assert difference(got, want, name, device=remote) is None
    with pytest.raises(RuntimeError, match="out_dtype must be"):
        getattr(torch, name)(*there, out_dtype=torch.float64, **factors)


def test_product_in_another_dtype_compiled(remote):
    a, b = torch.rand(3, 4).half(), torch.rand(4, 5).half()
    product = torch.compile(lambda a, b: torch.mm(a, b, out_dtype=torch.float32) * 2, backend="remote")
    assert difference(product(a.to(remote), b.to(remote)), torch.mm(a.float(), b.float()) * 2, "result") is None
