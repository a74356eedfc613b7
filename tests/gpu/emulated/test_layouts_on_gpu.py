"""If an emulated GPU executes an op with packed operands and gradients, it also does so with other strides. The test
uses torch's samples of its ops in float32, compared with CPU."""

import os
import warnings
from collections.abc import Callable
from itertools import islice
from types import SimpleNamespace

import gpu_ops
import pytest
import torch
from commit import commit_number
from gpu_programs import REFUSED
from torch.utils._pytree import tree_flatten, tree_map

ALL = os.environ.get("TORCH_REMOTE_TEST_ALL") == "1"
PARTS, SAMPLES = (1, 6) if ALL else (24, 2)
NAMES = [n for n in sorted(gpu_ops.ops()) if torch.float32 in gpu_ops.ops()[n].dtypes and n != "chalf"]
NAMES = NAMES[commit_number() % PARTS :: PARTS]
# With expanded operands, several answers may be right, or CPU's is wrong.
OF_DIFFERENT = (
    *gpu_ops.FIRST_OF_EQUALS,
    "layer_norm",
    "batch_norm",
    "instance_norm",
    "group_norm",
    "cond",
    "matrix_rank",
    "ctc",
)


def backwards(x: torch.Tensor) -> torch.Tensor:
    dims = tuple(reversed(range(x.dim())))
    return x.permute(dims).contiguous().permute(dims)


def across(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(0, 1).contiguous().transpose(0, 1) if x.dim() > 1 else x


def with_gaps(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x, x], -1)[..., 0]


def expanded(x: torch.Tensor) -> torch.Tensor:
    return x[:, :1].expand_as(x) if x.dim() > 1 and x.shape[1] > 0 else x


LAYS = [backwards, across, with_gaps, expanded]


def laid(sample: SimpleNamespace, lay: Callable) -> SimpleNamespace:
    def leaf(x):
        if not isinstance(x, torch.Tensor) or x.layout != torch.strided:
            return x
        return lay(x.detach()).requires_grad_(x.requires_grad)

    return SimpleNamespace(**tree_map(leaf, vars(sample)))


def gradient_of_sum(x: torch.Tensor) -> torch.Tensor:
    return torch.ones((), dtype=x.dtype, device=x.device).expand_as(x)


def gradient_of_mean(x: torch.Tensor) -> torch.Tensor:
    return expanded(gpu_ops.some_gradient(x))


def gradient_across(x: torch.Tensor) -> torch.Tensor:
    return across(gpu_ops.some_gradient(x))


GRADIENTS = [gradient_of_sum, gradient_of_mean, gradient_across]


def forget_failures() -> None:
    """Waits, because one call may have several failures."""
    try:
        torch.remote.synchronize()
    except NotImplementedError as error:
        assert REFUSED.search(str(error)), error


def is_done(op, sample, gradients: bool, device: str) -> bool:
    try:
        gpu_ops.check_sample(op, sample, torch.float32, gradients, device)
    except LookupError:
        return False
    except Exception as error:
        assert REFUSED.search(str(error)), error
        forget_failures()
        return False
    return True


def compare(name: str, device: str) -> tuple[int, list[str]]:
    """The number of comparisons, and the errors."""
    op, compared, wrong = gpu_ops.ops()[name], 0, []
    gradients = op.supports_autograd and torch.float32 in op.supported_backward_dtypes("cpu")
    torch.manual_seed(0)
    for number, sample in enumerate(islice(op.sample_inputs("cpu", torch.float32, requires_grad=gradients), SAMPLES)):
        sample = SimpleNamespace(input=sample.input, args=sample.args, kwargs=sample.kwargs)
        leaves = [x for x in tree_flatten(vars(sample))[0] if isinstance(x, torch.Tensor)]
        if any(t.layout != torch.strided or t.is_nested or t.is_quantized for t in leaves):
            continue
        for i, lay in enumerate(LAYS):
            if lay is expanded and any(part in name for part in OF_DIFFERENT):
                continue
            gradient = GRADIENTS[(number + i) % len(GRADIENTS)]
            what = f"{name}, sample {number}, {lay.__name__}, {gradient.__name__}"
            try:
                found = gpu_ops.check_sample(op, laid(sample, lay), torch.float32, gradients, device, gradient)
                torch.remote.synchronize()
            except LookupError:
                continue
            except Exception as error:  # any exception of the device
                forget_failures()
                if REFUSED.search(str(error)) is None or is_done(op, sample, gradients, device):
                    wrong.append(f"{what}: {str(error)[:300]}")
                continue
            compared += 1
            if found is not None:
                wrong.append(f"{what}: {found}")
    return compared, wrong


def test_layouts(remote):
    compared, wrong = 0, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in NAMES:
            some, what = compare(name, remote.type)
            compared += some
            wrong += what
    assert not wrong, "\n".join(wrong)
    print(f"{compared} compared")
    assert compared >= 3 * len(NAMES)


@pytest.mark.parametrize("training", [True, False], ids=["trains", "rests"])
def test_statistics_with_gaps(remote, training):
    def norm(device):
        torch.manual_seed(0)
        x, mean, var = torch.randn(4, 3, 5), torch.randn(6)[::2], torch.rand(6)[::2]
        x, mean, var = (t.to(device) for t in (x, mean.expand(1, 3)[0], var))
        mean, var = with_gaps(mean), with_gaps(var)
        y = torch.nn.functional.batch_norm(x, mean, var, training=training)
        return [t.cpu() for t in (y, mean, var)]

    for there, expected in zip(norm(remote), norm("cpu"), strict=True):
        torch.testing.assert_close(there, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64, torch.complex128])
def test_copies_with_more_dims_than_a_kernel(remote, dtype):
    x = torch.arange(3 * 2**10).reshape([2] * 5 + [3] + [2] * 5)
    x = (x % 3).to(dtype) if dtype == torch.bool else x.to(dtype)
    dims = tuple(reversed(range(11)))
    there, here = x.to(remote).permute(dims), x.permute(dims)
    assert torch.equal(there.contiguous().cpu(), here)
    assert torch.equal(there.cpu(), here)  # read without a copy on the GPU
    assert torch.equal(torch.zeros_like(x.to(remote)).permute(dims).copy_(there).cpu(), here)
    assert torch.equal((there[1:] + there[1:]).cpu(), here[1:] + here[1:])
