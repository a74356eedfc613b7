"""Kernels that reduce or normalize are at least as exact as torch's, at all scales of the data and far from zero: see
range_cases.py. Each run uses different data."""

import dataclasses
import secrets

import numpy as np
import pytest
import torch
from fused import compiled
from range_cases import COLUMNS, ROWS, Errors, Op, check, largest_error, ops, unchanged, worse

OPS = ops()


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16), ids=str)
def test_errors_at_all_scales(remote, dtype):
    torch.set_num_threads(1)
    failures, before = [], compiled()
    for op in OPS:
        seed = secrets.randbits(32)
        found = check(op, dtype, remote, torch.Generator().manual_seed(seed))
        failures += [f"{text} (seed {seed})" for text in found]
    assert not failures, f"{len(failures)} sets\n" + "\n".join(failures)
    assert compiled() - before >= 3 * len(OPS) // 4  # some ops share a kernel


def norm(x: np.ndarray) -> np.ndarray:
    return np.sqrt((x * x).sum(1))


def centered(x: np.ndarray) -> np.ndarray:
    return x - x.mean(1, keepdims=True)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


# Long doubles have a 64-bit mantissa, where float64 has 53 bits, and a 15-bit exponent.
OF_LONG_DOUBLES = {
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean(1),
    "var": lambda x: x.var(1, ddof=1),
    "std": lambda x: x.std(1, ddof=1),
    "vector_norm": norm,
    "normalize": lambda x: x / np.maximum(norm(x), 1e-12)[:, None],
    "logsumexp": lambda x: np.log(np.exp(x - x.max(1, keepdims=True)).sum(1)) + x.max(1),
    "softmax": softmax,
    "layer_norm": lambda x: centered(x) / np.sqrt(x.var(1, keepdims=True) + np.longdouble(1e-5)),
    "standardized": lambda x: centered(x) / x.std(1, ddof=1, keepdims=True),
}


def mean_square(errors: np.ndarray) -> float:
    return np.sqrt((errors * errors).mean())


def largest(errors: np.ndarray) -> float:
    return np.abs(errors).max()


DOUBLES = 64  # sets per scale and offset


def test_errors_of_doubles(remote):
    assert np.finfo(np.longdouble).nmant == 63
    torch.set_num_threads(1)
    seed = secrets.randbits(32)
    generator = torch.Generator().manual_seed(seed)
    failures = []
    for name, exactly in OF_LONG_DOUBLES.items():
        for offset in (0.0, 1.0, 1e4, 1e8):
            errors = {}
            for scale in (1e-300, 1e-160, 1e-100, 1e-20, 1.0, 1e20, 1e100, 1e150, 1e300):
                if scale * max(offset, 1.0) > 1e301:
                    continue
                x = (torch.randn(DOUBLES, COLUMNS + 1, dtype=torch.float64, generator=generator) + offset) * scale
                exact = exactly(x.numpy().astype(np.longdouble))
                unit = np.spacing(np.abs(exact).astype(np.float64).max())
                if not np.isfinite(unit):
                    continue  # the exact value overflows float64
                errors[scale] = [
                    (unchanged(ROWS[name](unchanged(at))).cpu().numpy() - exact) / unit for at in (x.to(remote), x)
                ]
            # The rounding of a set's mean is random and affects all of its errors alike, so the largest error has
            # little meaning.
            for what, times in ((mean_square, 1.5), (largest, 2.5)):
                found = {scale: [what(error) for error in both] for scale, both in errors.items()}
                most = max((its for _, its in found.values() if np.isfinite(its)), default=0.0)
                for scale, (ours, its) in found.items():
                    if not ours <= max(its, times * most) + 2:
                        text = f"{name}, scale {scale:g}, offset {offset:g}, {what.__name__}"
                        failures.append(f"{text}: {ours:.4g} ulp, torch's {its:.4g}")
    assert not failures, f"seed {seed}\n" + "\n".join(failures)


def test_errors_that_are_too_large_are_found():
    exact = torch.tensor([[1.0, 1e20], [2.0, 3.0]], dtype=torch.float64)
    right, wrong = exact.float(), (exact * (1 + 4 * 2**-23)).float()
    assert largest_error(right, exact).tolist() == [0, 0]
    assert min(largest_error(wrong, exact).tolist()) >= 3
    for not_finite in (torch.inf, torch.nan):
        assert largest_error(torch.full_like(right, not_finite), exact).tolist() == [torch.inf] * 2
    op, random_errors = (Op("std", torch.std, (2,), random_errors=chance) for chance in (False, True))
    three, four = Errors(0, 1.0, 0.0, 3.0, 1.0), Errors(0, 1e20, 0.0, 4.0, 0.5)
    assert worse(op, [three, four]) == [four]
    assert not worse(random_errors, [three, dataclasses.replace(four, ours=3.5)])
    assert worse(random_errors, [three, dataclasses.replace(four, offset=1.0)])
