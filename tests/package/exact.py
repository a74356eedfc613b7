"""A script whose results must have the same bits on every client and worker. It prints a hash of them."""

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
    keep(x * w + 1, x.exp(), x.tanh(), torch.sigmoid(x) * w, x.relu().sqrt(), x.erf(), torch.sin(x) - torch.cos(w))
    keep(torch.softmax(x, 1), x.sum(1), x.mean(0), x.amax(1), (x * w).var(1), torch.logsumexp(x, 0))
    keep(torch.nn.functional.layer_norm(x, (257,), w), torch.nn.functional.gelu(x))
integers = (there * 100).long()
keep(integers % 7, integers // 3, integers.cumsum(1), integers.argmax(1), integers.sort(1).values, integers.sum())
leaf = there.clone().requires_grad_()
(torch.softmax(leaf * weights, 1).log() * leaf.tanh()).sum(1).mean().backward()
keep(leaf.grad)
print(digest.hexdigest()[:16])
