"""No arguments of an op that programs may name make the worker read or write outside its operands."""

from __future__ import annotations

import os

import guards
import pytest
import torch
from commit import commit_number

ALL = os.environ.get("TORCH_REMOTE_TEST_ALL") == "1"
SAMPLES = "tests/guards/all_samples.pt" if ALL else "tests/guards/samples.pt"
PARTS = 8
# Blocks end, or begin, at a page without access. Commits take turns.
PLACES = ["end", "begin"] if ALL else [["end", "begin"][commit_number() % 2]]
LEAST_CALLS = 150_000
LEAST_OVERLOADS = 2_300


def unreached() -> dict[str, str]:
    """Overloads that may run and are not exercised, with the reason."""
    return dict(line.split(": ", 1) for line in guards.listed("tests/guards/unreached.txt"))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_outside_of_operands_is_touched(part: int, place: str) -> None:
    report = guards.run(SAMPLES, "worker", place, part, PARTS)
    assert report.crashes == []
    assert report.cases >= LEAST_CALLS / PARTS * 0.7  # parts differ in size
    # No check refuses a call that torch accepts.
    known = unreached()
    assert {n: w for n, w in report.not_run.items() if n not in known and n not in report.exercised} == {}
    assert sorted(report.exercised & set(known)) == [], "these are exercised: delete them in unreached.txt"


def test_every_overload_that_may_run_is_exercised() -> None:
    """Each is exercised, or is listed in unreached.txt, which may only shrink."""
    report = guards.run(SAMPLES, "worker", only="aten::relu")
    sampled = guards.sampled(SAMPLES)
    missing = report.may_run - sampled
    assert missing <= set(unreached()), sorted(missing - set(unreached()))
    assert len(report.may_run & sampled) >= LEAST_OVERLOADS
    # Another supported version of torch may have more ops.
    allowed = {name for name in guards.listed("ir/ops/allowed_ops.txt") if torch._C._dispatch_has_kernel(name)}
    assert allowed <= sampled, "an allowed op has no sample: run guards --update"


# torch alone fails to check these; each would let a client access memory of an unprotected worker.
RED = (
    "_reshape_alias_copy", "nll_loss_backward", "nll_loss2d_backward", "_cummax_helper", "_cummin_helper",
    "_fused_adam_", "_fused_sgd_", "_fused_adagrad_", "native_batch_norm", "_native_batch_norm_legit",
    "_batch_norm_with_update_functional", "_scaled_dot_product_flash_attention_for_cpu", "native_layer_norm_backward",
    "_weight_norm_interface_backward", "_pdist_backward", "_log_softmax_backward_data", "native_batch_norm_backward",
    "_embedding_bag", "_embedding_bag_backward", "_upsample_bilinear2d_aa", "_cdist_backward",
    "grid_sampler_2d_backward",
)  # fmt: skip


@pytest.mark.parametrize("op", RED)
def test_the_harness_finds_what_torch_does_not_check(op: str) -> None:
    report = guards.run(SAMPLES, "torch", only=f"aten::{op}")
    assert f"aten::{op}" in report.overloads()
