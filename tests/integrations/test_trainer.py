"""transformers' Trainer uses the device by default, in all precisions and compiled, with CPU's losses."""

import pytest
import torch
from transformers import Trainer, TrainingArguments


def rows():
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(0, 64, (12,), generator=generator) for _ in range(24)]
    return [{"input_ids": i, "labels": i} for i in ids]


def train(small_gpt, folder, **arguments):
    """The arguments as Trainer parsed them, the model, the losses, and finally the evaluation loss."""
    arguments = TrainingArguments(
        folder, max_steps=4, per_device_train_batch_size=4, logging_steps=1, report_to="none", disable_tqdm=True,
        learning_rate=1e-2, **{"save_strategy": "no", **arguments},
    )  # fmt: skip
    model = small_gpt()
    trainer = Trainer(model, arguments, train_dataset=rows(), eval_dataset=rows())
    trainer.train()
    losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    return arguments, model, [*losses, trainer.evaluate()["eval_loss"]]


@pytest.fixture(scope="module")
def expected(small_gpt, tmp_path_factory):
    arguments, model, losses = train(small_gpt, tmp_path_factory.mktemp("cpu"), use_cpu=True)
    assert arguments.device == model.device == torch.device("cpu")
    return losses


CASES = {
    "as it is": {},
    "bf16": {"bf16": True},
    "fp16": {"fp16": True},
    "fp16 evaluation": {"fp16_full_eval": True},
    "backend remote": {"torch_compile_backend": "remote"},
    "default backend": {"torch_compile": True},
}


@pytest.mark.parametrize("name", CASES)
def test_it_takes_the_device_and_trains_as_on_cpu(remote, small_gpt, expected, tmp_path, name):
    torch._dynamo.reset()
    arguments, model, losses = train(small_gpt, tmp_path, **CASES[name])
    assert arguments.device == model.device == torch.device("remote", 0) and arguments.n_gpu == 1
    assert losses == pytest.approx(expected, rel=1e-2 if "16" in name else 2e-4)


def test_it_resumes(remote, small_gpt, expected, tmp_path):
    train(small_gpt, tmp_path, save_strategy="steps", save_steps=2)
    arguments = TrainingArguments(
        tmp_path, max_steps=4, per_device_train_batch_size=4, logging_steps=1, report_to="none", disable_tqdm=True,
        learning_rate=1e-2,
    )  # fmt: skip
    trainer = Trainer(small_gpt(), arguments, train_dataset=rows(), eval_dataset=rows())
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert trainer.model.device.type == "remote"
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected[-1], rel=2e-4)


def test_the_cpu_for_who_asks(remote, tmp_path, monkeypatch):
    assert TrainingArguments(tmp_path, use_cpu=True, bf16=True).device == torch.device("cpu")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert TrainingArguments(tmp_path).device == torch.device("cpu")
