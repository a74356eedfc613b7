"""Tensor creation, copies both ways, printing, numpy, exact byte counts."""

import copy
import itertools
import warnings

import numpy as np
import pytest
import torch

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip


def sample(dtype, shape=(3, 5)):
    t = torch.arange(1, 1 + int(np.prod(shape))).reshape(shape)
    return (t % 2).to(dtype) if dtype == torch.bool else t.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_round_trip_of_every_dtype(device, equal, dtype):
    t = sample(dtype)
    there = t.to(device)
    assert there.device.type == device.type and there.dtype == dtype
    equal(there, t)


def test_creation(device, equal):
    equal(torch.zeros(2, 3, device=device), torch.zeros(2, 3))
    equal(torch.ones(2, 3, dtype=torch.int8, device=device), torch.ones(2, 3, dtype=torch.int8))
    equal(torch.full((2,), 2.5, device=device), torch.full((2,), 2.5))
    equal(torch.arange(2, 20, 3, device=device), torch.arange(2, 20, 3))
    equal(torch.linspace(0, 1, 7, device=device), torch.linspace(0, 1, 7))
    equal(torch.eye(3, 4, device=device), torch.eye(3, 4))
    equal(torch.tensor([[1.0, 2], [3, 4]], device=device), torch.tensor([[1.0, 2], [3, 4]]))
    equal(torch.tensor(3, device=device), torch.tensor(3))
    equal(torch.tril_indices(4, 4, device=device), torch.tril_indices(4, 4))
    assert torch.empty(5, 0, 2, device=device).shape == (5, 0, 2)
    x = torch.ones(2, 3, device=device)
    equal(torch.zeros_like(x), torch.zeros(2, 3))
    equal(x.new_full((2,), 7), torch.full((2,), 7.0))
    with torch.device(device):
        y = torch.ones(2) + torch.zeros(2)
    equal(y, torch.ones(2))


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.t(),
        lambda t: t[::2],
        lambda t: t[:, 1:3],
        lambda t: t[1, 2],
        lambda t: t.expand(4, *t.shape),
        lambda t: t[3:1],
        lambda t: t.as_strided((3, 2), (1, 7), 2),
        lambda t: t.unfold(1, 3, 1),
    ],
)
def test_copies_of_views(device, equal, view):
    base = torch.arange(48.0).reshape(6, 8)
    equal(view(base).to(device, copy=True), view(base).to("cpu", copy=True))  # up
    assert torch.equal(view(base.to(device)).cpu(), view(base))  # down
    target = torch.zeros(6, 8, device=device)
    expected = torch.zeros(6, 8)
    if view(expected).dim() < 3:
        view(target).copy_(view(base))  # into a view
        view(expected).copy_(view(base))
        equal(target, expected)


def test_channels_last_survives_the_trip(device, equal):
    t = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    there = t.to(device)
    assert there.is_contiguous(memory_format=torch.channels_last)
    equal(there, t)
    assert there.cpu().is_contiguous(memory_format=torch.channels_last)


def test_conversion_on_the_way(device, equal):
    t = torch.randn(4, 5)
    equal(t.to(device, torch.float64), t.double())
    assert torch.equal(t.to(device).to("cpu", torch.float16), t.half())
    equal(t.to(device).to(torch.int32), t.to(torch.int32))
    half = torch.zeros(4, 5, dtype=torch.float16, device=device)
    half.copy_(t)
    equal(half, t.half())


def test_non_blocking_and_pinned(device, equal):
    t = torch.randn(64, 65)
    equal(t.to(device, non_blocking=True), t)
    if device.type == "remote":
        pinned = t.pin_memory()
        assert pinned.is_pinned() and not t.is_pinned()
        equal(pinned.to(device, non_blocking=True), t)


def test_the_source_of_an_upload_may_change_afterwards(device, equal):
    t = torch.ones(1000)
    there = t.to(device, non_blocking=True, copy=True)
    t.zero_()
    equal(there, torch.ones(1000))


