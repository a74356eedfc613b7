"""A script that uses the device in various ways and compares with the CPU, in new environments and with each torch."""

import torch
from torch import nn

import torch_remote  # noqa: F401

torch.manual_seed(0)
device = torch.device("remote")


def close(got, expected):
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-5)


x = torch.randn(64, 64)
there = x.to(device).requires_grad_()
here = x.clone().requires_grad_()
for t in (here, there):
    (torch.softmax(t @ t.T, 1) * t.sin()).sum().backward()
close(there.grad, here.grad)


def net():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 7 * 7, 5)
    )


losses = {}
images, labels = torch.randn(16, 3, 16, 16), torch.randint(5, (16,))
for where in ("cpu", "remote"):
    model = net().to(where)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(5):
        loss = nn.functional.cross_entropy(model(images.to(where)), labels.to(where))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    losses[where] = loss.detach().cpu()
torch.testing.assert_close(losses["remote"], losses["cpu"], rtol=1e-3, atol=1e-4)

close(x.to(device).nonzero(), x.nonzero())  # its size depends on data
close(torch.linalg.svdvals(x.to(device)), torch.linalg.svdvals(x))
close(nn.LSTM(4, 8).to(device)(torch.ones(3, 2, 4, device=device))[0].detach() * 0, torch.zeros(3, 2, 8))
# The points differ, because the distance of a point to itself is a difference of rounded numbers.
close(torch.cdist(x.to(device), x.to(device) + 1), torch.cdist(x, x + 1))
assert 0.3 < torch.rand(1000, device=device).mean().item() < 0.7


@torch.compile(backend="remote")
def f(a):
    return (a * 2 + 1).relu().sum(1)


close(f(x.to(device)), (x * 2 + 1).relu().sum(1))
try:
    torch.ones(2, 3, device=device) @ torch.ones(2, 3, device=device)
except RuntimeError as error:
    assert "shapes cannot be multiplied" in str(error), error
else:
    raise AssertionError("a wrong matmul raised no error")
print("right")
