"""Importing the package is cheap and starts nothing."""

OBSERVE = """
    import os, threading

    def snapshot():
        threads = len(os.listdir("/proc/self/task"))
        children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
        descriptors = {}
        for fd in os.listdir("/proc/self/fd"):
            try:
                descriptors[fd] = os.readlink(f"/proc/self/fd/{fd}")
            except OSError:
                pass
        return threads, children, sorted(d for d in descriptors.values() if d.startswith(("socket", "pipe", "/memfd")))
"""


def test_import_starts_no_thread_process_or_connection(script, remote):
    script(
        OBSERVE
        + """
    import torch
    before = snapshot()
    import torch_remote
    assert torch.remote.is_available() and torch.remote.device_count() > 0
    torch.device("remote")
    torch.manual_seed(1)
    torch.empty(3, device="remote")  # recorded only
    assert snapshot() == before, (before, snapshot())
    torch.ones(1, device="remote").item()
    assert len(snapshot()[1]) == 1
    """
    )


def test_import_is_cheap(script, remote):
    """At most 0.3 s of CPU time in addition to torch's own; the minimum of three runs, because caches are shared."""
    times = []
    for _ in range(3):
        result = script(
            """
        import time
        import torch
        begin = time.process_time()
        import torch_remote
        print(time.process_time() - begin)
        """
        )
        times.append(float(result.stdout))
        if times[-1] <= 0.3:
            return
    assert min(times) <= 0.3, times


def test_import_loads_no_heavy_module(script, remote):
    script(
        """
    import sys
    import torch
    before = set(sys.modules)
    import torch_remote
    new = set(sys.modules) - before
    assert not any(name.startswith(("accelerate", "transformers", "lightning", "safetensors")) for name in new)
    for heavy in ("torch._dynamo", "torch._inductor", "sympy", "numpy.testing", "torch._functorch", "asyncio"):
        assert not any(name == heavy or name.startswith(heavy + ".") for name in new), (heavy, sorted(new))
    """
    )


def test_autoload_is_off_unless_configured(script, remote):
    """A registered device takes over torch.accelerator, so `import torch` alone must not register it."""
    script("import torch; assert not hasattr(torch, 'remote')")
    script("import torch; assert torch.ones(1, device='remote').item() == 1", TORCH_REMOTE_AUTOLOAD="1")


def test_import_twice_and_reload_are_harmless(script, remote):
    script(
        """
    import importlib, torch, torch_remote
    import torch_remote as again
    assert again is torch_remote
    assert torch.ones(1, device="remote").item() == 1
    """
    )