FACTORIES = {
    "empty": lambda **options: torch.empty(3, **options),
    "full": lambda **options: torch.full((3,), 2.5, **options),
    "arange": lambda **options: torch.arange(3, **options),
    "linspace": lambda **options: torch.linspace(0, 1, 3, **options),
    "eye": lambda **options: torch.eye(3, **options),
    "tril_indices": lambda **options: torch.tril_indices(3, 3, **options),
    "randperm": lambda **options: torch.randperm(3, **options),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factories_pin_no_memory_of_the_device(remote, name):
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        FACTORIES[name](device=remote, pin_memory=True)
    assert FACTORIES[name](device=remote, pin_memory=False).device.type == remote.type


def test_numpy_and_lists(device):
    t = torch.arange(6.0, device=device).reshape(2, 3)
    assert t.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert t[1, 2].item() == 5.0
    assert int(t.sum()) == 15 and float(t.max()) == 5.0 and bool(t.any())
    np.testing.assert_array_equal(t.cpu().numpy(), np.arange(6.0).reshape(2, 3))
    if device.type == "remote":
        with pytest.raises(TypeError, match="remote"):
            t.numpy()
    there = torch.from_numpy(np.arange(3)).to(device)
    assert there.tolist() == [0, 1, 2]
    assert torch.tensor(np.float32(2.5), device=device).item() == 2.5


def test_printing(remote):
    t = torch.tensor([[1.5, 2], [3, 4]], device=remote)
    assert repr(t) == "tensor([[1.5000, 2.0000],\n        [3.0000, 4.0000]], device='remote:0')"
    assert repr(torch.tensor(3, device=remote)) == "tensor(3, device='remote:0')"
    assert "size=(0,)" in repr(torch.empty(0, device=remote)) or "[]" in repr(torch.empty(0, device=remote))
    assert "grad_fn" in repr(t.requires_grad_() * 2)
    assert f"{t[0, 0].item():.2f}" == "1.50"
    assert "1.5" in f"{t.detach()[0, 0]}"


def test_names_of_the_device(remote):
    t = torch.ones(1, device="remote")
    assert str(t.device) == "remote:0" and t.device == torch.device("remote", 0)
    assert t.is_remote and not torch.ones(1).is_remote
    assert torch.ones(1).remote().device == t.device
    assert torch.nn.Linear(2, 2).remote().weight.device == t.device
    assert t.type().endswith("FloatTensor")


def test_views_share_memory(device, equal):
    base = torch.zeros(4, 4, device=device)
    base[1:3, ::2] = 5
    base.t()[0].add_(1)
    base.view(-1)[3] = 9
    base.diagonal().mul_(2)
    expected = torch.zeros(4, 4)
    expected[1:3, ::2] = 5
    expected.t()[0].add_(1)
    expected.view(-1)[3] = 9
    expected.diagonal().mul_(2)
    equal(base, expected)


def test_functional_ops_that_alias_alias_here_too(device):
    x = torch.ones(3, 4, device=device)
    for same in (x.contiguous(), x.to(device), x.reshape(3, 4), x.expand_as(x), x.float()):
        assert same.untyped_storage()._cdata == x.untyped_storage()._cdata
    assert x.t().contiguous().untyped_storage()._cdata != x.untyped_storage()._cdata


def test_out_resizes_with_torchs_warning(device, equal):
    out = torch.zeros(7, device=device)
    with pytest.warns(UserWarning, match="resized"):
        result = torch.add(torch.ones(2, 3, device=device), 1, out=out)
    assert result is out
    equal(out, torch.full((2, 3), 2.0))


def test_copies_move_exactly_the_bytes_of_the_view(counted, remote):
    big = torch.zeros(1000, 1000, device=remote)
    column, row = big[:100, 3], big[5, :100]
    with counted() as c:
        column.cpu()
    assert c["bytes_downloaded"] == 400 and c["bytes_uploaded"] == 0
    with counted() as c:
        row.cpu()
    assert c["bytes_downloaded"] == 400
    with counted() as c:
        big[::10, ::100].cpu()
    assert c["bytes_downloaded"] == 4000
    host = torch.ones(1000, 1000)
    with counted() as c:
        column.copy_(host[7, ::10])
        torch.remote.synchronize()
    assert c["bytes_uploaded"] == 400 and c["bytes_downloaded"] == 0
    with counted() as c:
        host[:, 0].to(remote)
        torch.remote.synchronize()
    assert c["bytes_uploaded"] == 4000
    with counted() as c:
        column.sum().item()
    assert c["bytes_downloaded"] <= 8 and c["bytes_uploaded"] == 0


def test_nothing_is_fetched_to_look_at_metadata(counted, remote):
    with counted() as c:
        x = torch.randn(100, 100, device=remote)
        y = (x @ x)[3:7].t()
        assert y.shape == (100, 4) and y.stride() == (1, 100) and y.numel() == 400 and y.nbytes == 1600
        assert y.storage_offset() == 300 and not y.is_contiguous() and y._version == 0
    assert c["round_trips"] == 0 and c["bytes_downloaded"] == 0


def test_deepcopy_and_clone(device, equal):
    x = torch.arange(6.0, device=device)
    y, z = copy.deepcopy(x), x.clone()
    x.zero_()
    equal(y, torch.arange(6.0))
    equal(z, torch.arange(6.0))


def test_huge_tensors_cost_nothing_until_used(counted, remote):
    with counted() as c:
        x = torch.empty(10**10, device=remote)
        y = torch.zeros(10**10, device=remote)
        z = x + y
        assert z.shape == (10**10,)
        del x, y, z
        torch.remote.synchronize()
    assert c["worker_bytes"] == 0
    assert torch.remote.stats()["worker_peak_bytes"] < 10**9


def test_out_of_memory_leaves_the_session_usable(remote):
    x = torch.ones(10, device=remote)
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(10**14, device=remote).add_(1)[:1].cpu()
    assert (x + 1).sum().item() == 20


def test_the_worker_is_one_child_process(remote, worker_processes):
    torch.ones(1, device=remote).item()
    assert len(worker_processes()) == 1


def test_threads_may_use_the_device_together(device):
    import threading

    results = {}

    def work(i):
        x = torch.full((10,), float(i), device=device)
        for _ in range(200):
            x = x + 1
        results[i] = x.sum().item()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: (i + 200) * 10 for i in range(4)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.bool, torch.complex64], ids=str)
