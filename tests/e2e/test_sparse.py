"""Sparse tensors on the device, COO and compressed, compared with CPU."""

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.filterwarnings("ignore")  # sparse CSR is in beta


def coo(device, elements=12, sizes=(5, 6), dense=(), dtype=torch.float32, coalesced=False):
    generator = torch.Generator().manual_seed(elements)
    indices = torch.stack([torch.randint(0, size, (elements,), generator=generator) for size in sizes])
    values = torch.randn(elements, *dense, generator=generator, dtype=torch.float64).to(dtype)
    made = torch.sparse_coo_tensor(indices, values, (*sizes, *dense))
    made = made.coalesce() if coalesced else made
    moved = made._indices().to(device), made._values().to(device)
    return torch.sparse_coo_tensor(*moved, made.shape, is_coalesced=coalesced or None)


def csr(device, crow=(0, 2, 3, 3), columns=(0, 2, 1)):
    parts = torch.tensor(crow), torch.tensor(columns), torch.tensor([1.0, 2, 3])
    return torch.sparse_csr_tensor(*(x.to(device) for x in parts), (3, 4), check_invariants=True)


def grid(device, *sizes):
    return torch.arange(float(torch.Size(sizes).numel())).reshape(sizes).to(device)


def plain(device, *sizes):
    """A strided tensor with blocks of zeros. All matrices of a batch have the same sparsity pattern."""
    numbers = torch.arange(float(torch.Size(sizes).numel())).reshape(sizes)
    pattern = torch.zeros(sizes[-2:])
    pattern[0, 1] = pattern[-1, 0] = pattern[sizes[-2] // 2, -1] = 1
    return ((numbers + 1) * pattern).to(device)


def bsr(device):
    return plain(device, 6, 8).to_sparse_bsr((2, 2))  # CPU multiplies only square blocks


def bsc(device):
    return plain(device, 6, 8).to_sparse_bsc((2, 2))


def parts(matrix):
    if matrix.layout in (torch.sparse_csr, torch.sparse_bsr):
        return matrix.crow_indices(), matrix.col_indices(), matrix.values()
    return matrix.ccol_indices(), matrix.row_indices(), matrix.values()


COMPRESSED = {
    "csr": lambda x: x.to_sparse_csr(),
    "csc": lambda x: x.to_sparse_csc(),
    "bsr": lambda x: x.to_sparse_bsr((2, 4)),
    "bsc": lambda x: x.to_sparse_bsc((3, 2)),
}


def same(ours, cpus):
    if isinstance(cpus, (tuple, list)):
        assert len(ours) == len(cpus)
        for a, b in zip(ours, cpus, strict=True):
            same(a, b)
        return
    if not isinstance(cpus, torch.Tensor):
        assert ours == cpus
        return
    assert ours.device.type == "remote"
    ours = ours.cpu()
    assert (ours.layout, ours.shape, ours.dtype) == (cpus.layout, cpus.shape, cpus.dtype)
    if cpus.layout == torch.sparse_coo:
        assert ours.is_coalesced() == cpus.is_coalesced()
        ours, cpus = ours.coalesce(), cpus.coalesce()
        assert torch.equal(ours.indices(), cpus.indices())
        ours, cpus = ours.values(), cpus.values()
    elif cpus.layout in (torch.sparse_csr, torch.sparse_bsr):
        assert torch.equal(ours.crow_indices(), cpus.crow_indices())
        assert torch.equal(ours.col_indices(), cpus.col_indices())
        ours, cpus = ours.values(), cpus.values()
    elif cpus.layout in (torch.sparse_csc, torch.sparse_bsc):
        assert torch.equal(ours.ccol_indices(), cpus.ccol_indices())
        assert torch.equal(ours.row_indices(), cpus.row_indices())
        ours, cpus = ours.values(), cpus.values()
    torch.testing.assert_close(ours, cpus, equal_nan=True)


CASES = {
    "to_dense": lambda d: coo(d).to_dense(),
    "coalesce": lambda d: coo(d).coalesce(),
    "coalesce, dense dims": lambda d: coo(d, dense=(3,)).coalesce(),
    "coalesce, bool": lambda d: coo(d, dtype=torch.bool).coalesce(),
    "coalesce, bfloat16": lambda d: coo(d, dtype=torch.bfloat16).coalesce(),
    "coalesce, nothing": lambda d: coo(d, 0).coalesce(),
    "coalesce, one": lambda d: coo(d, 1).coalesce(),
    "of three dims": lambda d: coo(d, 40, sizes=(3, 2, 4)).coalesce(),
    "facts": lambda d: (coo(d).is_sparse, coo(d).sparse_dim(), coo(d, dense=(2,)).dense_dim(), coo(d)._nnz()),
    "to_sparse": lambda d: (grid(d, 3, 4) % 3).to_sparse(),
    "to_sparse of one dim": lambda d: (grid(d, 3, 4) % 5).to_sparse(1),
    "sizes from indices": lambda d: torch.sparse_coo_tensor(grid(d, 2, 2).long(), torch.ones(2).to(d)),
    "empty": lambda d: torch.sparse_coo_tensor((3, 4), device=d),
    "sum": lambda d: coo(d) + coo(d, 7),
    "sum, coalesced": lambda d: coo(d, coalesced=True) + coo(d, 7, coalesced=True),
    "sum with nothing": lambda d: coo(d, 0) + coo(d),
    "sum with strided": lambda d: torch.ones(5, 6).to(d) + coo(d),
    "sum with strided, half": lambda d: torch.ones(5, 6).to(d).half() + coo(d),
    "sum, other dtype": lambda d: coo(d).double() + coo(d),
    "sum in place": lambda d: coo(d).add_(coo(d, 4), alpha=2),
    "sum in place, strided": lambda d: torch.ones(6, 5).to(d).t().add_(coo(d, 4), alpha=-0.5),
    "sum, dense dims": lambda d: (coo(d, dense=(3,)) + coo(d, 3, dense=(3,))).to_dense(),
    "difference": lambda d: coo(d) - coo(d, 7),
    "times": lambda d: coo(d, coalesced=True) * coo(d, 20, coalesced=True),
    "times nothing": lambda d: coo(d, coalesced=True) * coo(d, 0).coalesce(),
    "times a number": lambda d: coo(d) * 3,
    "times a number in place": lambda d: coo(d).mul_(2.5),
    "times strided": lambda d: coo(d) * grid(d, 5, 6),
    "times a row": lambda d: coo(d) * grid(d, 6),
    "strided times": lambda d: grid(d, 5, 6) * coo(d),
    "divided": lambda d: coo(d) / 3,
    "product": lambda d: torch.sparse.mm(coo(d), grid(d, 6, 2)),
    "matmul": lambda d: coo(d) @ grid(d, 6, 2),
    "product with a vector": lambda d: coo(d) @ grid(d, 6),
    "addmm, only the product": lambda d: torch.sparse.addmm(
        torch.full((5, 2), float("nan")).to(d), coo(d), grid(d, 6, 2), beta=0
    ),
    "addmm": lambda d: torch.sparse.addmm(torch.ones(5, 2).to(d), coo(d), grid(d, 6, 2), beta=2, alpha=0.5),
    "product of whole rows": lambda d: torch.hspmm(coo(d), grid(d, 6, 2)),
    "sum with a product": lambda d: torch.sspaddmm(
        coo(d, sizes=(5, 2)), coo(d), grid(d, 6, 2), beta=2, alpha=0.5
    ).to_dense(),
    "sampled product": lambda d: torch.sparse.sampled_addmm(
        plain(d, 6, 8).to_sparse_csr(), grid(d, 6, 3), grid(d, 3, 8), beta=0.5, alpha=2
    ),
    "sampled products": lambda d: torch.sparse.sampled_addmm(
        torch.stack([plain(d, 6, 8)] * 2).to_sparse_csr(), grid(d, 2, 6, 3), grid(d, 2, 3, 8)
    ),
    **{
        f"{reduce} of products": lambda d, reduce=reduce: torch.sparse.mm(csr(d), grid(d, 4, 2), reduce)
        for reduce in ("sum", "mean", "amax", "amin")
    },
    "product of two": lambda d: torch.sparse.mm(coo(d), coo(d, 8, sizes=(6, 4))),
    "transposed": lambda d: coo(d).t(),
    "permuted": lambda d: coo(d, sizes=(2, 3, 4)).permute(2, 0, 1),
    "unsqueeze": lambda d: coo(d).unsqueeze(1),
    "cat": lambda d: torch.cat([coo(d), coo(d, 3)]),
    "index_select": lambda d: coo(d).index_select(0, torch.tensor([1, 1, 3]).to(d)).to_dense(),
    "index_select, other dim": lambda d: coo(d).index_select(1, torch.tensor([5, 0, 5]).to(d)).to_dense(),
    "select": lambda d: coo(d)[1].to_dense(),
    "narrow": lambda d: coo(d).narrow_copy(0, 1, 3),
    "sums": lambda d: (torch.sparse.sum(coo(d)), torch.sparse.sum(coo(d), 0), coo(d).sum(1)),
    "norm": lambda d: coo(d).norm(),
    "mask": lambda d: grid(d, 5, 6).sparse_mask(coo(d, 4, coalesced=True)),
    "mask of sparse": lambda d: coo(d).sparse_mask(coo(d, 4, coalesced=True)),
    "softmax": lambda d: torch.sparse.softmax(coo(d), 1),
    "softmax, dense dim": lambda d: torch.sparse.softmax(coo(d, dense=(3,)), 2),
    "log_softmax": lambda d: torch.sparse.log_softmax(coo(d), 0),
    "elementwise": lambda d: (-coo(d), coo(d).abs().sqrt(), coo(d).abs().log1p(), F.relu(coo(d))),
    "pow": lambda d: coo(d, coalesced=True).pow(2),
    "copies": lambda d: (coo(d).clone(), torch.zeros_like(coo(d)), coo(d).copy_(coo(d, 3)), coo(d).zero_()),
    "csr": csr,
    "csr, product": lambda d: (csr(d) @ grid(d, 4, 2), csr(d) @ grid(d, 4), csr(d).matmul(grid(d, 4, 1))),
    "csr, transposed": lambda d: (csr(d).t() @ grid(d, 3, 2), grid(d, 2, 3) @ csr(d)),
    "csr, to others": lambda d: (csr(d).to_dense(), csr(d).to_sparse(), coo(d).to_sparse_csr(), coo(d).to_sparse_csc()),
    "csr of strided": lambda d: ((grid(d, 3, 4) % 3).to_sparse_csr(), (grid(d, 3, 4) % 3).to_sparse_csc()),
    "csr, arithmetic": lambda d: (csr(d) * 2, csr(d) + csr(d), F.relu(csr(d)), -csr(d), csr(d).sin()),
    "csr, a row": lambda d: csr(d)[0],
    "csr, masks": lambda d: (grid(d, 3, 4).sparse_mask(csr(d)), csr(d).sum()),
    "csr, csc": lambda d: (csr(d).to_sparse_csc(), csr(d).to_sparse_csc().to_sparse_csr()),
    "blocks of strided": lambda d: (bsr(d), bsc(d), plain(d, 6, 8).to_sparse_bsr((6, 8))),
    "blocks of coo": lambda d: (
        coo(d).to_sparse_bsr((5, 2)),
        coo(d).to_sparse_bsc((1, 3)),
        coo(d, 0).to_sparse_bsr((1, 1)),
    ),
    "blocks of csr": lambda d: (csr(d).to_sparse_bsr((3, 2)), csr(d).to_sparse_bsc((1, 2))),
    "blocks of csc": lambda d: (csr(d).t().to_sparse_bsr((2, 3)), csr(d).t().to_sparse_bsc((4, 1))),
    "blocks of blocks": lambda d: (
        bsr(d).to_sparse_bsc((2, 2)),
        bsc(d).to_sparse_bsr((2, 2)),
        bsr(d).to_sparse_bsr((2, 2)),
    ),
    "blocks, int32": lambda d: torch.sparse_bsr_tensor(
        torch.tensor([0, 1, 2], dtype=torch.int32).to(d),
        torch.tensor([1, 0], dtype=torch.int32).to(d),
        grid(d, 2, 2, 3),
        (4, 6),
    ).to_sparse_bsc((2, 3)),
    "blocks, to others": lambda d: (bsr(d).to_dense(), bsc(d).to_dense(), bsr(d).to_sparse(), bsc(d).to_sparse()),
    "blocks, dense dims": lambda d: (
        grid(d, 4, 4, 3).to_sparse_bsr((2, 2), dense_dim=1).to_dense(),
        grid(d, 4, 3).to_sparse_csr().to_dense(),
    ),
    "blocks, facts": lambda d: (bsr(d)._nnz(), bsr(d).values().shape, bsr(d).sum(), bsc(d).sum()),
    "blocks, transposed": lambda d: (bsr(d).t(), bsc(d).transpose(0, 1)),
    "blocks, product": lambda d: (bsr(d) @ grid(d, 8, 3), bsr(d) @ grid(d, 8), grid(d, 3, 6) @ bsc(d)),
    "blocks, linear": lambda d: F.linear(grid(d, 3, 8), bsr(d), grid(d, 6)),
    "blocks, addmm": lambda d: torch.addmm(grid(d, 6, 3), bsr(d), grid(d, 8, 3), beta=2, alpha=0.5),
    "blocks, arithmetic": lambda d: (bsr(d) * 2, -bsc(d), F.relu(bsc(d)), bsr(d).sin(), bsr(d).double()),
    "blocks, mask": lambda d: (grid(d, 6, 8).sparse_mask(bsr(d)), grid(d, 6, 8).sparse_mask(bsc(d))),
    "blocks, copies": lambda d: (bsr(d).clone(), torch.zeros_like(bsc(d)), bsr(d).copy_(bsr(d) * 2)),
    "csr of strided and a product": lambda d: torch.addmm(grid(d, 2, 4), grid(d, 2, 3), csr(d)),
    **{
        f"batches of {name}": lambda d, make=make: (
            make(plain(d, 2, 6, 8)),
            make(plain(d, 2, 6, 8)).to_dense(),
            make(plain(d, 2, 6, 8)).to_sparse(),
            make(plain(d, 2, 3, 6, 8)).to_dense(),
            make(plain(d, 2, 3, 6, 8)).to_sparse(),
            make(plain(d, 2, 6, 8))[1],
            make(plain(d, 2, 6, 8)).transpose(1, 2),
            make(plain(d, 2, 6, 8)) * 2,
            make(plain(d, 2, 6, 8)).tanh(),
            make(plain(d, 2, 6, 8)).clone(),
        )
        for name, make in COMPRESSED.items()
    },
    "bmm": lambda d: torch.bmm(coo(d, 30, sizes=(3, 4, 5)), grid(d, 3, 5, 2)),
    "bmm, coalesced": lambda d: torch.bmm(coo(d, 30, sizes=(3, 4, 5), coalesced=True), grid(d, 3, 5, 2)),
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_cpu(remote, name):
    same(CASES[name]("remote"), CASES[name]("cpu"))


# Ops that CPU does not support, or computes wrongly, for sparse tensors: compared with CPU's strided results.
STRIDED = {
    "bmm of strided and coo": lambda x: torch.bmm(grid(x.device, 2, 3, 6), x),
    "bmm": lambda x: torch.bmm(x, grid(x.device, 2, 8, 3)),
    "bmm, strided first": lambda x: torch.bmm(grid(x.device, 2, 3, 6), x),
    "baddbmm": lambda x: torch.baddbmm(grid(x.device, 3), x, grid(x.device, 2, 8, 3), beta=2, alpha=0.5),
    "sum": lambda x: x + x * 3,
    "product": lambda x: x[0] @ grid(x.device, 8, 3),
    "product, strided first": lambda x: grid(x.device, 3, 6) @ x[0],
    "product with a vector": lambda x: x[0] @ grid(x.device, 8),
    "addmm": lambda x: torch.addmm(grid(x.device, 3), x[0], grid(x.device, 8, 3)),
    "sum of two patterns": lambda x: x[0] + like(x, plain(x.device, 6, 8).flip(0)),
    "times": lambda x: x[0] * like(x, plain(x.device, 6, 8) + 1),
    "strided and": lambda x: x[0].to_dense() + x[0],
}


def like(matrix, strided):
    return (
        strided if matrix.layout == torch.strided else MADE[str(matrix.layout).removeprefix("torch.sparse_")](strided)
    )


MADE = COMPRESSED | {"coo": lambda x: x.to_sparse()}


@pytest.mark.parametrize("layout", MADE)
@pytest.mark.parametrize("name", STRIDED)
def test_results_are_those_of_strided_tensors(remote, name, layout):
    given = plain("cpu", 2, 6, 8)
    ours = STRIDED[name](MADE[layout](given.to(remote)))
    assert ours.device.type == "remote"
    torch.testing.assert_close(ours.to_dense().cpu(), STRIDED[name](given))


@pytest.mark.parametrize("layout", MADE)
def test_gradients_of_products_are_those_of_strided_tensors(remote, layout):
    found = []
    for device, make in (("cpu", lambda x: x), (remote, MADE[layout])):
        sparse = make(plain(device, 2, 6, 8)).requires_grad_()
        matrix, vector, other = (grid(device, *sizes).requires_grad_() for sizes in ((2, 8, 3), (8,), (8, 3)))
        of_one = make(plain(device, 6, 8)).requires_grad_()
        (
            torch.bmm(sparse, matrix).sin().sum() + (of_one @ other).sin().sum() + (of_one @ vector).sin().sum()
        ).backward()
        found.append([x.grad.to_dense().cpu() for x in (sparse, matrix, of_one, other, vector)])
    torch.testing.assert_close(*found)


def test_batches_with_other_places_cannot_be_added(remote):
    a, b = (plain(remote, 2, 6, 8).flip(dims).to_sparse_csr() for dims in ((), (1,)))
    with pytest.raises(RuntimeError, match="elements at the same indices in both; call to_dense"):
        a + b
    with pytest.raises(RuntimeError, match="exactly one of them may be sparse"):
        torch.bmm(a, a)


def bags(device, mode, per_sample=False, **options):
    torch.manual_seed(0)
    table = torch.nn.EmbeddingBag(10, 4, mode=mode, sparse=True, **options).to(device)
    weights = torch.rand(6).to(device).requires_grad_() if per_sample else None
    out = table(
        torch.tensor([1, 2, 2, 7, 1, 9]).to(device), torch.tensor([0, 2, 2]).to(device), per_sample_weights=weights
    )
    out.pow(2).sum().backward()
    gradients = [table.weight.grad, table.weight.grad.coalesce()]
    return [out.detach(), *gradients, *([weights.grad] if per_sample else [])]


BAGS = {
    "sum": lambda d: bags(d, "sum"),
    "mean": lambda d: bags(d, "mean"),
    "weights": lambda d: bags(d, "sum", per_sample=True),
    "padding": lambda d: bags(d, "mean", padding_idx=2),
    "by frequency": lambda d: bags(d, "sum", scale_grad_by_freq=True),
}


@pytest.mark.parametrize("name", BAGS)
def test_bags_with_sparse_gradients(remote, name):
    try:
        expected = BAGS[name]("cpu")
    except RuntimeError as error:
        with pytest.raises(type(error)):
            BAGS[name]("remote")
        return
    same(BAGS[name]("remote"), expected)


COMPILED = {
    "product": lambda x, sparse: (sparse @ (x + 1)).relu() * 2,
    "made inside": lambda x, sparse: (x.to_sparse() * 2).to_dense() + 1,
    "compressed inside": lambda x, sparse: (x + 1).to_sparse_csr().to_dense() + 1,
    "result": lambda x, sparse: sparse * 2,
}


@pytest.mark.parametrize("layout", MADE)
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_code_around_sparse_tensors(remote, name, layout):
    torch._dynamo.reset()
    found = []
    for device in ("cpu", "remote"):
        function = COMPILED[name] if device == "cpu" else torch.compile(COMPILED[name], backend="remote")
        sparse = MADE[layout](plain(device, 12, 12)) if device == "remote" else plain(device, 12, 12)
        found.append(function(grid(device, 12, 12), sparse))
    torch.testing.assert_close(found[1].to_dense().cpu(), found[0])


def test_compiled_tables_with_sparse_gradients(remote):
    torch._dynamo.reset()
    for make in (torch.nn.Embedding, torch.nn.EmbeddingBag):
        found = []
        for device in ("cpu", "remote"):
            torch.manual_seed(0)
            table = make(10, 4, sparse=True).to(device)
            run = table if device == "cpu" else torch.compile(table, backend="remote")
            run(torch.tensor([[1, 2], [2, 7]]).to(device)).pow(2).sum().backward()
            found.append(table.weight.grad)
        same(found[1].coalesce(), found[0].coalesce())


def gradients(function, *leaves):
    leaves = [x.detach().requires_grad_() for x in leaves]
    function(*leaves).pow(2).sum().backward()
    return [x.grad for x in leaves]


GRADIENTS = {
    "of values": lambda d: gradients(
        lambda v: torch.sparse_coo_tensor(torch.tensor([[0, 1, 1], [2, 0, 0]]).to(d), v, (2, 3)).to_dense(), grid(d, 3)
    ),
    "of a product": lambda d: gradients(torch.sparse.mm, coo(d, coalesced=True), grid(d, 6, 2)),
    "of a sum": lambda d: [
        g.to_dense() for g in gradients(lambda x: torch.sparse.sum(x, 0).to_dense(), coo(d, coalesced=True))
    ],
    "of a sum of all": lambda d: [g.to_dense() for g in gradients(torch.sparse.sum, coo(d, coalesced=True))],
    "of softmax": lambda d: [
        g.to_dense() for g in gradients(lambda x: torch.sparse.softmax(x, 1).to_dense(), coo(d, coalesced=True))
    ],
    "of a sampled product": lambda d: gradients(
        lambda x, a, b: torch.sparse.sampled_addmm(x, a, b, beta=0.5, alpha=2).to_dense(),
        plain(d, 6, 8).to_sparse_csr(),
        grid(d, 6, 3),
        grid(d, 3, 8),
    ),
    **{
        f"of {reduce} of products": lambda d, reduce=reduce: gradients(
            lambda x, y: torch.sparse.mm(x, y, reduce), csr(d), grid(d, 4, 2)
        )
        for reduce in ("sum", "mean", "amax", "amin")
    },
    "through csr": lambda d: gradients(lambda x: csr(d) @ x, grid(d, 4, 2)),
    "of bmm": lambda d: gradients(torch.bmm, coo(d, 30, sizes=(3, 4, 5), coalesced=True), grid(d, 3, 5, 2)),
    "through blocks": lambda d: gradients(lambda x: x.to_sparse_bsr((2, 4)).to_dense(), plain(d, 6, 8)),
    **{
        f"of values of {name}": lambda d, make=make, name=name: gradients(
            lambda values: torch.sparse_compressed_tensor(
                *parts(make(plain(d, 6, 8)))[:2], values, (6, 8), layout=getattr(torch, f"sparse_{name}")
            ).to_dense(),
            parts(make(plain(d, 6, 8)))[2],
        )
        for name, make in COMPRESSED.items()
    },
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_those_of_the_cpu(remote, name):
    same(GRADIENTS[name]("remote"), GRADIENTS[name]("cpu"))


OPTIMIZERS = {
    "sparse adam": lambda p: torch.optim.SparseAdam(p, lr=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


def trained(device, make):
    torch.manual_seed(0)
    table, head = torch.nn.Embedding(10, 4, sparse=True), torch.nn.Linear(4, 1)
    table.to(device)
    head.to(device)
    optimizer = make(table.parameters())
    for step in range(4):
        optimizer.zero_grad()
        for _ in range(2):  # gradients accumulate
            head(table(torch.tensor([1, 2, 2, 7 - step]).to(device))).pow(2).sum().backward()
        optimizer.step()
    return table.weight.grad, table.weight.detach()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_tables_with_sparse_gradients_train_as_on_the_cpu(remote, name):
    (ours_grad, ours), (grad, weights) = (trained(device, OPTIMIZERS[name]) for device in ("remote", "cpu"))
    same([ours_grad.coalesce(), ours], [grad.coalesce(), weights])


BAD = {
    "index out of range": lambda d: torch.sparse_coo_tensor(
        torch.tensor([[0, 9]]).to(d), torch.ones(2).to(d), (3,), check_invariants=True
    ),
    "column out of range": lambda d: csr(d, columns=(0, 2, 4)),
    "rows that go back": lambda d: csr(d, (0, 2, 1, 3)),
    "rows that begin late": lambda d: csr(d, (1, 2, 3, 3)),
    "rows that end early": lambda d: csr(d, (0, 2, 2, 2)),
    "sizes of a product": lambda d: coo(d) @ grid(d, 5, 2),
    "sizes of a product of rows": lambda d: torch.hspmm(coo(d), grid(d, 5, 2)),
    "sizes of a sum with a product": lambda d: torch.sspaddmm(coo(d), coo(d), grid(d, 6, 2)),
    "sizes of a sampled product": lambda d: torch.sparse.sampled_addmm(csr(d), grid(d, 3, 2), grid(d, 3, 4)),
    "a reduction that is none": lambda d: torch.sparse.mm(csr(d), grid(d, 4, 2), "prod"),
    "sizes of a sum": lambda d: coo(d) + coo(d, sizes=(6, 5)),
    "sparse and strided": lambda d: coo(d) + grid(d, 5, 6),
    "mask of other sizes": lambda d: grid(d, 6, 5).sparse_mask(coo(d)),
    "values that are not coalesced": lambda d: coo(d).values(),
    "size of blocks": lambda d: plain(d, 6, 8).to_sparse_bsr((4, 3)),
    "size of blocks of csr": lambda d: csr(d).to_sparse_bsr((2, 2)),
    "batches of unequal counts": lambda d: torch.stack([plain(d, 6, 8), plain(d, 6, 8) * 0]).to_sparse_csr(),
    "sizes of bmm": lambda d: torch.bmm(coo(d, sizes=(3, 4, 5)), grid(d, 3, 4, 2)),
    "dtypes of a product": lambda d: coo(d) @ grid(d, 6, 2).double(),
    "dtypes of a product of rows": lambda d: csr(d) @ grid(d, 4, 2).double(),
    "dtypes of a product with a vector": lambda d: coo(d) @ grid(d, 6).double(),
    "dtypes of bmm": lambda d: torch.bmm(coo(d, sizes=(3, 4, 5)), grid(d, 3, 5, 2).double()),
    "dtype of an added tensor": lambda d: torch.addmm(grid(d, 5, 2).double(), coo(d), grid(d, 6, 2)),
    "dtype of a product's out": lambda d: torch.addmm(grid(d, 5, 2), coo(d), grid(d, 6, 2), out=grid(d, 5, 2).double()),
    "dtype of a sum's out": lambda d: torch.add(grid(d, 5, 6), coo(d), out=grid(d, 5, 6).long()),
    "index of a selection": lambda d: coo(d).index_select(0, torch.tensor([5]).to(d)),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_raises_what_the_cpu_raises(remote, name):
    errors = []
    for device in ("cpu", "remote"):
        with pytest.raises(Exception) as error:
            BAD[name](device)
        errors.append(error.value)
    assert type(errors[0]) is type(errors[1])
    assert (torch.ones(2, device=remote) + 1).tolist() == [2, 2]


def test_printing_and_moving(remote):
    x = coo("remote", 2)
    assert "layout=torch.sparse_coo" in repr(x) and "nnz=2" in repr(x) and "remote" in repr(x)
    same(coo("cpu").to("remote"), coo("cpu"))
    back = coo("remote").to("cpu", torch.float64)
    assert back.is_sparse and back.dtype == torch.float64 and not back.is_remote


def test_a_step_with_a_sparse_gradient_builds_nothing_the_second_time(remote):
    table = torch.nn.Embedding(50, 4, sparse=True).to(remote)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)

    def step(count):
        optimizer.zero_grad()
        table(torch.arange(count, device=remote)).sum().backward()
        optimizer.step()
        torch.remote.synchronize()

    for count in (3, 4, 5):
        step(count)
    with torch.remote.expect_no_compile():
        for count in (6, 9, 31):
            step(count)
