"""Sparse tensors of the device: COO and compressed ones, against CPU."""

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
    elif cpus.layout == torch.sparse_csr:
        assert torch.equal(ours.crow_indices(), cpus.crow_indices())
        assert torch.equal(ours.col_indices(), cpus.col_indices())
        ours, cpus = ours.values(), cpus.values()
    elif cpus.layout == torch.sparse_csc:
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
    "addmm": lambda d: torch.sparse.addmm(torch.ones(5, 2).to(d), coo(d), grid(d, 6, 2), beta=2, alpha=0.5),
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
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_cpu(remote, name):
    same(CASES[name]("remote"), CASES[name]("cpu"))


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
    "through csr": lambda d: gradients(lambda x: csr(d) @ x, grid(d, 4, 2)),
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
        for _ in range(2):  # gradients add up
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
    "sizes of a sum": lambda d: coo(d) + coo(d, sizes=(6, 5)),
    "sparse and strided": lambda d: coo(d) + grid(d, 5, 6),
    "mask of other sizes": lambda d: grid(d, 6, 5).sparse_mask(coo(d)),
    "values that are not coalesced": lambda d: coo(d).values(),
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
