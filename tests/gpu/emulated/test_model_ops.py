"""Less common ops of models, on an emulated GPU, compared with CPU. They are embedding bags, grid sampling, losses of
probabilities, gates, integer matmuls, distances, masks, copies of views, and complex numbers. The tests cover
gradients, other layouts, changing sizes, and data-dependent errors."""

import os

import pytest
import torch
import torch.nn.functional as F

CHECKED = os.environ.get("TORCH_REMOTE_TEST_CHECKED") == "1"
FLOATS = [torch.float32, torch.float64, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
if CHECKED:  # every access is examined, so one dtype of each kind must do
    FLOATS, INTEGERS = [torch.float32], [torch.int64]
TOLERANCE = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},
    torch.float64: {"rtol": 1e-9, "atol": 1e-9},
    torch.bfloat16: {"rtol": 3e-2, "atol": 3e-2},
    torch.float16: {"rtol": 5e-3, "atol": 5e-3},
    torch.complex64: {"rtol": 1e-4, "atol": 1e-5},
    torch.complex128: {"rtol": 1e-9, "atol": 1e-9},
}


def same(there, expected, strides=True):
    assert there.dtype == expected.dtype
    assert there.shape == expected.shape
    if strides:
        assert there.stride() == expected.stride()
    tolerance = TOLERANCE.get(expected.dtype, {"rtol": 0, "atol": 0})
    torch.testing.assert_close(there.cpu(), expected, equal_nan=True, **tolerance)


def both(function, remote, *operands):
    """Results of the function, and the gradients of its operands, on the device and on CPU."""
    made = []
    for device in (remote, torch.device("cpu")):
        given = [x.detach().to(device) if isinstance(x, torch.Tensor) else x for x in operands]
        leaves = [x.requires_grad_() for x in given if isinstance(x, torch.Tensor) and x.dtype.is_floating_point]
        y = function(*given)
        if y.requires_grad:
            torch.manual_seed(1)
            y.backward(torch.randn(y.shape, dtype=torch.float64).to(y.dtype).to(device))
        made.append([y.detach(), *(x.grad for x in leaves)])
    for there, expected in zip(*made, strict=True):
        if expected is None:
            assert there is None
        else:
            same(there, expected, strides=False)


def refused_like_cpu(function, remote, *operands):
    with pytest.raises(Exception) as expected:
        function(*operands)
    with pytest.raises(type(expected.value)) as got:
        function(*(x.to(remote) for x in operands)).cpu()
    assert str(expected.value).splitlines()[0] in str(got.value)


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags(remote, mode, dtype):
    table = torch.randn(11, 5).to(dtype)
    for offsets, last, padding in (
        ([0, 3, 3, 7], False, None),
        ([0, 4, 9], True, None),
        ([0, 2, 5], False, 2),
    ):
        indices = torch.randint(0, 11, (9,))
        indices[:2] = 2

        def bag(table, indices, offsets, last=last, padding=padding):
            return F.embedding_bag(indices, table, offsets, mode=mode, include_last_offset=last, padding_idx=padding)

        both(bag, remote, table, indices, torch.tensor(offsets))
        both(bag, remote, table.t().contiguous().t(), indices.int(), torch.tensor(offsets).int())
    rows = torch.randint(0, 11, (4, 3))
    both(lambda table, rows: F.embedding_bag(rows, table, mode=mode), remote, table, rows)
    with torch.no_grad():
        same(F.embedding_bag(rows.to(remote), table.to(remote), mode=mode), F.embedding_bag(rows, table, mode=mode))


def test_bags_with_weights_and_often_used_rows(remote):
    table, weights = torch.randn(7, 4), torch.randn(8)
    indices, offsets = torch.randint(0, 7, (8,)), torch.tensor([0, 3, 8])

    def weighted(table, weights, indices, offsets):
        return F.embedding_bag(indices, table, offsets, mode="sum", per_sample_weights=weights)

    both(weighted, remote, table, weights, indices, offsets)
    often = torch.bincount(indices, minlength=7).clamp(min=1)
    for mode in ("sum", "mean"):
        grads = []
        # CPU counts other rows for scale_grad_by_freq
        for device, by_freq in ((remote, True), (torch.device("cpu"), False)):
            leaf = table.detach().to(device).requires_grad_()
            bags = F.embedding_bag(
                indices.to(device), leaf, offsets[:2].to(device), mode=mode, scale_grad_by_freq=by_freq
            )
            bags.square().sum().backward()
            grads.append(leaf.grad)
        same(grads[0], grads[1] / often[:, None])
    both(lambda t, i: F.embedding(i, t, scale_grad_by_freq=True), remote, table, indices.view(2, 4))
    both(lambda t, i: F.embedding(i, t, padding_idx=3, scale_grad_by_freq=True), remote, table, indices)


