"""transformers.pipeline() uses the device by default."""

import pytest
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

WORDS = ["[PAD]", "[UNK]", *"the a good bad film was it not very".split()]


@pytest.fixture
def parts():
    """A text classifier and its tokenizer."""
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, vocab_size=len(WORDS)
    )
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    return {"model": transformers.BertForSequenceClassification(config).eval(), "tokenizer": fast}


TEXTS = ["the film was good", "it was not a very good film", "bad"]


@pytest.mark.parametrize("device", [None, 0, "remote", torch.device("remote")], ids=str)
def test_it_takes_the_device_and_says_what_cpu_says(remote, parts, device):
    expected = transformers.pipeline("text-classification", **parts, device="cpu")(TEXTS, batch_size=2)
    classify = transformers.pipeline("text-classification", **parts, device=device)
    assert classify.device.type == classify.model.device.type == "remote"
    results = classify(TEXTS, batch_size=2)
    assert [r["label"] for r in results] == [r["label"] for r in expected]
    assert [r["score"] for r in results] == pytest.approx([r["score"] for r in expected], rel=1e-4)


@pytest.mark.parametrize("device", ["cpu", -1, torch.device("cpu")], ids=str)
def test_the_cpu_for_who_asks(remote, parts, device):
    classify = transformers.pipeline("text-classification", **parts, device=device)
    assert classify.device == classify.model.device == torch.device("cpu")
