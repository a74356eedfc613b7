"""stable-baselines3: the default, "auto", selects the device; training gives CPU's weights."""

import copy

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.utils import get_device


class Line(gymnasium.Env):
    """The agent moves a position to 0 by steps to the left or right."""

    observation_space = gymnasium.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.steps = float(self.np_random.integers(-5, 6)), 0
        return self.seen(), {}

    def step(self, action):
        self.position += 1 if action else -1
        self.steps += 1
        return self.seen(), -abs(self.position), False, self.steps == 16, {}

    def seen(self):
        return np.array([self.position, self.steps / 16], np.float32)


def same_weights(one, other):
    for got, expected in zip(one.policy.parameters(), other.policy.parameters(), strict=True):
        torch.testing.assert_close(got.detach().cpu(), expected.detach().cpu(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("algorithm", "options"), [(PPO, {"n_steps": 32, "batch_size": 16, "n_epochs": 2}), (A2C, {"n_steps": 32})]
)
def test_auto_is_the_device_and_trains_as_on_cpu(remote, algorithm, options):
    options = {"seed": 0, "policy_kwargs": {"net_arch": [8]}, **options}
    here, there = algorithm("MlpPolicy", Line(), device="cpu", **options), algorithm("MlpPolicy", Line(), **options)
    assert {p.device for p in there.policy.parameters()} == {torch.device("remote", 0)}
    there.policy.load_state_dict(here.policy.state_dict())
    # Both use the CPU's rollout, because they draw different random actions; then each makes one update.
    there._setup_learn(32)
    here.collect_rollouts(here.env, here._setup_learn(32)[1], here.rollout_buffer, here.n_steps)
    there.rollout_buffer = copy.deepcopy(here.rollout_buffer)
    there.rollout_buffer.device = there.device
    before = [p.detach().clone() for p in here.policy.parameters()]
    for model in (here, there):
        np.random.seed(0)
        model.train()
    same_weights(there, here)
    assert not any(torch.equal(old, new) for old, new in zip(before, here.policy.parameters(), strict=True))
    there.learn(64)  # with its own actions
    assert all(p.isfinite().all() for p in there.policy.parameters())


def test_dqn_trains_as_on_cpu(remote):
    options = {"seed": 0, "policy_kwargs": {"net_arch": [8]}, "learning_starts": 16, "batch_size": 8}
    here, there = (DQN("MlpPolicy", Line(), device=device, **options).learn(48) for device in ("cpu", "auto"))
    assert there.device == torch.device("remote", 0)
    same_weights(there, here)


def test_a_saved_model_comes_back_on_the_device(remote, tmp_path):
    model = A2C("MlpPolicy", Line(), seed=0).learn(16)
    model.save(tmp_path / "model")
    again = A2C.load(tmp_path / "model")
    seen = np.array([3.0, 0.5], np.float32)
    assert again.device.type == "remote"
    assert again.predict(seen, deterministic=True)[0] == model.predict(seen, deterministic=True)[0]


def test_a_device_by_name_is_that(remote):
    assert get_device() == get_device("auto") == torch.device("remote", 0)
    assert get_device("cpu") == torch.device("cpu")
    assert get_device(torch.device("remote")) == torch.device("remote")
