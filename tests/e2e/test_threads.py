"""Several threads record on one device: each gets correct results and its own programs."""

import copy
import gc
import queue
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._C._profiler import _ExperimentalConfig
from torch.autograd import DeviceType

THREADS = 4


def in_threads(function: Callable, count: int = THREADS) -> list:
    """Runs function(number, barrier) in `count` threads at once, and returns their results."""
    barrier = threading.Barrier(count)
    with ThreadPoolExecutor(count) as pool:
        return [future.result(120) for future in [pool.submit(function, i, barrier) for i in range(count)]]


def mlp(seed: int, width: int = 24) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, 4))


class Training:
    def __init__(self, seed: int, place: torch.device) -> None:
        self.model = mlp(seed).to(place)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        numbers = torch.Generator().manual_seed(seed)
        self.x = torch.randn(16, 8, generator=numbers).to(place)
        self.y = torch.randint(4, (16,), generator=numbers).to(place)

    def step(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(self.x), self.y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def test_each_thread_trains_its_model(remote, counted):
    trainings = [Training(i, remote) for i in range(THREADS)]

    def train(number: int, barrier: threading.Barrier) -> list[float]:
        losses = []
        for _ in range(12):
            barrier.wait()
            losses += [trainings[number].step().item() for _ in range(3)]
        return losses

    in_threads(train)
    with counted() as c:
        found = in_threads(train)
    # The interleaving of threads does not affect any key.
    assert c["programs_built"] == 0
    for number, losses in enumerate(found):
        on_cpu = Training(number, torch.device("cpu"))
        wanted = [on_cpu.step().item() for _ in range(72)][36:]
        torch.testing.assert_close(losses, wanted, rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("grad", [False, True])
def test_threads_share_a_model(remote, counted, grad):
    model = mlp(0, 40)
    shared = copy.deepcopy(model).to(remote)
    inputs = [torch.randn(n + 2, 8) for n in range(THREADS)]

    def infer(number: int, barrier: threading.Barrier) -> torch.Tensor:
        result = torch.empty(0)
        for _ in range(15):
            barrier.wait()
            for _ in range(4):
                with torch.set_grad_enabled(grad):
                    result = shared(inputs[number].to(remote)).softmax(-1).cpu()
        return result.detach()

    in_threads(infer)
    with counted() as c:
        found = in_threads(infer)
    assert c["programs_built"] == 0
    for x, result in zip(inputs, found, strict=True):
        torch.testing.assert_close(result, model(x).softmax(-1).detach())


def test_a_tensor_that_goes_from_thread_to_thread(device):
    rounds, boxes = 60, [queue.SimpleQueue() for _ in range(THREADS)]

    def pass_on(number: int, barrier: threading.Barrier) -> None:
        for turn in range(rounds):
            x = boxes[number].get(timeout=60)
            x.mul_(1 + number).add_(turn)
            y = x[number::2]
            y -= x[: len(y)].flip(0)
            x.remainder_(1000)
            boxes[(number + 1) % THREADS].put(x)

    boxes[0].put(torch.arange(10.0, device=device))
    in_threads(pass_on)
    found = boxes[0].get(timeout=60)
    boxes[0].put(torch.arange(10.0))
    in_threads(pass_on)
    assert torch.equal(found.cpu(), boxes[0].get(timeout=60))


SHAPED_BY_TORCH = {  # ops of x[n, n] whose result shapes come from torch's Meta kernels
    "matrix_exp": torch.linalg.matrix_exp,
    "grid_sampler": lambda x: F.grid_sample(
        x[None, None], x[None, :, :2, None].expand(-1, -1, -1, 2), align_corners=True
    ),
    "fold": lambda x: F.fold(x[None, :, :1], (len(x), 1), (len(x), 1)),
    "cdist": lambda x: torch.cdist(x, x),
    "histc": lambda x: torch.histc(x, 5, 0, 1),
}


def test_threads_ask_for_shapes_at_the_same_time(device):
    sizes = range(4, 24)
    inputs = {n: torch.rand(n, n) for n in sizes}

    def ask(number: int, barrier: threading.Barrier) -> dict[tuple[str, int], torch.Tensor]:
        results = {}
        for n in sizes:
            barrier.wait()
            x = inputs[n].to(device)
            results |= {(name, n): op(x) for name, op in SHAPED_BY_TORCH.items()}
        return {key: result.cpu() for key, result in results.items()}

    for found in in_threads(ask):
        for (name, n), result in found.items():
            torch.testing.assert_close(result, SHAPED_BY_TORCH[name](inputs[n]), rtol=1e-4, atol=1e-5)


class Play:
    """Ops on tensors that all threads share: reads, writes, views, swaps, and frees, in one order."""

    def __init__(self, seed: int, place: torch.device) -> None:
        self.random, self.place = random.Random(seed), place
        self.tensors = [torch.arange(float(6 * i), 6.0 * i + 6, device=place).view(2, 3) for i in range(5)]
        self.seen: list[torch.Tensor] = []

    def step(self) -> None:
        tensors, choose = self.tensors, self.random.choice
        x, y = choose(tensors), choose(tensors)
        kind = self.random.randrange(11)
        if kind < 3:
            tensors[self.random.randrange(len(tensors))] = (x - y).remainder(97)
        elif kind == 3:
            x.add_(y).remainder_(97)
        elif kind == 4:
            x.view(-1)[1:4].mul_(2)
        elif kind == 5:
            tensors.append(x.t().t() if len(tensors) < 12 else x.clone())
        elif kind == 6 and len(tensors) > 3:
            tensors.pop(self.random.randrange(len(tensors)))
        elif kind == 7:
            x.data = y.clone().data
        elif kind == 8:
            x.copy_(torch.full((2, 3), float(self.random.randrange(9)), device=self.place if kind % 2 else "cpu"))
        elif kind == 9:
            self.seen.append(torch.cat([x, y, x + y, y.neg()]).cpu())
        else:
            self.seen.append(x.masked_select(x > 40).cpu())

    def end(self) -> list[torch.Tensor]:
        return self.seen + [x.cpu() for x in self.tensors]


def test_any_thread_may_go_on(device):
    with ThreadPoolExecutor(1) as a, ThreadPoolExecutor(1) as b, ThreadPoolExecutor(1) as c:
        for seed in range(40):
            play, on_cpu = Play(seed, device), Play(seed, torch.device("cpu"))
            turns = random.Random(seed)
            for _ in range(120):
                turns.choice([a, b, c]).submit(play.step).result(60)
                on_cpu.step()
            found, wanted = play.end(), on_cpu.end()
            assert len(found) == len(wanted)
            for ours, cpus in zip(found, wanted, strict=True):
                assert torch.equal(ours, cpus), f"program {seed}"


def test_the_forward_pass_in_one_thread_the_backward_pass_in_another(device):
    results = []
    for place in (device, torch.device("cpu")):
        training = Training(3, place)
        with ThreadPoolExecutor(1) as forward, ThreadPoolExecutor(1) as backward:
            for _ in range(5):
                training.optimizer.zero_grad()
                loss = forward.submit(lambda t: F.cross_entropy(t.model(t.x), t.y), training).result(60)
                backward.submit(loss.backward).result(60)
                training.optimizer.step()
        results.append([p.detach().cpu() for p in training.model.parameters()])
    torch.testing.assert_close(*results)


def test_what_a_thread_that_has_ended_recorded(remote):
    made: list[torch.Tensor] = []
    weights = torch.ones(4, device=remote)

    def record() -> None:
        weights.add_(1)
        made.append(weights * 2)

    torch.ones(1, device=remote).item()
    for _ in range(3 * THREADS):  # more threads than exist at any time, because the state of an ended thread is reused
        thread = threading.Thread(target=record)
        thread.start()
        thread.join()
    assert [x[0].item() for x in made] == [2.0 * (2 + i) for i in range(3 * THREADS)]
    assert weights[0].item() == 1 + 3 * THREADS


def test_memory_of_what_threads_shared_is_free_again(remote):
    torch.remote.synchronize()
    before = torch.remote.memory_allocated()

    def use(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sum()

    with ThreadPoolExecutor(1) as a, ThreadPoolExecutor(1) as b:
        for _ in range(5):
            x = torch.ones(1 << 16, device=remote)
            assert x[0].item() == 1
            sums = [pool.submit(use, x).result(60) for pool in (a, b)]
            del x
            assert [s.item() for s in sums] == [1 << 17, 1 << 17]
        del sums
        gc.collect()
        torch.remote.synchronize()
        assert torch.remote.memory_allocated() <= before + 4096


def test_torch_s_profiler_tells_whose_ops_are_whose(remote):
    def work(number: int, barrier: threading.Barrier) -> None:
        for _ in range(5):
            barrier.wait()
            x = torch.ones(4 + number, 4 + number, device=remote)
            for _ in range(10):
                x = torch.linalg.matrix_exp(-x) if number % 2 else x @ x / 4
            x.sum().item()

    in_threads(work)
    with torch.profiler.profile(experimental_config=_ExperimentalConfig(profile_all_threads=True)) as profile:
        in_threads(work)
    here, there = (
        {e.key: e.self_device_time_total for e in profile.key_averages() if e.device_type == kind}
        for kind in (DeviceType.CPU, DeviceType.PrivateUse1)
    )
    for name in ("aten::mm", "aten::linalg_matrix_exp"):
        assert here[name] == pytest.approx(there[name])
        assert here[name] > 0
