"""Batch norm of channels-last images with cuDNN on an emulated GPU, compared with CPU. Hand-written kernels execute the
first use of a size, so each test repeats. They also execute everything that cuDNN refuses."""

import time

import pytest
import torch
from counted_calls import counted
from torch import nn

TOLERANCE = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    torch.float16: {"rtol": 2e-2, "atol": 2e-2},
    torch.bfloat16: {"rtol": 5e-2, "atol": 8e-2},
}
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def executed():
    return counted()["cudnnBackendExecute"]


def train(device, given, dtype, layout, own_dtype=None, grad_layout=None, module=None, **options):
    """Results, all gradients and the statistics of three steps."""
    torch.manual_seed(5)
    kind = module or (nn.BatchNorm2d if len(given) == 4 else nn.BatchNorm3d)
    layer = kind(given[1], **options)
    if layer.affine:
        nn.init.uniform_(layer.weight, 0.5, 2)
        nn.init.uniform_(layer.bias, -1, 1)
    layer = layer.to(own_dtype or torch.float32).to(device)
    made = []
    for _ in range(3):
        x = (torch.randn(given) * 2 + 1).to(dtype).to(memory_format=layout)
        grad = torch.randn(given).to(dtype).to(memory_format=grad_layout or layout)
        x = x.to(device).detach().requires_grad_()
        y = layer(x)
        layer.zero_grad()
        y.backward(grad.to(device))
        made += [y.detach(), x.grad, *(p.grad.clone() for p in layer.parameters())]
        made += [b.clone() for b in layer.buffers()]
    return made


def same(got, expected, dtype):
    for there, want in zip(got, expected, strict=True):
        assert there.dtype == want.dtype and there.shape == want.shape
        for size, stride, right in zip(want.shape, there.stride(), want.stride(), strict=True):
            assert size == 1 or stride == right
        torch.testing.assert_close(there.cpu(), want, **TOLERANCE[dtype])


def check(remote, given, dtype, uses_cudnn=True, layout=None, **options):
    layout = layout or LAST[len(given)]
    expected = train("cpu", given, dtype, layout, **options)
    deadline = time.monotonic() + 120
    before, rounds = executed(), 0
    while True:
        same(train(remote, given, dtype, layout, **options), expected, dtype)
        rounds += 1
        calls = executed() - before
        # In both passes.
        if (calls >= 20 and rounds >= 4) or (not uses_cudnn and rounds == 3):
            break
        assert time.monotonic() < deadline, f"cuDNN did nothing: {calls} calls in {rounds} rounds"
    assert uses_cudnn or calls == 0


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_dtypes(remote, dtype):
    check(remote, (3, 8, 5, 4), dtype)


def test_three_dims_of_space(remote):
    check(remote, (2, 8, 3, 2, 5), torch.float16)


def test_numbers(remote):
    check(remote, (2, 4, 6, 3), torch.float32, eps=0.25, momentum=0.3)


def test_a_momentum_that_changes(remote):
    check(remote, (4, 4, 3, 3), torch.float32, momentum=None)  # the momentum is one over the number of steps


def test_without_running_statistics(remote):
    check(remote, (4, 4, 2, 3), torch.float32, track_running_stats=False)


def test_weights_of_half_types(remote):
    check(remote, (4, 8, 2, 5), torch.float16, own_dtype=torch.float16)


def test_a_gradient_that_lies_in_another_way(remote):
    check(remote, (2, 8, 7, 3), torch.float32, grad_layout=torch.contiguous_format)


@pytest.mark.parametrize(
    ("given", "dtype", "options"),
    [
        ((2, 3, 4, 5), torch.float32, {}),  # channels are not a multiple of 16 bytes
        ((2, 12, 4, 5), torch.float16, {}),
        ((2, 8, 4, 5), torch.float32, {"affine": False}),
        ((2, 8, 4, 5), torch.float32, {"layout": torch.contiguous_format}),
        ((6, 8, 1, 1), torch.float32, {}),  # both contiguous and channels last
    ],
    ids=str,
)
def test_what_kernels_do(remote, given, dtype, options):
    check(remote, given, dtype, uses_cudnn=False, **options)


def test_statistics_that_are_given(remote):
    torch.manual_seed(2)
    layer = nn.BatchNorm2d(8)
    x = torch.randn(4, 8, 3, 5).to(memory_format=torch.channels_last)
    layer(x)
    layer.eval()
    before = executed()
    there = nn.BatchNorm2d(8)
    there.load_state_dict(layer.state_dict())
    there = there.to(remote).eval()
    for _ in range(4):
        a, b = x.clone().requires_grad_(), x.to(remote).requires_grad_()
        expected, got = layer(a), there(b)
        expected.sum().backward()
        got.sum().backward()
        same([got.detach(), b.grad], [expected.detach(), a.grad], torch.float32)
    assert executed() == before  # cuDNN is only used in training mode


def test_deterministic_mode_waits_for_the_plan(remote):
    torch.use_deterministic_algorithms(True)
    try:
        one = torch.ones(2, 2, device=remote)
        (one @ one).cpu()  # before the calls are counted
        before = counted()
        first = [x.cpu() for x in train(remote, (3, 8, 4, 7), torch.float16, torch.channels_last)]
        calls = counted() - before
        assert calls["cudnnBackendExecute"] == 6  # three steps with two passes each
        assert calls["cuEventElapsedTime"] == 0  # nothing is timed
        again = train(remote, (3, 8, 4, 7), torch.float16, torch.channels_last)
        for there, right in zip(again, first, strict=True):
            assert torch.equal(there.cpu(), right)
    finally:
        torch.use_deterministic_algorithms(False)
