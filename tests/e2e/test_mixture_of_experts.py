"""Expert layers as transformers writes them for devices other than the CPU: sorted tokens, counts, and one grouped
matmul."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


class Experts(nn.Module):
    def __init__(self, features=16, inner=24, experts=4, chosen=2):
        super().__init__()
        self.experts, self.chosen = experts, chosen
        self.router = nn.Linear(features, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, 2 * inner, features) * 0.2)
        self.down = nn.Parameter(torch.randn(experts, features, inner) * 0.2)

    def forward(self, x):
        tokens = x.flatten(0, -2)
        weights, index = self.router(tokens).softmax(-1, dtype=torch.float32).topk(self.chosen, dim=-1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        order = torch.argsort(index.flatten())
        experts = index.flatten()[order]
        # transformers counts floats on the CPU and integers on other devices.
        counts = torch.histc(experts.int() if x.device.type != "cpu" else experts.float(), self.experts, 0, 3)
        ends = torch.cumsum(counts, 0, dtype=torch.int32)
        chosen = tokens[order // self.chosen]
        gate, up = F.grouped_mm(chosen, self.up.transpose(-2, -1), offs=ends).chunk(2, -1)
        out = F.grouped_mm(F.silu(gate) * up, self.down.transpose(-2, -1), offs=ends)
        out = out * weights.flatten()[order][:, None]
        return torch.zeros_like(tokens).index_add(0, order // self.chosen, out).view_as(x)


def step(model, where, dtype, compiled=False):
    model = model.to(where, dtype)
    torch.manual_seed(1)
    x = torch.randn(2, 7, 16).to(where, dtype).requires_grad_()
    y = (torch.compile(model, backend="remote") if compiled else model)(x)
    y.float().square().sum().backward()
    return [t.detach().float().cpu() for t in (y, x.grad, *(p.grad for p in model.parameters()))]


def made():
    torch.manual_seed(0)
    return Experts()


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
def test_equals_cpu(device, dtype):
    tolerance = 1e-4 if dtype == torch.float32 else 0.05
    for mine, its in zip(step(made(), device, dtype), step(made(), "cpu", dtype), strict=True):
        torch.testing.assert_close(mine, its, rtol=tolerance, atol=tolerance)


def test_compiled(remote):
    torch.compiler.reset()
    for mine, its in zip(step(made(), remote, torch.float32, True), step(made(), "cpu", torch.float32), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-4)


def test_grouped_products_lie_as_on_cpu(device, equal):
    torch.manual_seed(0)
    ends = torch.tensor([2, 5], dtype=torch.int32)
    calls = [
        (torch.randn(5, 8), torch.randn(2, 8, 8), ends, lambda a, b: (a, b[:, :, :6])),
        (torch.randn(6, 8), torch.randn(5, 8), ends, lambda a, b: (a[:, :5], b)),
        (torch.randn(2, 4, 8), torch.randn(8, 8), ends, lambda a, b: (a, b[:, :5])),
        (torch.randn(2, 4, 8), torch.randn(2, 6, 8), None, lambda a, b: (a, b.transpose(1, 2))),
    ]
    for a, b, offs, views in calls:
        want = F.grouped_mm(*views(a, b), offs=offs)
        moved = views(a.to(device), b.to(device))
        equal(F.grouped_mm(*moved, offs=None if offs is None else offs.to(device)), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("a", "b", "offs", "message"),
    [
        (torch.ones(4, 8).double(), torch.ones(2, 8, 8), True, "Expected mat_a to be Float32, BFloat16 or Float16"),
        (torch.ones(4, 8), torch.ones(2, 4, 8), True, "contraction dimension of mat_a and mat_b must match"),
        (torch.ones(4, 8), torch.ones(2, 8, 8), False, "Have to provide offsets"),
        (torch.ones(4, 8), torch.ones(3, 8, 8), True, "matrix batch sizes have to match"),
        (torch.ones(4, 6), torch.ones(2, 6, 8), True, "strides should be multiple of 16 bytes"),
    ],
)
def test_wrong_use_is_told_at_the_call(device, a, b, offs, message):
    ends = torch.tensor([2, 4], dtype=torch.int32, device=device) if offs else None
    with pytest.raises(RuntimeError, match=message):
        F.grouped_mm(a.to(device), b.to(device), offs=ends)
