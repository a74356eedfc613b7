"""Ops that only torch's kernels implement, on an emulated GPU: the plugin, the dispatcher, the stream, memory.

An emulated libtorch for CUDA (tests/emulated_gpu/libtorch) computes them with CPU kernels.
"""

import pytest
import torch

LINALG = {
    "inv": torch.linalg.inv,
    "det": torch.linalg.det,
    "slogdet": torch.linalg.slogdet,
    "solve": lambda a: torch.linalg.solve(a, a.mT @ a),
    "cholesky": lambda a: torch.linalg.cholesky(a @ a.mT + 4 * torch.eye(a.shape[-1]).to(a.device)),
    "eigvalsh": lambda a: torch.linalg.eigvalsh(a + a.mT),
    "svdvals": torch.linalg.svdvals,
    "qr": torch.linalg.qr,
    "lu_factor": torch.linalg.lu_factor,
    "matrix_exp": torch.linalg.matrix_exp,
    "pinv": torch.linalg.pinv,
    "lstsq": lambda a: torch.linalg.lstsq(a, a)[0],
}
FFT = {
    "rfft": torch.fft.rfft,
    "fft2": torch.fft.fft2,
    "irfft": lambda a: torch.fft.irfft(torch.fft.rfft(a), n=a.shape[-1]),
    "stft": lambda a: torch.stft(a.reshape(-1), 8, return_complex=True, window=torch.ones(8).to(a.device)).abs(),
}
SPECIAL = {
    "bessel_j0": torch.special.bessel_j0,
    "i1e": torch.special.i1e,
    "ndtri": lambda a: torch.special.ndtri(torch.sigmoid(a)),
    "zeta": lambda a: torch.special.zeta(a.abs() + 2, 3.0),
    "gammainc": lambda a: torch.special.gammainc(a.abs() + 1, a.abs()),
    "airy_ai": torch.special.airy_ai,
}


def compare(there, here):
    pairs = zip(there, here, strict=True) if isinstance(here, tuple) else [(there, here)]
    for a, b in pairs:
        assert a.device.type == "remote" and a.dtype == b.dtype and a.shape == b.shape
        torch.testing.assert_close(a.cpu(), b)


@pytest.mark.parametrize("name", [*LINALG, *FFT, *SPECIAL])
def test_values(remote, name):
    function = (LINALG | FFT | SPECIAL)[name]
    for shape in [(6, 6), (3, 4, 4)]:
        x = torch.randn(*shape) + 2 * torch.eye(shape[-1])
        compare(function(x.to(remote)), function(x))
        transposed = x.mT  # not packed
        compare(function(transposed.to(remote)), function(transposed))
        compare(function(x.to(remote)[..., 1:, 1:]), function(x[..., 1:, 1:]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64], ids=str)
def test_dtypes(remote, dtype):
    x = torch.randn(5, 5, dtype=dtype) + 3 * torch.eye(5)
    compare(torch.linalg.inv(x.to(remote)), torch.linalg.inv(x))
    compare(torch.fft.fft(x.to(remote)), torch.fft.fft(x))


def test_in_the_order_of_other_work(remote):
    x = torch.randn(32, 32) / 8 + 2 * torch.eye(32)
    here, there = x.clone(), x.to(remote)
    for step in range(12):  # from some step on, the ops in between are launched as a CUDA graph
        y, z = [torch.linalg.inv(t * 1.25 + step) @ t for t in (here, there)]
        here = torch.tanh(y) + x
        there = torch.tanh(z) + x.to(remote)
        there.mul_(1.0)
    compare(there, here)


def test_gradients(remote):
    a = torch.randn(4, 4) + 3 * torch.eye(4)
    b = torch.randn(4, 2)
    here = [t.clone().requires_grad_() for t in (a, b)]
    there = [t.to(remote).requires_grad_() for t in (a, b)]
    for p, q in (here, there):
        (
            torch.linalg.solve(p, q).pow(2).sum() + torch.linalg.slogdet(p)[1] + torch.fft.rfft(q, dim=0).abs().sum()
        ).backward()
    for t, h in zip(there, here, strict=True):
        compare(t.grad, h.grad)


def test_results_that_are_given(remote):
    x = torch.randn(4, 4) + 3 * torch.eye(4)
    out = torch.zeros(4, 4, device=remote)
    assert torch.linalg.inv(x.to(remote), out=out) is out
    compare(out, torch.linalg.inv(x))


def test_what_only_data_tells(remote):
    good = torch.ones(3, device=remote)
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        (torch.linalg.inv(torch.zeros(3, 3, device=remote)) + 1).cpu()
    inverse, info = torch.linalg.inv_ex(torch.zeros(3, 3, device=remote))
    assert info.item() == 1 and inverse.device.type == "remote"
    compare(good + 1, torch.full((3,), 2.0))
    compare(torch.linalg.inv(torch.eye(3).to(remote)), torch.eye(3))


def test_memory_is_the_workers(remote):
    x = (torch.randn(256, 256) + 16 * torch.eye(256)).to(remote)
    torch.linalg.inv(x).sum().item()
    torch.remote.synchronize()
    before = torch.remote.memory_allocated()
    torch.remote.reset_peak_memory_stats()
    y = torch.linalg.svdvals(x)
    y.sum().item()
    assert torch.remote.max_memory_allocated() > before
    del y
    torch.remote.synchronize()
    assert torch.remote.memory_allocated() <= before


def test_random_numbers_are_not_left_to_it(remote):
    x = torch.poisson(torch.ones(4, device=remote))
    with pytest.raises(NotImplementedError, match=r"aten::poisson.*random numbers.*not left to torch"):
        x.cpu()