def test_wrong_bags(remote):
    table, indices = torch.randn(7, 4), torch.tensor([1, 2, 9, 3])
    with pytest.raises(RuntimeError, match="Expected idx >= 0 && idx < num_embeddings but found idx to be 9"):
        F.embedding_bag(indices.to(remote), table.to(remote), torch.tensor([0, 2]).to(remote)).cpu()
    good = torch.tensor([1, 2, 3, 4])
    refused_like_cpu(lambda t, i, o: F.embedding_bag(i, t, o), remote, table, good, torch.tensor([1, 2]))
    refused_like_cpu(lambda t, i, o: F.embedding_bag(i, t, o), remote, table, good, torch.tensor([0, 6]))


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
def test_samples_at_a_grid(remote, dtype):
    flat = (torch.randn(2, 3, 5, 6).to(dtype), torch.randn(2, 4, 3, 2).to(dtype) * 0.8)
    deep = (torch.randn(2, 2, 3, 4, 5).to(dtype), torch.randn(2, 2, 3, 4, 3).to(dtype) * 0.8)
    for mode in ("bilinear", "nearest", "bicubic"):
        for padding in ("zeros", "border", "reflection"):
            for corners in (False, True):
                how = {"mode": mode, "padding_mode": padding, "align_corners": corners}
                both(lambda x, g, h=how: F.grid_sample(x, g, **h), remote, *flat)
                if mode != "bicubic":
                    both(lambda x, g, h=how: F.grid_sample(x, g, **h), remote, *deep)
            if CHECKED:
                break
    image = flat[0].to(memory_format=torch.channels_last)
    both(lambda x, g: F.grid_sample(x, g.transpose(1, 2), align_corners=False), remote, image, flat[1])


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
def test_resizing_with_filters(remote, dtype):
    x = torch.randn(2, 3, 9, 7).to(dtype)
    for mode in ("bilinear", "bicubic"):
        for size in ((4, 3), (9, 7), (13, 5), (2, 20)):
            for corners in (False, True):
                how = {"size": size, "mode": mode, "antialias": True, "align_corners": corners}
                both(lambda x, h=how: F.interpolate(x, **h), remote, x)
        both(lambda x, m=mode: F.interpolate(x, scale_factor=0.4, mode=m, antialias=True), remote, x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_losses_of_chances(remote, dtype):
    x, y, weight = torch.rand(4, 5), torch.rand(4, 5).round(), torch.rand(5)
    x[0, 0], x[0, 1] = 0, 1
    for reduction in ("none", "mean", "sum"):
        for given in (None, weight):
            operands = [t.to(dtype) for t in (x, y, weight)]

            def loss(x, y, w, reduction=reduction, given=given):
                return F.binary_cross_entropy(x, y.detach(), None if given is None else w.detach(), reduction=reduction)

            both(loss, remote, *operands)
    x[2, 2] = 1.5
    refused_like_cpu(F.binary_cross_entropy, remote, x.to(dtype), y.to(dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_of_logits(remote, dtype, reduction):
    with torch.no_grad():
        for shape in ((5, 7), (11,), ()):
            x, y = (3 * torch.randn(shape)).to(dtype), torch.rand(shape).to(dtype)
            weight, of_truth = torch.rand(shape).to(dtype), (2 * torch.rand(shape[-1:])).to(dtype)
            for given in ({}, {"weight": weight}, {"pos_weight": of_truth}, {"weight": weight, "pos_weight": of_truth}):

                def loss(x, y, *more, names=tuple(given)):
                    return F.binary_cross_entropy_with_logits(
                        x, y, reduction=reduction, **dict(zip(names, more, strict=True))
                    )

                both(loss, remote, x, y, *given.values())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_of_pairs(remote, dtype, reduction):
    losses = (
        F.mse_loss,
        F.soft_margin_loss,
        lambda x, y, reduction: F.smooth_l1_loss(x, y, reduction=reduction, beta=0.5),
        lambda x, y, reduction: F.huber_loss(x, y, reduction=reduction, delta=0.7),
    )
    with torch.no_grad():
        for shape in ((5, 7), (11,), ()):
            x, y = torch.randn(shape).to(dtype), torch.randn(shape).sign().to(dtype)
            for loss in losses:
                both(lambda x, y, loss=loss: loss(x, y, reduction=reduction), remote, x, y)
        x = torch.randn(4, 3, 6).to(dtype)
        both(lambda x, y: F.mse_loss(x.mT, y.mT, reduction=reduction), remote, x, x.flip(0))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_unpooling(remote, dtype):
    for pool, unpool, shape in (
        (F.max_pool1d, F.max_unpool1d, (2, 3, 8)),
        (F.max_pool2d, F.max_unpool2d, (2, 3, 8, 6)),
        (F.max_pool3d, F.max_unpool3d, (2, 3, 4, 6, 8)),
    ):
        x = torch.randn(shape).to(dtype)
        smaller, places = pool(x, 2, return_indices=True)
        both(lambda x, places, unpool=unpool: unpool(x, places, 2), remote, smaller, places)
        both(lambda x, places, unpool=unpool: unpool(x[0], places[0], 2), remote, smaller, places)
    # Overlapping windows contain an index twice. The last value stays, and all of them are equal.
    x = torch.randn(1, 2, 7, 7).to(dtype)
    smaller, places = F.max_pool2d(x, 3, stride=2, return_indices=True)
    both(lambda x, places: F.max_unpool2d(x, places, 3, stride=2), remote, smaller, places)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gates(remote, dtype):
    x = torch.randn(4, 6, 8).to(dtype)
    for dim in (0, 1, -1):
        both(lambda x, d=dim: F.glu(x, d), remote, x)
        both(lambda x, d=dim: F.glu(x.transpose(0, 2), d), remote, x)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_members(remote, dtype):
    x, of = torch.randint(0, 20, (5, 7)).to(dtype), torch.randint(0, 20, (3, 2)).to(dtype)
    if dtype.is_floating_point:
        x[1, 1] = of[0, 0] = float("nan")
    for invert in (False, True):
        same(torch.isin(x.to(remote), of.to(remote), invert=invert), torch.isin(x, of, invert=invert))
        turned = torch.isin(x.to(remote).t(), of.to(remote).t(), invert=invert)
        same(turned, torch.isin(x, of, invert=invert).t(), strides=False)
        same(torch.isin(x.to(remote), 3, invert=invert), torch.isin(x, 3, invert=invert))
        same(torch.isin(x.to(remote), of[:0].to(remote), invert=invert), torch.isin(x, of[:0], invert=invert))
    many = torch.randint(0, 5000, (40,)).to(torch.int64)
    same(torch.isin(many.to(remote), torch.arange(0, 5000, 3).to(remote)), torch.isin(many, torch.arange(0, 5000, 3)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_histograms(remote, dtype):
    x = torch.randn(6, 50).to(dtype)
    x[0, 0] = float("nan")
    same(torch.histc(x.to(remote), 10, -1, 1), torch.histc(x, 10, -1, 1))
    x[0, 0] = 0.5
    for bins in (1, 7, 100):
        same(torch.histc(x.to(remote).t(), bins), torch.histc(x.t(), bins))
        same(torch.histc(x.to(remote), bins, 0, 2), torch.histc(x, bins, 0, 2))
    one = torch.full((5,), 2.0).to(dtype)
    same(torch.histc(one.to(remote), 4), torch.histc(one, 4))
    same(torch.histc(one[:0].to(remote), 4), torch.histc(one[:0], 4))
    x[3, 3] = float("inf")
    refused_like_cpu(lambda x: torch.histc(x, 10), remote, x)


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool], ids=str)
def test_logits_of_integers(remote, dtype):
    x = torch.randint(0, 3, (5, 4)).to(dtype)
    for eps in (None, 0.2):
        same(torch.logit(x.to(remote).t(), eps), torch.logit(x.t(), eps))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_histograms_of_integers(remote, dtype):
    x = torch.tensor([0, 3, 4, 7, 8, 11, 12, 12, 100, 0]).to(dtype).to(remote)
    assert torch.histc(x, 4, 0, 12).tolist() == [2, 2, 2, 3]
    assert torch.histc(x, 2).tolist() == [9, 1]
    assert torch.histc(x[:1], 3).tolist() == [0, 1, 0]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_products_of_integers(remote, dtype):
    x, y, batch = (torch.randint(-9, 9, s).to(dtype) for s in ((4, 6), (6, 5), (3, 4, 6)))
    there, other, batches = x.to(remote), y.to(remote), batch.to(remote)
    added = torch.randint(0, 9, (4, 5)).to(dtype)
    same(there @ other, x @ y)
    same(other.t() @ there.t(), y.t() @ x.t())
    same(there[::2] @ other[:, 1:], x[::2] @ y[:, 1:])
    same(torch.addmm(added.to(remote), there, other, beta=2, alpha=3), torch.addmm(added, x, y, beta=2, alpha=3))
    same(torch.addmm(added[0].to(remote), there, other, beta=0), torch.addmm(added[0], x, y, beta=0))
    wide = y.expand(3, -1, -1)
    same(torch.bmm(batches, other.expand(3, -1, -1)), torch.bmm(batch, wide))
    same(torch.baddbmm(added.to(remote), batches, wide.to(remote), beta=2), torch.baddbmm(added, batch, wide, beta=2))
    same(torch.addbmm(added.to(remote), batches, wide.to(remote)), torch.addbmm(added, batch, wide))
    same(there @ other[:, 0], x @ y[:, 0])
    same(torch.addmv(added.to(remote)[:, 1], there, other[:, 1]), torch.addmv(added[:, 1], x, y[:, 1]))
    same(torch.addr(added.to(remote), there[:, 0], other[0], alpha=2), torch.addr(added, x[:, 0], y[0], alpha=2))
    same(there[0].dot(other[:, 2]), x[0].dot(y[:, 2]))
    same(there[:, :0] @ other[:0], x[:, :0] @ y[:0])


def test_whole_numbers_that_are_written_to_floats(remote):
    x, y = torch.tensor([100, -3, 0, 7], dtype=torch.int8), torch.tensor([2, 0, -3, 100], dtype=torch.int8)
    for op in (torch.mul, torch.add, torch.sub):
        for dtype in (torch.float32, torch.float64, torch.int64):
            there, here = torch.zeros(4, dtype=dtype, device=remote), torch.zeros(4, dtype=dtype)
            op(x.to(remote), y.to(remote), out=there)
            op(x, y, out=here)
            assert there.tolist() == here.tolist()
            assert there.signbit().tolist() == here.signbit().tolist()
    out = torch.zeros(4, device=remote)
    assert torch.equal(torch.div(x.to(remote), y.to(remote), out=out).cpu(), x / y)
    assert torch.equal((x.to(remote) * 2.5).cpu(), x * 2.5)


def test_outer_products_times_nothing(remote):
    x, v = torch.randn(3, 2), torch.tensor([1.0, float("nan"), 2])
    for alpha, beta in ((0.0, 1.0), (0.0, 0.0), (0.5, 0.0)):
        both(lambda x, v, a=alpha, b=beta: torch.addr(x, v, v[:2], alpha=a, beta=b), remote, x, v)


@pytest.mark.parametrize("dtype", [*FLOATS[:2], torch.int64], ids=str)
def test_products_of_three(remote, dtype):
    def some(*shape):
        return torch.randn(shape).mul(3).to(dtype) if dtype.is_floating_point else torch.randint(0, 9, shape).to(dtype)

    for batch in ((5,), (2, 3), ()):
        both(F.bilinear, remote, some(*batch, 4), some(*batch, 3), some(6, 4, 3), some(6))
        both(F.bilinear, remote, some(*batch, 4)[..., ::2], some(*batch, 3), some(6, 3, 2).transpose(1, 2))
    both(F.bilinear, remote, some(0, 4), some(0, 3), some(6, 4, 3))
    x, y, z = some(2, 1, 3), some(2, 4), some(4, 3)
    there = torch._trilinear(*(t.to(remote) for t in (x, y, z)), [1], [2, -1], [0, -3], [0, 2])
    same(there, torch._trilinear(x, y, z, [1], [2, -1], [0, -3], [0, 2]), strides=False)


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
def test_norms_of_few_rows(remote, dtype):
    x, weight, bias = (torch.randn(s).to(dtype) for s in ((3, 4), (3, 4), (3, 4)))
    both(lambda x, w, b: F.layer_norm(x, (3, 4), w, b), remote, x, weight, bias)  # all dims are normalized
    mean, variance = torch.randn(4).to(dtype), torch.rand(4).to(dtype) + 0.5

    def norm(x, w, b):
        running = [t.clone().to(x.device) for t in (mean, variance)]
        return torch.ops.aten._batch_norm_with_update(x, w, b, *running, 0.1, 1e-5)[0]

    both(norm, remote, x, weight[0], bias[0])
    both(lambda x, v: x.index_fill(0, torch.tensor([2, 0, 2], device=x.device), v), remote, x, weight[0, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64], ids=str)
def test_chunks_that_are_joined(remote, dtype):
    tensors = [
        torch.arange(1.0, n + 1).to(dtype).reshape(shape) for n, shape in ((24, (4, 6)), (18, (3, 6)), (6, (1, 6)))
    ]
    for chunks in (1, 2, 3, 5):
        here = torch._chunk_cat(tensors, 0, chunks)
        there = [t.to(remote) for t in tensors]
        same(torch._chunk_cat(there, 0, chunks), here)
        same(torch._chunk_cat([t.t().contiguous().t() for t in there], -2, chunks), here)
        out = torch.empty(here.shape[::-1], dtype=dtype, device=remote).t()
        assert torch.equal(torch._chunk_cat(there, 0, chunks, out=out).cpu(), here)
        same(torch._chunk_cat([t.t() for t in there[:1]], 1, chunks), torch._chunk_cat([tensors[0].t()], 1, chunks))


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
def test_distances(remote, dtype):
    x, y = torch.randn(2, 4, 3).to(dtype), torch.randn(2, 5, 3).to(dtype)
    y[:, 0] = x[:, 0]
    for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")):
        both(lambda x, y, p=p: torch.cdist(x, y, p), remote, x, y)
    both(lambda x, y: torch.cdist(x[:1], y.flip(2), 1.0), remote, x, y)  # broadcasts a batch of one
    far = torch.randn(30, 4).to(dtype)
    both(lambda x: torch.cdist(x, x * 2), remote, far)  # uses matmuls


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool], ids=str)
def test_writes_where_masks_say(remote, dtype):
    x = torch.randint(0, 2 if dtype == torch.bool else 9, (4, 5, 3)).to(dtype)
    for mask in (torch.rand(4) < 0.6, torch.rand(4, 5) < 0.5, torch.rand(4, 5, 3) < 0.5, (torch.rand(5, 4) < 0.5).t()):
        count = int(mask.sum())
        rest = x.shape[mask.dim() :]
        for shape in ((count, *rest), (1, *rest), rest, ()):
            values = torch.randint(0, 2 if dtype == torch.bool else 9, shape).to(dtype)
            there, here = x.to(remote), x.clone()
            there[mask.to(remote)] = values.to(remote)
            here[mask] = values
            same(there, here)
            if dtype != torch.bool:
                same(
                    x.to(remote).index_put_((mask.to(remote),), values.to(remote), accumulate=True),
                    x.clone().index_put_((mask,), values, accumulate=True),
                )
    mask = torch.tensor([True, False, True, True, False])
    there, here, values = x.to(remote), x.clone(), x[:, :3].contiguous()
    there[:, mask.to(remote)] = values.to(remote)
    here[:, mask] = values
    same(there, here)
    there = x.to(remote)
    with pytest.raises(RuntimeError, match=r"shape mismatch: value tensor of shape \[2\]"):
        y = there[0, :, 0].contiguous()
        y[mask.to(remote)] = torch.zeros(2, dtype=dtype).to(remote)
        y.cpu()


def test_put(remote):
    x, index, source = torch.randn(4, 5), torch.tensor([[3, -1], [3, 7]]), torch.randn(2, 2)
    for adds in (False, True):
        same(x.to(remote).put(index.to(remote), source.to(remote), adds), x.put(index, source, adds))
        there, here = x.to(remote), x.clone()
        there.t().put_(index.to(remote), source.to(remote).t(), adds)
        here.t().put_(index, source.t(), adds)
        same(there, here)
    with pytest.raises(IndexError, match="out of range: tried to access index 20"):
        x.to(remote).put(torch.tensor([20]).to(remote), torch.ones(1).to(remote)).cpu()


def test_copies_of_views(remote):
    x = torch.randn(2, 3, 4)
    there = x.to(remote)
    for name, arguments in {
        "alias_copy": (),
        "detach_copy": (),
        "view_copy": ([4, 6],),
        "permute_copy": ([2, 0, 1],),
        "transpose_copy": (0, -1),
        "squeeze_copy": (),
        "unsqueeze_copy": (1,),
        "narrow_copy": (1, 1, 2),
        "slice_copy": (2, -3, 4, 2),
        "select_copy": (1, -1),
        "diagonal_copy": (1, 0, 2),
        "unfold_copy": (2, 2, 1),
        "as_strided_copy": ([2, 2], [4, 1], 3),
        "split_copy": (2, 1),
        "unbind_copy": (1,),
    }.items():
        op = getattr(torch.ops.aten, name)
        for there_, here in ((there, x), (there.transpose(0, 2), x.transpose(0, 2))):
            if name == "view_copy" and not here.is_contiguous():
                continue
            made, expected = op(there_, *arguments), op(here, *arguments)
            for a, b in zip(*((t if isinstance(t, (list, tuple)) else [t]) for t in (made, expected)), strict=True):
                same(a, b)
    for a, b in zip(
        torch.split_with_sizes_copy(there, [1, 3], 2), torch.split_with_sizes_copy(x, [1, 3], 2), strict=True
    ):
        same(a, b)
    same(torch.expand_copy(there, [5, 2, 3, 4]), torch.expand_copy(x, [5, 2, 3, 4]))
    same(torch.t_copy(there[0]), torch.t_copy(x[0]))
    part = torch.randn(3, 2)
    same(torch.diagonal_scatter(there, part.to(remote), 1, 0, 2), torch.diagonal_scatter(x, part, 1, 0, 2))
    same(there[0].trace(), x[0].trace())
    same(there[0].long().t().trace(), x[0].long().t().trace())
    both(lambda x: x[0].trace() + x.diagonal(1, 0, 2).sum(), remote, x)


def rotated(x, angles):
    """RoPE with complex numbers."""
    turns = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rotated_positions(remote, dtype):
    x, angles = torch.randn(2, 5, 3, 8).to(dtype), torch.randn(5, 1, 4).to(dtype)
    both(rotated, remote, x, angles)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_numbers(remote, dtype):
    x, y = torch.randn(3, 4, dtype=dtype), torch.randn(3, 4, dtype=dtype)
    x[0, 0] = 0
    real = torch.randn(4).to(dtype.to_real())
    operands = [t.to(remote) for t in (x, y, real)]
    for function in (
        lambda x, y, r: x + y,
        lambda x, y, r: torch.sub(x, y, alpha=2 - 1j),
        lambda x, y, r: x * y.conj(),
        lambda x, y, r: x.t() * y.t(),
        lambda x, y, r: x / y,
        lambda x, y, r: x * r + 2j,
        lambda x, y, r: 1 / y,
        lambda x, y, r: -x,
        lambda x, y, r: x.abs() + y.angle(),
        lambda x, y, r: y.exp() + y.log() + y.sqrt() + y.sin() + y.cos(),
        lambda x, y, r: y**2 + y**1.5 + y**y,
        lambda x, y, r: x.sgn() + y.square(),
        lambda x, y, r: x.sum() + x.sum(0).mean() + x.t().sum(1, keepdim=True),
        lambda x, y, r: x.real * y.imag,
        lambda x, y, r: torch.complex(r, r.flip(0)),
        lambda x, y, r: torch.where(r > 0, x, y),
        lambda x, y, r: (x == y) | (x != y),
        lambda x, y, r: torch.full_like(x, 1 + 2j) + torch.zeros_like(x) + torch.ones_like(x),
        lambda x, y, r: r.to(x.dtype) + x.to(torch.complex128),
        lambda x, y, r: x @ y.mH,
        lambda x, y, r: x.clone().mul_(1j)[:, 1:].conj_physical(),
    ):
        same(function(*operands), function(x, y, real).resolve_conj(), strides=False)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_quotients_and_powers_of_complex_numbers_that_are_none(remote, dtype):
    inf, nan = float("inf"), float("nan")
    parts = [0.0, 2.0, -3.0, 1e30, inf, -inf, nan]
    numbers = torch.tensor([complex(a, b) for a in parts for b in parts], dtype=dtype)
    x, y = numbers[:, None].expand(-1, len(numbers)).contiguous(), numbers.expand(len(numbers), -1).contiguous()
    same(x.to(remote) / y.to(remote), x / y)
    same(numbers.to(remote) / torch.tensor(0, dtype=torch.int8, device=remote), numbers / torch.tensor(0))
    same(numbers.to(remote).reciprocal(), numbers.reciprocal())
    for power in (0, 1, 2, 3, -1, -2, 0.5, -0.5, -0.75, 0.75, 1 + 1j, -1 - 1j, 1j):
        few = torch.tensor([0, 2, -3j, 1 - 2j], dtype=dtype)  # other values depend on the kernel's algorithm
        same(few.to(remote) ** power, few**power)
        bases = numbers[(numbers.real != 1e30) & (numbers.imag != 1e30)]  # powers of the others overflow in some dtypes
        powers = torch.full((len(bases),), power, dtype=dtype)
        same(bases.to(remote) ** powers.to(remote), bases**powers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_of_windows(remote, dtype):
    x = torch.randn(3, 7, 4).to(dtype)
    for dim, size, step in ((1, 3, 1), (1, 3, 2), (-1, 2, 2), (0, 2, 3), (1, 7, 1), (2, 1, 3)):
        both(lambda t, d=dim, n=size, s=step: t.unfold(d, n, s), remote, x)
    both(lambda t: t.transpose(0, 2).unfold(0, 3, 1), remote, x)
    both(lambda t: t.unfold(0, 1, 1), remote, torch.randn(()).to(dtype))
    both(lambda t: t.unfold(1, 2, 1).unfold(2, 3, 1), remote, torch.randn(2, 5, 6).to(dtype))
    window = torch.rand(5).to(dtype)  # torch.istft sums windows this way
    sums = [torch.ops.aten.unfold_backward(w.expand(1, 4, 5), [1, 11], 1, 5, 2) for w in (window.to(remote), window)]
    same(*sums)


def test_signs_of_bools(remote):
    x = torch.tensor([[True, False, True], [False, False, True]])
    for there, here in ((x.to(remote), x), (x.to(remote).t(), x.t())):
        same(there.sign(), here.sign())
        same(there.sgn(), here.sgn())
        same(there.clone().sign_(), here.clone().sign_())
        same(there.abs(), here)  # CPU does not support it
        same(there.isposinf(), here.isposinf())
        same(there.isneginf(), here.isneginf())


def test_complex_results_of_other_dtypes(remote):
    x, y = torch.randn(5, dtype=torch.complex64), torch.randn(5, dtype=torch.complex64)
    y[2] = x[2]
    for op in (torch.eq, torch.add, torch.mul):
        there, here = torch.zeros(5, dtype=torch.complex128, device=remote), torch.zeros(5, dtype=torch.complex128)
        op(x.to(remote), y.to(remote), out=there)
        made = there.cpu()
        assert torch.equal(made, made.to(x.dtype).to(made.dtype))  # computed in the operands' dtype
        torch.testing.assert_close(made, op(x, y, out=here), **TOLERANCE[x.dtype])
    real, into = torch.tensor([float("nan"), float("inf"), 1, 2, 3]), torch.zeros_like(x)
    made = torch.mul(real.to(remote), real.to(remote), out=into.to(remote)).cpu()
    torch.mul(real, real, out=into)  # a real product; a complex one would give NaN in both parts
    torch.testing.assert_close(torch.view_as_real(made), torch.view_as_real(into), equal_nan=True)
    inside, outside = x.to(remote), x.clone()
    same(torch.eq(inside, y.to(remote), out=inside), torch.eq(outside, y, out=outside))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_gradients_of_complex_numbers(remote, dtype):
    made = []
    x, y = torch.randn(4, 3, dtype=dtype), torch.randn(4, 3, dtype=dtype)
    for device in (remote, torch.device("cpu")):
        a, b = (t.detach().to(device).requires_grad_() for t in (x, y))
        loss = (a * b.conj() / (b + 2)).abs().sum() + (a.exp() * b).real.mean() + (a - b).abs().square().sum()
        loss.backward()
        made.append([loss.detach(), a.grad, b.grad])
    for there, expected in zip(*made, strict=True):
        same(there, expected, strides=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_losses_of_sequences(remote, dtype):
    scores = torch.randn(9, 4, 5).to(dtype)
    labels = torch.tensor([[1, 2, 2], [3, 3, 3], [4, 1, 0], [2, 0, 0]])
    labels[labels == 0] = 1
    times, counts = torch.tensor([9, 7, 4, 1]), torch.tensor([3, 3, 2, 1])
    side_by_side = torch.cat([row[:count] for row, count in zip(labels, counts, strict=True)])
    for reduction in ("none", "mean", "sum"):
        for of in (labels, side_by_side):
            for zero in (False, True):

                def loss(x, of, reduction=reduction, zero=zero):
                    x = x.log_softmax(2)
                    return F.ctc_loss(x, of, times, counts, reduction=reduction, zero_infinity=zero)

                both(loss, remote, scores, of)
    short = torch.tensor([2, 7, 4, 1])  # shorter than the labels, so no alignment exists
    both(lambda x, of: F.ctc_loss(x.log_softmax(2), of, short, counts, zero_infinity=True), remote, scores, labels)
    both(
        lambda x, of, t, n: F.ctc_loss(x.log_softmax(2), of, t, n, blank=4, reduction="none"),
        remote,
        scores,
        labels % 4,
        times,
        counts,
    )


def test_losses_of_sequences_check_labels(remote):
    scores, labels = torch.randn(5, 2, 4).log_softmax(2).to(remote), torch.tensor([[1, 9], [2, 3]])
    with pytest.raises((RuntimeError, IndexError)):
        F.ctc_loss(scores, labels.to(remote), [5, 5], [2, 2]).cpu()


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
def test_losses_of_margins(remote, dtype):
    for shape in ((5, 7), (1, 300), (7,)):
        x, classes = torch.randn(shape).mul(2).to(dtype), shape[-1]
        label = torch.randint(0, classes, shape[:-1])
        weight = torch.rand(classes).to(dtype)
        labels = torch.stack([torch.randperm(classes) for _ in range(x.numel() // classes)]).view(shape)
        labels[..., classes // 2 :] = -1
        labels[..., 1] = labels[..., 0]  # a duplicate label
        for reduction in ("none", "mean", "sum"):
            for p, margin, weights in ((1, 1.0, None), (2, 0.5, weight), (1, -0.25, weight)):

                def loss(x, p=p, margin=margin, weights=weights, reduction=reduction, label=label):
                    given = None if weights is None else weights.to(x.device)
                    how = {"p": p, "margin": margin, "weight": given, "reduction": reduction}
                    return F.multi_margin_loss(x, label.to(x.device), **how)

                both(loss, remote, x)
            both(lambda x, of, r=reduction: F.multilabel_margin_loss(x, of, reduction=r), remote, x, labels)
        both(F.multilabel_margin_loss, remote, x, torch.full(shape, -1))  # no labels
    x = torch.randn(6, 8).to(dtype).t()
    both(F.multi_margin_loss, remote, x, torch.arange(8) % 6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_losses_of_margins_of_halves(remote, dtype):
    """CPU does not support these; the reference uses the same numbers in float32."""
    x, label = torch.randn(6, 9).to(dtype), torch.arange(6)
    labels = torch.tensor([1, 4, 7, -1, 0, 0, 0, 0, 0]).expand(6, 9)
    for loss, of in ((F.multi_margin_loss, label), (F.multilabel_margin_loss, labels)):
        for reduction in ("none", "mean"):
            made = []
            for leaf in (x.to(remote).requires_grad_(), x.float().requires_grad_()):
                y = loss(leaf, of.to(leaf.device), reduction=reduction)
                y.sum().backward()
                made.append((y.detach(), leaf.grad))
            for there, here in zip(*made, strict=True):
                same(there, here.to(dtype), strides=False)


def test_labels_beyond_their_classes(remote):
    x = torch.randn(3, 4)
    for bad in (4, -1):
        refused_like_cpu(F.multi_margin_loss, remote, x, torch.tensor([1, bad, 2]))
    for bad in (4, -2):
        labels = torch.tensor([[0, -1, -1, -1], [1, 2, -1, bad], [3, 1, 0, -1]])
        refused_like_cpu(F.multilabel_margin_loss, remote, x, labels)
        refused_like_cpu(
            lambda x, of: torch.ops.aten.multilabel_margin_loss_backward(x.sum(), x, of, 1, torch.ones_like(x)),
            remote,
            x,
            labels,
        )


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float16], ids=str)
def test_tables_with_a_limited_norm(remote, dtype):
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype.itemsize == 2 else {"rtol": 1e-5, "atol": 1e-6}
    table, places = torch.randn(30, 140).to(dtype), torch.randint(0, 29, (4, 6))
    for norm_type in (2.0, 1.0, 0.0, float("inf"), 3.0, -1.5):
        for most in (0.5, 11.0, 200.0):
            here, there = table.clone().requires_grad_(), table.to(remote).requires_grad_()
            for of in (here, there):
                made = F.embedding(places.to(of.device), of, max_norm=most, norm_type=norm_type)
                made.sum().backward()
            torch.testing.assert_close(there.detach().cpu(), here.detach(), **tolerance)
            torch.testing.assert_close(there.grad.cpu(), here.grad, **tolerance)
            assert torch.equal(there[29].cpu(), table[29])
    here, there = table.clone(), table.to(remote)
    for of in (here, there):  # a transposed table, a bag, and int32 indices
        torch.embedding_renorm_(of.t()[:, :20], places.to(of.device, torch.int32) % 140, 1.0, 2.0)
        F.embedding_bag(places.to(of.device), of, max_norm=1.5)
    torch.testing.assert_close(there.cpu(), here, **tolerance)
    with pytest.raises(IndexError):
        F.embedding(torch.tensor([3, 30], device=remote), there, max_norm=1.0).cpu()


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
def test_distances_of_a_matrix(remote, dtype):
    x = torch.randn(9, 5).to(dtype)
    x[3] = x[6]
    x[1, 2] = x[2, 2]
    for p in (2.0, 1.0, 0.0, 3.0, 1.5, float("inf")):
        both(lambda x, p=p: F.pdist(x, p), remote, x)
        both(lambda x, p=p: F.pdist(x.t().contiguous(), p), remote, x)
    both(F.pdist, remote, x[:1])
    same(F.pdist(x[:0].to(remote)), F.pdist(x[:0]))  # CPU's gradient crashes


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_numbers_between_two(remote, dtype):
    start, end = torch.tensor(2.5), torch.tensor(40)
    for steps in (0, 1, 2, 7, 50):
        for ends in ((start, end), (start, 11), (3, end), (end, start), (1, 6)):
            there = [e.to(remote) if isinstance(e, torch.Tensor) else e for e in ends]
            same(torch.linspace(*there, steps, dtype=dtype, device=remote), torch.linspace(*ends, steps, dtype=dtype))
            for base in (2.0, 1.1):
                small = [e / 8 if dtype.is_floating_point else e // 8 for e in ends]
                there = [e.to(remote) if isinstance(e, torch.Tensor) else e for e in small]
                same(
                    torch.logspace(*there, steps, base, dtype=dtype, device=remote),
                    torch.logspace(*small, steps, base, dtype=dtype),
                )
    if not dtype.is_floating_point:
        for ends in ((1 + 2j, -3 + 0.5j), (torch.tensor(1 - 1j), 3), (0.5, torch.tensor(2 + 8j))):
            there = [e.to(remote) if isinstance(e, torch.Tensor) else e for e in ends]
            how = {"dtype": torch.complex128 if dtype == torch.int64 else torch.complex64}
            same(torch.linspace(*there, 9, device=remote, **how), torch.linspace(*ends, 9, **how))
    least = 0 if dtype == torch.uint8 else -1
    expected = torch.logspace(least, 2, 4 - least - 1, dtype=dtype)
    same(torch.logspace(least, 2, 4 - least - 1, dtype=dtype, device=remote), expected)
    if dtype.is_floating_point:
        for base in (-2.0, 0.0):
            same(
                torch.logspace(-1, 3, 5, base, dtype=dtype, device=remote), torch.logspace(-1, 3, 5, base, dtype=dtype)
            )
