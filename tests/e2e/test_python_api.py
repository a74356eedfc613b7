"""docs/python-api.md: torch.remote has every name of torch.cuda, or the page gives the reason why not."""

import importlib
import re
from pathlib import Path

import pytest
import torch

import torch_remote
import torch_remote.device._absent as absent

PAGE = Path("docs/python-api.md")
SUBMODULES = ["amp", "memory", "nvtx", "random", "streams"]


def table() -> dict[str, tuple[str, str]]:
    """By name: (status, note) of the page's last table."""
    text = PAGE.read_text().split("## All names of torch.cuda", 1)[1]
    rows = re.findall(r"^\| `(\w+)` \| (there|alias|no) \| (.*?) ?\|$", text, flags=re.MULTILINE)
    assert len(rows) == len({name for name, *_ in rows})
    assert len(rows) == text.count("\n| `"), "a row that is none"
    return {name: (what, note) for name, what, note in rows}


def test_the_page_has_every_name_of_torch_cuda(remote):
    """The page is about the newest version of torch."""
    missing = set(table()) - set(torch.cuda.__all__)
    assert set(torch.cuda.__all__) <= set(table())
    assert missing <= (
        {"export_dot", "export_graph_data", "graph_annotations"} if torch.__version__ < "2.14" else set()
    )


def test_the_page_says_what_is_there(remote):
    for name, (what, note) in table().items():
        if what == "no":
            assert absent.MISSING_NAMES[name] == note and not hasattr(torch.remote, name), name
            with pytest.raises(AttributeError, match=f"'{name}': {re.escape(note)}"):
                getattr(torch.remote, name)
        else:
            assert name in torch.remote.__all__ and name not in absent.MISSING_NAMES, name
            value = getattr(torch.remote, name)
            if what == "alias":
                assert value is getattr(torch.remote, note.strip("`")), name
    assert set(absent.MISSING_NAMES) <= set(table())


def test_all_is_true(remote):
    assert sorted(torch.remote.__all__) == sorted(set(torch.remote.__all__))
    for name in torch.remote.__all__:
        assert hasattr(torch.remote, name), name
    text = PAGE.read_text()
    for name in set(torch.remote.__all__) - set(torch.cuda.__all__) - {"get_amp_supported_dtype"}:
        assert f"`{name}" in text, f"the page does not name {name}"


def test_completion_offers_no_imported_names(remote):
    for module in (torch_remote, torch.remote, *(getattr(torch.remote, name) for name in SUBMODULES)):
        assert dir(module) == sorted(module.__all__)


@pytest.mark.parametrize("name", SUBMODULES)
def test_submodules_can_be_imported(remote, name):
    module = importlib.import_module(f"torch.remote.{name}")
    assert module is getattr(torch.remote, name)
    for member in module.__all__:
        assert hasattr(module, member)
        assert name in ("amp", "nvtx") or getattr(torch.remote, member) is getattr(module, member)


def test_submodules_in_a_fresh_process(script, remote):
    script("""
        import torch_remote
        import torch.remote.amp
        from torch.remote.amp import GradScaler, autocast
        from torch.remote import memory, random, streams
        import torch
        assert torch.remote.amp.autocast is autocast
    """)


def test_mixed_precision_by_its_old_names(remote):
    from torch.remote.amp import GradScaler, autocast, custom_bwd, custom_fwd

    net = torch.nn.Linear(4, 2).to(remote)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    scaler = GradScaler()
    with autocast():
        loss = net(torch.ones(3, 4, device=remote)).sum()
    assert loss.dtype is torch.float32 and net(torch.ones(1, 4, device=remote)).dtype is torch.float32
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    with autocast(dtype=torch.bfloat16), autocast(enabled=False):
        assert net(torch.ones(1, 4, device=remote)).dtype is torch.float32

    @autocast(dtype=torch.bfloat16)
    def forward(x):
        return net(x)

    assert forward(torch.ones(1, 4, device=remote)).dtype is torch.bfloat16

    class Double(torch.autograd.Function):
        @staticmethod
        @custom_fwd(cast_inputs=torch.float32)
        def forward(ctx, x):
            return x * 2

        @staticmethod
        @custom_bwd
        def backward(ctx, gradient):
            return gradient * 2

    x = torch.ones(2, device=remote, dtype=torch.bfloat16, requires_grad=True)
    with autocast(dtype=torch.bfloat16):
        y = Double.apply(x)
    y.sum().backward()
    assert y.dtype is torch.float32 and x.grad.tolist() == [2, 2]
