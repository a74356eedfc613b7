"""The cost of waiting: code that reads results often, on the device and on CPU, alternating in one process.

bazel run //tests/bench:waits                      prints the markdown table of docs/benchmarks.md
bazel run //tests/bench:waits -- --only tiny       only these rows

Between samples this process sleeps, as real waiters do. A machine that is kept awake would hide the cost of a wake-up.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import torch.nn.functional as F
import transformers
from run import CPU, REMOTE, Row, processor, row, timed
from torch import nn

PAUSE = 0.02  # seconds; torch's own threads have stopped spinning by then


def alternate(rounds: int, *functions: Callable[[], float]) -> list[float]:
    """Medians of the values that the functions return, called alternately."""
    samples: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for values, function in zip(samples, functions, strict=True):
            time.sleep(PAUSE)
            values.append(function())
    return [statistics.median(values) for values in samples]


def compared(rounds: int, what: str, most: float, cpu: Callable[[], float], remote: Callable[[], float]) -> Row:
    cpu_time, remote_time = alternate(rounds, cpu, remote)
    return row(
        "waits", what, f"{cpu_time * 1e3:.2f} ms", f"{remote_time * 1e3:.2f} ms", remote_time / cpu_time, ("≤", most)
    )


# -- generation --------------------------------------------------------------------------------------------------------

TOKENS = 48


def gpt2() -> nn.Module:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=4, n_head=4, n_embd=256, vocab_size=1000))


def llama() -> nn.Module:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            hidden_size=256,
            intermediate_size=688,
            vocab_size=1000,
        )
    )


def mamba() -> nn.Module:
    return transformers.MambaForCausalLM(
        transformers.MambaConfig(num_hidden_layers=4, hidden_size=256, vocab_size=1000)
    )


def generating(make: Callable[[], nn.Module], side: str) -> Callable[[], float]:
    """Seconds per token after warm-up: greedy, one sequence, a different prompt length each time, a growing cache.

    Inductor's side is the CPU model with `torch.compile(net.forward, dynamic=True)`.
    """
    torch.manual_seed(0)
    device = REMOTE if side == "remote" else CPU
    net = make().to(device).eval()
    if side == "inductor":
        net.forward = torch.compile(net.forward, dynamic=True)
    lengths = iter(range(5, 10**6, 3))
    settings = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0}

    def per_token() -> float:
        prompt = torch.randint(10, 1000, (1, 8 + next(lengths) % 24), device=device)
        return timed(lambda: net.generate(prompt, **settings).cpu()) / TOKENS

    for _ in range(1 if side == "cpu" else 4):
        per_token()
    return per_token


def generation(name: str, make: Callable[[], nn.Module], most: float, rounds: int) -> list[Row]:
    cpu, remote = generating(make, "cpu"), generating(make, "remote")
    before = torch.remote.stats()
    rows = [compared(rounds, f"{name}: `generate`, a token", most, cpu, remote)]
    after = torch.remote.stats()
    for key in ("programs_built", "kernels_compiled"):
        what, count = f"{name}: {key.replace('_', ' ')} after the fourth `generate`", after[key] - before[key]
        rows.append(row("waits", what, "", f"{count}", count, ("≤", 0)))
    return rows


def compared_with_inductor(rounds: int) -> list[Row]:
    """The first time in each row is Inductor's. It must run last, because Inductor leaves threads behind."""
    rows = []
    for name, make in (("GPT-2", gpt2), ("Llama", llama)):
        inductor, remote = generating(make, "inductor"), generating(make, "remote")
        what = f"{name}, `generate`, a token, compared with Inductor on the CPU, `dynamic=True`"
        rows.append(compared(rounds, what, 1.0, inductor, remote))
    return rows


# -- training with the loss read often ---------------------------------------------------------------------------------