def test_a_number_of_another_dtype_is_cast_where_a_mask_is_set(device, equal, dtype):
    x, rows = sample(dtype), torch.tensor([True, False, True])
    there, its_rows = x.to(device), rows.to(device)
    for number in (torch.tensor(5), torch.tensor(2.5, dtype=torch.float64)):
        equal(there.index_put((its_rows,), number), x.index_put((rows,), number))
        x[rows] = number
        there[its_rows] = number
        equal(there, x)
    x[:, x[0] == 1] = torch.tensor(False)
    there[:, there[0] == 1] = torch.tensor(False)
    equal(there, x)


@pytest.mark.parametrize("number", [2**63, 2**64 - 1])
def test_integers_that_only_uint64_represents(device, equal, number):
    for dtype in (torch.uint64, torch.float32, torch.float64):
        for sizes in ((), (3,)):
            filled = torch.full(sizes, number, dtype=dtype, device=device)
            its = torch.full(sizes, number, dtype=dtype)
            if dtype == torch.uint64:  # compares bits
                filled, its = filled.view(torch.int64), its.view(torch.int64)
            equal(filled, its)
    for x in (torch.arange(3), torch.ones(3)):
        equal(x.to(device) + number, x + number)
    with pytest.raises(RuntimeError, match="without overflow"):
        torch.full((3,), number, dtype=torch.int64, device=device)


def test_index_add_of_nothing(device):
    """torch's shape function takes the first slice of tensors, which these do not have."""
    nothing = torch.empty(0, dtype=torch.int64, device=device)
    x = torch.ones(3, 1, device=device, requires_grad=True)
    x.index_select(-1, nothing).sum().backward()
    assert torch.equal(x.grad.cpu(), torch.zeros(3, 1))
    assert torch.ones(3, 0, device=device).index_add(1, nothing, torch.ones(3, 0, device=device)).shape == (3, 0)
    with pytest.raises((RuntimeError, IndexError)):
        torch.ones(3, 2, device=device).index_add(1, nothing, torch.ones(3, 1, device=device))


def test_angle_of_permuted_complex_numbers_is_contiguous_as_on_cpu(remote, equal):
    x = torch.randn(2, 3, 4, dtype=torch.complex64).permute(2, 1, 0)
    equal(torch.angle(x.to(remote)), torch.angle(x), rtol=1e-6, atol=1e-6)
    equal(torch.angle(x.real.to(remote)), torch.angle(x.real))


