"""Large CPU tensors read from the device reuse memory: they are ordinary tensors, and cause no page faults."""

import resource

import torch

COUNT = 3 << 20  # elements of four bytes; well above the size from which memory is cached


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_results_are_their_own(device):
    x = torch.arange(COUNT, dtype=torch.float32).to(device)
    first = x.cpu()
    second = x.cpu()
    assert first.data_ptr() != second.data_ptr()
    first.fill_(-1)
    torch.testing.assert_close(second, torch.arange(COUNT, dtype=torch.float32))
    del first
    third = (x + 1).cpu()  # in the first one's memory
    torch.testing.assert_close(x.cpu(), second)
    torch.testing.assert_close(third, second + 1)


def test_strides_and_dtypes_are_cpus(device):
    host = torch.randn(1024, 1100)
    x = host.to(device)
    for view in (
        lambda t: t,
        lambda t: t.t(),
        lambda t: t.view(16, 64, 1100).permute(2, 0, 1),
        lambda t: t[:, ::2],
        lambda t: t[1:],
        lambda t: t[1:].t(),
        lambda t: torch.complex(t, t).conj(),
    ):
        for options in (
            {},
            {"dtype": torch.float64},
            {"non_blocking": True},
            {"memory_format": torch.contiguous_format},
        ):
            if view(host).is_complex() and "dtype" in options:
                continue
            got, expected = view(x).to("cpu", **options), view(host).to("cpu", copy=True, **options)
            assert got.equal(expected)
            assert got.stride() == expected.stride()
            assert got.dtype == expected.dtype


def test_they_are_as_good_as_any(device):
    x = torch.ones(COUNT, device=device).cpu()
    assert x.resize_(2 * COUNT)[:COUNT].sum().item() == COUNT
    shared = torch.ones(COUNT, device=device).cpu().share_memory_()
    assert shared.is_shared() and shared.sum().item() == COUNT
    array = torch.ones(COUNT, device=device).cpu().numpy()  # keeps the memory alive, but not the tensor
    torch.zeros(COUNT, device=device).cpu()
    assert array.sum() == COUNT
    leaf = torch.ones(COUNT, device=device, requires_grad=True)
    leaf.cpu().sum().backward()
    assert leaf.grad.sum().item() == COUNT


def test_memory_is_used_again(remote):
    x = torch.ones(16 << 20, device=remote)
    for _ in range(3):
        x.cpu()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        x.cpu()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert faults < 4 * 100  # of 4 * 16384 pages


def test_empty_cache_gives_it_back(remote):
    x = torch.ones(16 << 20, device=remote)
    x.cpu()
    torch.remote.empty_cache()
    before = resident_bytes()
    x.cpu()
    assert resident_bytes() - before >= 60 << 20  # 64 MiB, cached
    torch.remote.empty_cache()
    assert resident_bytes() - before <= 8 << 20


def test_a_fork_has_its_own(script):
    script("""
        import os
        import torch, torch_remote

        torch.set_num_threads(1)  # OpenMP's would not survive the fork
        x = torch.ones(3 << 20, device="remote").cpu()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.read(reader, 1)  # the parent has let go of its tensor, and another one has its memory
            good = x.sum().item() == 3 << 20
            x.fill_(7)
            os._exit(0 if good and x.mean().item() == 7 else 1)
        address = x.data_ptr()
        del x
        y = torch.full((3 << 20,), 2.0, device="remote").cpu()
        assert y.data_ptr() == address
        os.write(writer, b"x")
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert y.eq(2).all()
    """)
