"""Recording never waits for an answer. This holds for torch's samples of its ops, forward and backward. Exceptions are
ops whose result's size depends on data, and ops for which torch itself reads a value."""

import warnings
from itertools import islice

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_flatten, tree_map

# The result's size depends on data, or the result is a Python number.
OF_DATA = {
    "allclose", "argwhere", "bincount", "combinations", "equal", "item", "masked_select", "nonzero", "to_sparse",
    "nn.functional.one_hot", "unique", "unique_consecutive", "histogramdd", "linalg.lstsq",
    "linalg.lstsq.grad_oriented",
}  # fmt: skip
if torch.__version__ >= (2, 14):
    OF_DATA.remove("combinations")  # its size is a formula there
# torch reads a value, on other devices, too: whether something is singular, negative, zero or NaN, or an index.
ASKED = {
    "corrcoef", "cov", "linalg.cholesky", "linalg.inv", "linalg.ldl_factor", "linalg.lu_factor", "linalg.solve",
    "linalg.tensorinv", "linalg.tensorsolve", "narrow", "nn.functional.ctc_loss", "nn.functional.gaussian_nll_loss",
    "geqrf",
}  # fmt: skip
ASKED_BACKWARD = {
    "cumprod", "index_fill", "index_put", "linalg.eig", "linalg.eigvals", "linalg.vander", "masked.cumprod",
    "masked_fill", "max.reduction_no_dim", "min.reduction_no_dim", "median", "nanmedian", "prod",
}  # fmt: skip


def name_of(op: OpInfo) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def round_trips() -> int:
    return torch.remote.stats()["round_trips"]


def waits(op: OpInfo, device: str) -> set[str]:
    """Which of "forward" and "backward" wait in an op's samples."""
    dtype = next((d for d in (torch.float32, torch.int64, torch.bool) if d in op.dtypes), None)
    found: set[str] = set()
    if dtype is None:
        return found
    gradients = op.supports_autograd and dtype == torch.float32
    for sample in islice(op.sample_inputs("cpu", dtype, requires_grad=gradients), 3):

        def leaf(x):
            if isinstance(x, torch.Tensor) and x.layout == torch.strided:
                return x.detach().clone().to(device).requires_grad_(x.requires_grad)
            return device if isinstance(x, str) and x == "cpu" else x

        args, kwargs = tree_map(leaf, ((sample.input, *sample.args), dict(sample.kwargs)))
        try:
            torch.remote.synchronize()
            before = round_trips()
            results = op.op(*args, **kwargs)
            if round_trips() != before:
                found.add("forward")
            inputs = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor) and x.requires_grad]
            outputs = [x for x in tree_flatten(results)[0] if isinstance(x, torch.Tensor) and x.requires_grad]
            if inputs and outputs:
                ones = [torch.ones_like(x) for x in outputs]
                before = round_trips()
                torch.autograd.grad(outputs, inputs, ones, allow_unused=True)
                if round_trips() != before:
                    found.add("backward")
            torch.remote.synchronize()
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            continue  # other tests cover refused calls
    return found


def test_ops_do_not_wait(remote):
    ops = [op for op in op_db if "jiterator" not in op.name]
    wrong, stale = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in ops:
            name, found = name_of(op), waits(op, remote.type)
            if "forward" in found and name not in OF_DATA | ASKED:
                wrong.append(f"{name} waits")
            if "backward" in found and name not in ASKED_BACKWARD:
                wrong.append(f"the gradient of {name} waits")
            if name in OF_DATA | ASKED | ASKED_BACKWARD and not found:
                stale.append(name)
    assert not wrong, wrong
    assert not stale, f"these do not wait: {stale}"
    assert len(ops) >= 600


@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_that_do_not_wait(remote, name):
    """docs/limits.md recommends `amax` and `amin` instead of `max()` and `min()`, whose gradients read a value."""
    x = torch.randn(4, 5).to(remote).requires_grad_()
    extreme = getattr(x, "a" + name)()
    before = round_trips()
    extreme.backward()
    assert round_trips() == before
    expected = (x.detach().cpu() == extreme.detach().cpu()).float()
    assert torch.equal(x.grad.cpu(), expected)


def test_repeats_whose_number_is_told(remote):
    x, repeats = torch.randn(4, 3), torch.tensor([1, 0, 3, 2])
    there, counts = x.to(remote), repeats.to(remote)
    before = round_trips()
    several = there.repeat_interleave(counts, 0, output_size=6)
    places = torch.repeat_interleave(counts.int(), output_size=6)
    assert round_trips() == before
    assert torch.equal(several.cpu(), x.repeat_interleave(repeats, 0))
    assert torch.equal(places.cpu(), torch.repeat_interleave(repeats.int()))
    wrong = torch.repeat_interleave(counts, output_size=5)
    with pytest.raises(RuntimeError, match="allocated size does not match required size"):
        wrong.cpu()
