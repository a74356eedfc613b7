"""A script whose results must have the same bits on every client and worker. It prints a hash of them.

Its ops round once or not at all. Others, such as exp, sums of floats and matmuls, call torch's libraries, whose last
bits depend on the processor (docs/limits.md).
"""

import hashlib

import torch

import torch_remote  # noqa: F401

torch.manual_seed(0)
device = torch.device("remote")
digest = hashlib.sha256()


def keep(*results: torch.Tensor) -> None:
    for result in results:
        digest.update(result.cpu().reshape(-1).view(torch.uint8).numpy().tobytes())


# Made of integers, so that the inputs do not depend on a math library.
a = (torch.arange(96 * 257).reshape(96, 257) * 7919 % 10007 - 5000) / 1024
b = (torch.arange(257) * 104729 % 9973 - 4000) / 512
there, weights = a.to(device), b.to(device)
for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
    x, w = there.to(dtype), weights.to(dtype)
    keep(x + w, x * w, x - w, x / (w.abs() + 1), x.relu(), x.abs(), -x, x.round(), x.floor(), x.clamp(-1, 1), x > w)
    keep(x.amax(1), x.argmin(0), x.sort(1).values, x.topk(5).values, torch.where(x > w, x, w), torch.maximum(x, w))
    keep(x.t().contiguous(), x[:, ::3], x.index_select(1, torch.arange(0, 257, 7, device=device)), x.flip(0).roll(3, 1))
    for other in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool):
        keep(x.to(other))
integers = (there * 100).long()
keep(integers % 7, integers // 3, integers.cumsum(1), integers.argmax(1), integers.sort(1).values, integers.sum())
keep(integers & 255, integers ^ 77, integers << 3, integers.sum(0), integers.prod(1))
keep(torch.rand(1000, device=device), torch.randint(100, (1000,), device=device), torch.randperm(1000, device=device))
keep(torch.nn.functional.dropout(there, 0.3))
leaf = there.clone().requires_grad_()
((leaf * weights).relu() * 0.5 + leaf.abs()).sum().backward()
keep(leaf.grad)
print(digest.hexdigest()[:16])
