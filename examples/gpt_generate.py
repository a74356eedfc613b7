"""Greedy generation with a tiny GPT whose key/value cache grows by torch.cat, one token at a time.

bazel run //examples:gpt_generate -- --device remote --tokens 130

Every token makes the cache longer, so every step has new sizes. A program's key has none in it: after the third
token no program is built any more. The weights are random (a fixed seed), so the text is not; the tokens are the same
on every device.
"""

import argparse
import math
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_remote  # noqa: F401  registers the device `remote`

Cache = list[tuple[Tensor, Tensor]]


class Block(nn.Module):
    """Pre-norm attention and MLP. The mask is allocated once for the longest sequence and sliced to the current one."""

    def __init__(self, width: int, heads: int, longest: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("mask", torch.ones(longest, longest, dtype=torch.bool).tril())

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        batch, new, width = x.shape
        q, k, v = (
            part.view(batch, new, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(width, dim=2)
        )
        k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        length = k.shape[2]
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)
        scores = scores.masked_fill(~self.mask[length - new : length, :length], float("-inf"))
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, new, width)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norm2(x)))), (k, v)


class TinyGPT(nn.Module):
    def __init__(self, vocabulary: int = 64, width: int = 48, heads: int = 3, layers: int = 2, longest: int = 192):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(Block(width, heads, longest) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def empty_cache(self, batch: int) -> Cache:
        """A cache without positions."""
        heads = self.blocks[0].heads
        nothing = self.positions.weight.new_empty(batch, heads, 0, self.positions.embedding_dim // heads)
        return [(nothing, nothing)] * len(self.blocks)

    def forward(self, tokens: Tensor, cache: Cache, begin: int) -> tuple[Tensor, Cache]:
        position = torch.arange(begin, begin + tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(position)
        grown: Cache = []
        for block, past in zip(self.blocks, cache, strict=True):
            x, pair = block(x, past)
            grown.append(pair)
        return self.head(self.norm(x)), grown


@torch.no_grad()
def generate(model: TinyGPT, prompt: list[int], count: int, device: torch.device) -> tuple[list[int], list[int]]:
    """Returns `count` greedy tokens after the prompt, and the number of programs built when each of them was read."""
    cache = model.empty_cache(batch=1)
    tokens = torch.tensor([prompt], device=device)
    begin = 0
    result: list[int] = []
    built: list[int] = []
    for _ in range(count):
        logits, cache = model(tokens, cache, begin)
        begin += tokens.shape[1]
        tokens = logits[:, -1].argmax(-1, keepdim=True)
        result.append(int(tokens.item()))
        built.append(torch.remote.stats()["programs_built"] if device.type == "remote" else 0)
    return result, built


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="remote")
    parser.add_argument("--tokens", type=int, default=130)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    device = torch.device(args.device)
    torch.manual_seed(args.seed)
    model = TinyGPT().eval().to(device)
    begin = time.perf_counter()
    tokens, built = generate(model, [1, 2, 3], args.tokens, device)
    seconds = time.perf_counter() - begin
    print(*tokens)
    print(f"{args.tokens / seconds:,.0f} tokens/s")
    if device.type == "remote":
        print(f"programs built: {built[0]} for the first token, {built[-1]} in all")


if __name__ == "__main__":
    main()
