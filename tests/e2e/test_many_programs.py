"""With an unlimited number of different traces, the memory of this process and its worker stays bounded."""

import json

MANY = """
    import re
    import torch, torch_remote

    OPS = [torch.neg, torch.abs, torch.exp, torch.sigmoid, torch.tanh, torch.relu, torch.sin, torch.square]

    def structure(n, x):
        y = x
        for shift in range(0, 15, 3):  # another chain for each number
            y = OPS[n >> shift & 7](y) * 0.5
        return y + x.sum(-1, keepdim=True)

    def resident(pid):
        return int(re.search(r"VmRSS:\\s+(\\d+)", open(f"/proc/{pid}/status").read())[1]) << 10
"""


def test_memory_stays_flat(script, remote):
    result = script(
        MANY
        + """
    import json, os

    x = torch.linspace(-1, 1, 12).view(3, 4)
    there = x.to("remote")
    torch.ones(1, device="remote").item()
    [worker] = open(f"/proc/self/task/{os.getpid()}/children").read().split()
    sizes = []
    for n in range(4000):
        got = structure(n, there).cpu()
        if n % 50 == 0:
            torch.testing.assert_close(got, structure(n, x))
        if n % 1000 == 999:
            sizes.append((resident("self") / 1e6, resident(worker) / 1e6))
    torch.testing.assert_close(structure(0, there).cpu(), structure(0, x))  # comes back
    stats = torch.remote.stats()
    print(json.dumps([sizes, stats]))
    """,
        timeout=240,
        TORCH_REMOTE_PROGRAM_LIMIT="10M",
    )
    sizes, stats = json.loads(result.stdout)
    assert stats["programs_built"] > 4000 and stats["programs_dropped"] > 3000
    assert stats["programs_kept"] < 1000
    for before, after in zip(sizes[1], sizes[3], strict=True):  # for this process and its worker, with 2000 more traces
        assert after - before < 12, sizes