def test_operands_of_other_dtypes_lie_dense(device, equal):
    """CPU converts operands to one dtype first, and the strides of the copy determine those of the result."""
    for function in (
        torch.add,
        torch.maximum,
        torch.eq,
        torch.logical_and,
        torch.floor_divide,
        lambda a, b: torch.where(b > 0, a, b),
        lambda a, b: torch._foreach_mul([a], [b])[0],
    ):
        results = []
        for place in (device, torch.device("cpu")):
            lying = torch.arange(14.0).reshape(7, 2).t().to(place)
            number = torch.tensor(3, device=place).expand(2, 7)
            results.append((function(number, lying), function(lying, number), function(number.float(), lying)))
        for got, want in zip(*results, strict=True):
            equal(got, want)


def test_real_numbers_in_a_lazy_conjugate(device):
    """The imaginary part in memory is -0."""
    signs = []
    for place in (device, torch.device("cpu")):
        x = torch.ones(3, dtype=torch.complex64, device=place)
        x.conj()[1:].copy_(torch.ones(2, device=place))
        x.conj()[:1].copy_(torch.ones(1))
        signs.append((torch.view_as_real(x.cpu()).signbit().tolist(), torch.view_as_real(x).flatten().tolist()))
    assert signs[0] == signs[1]


def test_lists_have_the_strides_of_ops_on_their_tensors(remote):
    """A dim of size 1 has a stride, too, and later ops use it."""
    calls = [
        lambda x: torch._foreach_mul([x], [x]),
        lambda x: torch._foreach_mul([x], 2.0),
        lambda x: torch._foreach_add([x], [2.0]),
        lambda x: torch._foreach_sqrt([x]),
        lambda x: torch._foreach_neg([x]),
        lambda x: torch._foreach_addcmul([x], [x], [x]),
        lambda x: torch._foreach_lerp([x], [x], 0.5),
        lambda x: torch._foreach_clamp_min([x], 0.5),
        lambda x: torch._foreach_pow([x], 2.0),
    ]
    for sizes in ((1, 7, 3, 2), (7, 1, 3, 2), (2, 7, 1, 3), (1, 1, 2, 3), (3, 1, 2)):
        for order in itertools.permutations(range(len(sizes))):
            inverse = [order.index(i) for i in range(len(order))]
            x = torch.ones(sizes).permute(order).contiguous().permute(inverse)
            for i, call in enumerate(calls):
                expected = call(x)[0].stride()
                assert call(x.to("remote"))[0].stride() == expected, (sizes, order, i)


def test_results_of_integers_follow_the_default_dtype(remote):
    x = torch.arange(1, 4)
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            for call in (torch.angle, torch.special.logit, torch.sqrt, torch.true_divide):
                arguments = (x, x) if call is torch.true_divide else (x,)
                result = call(*(argument.to("remote") for argument in arguments))
                assert result.dtype == call(*arguments).dtype == dtype, call
        finally:
            torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("keepdim", [False, True])
def test_any_and_all_over_an_empty_list_of_dims_reduce_nothing(device, equal, keepdim):
    x = torch.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, 3.0]])
    for function in (torch.any, torch.all):
        equal(function(x.to(device), dim=(), keepdim=keepdim), function(x, dim=(), keepdim=keepdim))
        out = torch.empty(0, dtype=torch.bool, device=device)
        equal(function(x.to(device), dim=(), keepdim=keepdim, out=out), function(x, dim=(), keepdim=keepdim))
        equal(function(x.to(device), dim=None), function(x))


@pytest.mark.parametrize("start", [2**53, -(2**53) - 3, 2**62])
def test_ranges_of_integers_that_doubles_do_not_represent(device, equal, start):
    equal(torch.arange(start, start + 3, device=device), torch.arange(start, start + 3))


def test_a_cast_of_complex_numbers_warns(device):
    x = torch.tensor([1 + 2j], device=device)
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        y = torch.ones(1, device=device)
        for call in (lambda: x.to(torch.float32), lambda: y.copy_(x), lambda: torch.ones(1).copy_(x)):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                call()
            assert [str(w.message)[:30] for w in caught] == ["Casting complex values to real"]
    finally:
        torch.set_warn_always(before)
