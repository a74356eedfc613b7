"""from_pretrained(device_map=...): "auto" fills the device first; what is offloaded comes to it layer by layer."""

import pytest
import torch
import transformers

REMOTE = torch.device("remote", 0)


@pytest.fixture
def saved(small_gpt, tmp_path):
    model = small_gpt()
    model.save_pretrained(tmp_path)
    ids = torch.arange(10)[None]
    return tmp_path, ids, model(ids).logits.detach(), model.generate(ids, max_new_tokens=5, do_sample=False)


@pytest.mark.parametrize("device_map", ["auto", "balanced", "sequential", "remote", {"": 0}, {"": "remote:0"}], ids=str)
def test_the_model_is_on_the_device(remote, saved, device_map):
    path, ids, expected, tokens = saved
    model = transformers.AutoModelForCausalLM.from_pretrained(path, device_map=device_map)
    assert {p.device for p in model.parameters()} == {REMOTE}
    ids = ids.to(remote)
    torch.testing.assert_close(model(ids).logits.detach().cpu(), expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(model.generate(ids, max_new_tokens=5, do_sample=False).cpu(), tokens)


def test_what_does_not_fit_is_on_the_cpu_and_computed_on_the_device(remote, saved):
    path, ids, expected, _ = saved
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, device_map="auto", max_memory={0: "60KB", "cpu": "1GB"}
    )
    assert set(model.hf_device_map.values()) == {0, "cpu"}
    torch.testing.assert_close(model(ids.to(remote)).logits.detach().cpu(), expected, rtol=1e-4, atol=1e-5)


def test_the_cpu_for_who_asks(remote, saved):
    model = transformers.AutoModelForCausalLM.from_pretrained(saved[0], device_map="cpu")
    assert model.device == torch.device("cpu")