def training(rounds: int) -> list[Row]:
    """Uses a new net each time, so that only programs outlive a run."""

    def fifty(device: torch.device, every: int) -> float:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
        optimizer = torch.optim.Adam(net.parameters())
        x, y = torch.randn(128, 784).to(device), torch.randint(0, 10, (128,)).to(device)
        losses = []

        def body() -> None:
            for step in range(50):
                loss = F.cross_entropy(net(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if (step + 1) % every == 0:
                    losses.append(loss.item())

        return timed(body) / 50

    rows = []
    for every, most in ((10, 0.95), (1, 1.0)):
        for _ in range(3):
            fifty(REMOTE, every), fifty(CPU, every)
        name = "every 10 steps" if every == 10 else "every step"
        what = f"MLP 784-256-10, Adam, batch 128, loss read {name}: a step"
        rows.append(compared(rounds, what, most, lambda e=every: fifty(CPU, e), lambda e=every: fifty(REMOTE, e)))
    return rows


# -- the shortest wait -------------------------------------------------------------------------------------------------


def spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def tiny(rounds: int) -> list[Row]:
    """A small expression whose value is read, each after the same pause. The pause stands for the script's other
    work."""
    operands = {
        device.type: (torch.ones(16, 16, device=device), torch.ones(16, 16, device=device)) for device in (CPU, REMOTE)
    }

    def waits(device: str, between: Callable[[], None], count: int) -> float:
        x, w = operands[device]
        samples = []
        for _ in range(count):
            between()
            begin = time.perf_counter()
            (x @ w).relu().sum().item()
            samples.append(time.perf_counter() - begin)
        return statistics.median(samples)

    rows = []
    for name, between, count, most in (
        ("in a loop", lambda: None, 300, 30),
        ("after 1 ms of Python", lambda: spin(1e-3), 100, 45),
        ("after 5 ms of sleep", lambda: time.sleep(5e-3), 40, 150),
    ):
        for device in ("cpu", "remote"):
            waits(device, between, count)
        cpu, remote = alternate(
            rounds, lambda b=between, c=count: waits("cpu", b, c), lambda b=between, c=count: waits("remote", b, c)
        )
        what = f"`(x @ w).relu().sum().item()` 16x16 {name}"
        rows.append(
            row("tiny", what, f"{cpu * 1e6:.0f} µs", f"{remote * 1e6:.0f} µs", remote * 1e6, ("≤", most), " µs")
        )
    return rows


# -- reinforcement learning --------------------------------------------------------------------------------------------


class Policy(nn.Module):
    """Action, value and log-probability of an observation, as in stable-baselines3's MlpPolicy."""

    def __init__(self) -> None:
        super().__init__()
        body = lambda: nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())  # noqa: E731
        self.actor, self.critic = body(), body()
        self.action, self.value = nn.Linear(64, 2), nn.Linear(64, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.distributions.Categorical, torch.Tensor]:
        logits = self.action(self.actor(x))
        return torch.distributions.Categorical(logits=logits, validate_args=False), self.value(self.critic(x))


def ppo(device: torch.device, steps: int = 64, epochs: int = 2) -> float:
    """Seconds for a rollout of `steps` and training on it, with the calls of stable-baselines3's PPO."""
    import numpy as np

    torch.manual_seed(0)
    policy = Policy().to(device)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
    random = np.random.default_rng(0)

    def rollout() -> dict[str, torch.Tensor]:
        seen: dict[str, list[np.ndarray]] = {"x": [], "action": [], "value": [], "log_prob": []}
        x = random.standard_normal((4, 4), dtype=np.float32)
        for _ in range(steps):
            with torch.no_grad():
                distribution, value = policy(torch.as_tensor(x, device=device))
                action = distribution.sample()
                log_prob = distribution.log_prob(action)
            seen["x"].append(x)
            seen["action"].append(action.cpu().numpy())
            x = (x * 0.9 + seen["action"][-1][:, None] * 0.1).astype(np.float32)  # the environment
            seen["value"].append(value.clone().cpu().numpy().flatten())
            seen["log_prob"].append(log_prob.clone().cpu().numpy())
        return {k: torch.as_tensor(np.concatenate(v), device=device) for k, v in seen.items()}

    def train(batch: dict[str, torch.Tensor]) -> list[float]:
        numbers = []
        advantage = batch["value"] - batch["value"].mean()
        for _ in range(epochs):
            for part in torch.randperm(4 * steps).to(device).chunk(4):
                distribution, value = policy(batch["x"][part])
                ratio = torch.exp(distribution.log_prob(batch["action"][part]) - batch["log_prob"][part])
                gain = advantage[part] * ratio
                bound = advantage[part] * torch.clamp(ratio, 0.8, 1.2)
                policy_loss = -torch.min(gain, bound).mean()
                numbers.append(policy_loss.item())
                numbers.append(((ratio - 1).abs() > 0.2).float().mean().item())
                value_loss = F.mse_loss(batch["value"][part], value.flatten())
                numbers.append(value_loss.item())
                entropy = -distribution.entropy().mean()
                numbers.append(entropy.item())
                loss = policy_loss + 0.5 * value_loss + 0.01 * entropy
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
                optimizer.step()
        return numbers

    def body() -> None:
        for _ in range(2):
            train(rollout())

    return timed(body)


def stable_baselines(device: torch.device) -> float:
    """Seconds of `learn` in stable-baselines3's PPO, 512 steps on CartPole."""
    from stable_baselines3 import PPO

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that small networks are faster on the CPU
        model = PPO("MlpPolicy", "CartPole-v1", n_steps=256, batch_size=64, n_epochs=4, device=device, seed=0)
    return timed(lambda: model.learn(512))


def policies(rounds: int) -> list[Row]:
    for _ in range(3):
        ppo(CPU), ppo(REMOTE)
    stable_baselines(CPU), stable_baselines(REMOTE)
    return [
        compared(
            rounds,
            "PPO by hand: two rollouts of 64 steps, trained on twice",
            1.3,
            lambda: ppo(CPU),
            lambda: ppo(REMOTE),
        ),
        compared(
            rounds,
            "stable-baselines3's PPO, CartPole: 512 steps, trained on in 32 batches",
            1.3,
            lambda: stable_baselines(CPU),
            lambda: stable_baselines(REMOTE),
        ),
    ]


GROUPS: dict[str, Callable[[int], list[Row]]] = {
    "gpt2": lambda rounds: generation("GPT-2, 4 layers of 256", gpt2, 0.67, rounds),
    "llama": lambda rounds: generation("Llama, 4 layers of 256", llama, 0.67, rounds),
    "mamba": lambda rounds: generation("Mamba, 4 layers of 256", mamba, 1.0, rounds),
    "training": training,
    "tiny": tiny,
    "ppo": policies,
    "inductor": compared_with_inductor,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=GROUPS, action="append", help="may be repeated")
    parser.add_argument("--rounds", type=int, default=11, help="pairs of measurements of each quantity")
    parser.add_argument("--threads", type=int, default=2, help="of either side's kernels")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    os.environ["TORCH_REMOTE_WORKER_THREADS"] = str(args.threads)
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, {args.threads} threads, {processor()}\n")
    print("| what | CPU | remote | ratio | target | |\n|---|---:|---:|---:|---:|---|")
    missed = 0
    for name in args.only or GROUPS:
        for r in GROUPS[name](args.rounds):
            print(
                f"| {r.what} | {r.cpu} | {r.remote} | {r.value} | {r.target} | {'' if r.met else '**missed**'} |",
                flush=True,
            )
            missed += not r.met
    print(f"\n{missed} targets missed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
