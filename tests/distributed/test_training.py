"""Models that several ranks train give the results of gloo on CPU, and of a single process."""

from __future__ import annotations

import json

import ranks
import torch
import torch.distributed as dist
from torch import nn

STEPS, ROWS = 4, 12


def make(device):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 5)).to(device)


def data():
    torch.manual_seed(1)
    return torch.randn(STEPS, ROWS, 20), torch.randint(0, 5, (STEPS, ROWS))


def train(model, device, rank, size):
    # foreach=False, because torch's foreach implementation does not mix DTensors with other tensors.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    inputs, labels = data()
    part = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
    losses = []
    for x, y in zip(inputs, labels, strict=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[part].to(device)), y[part].to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def weights(model):
    return [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.state_dict().values()]


def wrap(kind, model, device, size):
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
    if kind == "static":
        return nn.parallel.DistributedDataParallel(model, static_graph=True, gradient_as_bucket_view=True)
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(device, (size,))
    if kind == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def compare(rank, size, kind):
    alone = make("cpu")
    expected = train(alone, "cpu", 0, 1)
    results = {}
    for device in ("cpu", "remote"):
        model = wrap(kind, make(device), device, size)
        losses = train(model, device, *((0, 1) if kind == "tensor" else (rank, size)))
        if kind != "tensor":
            dist.all_reduce(losses)
            losses /= size
        results[device] = losses.cpu(), [w.detach().cpu() for w in weights(model)]
    for got, want in zip(results["remote"][1], results["cpu"][1], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(results["remote"][0], results["cpu"][0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(results["remote"][0], expected, rtol=1e-4, atol=1e-5)
    for got, want in zip(results["remote"][1], weights(alone), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)
    assert torch.remote.stats()["client_fallbacks"] == 0


def traffic(rank, size):
    """A step sends only control messages through this process, whose size does not depend on the model."""
    sent, received = {}, {}
    for units in (64, 512):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, units), nn.ReLU(), nn.Linear(units, units), nn.ReLU(), nn.Linear(units, 5))
        model = nn.parallel.DistributedDataParallel(model.to("remote"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = torch.randn(8, 20, device="remote"), torch.randint(0, 5, (8,), device="remote")
        for _ in range(8):
            torch.remote.synchronize()
            torch.remote.reset_stats()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        torch.remote.synchronize()
        stats = torch.remote.stats()
        assert stats["bytes_uploaded"] == stats["bytes_downloaded"] == stats["programs_built"] == 0, stats
        sent[units], received[units] = stats["bytes_sent"], stats["bytes_received"]
    assert sent[512] < sent[64] + 200 and sent[64] < 4000, sent
    # During a step, the worker reports its progress now and then. The larger model's gradients take 1.1 MB.
    assert max(received.values()) < 40_000, received
    print(json.dumps({"sent": sent, "received": received}))


def on_both(f):
    """Asserts that f(device) returns the same on the device as on CPU with gloo."""
    results = [[t.detach().cpu() for t in f(device)] for device in ("cpu", "remote")]
    torch.testing.assert_close(results[1], results[0], rtol=1e-3, atol=1e-4)


def batch(rank, device):
    torch.manual_seed(rank)
    return torch.randn(8, 20).to(device)


def accumulated(rank, size, device):
    """Gradients of several backward passes are reduced once. One layer is unused in every pass."""
    model = nn.parallel.DistributedDataParallel(make(device))
    with model.no_sync():
        model(batch(rank, device)).sum().backward()
    model(batch(rank, device) * 2).sum().backward()

    class Partly(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(20, 4), nn.Linear(20, 4)

        def forward(self, x):
            return self.used(x)

    torch.manual_seed(0)
    partly = nn.parallel.DistributedDataParallel(Partly().to(device), find_unused_parameters=True)
    for _ in range(2):
        partly(batch(rank, device)).sum().backward()
    return [p.grad for p in [*model.parameters(), *partly.module.used.parameters()]]


def clipped(rank, size, device):
    """Norms of sharded gradients, an optimizer with sharded state, and a DDP communication hook."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    from torch.distributed.optim import ZeroRedundancyOptimizer

    sharded = wrap("fsdp", make(device), device, size)
    optimizer = torch.optim.AdamW(sharded.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        sharded(batch(rank, device)).square().sum().backward()
        norm = nn.utils.clip_grad_norm_(sharded.parameters(), 1.0).full_tensor()
        optimizer.step()
    model = nn.parallel.DistributedDataParallel(make(device))
    model.register_comm_hook(None, fp16_compress_hook)
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.01)
    model(batch(rank, device)).square().mean().backward()
    zero.step()
    return [norm, *weights(sharded), *model.parameters()]


def staged(rank, size, device):
    """Two pipeline stages, one per rank, with two micro-batches."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    torch.manual_seed(0)
    layer = [nn.Linear(16, 16).to(device) for _ in range(size)][rank]
    stage = PipelineStage(layer, rank, size, torch.device(device))
    schedule = ScheduleGPipe(stage, 2, loss_fn=lambda out, target: (out - target).square().sum())
    inputs, target = torch.arange(64.0).view(4, 16).to(device) / 64, torch.zeros(4, 16).to(device)
    if rank == 0:
        schedule.step(inputs)
    else:
        schedule.step(target=target)
    return [p.grad for p in layer.parameters()]


def saved(rank, size, device, folder):
    import torch.distributed.checkpoint as checkpoint

    model = wrap("fsdp", make(device), device, size)
    state = {"model": model.state_dict()}
    checkpoint.save(state, checkpoint_id=f"{folder}/{device}")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    checkpoint.load(state, checkpoint_id=f"{folder}/{device}")
    model.load_state_dict(state["model"])
    return weights(model)


def normalised(rank, size, dtype):
    """SyncBatchNorm over parts of a batch equals batch norm of the whole batch; the parts have different sizes."""
    torch.manual_seed(0)
    whole = torch.randn(3 * size + size * (size - 1) // 2, 4, 5).to(dtype)
    start = sum(3 + other for other in range(rank))
    part = slice(start, start + 3 + rank)
    alone = nn.BatchNorm1d(4)
    nn.init.uniform_(alone.weight)
    synced = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm1d(4)))
    synced[0].load_state_dict(alone.state_dict())
    synced = nn.parallel.DistributedDataParallel(synced.to("remote"))
    expected_x = whole.float().clone().requires_grad_()
    x = whole[part].to("remote").requires_grad_()
    expected = alone(expected_x)
    got = synced(x)
    scale = torch.arange(20.0).view(4, 5) / 10
    (expected.square() * scale).sum().backward()
    (got.float().square() * scale.to("remote")).sum().backward()
    close = {"rtol": 1e-3, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 3e-2, "atol": 3e-2}
    assert got.dtype == x.grad.dtype == dtype
    torch.testing.assert_close(got.float().cpu(), expected[part], **close)
    torch.testing.assert_close(x.grad.float().cpu(), expected_x.grad[part], **close)
    module = synced.module[0]
    torch.testing.assert_close(module.weight.grad.cpu() * size, alone.weight.grad, **close)
    torch.testing.assert_close(module.running_var.cpu(), alone.running_var, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(module.running_mean.cpu(), alone.running_mean, rtol=1e-2, atol=1e-3)
    module.eval()
    assert torch.isfinite(synced(x)).all().item()


def everything(rank, size, folder):
    for kind in ("ddp", "static", "fsdp", "tensor"):
        compare(rank, size, kind)
    for function in (accumulated, clipped, staged):
        on_both(lambda device, f=function: f(rank, size, device))
    on_both(lambda device: saved(rank, size, device, folder))
    for dtype in (torch.float32, torch.bfloat16):
        normalised(rank, size, dtype)
    assert torch.remote.stats()["client_fallbacks"] == 0


def compiled(rank, size):
    """Collectives in compiled graphs, and DDP around a compiled model."""
    from torch.distributed._functional_collectives import all_reduce

    def function(x):
        return all_reduce(torch.sin(x) * 2, "sum", dist.group.WORLD) + x

    x = torch.arange(5.0, device="remote") + rank
    assert torch.equal(torch.compile(function)(x), function(x))
    gradients = []
    for compile in (torch.compile, lambda model: model):
        model = compile(nn.parallel.DistributedDataParallel(make("remote")))
        model(batch(rank, "remote")).square().sum().backward()
        gradients.append([p.grad.cpu() for p in model.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-4)


def alone(rank, size):
    """Tests without gloo as the additional backend."""
    traffic(rank, size)
    compiled(rank, size)


def test_as_gloo_and_alone(remote, tmp_path):
    ranks.run(__file__, "everything", 2, tmp_path, str(tmp_path))


def test_compiled_and_bytes_of_a_step(remote, tmp_path):
    ranks.run(__file__, "alone", 2, tmp_path, backend="remote")
