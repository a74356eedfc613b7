"""Fixtures of the library tests: no network access, and tiny reproducible models."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import pytest
import torch
from torch import nn


def classifier() -> nn.Module:
    """A classifier of 8 numbers into 2 classes."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))


@pytest.fixture(name="classifier", scope="session")
def classifier_fixture() -> object:
    return classifier


@pytest.fixture
def examples() -> tuple[torch.Tensor, torch.Tensor]:
    """64 rows of 8 numbers; the label is whether their sum is positive."""
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    return x, (x.sum(1) > 0).long()


def small_gpt() -> nn.Module:
    """A GPT-2 model of transformers with 64 tokens, without dropout, in eval mode."""
    import transformers

    torch.manual_seed(1)
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=32, vocab_size=64, n_positions=32)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    config.bos_token_id = config.eos_token_id = config.pad_token_id = 0
    return transformers.GPT2LMHeadModel(config).eval()


@pytest.fixture(name="small_gpt", scope="session")
def small_gpt_fixture() -> object:
    return small_gpt
