"""Small models of many architectures, most of them from transformers, each with random weights and a training batch.

A batch has (count, length), where length is a number of tokens or frames, or a share of an image's side.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

VOCABULARY = 256


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 32)
        self.rnn = nn.LSTM(32, 64, 2, batch_first=True)
        self.head = nn.Linear(64, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.rnn(self.tokens(tokens))[0]).flatten(0, 1), tokens.flatten())


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU())
        self.down = nn.Sequential(nn.Conv2d(16, 32, 3, 2, 1), nn.GroupNorm(4, 32), nn.SiLU())
        self.up = nn.ConvTranspose2d(32, 16, 2, 2)
        self.leave = nn.Conv2d(32 + 32, 3, 1)

    def forward(self, images: Tensor) -> Tensor:
        wide = self.enter(images)
        deep = self.down(wide)
        parts = [wide, self.up(deep), F.interpolate(deep, scale_factor=2.0, mode="nearest")]
        return F.mse_loss(self.leave(torch.cat(parts, 1)), images)


class Block(nn.Module):
    """A residual block."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = nn.Sequential(nn.MaxPool2d(3, 2, 1), Block(16, 16, 1), Block(16, 32, 2))
        self.head = nn.Linear(32, 10)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.blocks(self.enter(images)).mean((2, 3))), labels)


