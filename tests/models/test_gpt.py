"""Generation with a growing key/value cache gives CPU's tokens, and builds no program after the second one."""

import gpt_generate
import pytest
import torch


@pytest.mark.parametrize(
    ("vocabulary", "width", "heads"),
    [
        (64, 48, 3),  # the length exceeds the head size 16, the width 48, the vocabulary 64, and 128
        (100, 32, 1),  # one head: the dim has size 1 throughout
    ],
)
def test_tokens_equal_cpu_and_nothing_is_built(device, vocabulary, width, heads):
    torch.manual_seed(0)
    model = gpt_generate.TinyGPT(vocabulary, width, heads).eval()
    expected, _ = gpt_generate.generate(model, [1, 2, 3], 130, torch.device("cpu"))
    tokens, built = gpt_generate.generate(model.to(device), [1, 2, 3], 130, device)
    assert tokens == expected
    assert len(set(tokens)) > 10  # it does not repeat a few tokens
    if device.type == "remote":
        # The end of the second token's trace is recognized. From the third token on, the trace is cut by the plan.
        assert built[2] == built[-1], [i for i in range(1, 130) if built[i] != built[i - 1]]


def test_another_prompt_length_builds_nothing(counted, remote):
    torch.manual_seed(0)
    model = gpt_generate.TinyGPT().eval().to(remote)
    gpt_generate.generate(model, [1, 2, 3], 4, remote)
    with counted() as c:
        for prompt in ([5, 6], [1] * 16, [2] * 48, [3] * 64):
            gpt_generate.generate(model, prompt, 6, remote)
    assert c["programs_built"] == 0


def test_a_preallocated_cache_written_in_place(counted, remote, equal):
    """The other common form: slices of one buffer are assigned, and read up to the current length."""

    def run(where):
        torch.manual_seed(0)
        cache = torch.zeros(1, 2, 80, 8, device=where)
        x = torch.randn(1, 2, 1, 8).to(where)
        built = []
        for t in range(80):
            cache[:, :, t : t + 1] = x
            keys = cache[:, :, : t + 1]
            x = ((x @ keys.transpose(-2, -1)).softmax(-1) @ keys + 0.1 * x).tanh()
            x.sum().item()
            built.append(torch.remote.stats()["programs_built"] if where != "cpu" else 0)
        return x, built

    there, built = run(remote)
    equal(there, run("cpu")[0], rtol=1e-4, atol=1e-5)
    # The first steps differ in dims of size 1. The last step, whose slice is the whole buffer, must not.
    assert built[2] == built[-1], built
