"""from_pretrained(device_map=...): "auto" fills the device first; offloaded layers are copied to it one by one."""

import pytest
import torch
import transformers

from torch_remote import weights

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


def test_the_worker_reads_the_weights(remote, small_gpt, tmp_path):
    model = small_gpt()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    expected = {name: parameter.detach() for name, parameter in model.named_parameters()}
    for dtype in (torch.float32, torch.bfloat16):
        torch.ones(1, device="remote").item()
        torch.remote.reset_stats()
        loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, device_map="remote", dtype=dtype)
        torch.remote.synchronize()
        assert torch.remote.stats()["bytes_uploaded"] < 4096  # buffers, which the files lack
        for name, parameter in loaded.named_parameters():
            assert parameter.device == REMOTE and parameter.dtype == dtype
            assert torch.equal(parameter.detach().cpu(), expected[name].to(dtype)), name


def test_weights_are_sent_to_a_worker_that_reads_none(remote, small_gpt, tmp_path, monkeypatch):
    model = small_gpt()
    model.save_pretrained(tmp_path)
    monkeypatch.setattr(weights._C, "find_file", lambda device, path: (None, False, "remote: it reads none"))
    torch.remote.reset_stats()
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, device_map="remote")
    torch.remote.synchronize()
    assert torch.remote.stats()["bytes_uploaded"] >= sum(p.nbytes for p in model.parameters())
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter.detach().cpu(), model.get_parameter(name).detach()), name