class Bottleneck(nn.Module):
    """The bottleneck block of ResNet-50: narrow, 3x3, four times as wide."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))
        if stride == 1 and inputs == 4 * width:
            self.shortcut = nn.Sequential()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


class ResNet50(nn.Module):
    """ResNet-50 has depths (3, 4, 6, 3) and width 64."""

    def __init__(self, depths: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        blocks: list[nn.Module] = [nn.MaxPool2d(3, 2, 1)]
        inputs = width
        for stage, depth in enumerate(depths):
            for block in range(depth):
                blocks.append(Bottleneck(inputs, width << stage, 2 if stage > 0 and block == 0 else 1))
                inputs = 4 * (width << stage)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, 10)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.blocks(self.enter(images)).mean((2, 3))), labels)


class Dlrm(nn.Module):
    """Click prediction from bags of categories and some numbers; all pairs of embeddings are multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(50 * (i + 1), 16, mode="sum") for i in range(3))
        self.bottom = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(16 + 6, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, numbers: Tensor, bags: Tensor, offsets: Tensor, clicks: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        vectors = torch.stack([dense, *(table(bags, offsets) for table in self.tables)], 1)
        first, second = torch.tril_indices(4, 4, -1, device=dense.device)
        pairs = torch.bmm(vectors, vectors.transpose(1, 2))[:, first, second]
        return F.binary_cross_entropy_with_logits(self.top(torch.cat([dense, pairs], 1)).squeeze(1), clicks)


@dataclass(frozen=True)
class Model:
    make: Callable[[], nn.Module]
    batch: Callable[[int, int], dict[str, Tensor]]
    # False: the recorded ops depend on the data. (With routing, a dim may be 0 or 1 in one step and not in the next.)
    same_ops: bool = True

    def loss(self, net: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        result = net(**batch)
        return result if isinstance(result, Tensor) else result.loss


def tokens(count: int, length: int) -> dict[str, Tensor]:
    ids = torch.randint(0, VOCABULARY, (count, length))
    return {"input_ids": ids, "labels": ids}


def pixels(count: int, length: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(count, 3, 32, 32), "labels": torch.randint(0, 10, (count,))}


def sounds(count: int, length: int) -> dict[str, Tensor]:
    return {"input_features": torch.randn(count, 16, 64), "labels": torch.randint(3, VOCABULARY, (count, length))}


def images(count: int, length: int) -> dict[str, Tensor]:
    return {"images": torch.randn(count, 3, 2 * length, 2 * length)}


def labelled(count: int, length: int) -> dict[str, Tensor]:
    return images(count, length) | {"labels": torch.randint(0, 10, (count,))}


def visits(count: int, length: int) -> dict[str, Tensor]:
    return {
        "numbers": torch.randn(count, 13),
        "bags": torch.randint(0, 50, (count * length,)),
        "offsets": torch.arange(0, count * length, length),
        "clicks": torch.randint(0, 2, (count,)).float(),
    }


def _models() -> dict[str, Model]:
    t = transformers
    size = {"vocab_size": VOCABULARY, "max_position_embeddings": 64}
    decoder = size | {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    encoder = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    gpt2 = t.GPT2Config(n_layer=2, n_head=4, n_embd=64, vocab_size=VOCABULARY, n_positions=64)
    gpt2.resid_pdrop = gpt2.embd_pdrop = gpt2.attn_pdrop = 0.0
    bert = t.BertConfig(**encoder, **size, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    distilbert = t.DistilBertConfig(
        dim=64, hidden_dim=128, n_layers=2, n_heads=4, **size, dropout=0.0, attention_dropout=0.0
    )
    t5 = t.T5Config(d_model=64, d_ff=128, num_layers=2, num_heads=4, d_kv=16, vocab_size=VOCABULARY, dropout_rate=0.0)
    t5.decoder_start_token_id = 0
    vit = t.ViTConfig(**encoder, image_size=32, patch_size=8, num_labels=10)
    swin = t.SwinConfig(
        image_size=32, patch_size=2, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4, num_labels=10
    )
    swin.drop_path_rate = 0.0
    convnext = t.ConvNextConfig(hidden_sizes=[16, 32, 32, 32], depths=[1, 1, 1, 1], num_labels=10)
    whisper = t.WhisperConfig(
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        vocab_size=VOCABULARY,
        num_mel_bins=16,
        max_source_positions=32,
        max_target_positions=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        dropout=0.0,
    )
    mistral = t.MistralConfig(**decoder, sliding_window=8)
    # The loop over experts, each with its rows, records ops that depend on the routing.
    mixtral = t.MixtralConfig(**decoder, num_local_experts=4, experts_implementation="eager")
    return {
        "gpt2": Model(lambda: t.GPT2LMHeadModel(gpt2), tokens),
        "llama": Model(lambda: t.LlamaForCausalLM(t.LlamaConfig(**decoder)), tokens),
        "mistral": Model(lambda: t.MistralForCausalLM(mistral), tokens),
        "mixtral": Model(lambda: t.MixtralForCausalLM(mixtral), tokens, same_ops=False),
        "bert": Model(lambda: t.BertForMaskedLM(bert), tokens),
        "distilbert": Model(lambda: t.DistilBertForMaskedLM(distilbert), tokens),
        "t5": Model(lambda: t.T5ForConditionalGeneration(t5), tokens),
        "whisper": Model(lambda: t.WhisperForConditionalGeneration(whisper), sounds),
        "vit": Model(lambda: t.ViTForImageClassification(vit), pixels),
        "swin": Model(lambda: t.SwinForImageClassification(swin), pixels),
        "convnext": Model(lambda: t.ConvNextForImageClassification(convnext), pixels),
        "resnet": Model(ResNet, labelled),
        "unet": Model(UNet, images),
        "lstm": Model(Lstm, lambda count, length: {"tokens": tokens(count, length)["input_ids"]}),
    }


MODELS = _models()


def _fixed_models() -> dict[str, Model]:
    mamba = transformers.MambaConfig(vocab_size=VOCABULARY, hidden_size=32, state_size=4, num_hidden_layers=2)
    return {
        # Loops over the tokens.
        "mamba": Model(lambda: transformers.MambaForCausalLM(mamba), tokens),
        # Batch norm over few elements: when sizes change, rounding changes the loss.
        "resnet50": Model(lambda: ResNet50((1, 1, 1, 1), 8), labelled),
        "dlrm": Model(Dlrm, visits),
    }


# Models that need batches of one size.
FIXED_MODELS = MODELS | _fixed_models()
