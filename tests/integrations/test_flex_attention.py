"""flex_attention, called directly, compiled, and from transformers, equals CPU with gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

COMPILED = {"called": None, "backend remote": {"backend": "remote"}, "default backend": {}}


def causal(batch, head, row, column):
    return row >= column


@pytest.fixture
def inputs():
    torch._dynamo.reset()
    torch.manual_seed(0)
    return [torch.randn(2, 4, 32, 8) for _ in range(3)]


def run(function, inputs, device):
    """The result and the gradients."""
    inputs = [x.to(device).requires_grad_() for x in inputs]
    result = function(*inputs)
    result.sin().sum().backward()
    return [result.detach(), *(x.grad for x in inputs)]


@pytest.mark.filterwarnings("ignore:.*without torch.compile")
@pytest.mark.parametrize("how", COMPILED)
def test_equals_attention_with_its_gradients(remote, inputs, how):
    mask = create_block_mask(causal, None, None, 32, 32, device="remote")
    function = flex_attention if COMPILED[how] is None else torch.compile(flex_attention, **COMPILED[how])
    there = run(lambda q, k, v: function(q, k, v, block_mask=mask), inputs, remote)
    here = run(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), inputs, "cpu")
    for got, expected in zip(there, here, strict=True):
        assert got.device.type == "remote"
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*without torch.compile")
def test_scores_are_changed_as_asked(remote, inputs):
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
    distance = torch.arange(32)[:, None] - torch.arange(32)

    def alibi(score, batch, head, row, column):
        return score - there_slopes[head] * (row - column)

    there_slopes = slopes.to(remote)
    got, aux = flex_attention(
        *(x.to(remote) for x in inputs), score_mod=alibi, scale=0.3, return_aux=AuxRequest(lse=True)
    )
    scores = 0.3 * inputs[0] @ inputs[1].mT - slopes[:, None, None] * distance
    torch.testing.assert_close(got.cpu(), scores.softmax(-1) @ inputs[2], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(aux.lse.cpu(), scores.logsumexp(-1), rtol=1e-4, atol=1e-5)


def test_of_transformers(remote):
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=64, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="sdpa")
    ids = torch.randint(0, 64, (2, 20))
    mask = torch.ones_like(ids)
    mask[1, :5] = 0  # padding on the left
    expected = model(ids, attention_mask=mask, labels=ids).loss
    expected.backward()
    gradients = [p.grad for p in model.parameters()]
    model.zero_grad()
    model.set_attn_implementation("flex_attention")
    model.to(remote)
    loss = model(ids.to(remote), attention_mask=mask.to(remote), labels=ids.to(remote)).loss
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-3)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad.cpu(), gradient, rtol=1e-2, atol=1e-4)


def test_elsewhere_torch_decides(remote, inputs):
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        flex_attention(*(x.requires_grad_() for x in inputs))
