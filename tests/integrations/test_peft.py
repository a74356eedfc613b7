"""peft: adapters are trained, saved and loaded on the device."""

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model


def train(small_gpt, device):
    torch.manual_seed(2)
    config = LoraConfig(r=4, target_modules=["c_attn"], lora_dropout=0.0, fan_in_fan_out=True)
    model = get_peft_model(small_gpt(), config)
    model.to(device)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
    ids = torch.arange(24).view(2, 12).to(device)
    losses = []
    for _ in range(3):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return model, losses


def test_lora_trains_is_saved_and_loaded_on_the_device(remote, small_gpt, tmp_path):
    model, losses = train(small_gpt, remote)
    assert losses == pytest.approx(train(small_gpt, "cpu")[1], rel=1e-4) and losses[2] < losses[0]
    model.save_pretrained(tmp_path)
    ids = torch.arange(12).view(1, 12).to(remote)
    expected = model(input_ids=ids).logits.detach().cpu()
    for device in ("remote", "remote:0", 0):
        again = PeftModel.from_pretrained(small_gpt().to(remote), tmp_path, torch_device=device)
        assert {p.device for p in again.parameters()} == {torch.device("remote", 0)}
        torch.testing.assert_close(again(input_ids=ids).logits.detach().cpu(), expected)
    merged = again.merge_and_unload()
    torch.testing.assert_close(merged(input_ids=ids).logits.detach().cpu(), expected, rtol=1e-3, atol=1e-4)
