"""A short run of the random convolution nets. `random_nets.py --count 1000` and
//tests/random_programs:random_nets_1000 are longer ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import random_nets
import torch
from random_nets import Plan, Shown, difference, plan_of

NETS = 40
GROUP = 5


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Uses one thread on CPU. Several would wait for each other at every small layer on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("first", range(0, NETS, GROUP))
def test_nets_equal_cpu(device: torch.device, first: int) -> None:
    for seed in range(first, first + GROUP):
        text = difference(plan_of(seed), device)
        assert text is None, f"{text}\nrepeat: bazel run //tests/random_programs:random_nets -- --seed {seed}"


def test_nets_are_of_all_kinds() -> None:
    """Checks the variety of the seeds in the normal run."""
    plans = [plan_of(seed) for seed in range(NETS)]
    assert sum(plan.trains for plan in plans) >= NETS // 3
    assert {plan.dtype for plan in plans} == {torch.float32, torch.bfloat16, torch.float64}
    assert {plan.layout for plan in plans} == {"plain", "channels last", "a slice", "turned"}
    assert any(plan.notes for plan in plans)
    text = "\n".join(map(str, plans))
    for name in ("ConvTranspose2d", "BatchNorm2d", "GroupNorm", "Upsample", "MaxPool2d", "AvgPool2d", "Concat", "Sum"):
        assert name in text
    for name in ("groups=", "dilation=", "stride=(2, 2)", "inplace=True"):
        assert name in text


@pytest.mark.parametrize(
    "spoil",
    [
        lambda name, lies, x: (name, lies, x.flip(-1)) if name == "result" else (name, lies, x),
        lambda name, lies, x: (name, lies[::-1], x) if name == "result" else (name, lies, x),
        lambda name, lies, x: (name, lies, x * 1.01) if name.startswith("gradient") else (name, lies, x),
        lambda name, lies, x: (name, lies, x / 0),
    ],
)
def test_a_wrong_result_is_found(
    monkeypatch: pytest.MonkeyPatch, spoil: Callable[[str, tuple[int, ...], torch.Tensor], Shown]
) -> None:
    right = random_nets.run

    def run(plan: Plan, device: str, dtype: torch.dtype, layout: str) -> Iterator[list[Shown]]:
        for shown in right(plan, "cpu", dtype, layout):
            yield [spoil(*s) for s in shown] if device == "meta" else shown

    plans = [plan_of(seed) for seed in range(4, 12)]
    plans = [plan for plan in plans if plan.smooth and plan.trains and plan.dtype == torch.float32]
    assert plans
    assert all(difference(plan, "cpu") is None for plan in plans)
    monkeypatch.setattr(random_nets, "run", run)
    assert all(difference(plan, "meta") is not None for plan in plans)
