"""Gates 2, 5 and 6: connections that break, machines that are disconnected, messages that are lost."""

from __future__ import annotations

import array
import json
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable

from python_processes import Python

from tests.gates.faults import Proxy, environment, listening
from tests.gates.pieces import TALK, TOKEN, Outcome, Piece, script

# Weights, gradients and activations are integers below 2^24, so float32 holds them exactly in any order of summation.
# The result has the same bits as on the CPU, whichever kernels compute it. A step that is lost or executed twice shows.
TRAIN = """
    import hashlib, os, sys, torch
    from torch import nn
    steps, seed, device = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    if device == "remote":
        import torch_remote
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randint(-8, 9, parameter.shape))
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    data = torch.randint(-1, 2, (4, 64, 64)).float()
    count = torch.zeros((), dtype=torch.int64, device=device)
    def held():
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    for step in range(steps):
        loss = model(data[step % 4].to(device)).abs().sum()
        optimizer.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.grad.sign_()
            optimizer.step()
            for i, parameter in enumerate(model.parameters()):
                # Where the weights are pulled back to depends on the step, so they never settle.
                parameter.copy_(torch.where(parameter.abs() > 8, (step + i) % 7 - 3.0, parameter))
        count += 1
        if step % 5 == 0:
            loss.item()
            model[0].weight.cpu()
        if step == 50:
            before = held()
    assert count.item() == steps, count
    after = held()
    # A connection that is being replaced may hold one more for a moment.
    if device == "remote":
        assert after[0] <= before[0] + 1 and after[1] <= before[1] + 1, (before, after)
    weights = torch.cat([parameter.detach().cpu().flatten() for parameter in model.parameters()])
    assert weights.unique().numel() > 4, weights
    print(hashlib.sha256(weights.to(torch.int64).numpy().tobytes()).hexdigest())
"""


def broken_connections(scheme: str) -> Callable[[Piece], Outcome]:
    def run(piece: Piece) -> Outcome:
        """Gate 2: cuts, resets, stalls and duplicates at random bytes. The results must equal those of the CPU."""
        folder, steps = piece.folder, max(60, 2 * piece.count)
        expected = script(TRAIN, steps, piece.seed, "cpu")
        certificates = (
            ["--tls-cert", folder / "worker.pem", "--tls-key", folder / "worker.key"] if scheme == "tls" else []
        )
        with listening(
            folder, "--token-file", folder / "token", "--heartbeat", 1, *certificates, url=f"{scheme}://127.0.0.1:0"
        ) as worker:
            held = worker.descriptors()
            proxy = Proxy(worker.port, piece.seed, 60_000, piece.count)
            came = script(
                TRAIN, steps, piece.seed, "remote", TORCH_REMOTE_WORKER=f"{scheme}://127.0.0.1:{proxy.port}",
                TORCH_REMOTE_TOKEN=TOKEN, TORCH_REMOTE_TLS_CA=folder / "ca.pem",
            )  # fmt: skip
            wrong = int(came != expected)
            deadline = time.monotonic() + 20
            while worker.children() and time.monotonic() < deadline:
                time.sleep(0.05)
            wrong += bool(worker.children()) + (worker.descriptors() > held)
            return Outcome(sum(proxy.counts.values()), wrong, kinds=proxy.counts)

    return run


def talk(piece: Piece, outages: list[tuple[float, bool]]) -> Outcome:
    """Times how long a call takes beyond the length of each outage. `bool`: the port refuses, otherwise it is
    silent."""
    with listening(piece.folder, "--heartbeat", 1) as worker:
        proxy = Proxy(worker.port)
        client = Python(
            [sys.executable, "-c", textwrap.dedent(TALK)],
            env=environment(TORCH_REMOTE_WORKER=f"tcp://127.0.0.1:{proxy.port}"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert client.stdin is not None and client.stdout is not None and client.stdout.readline() == "ready\n"
        wrong, times = 0, []
        for i, (seconds, refuses) in enumerate(outages):
            proxy.outage(seconds, refuses)
            client.stdin.write(f"{i % 7}\n")
            client.stdin.flush()
            right, took = client.stdout.readline().split()
            wrong += right != "True"
            times.append(float(took) - seconds)
        client.stdin.close()
        client.wait()
    return Outcome(len(outages), wrong, times)


def cuts(piece: Piece) -> Outcome:
    """Gate 5: the session must resume at once after a cut."""
    return talk(piece, [(0.0, False)] * piece.count)


OUTAGES = (5.0, 3.0, 3.0, 5.0, 25.0, 25.0, 30.0, 30.0, 45.0, 45.0)  # seconds; in every second outage, the port refuses


def outages(piece: Piece) -> Outcome:
    """Gate 5: the machines are disconnected for a while; the port is silent, or refuses."""
    numbers = range(piece.first, piece.first + piece.count)
    return talk(piece, [(OUTAGES[i % len(OUTAGES)], i % 2 == 1) for i in numbers])


KINDS_OF_CALLS = 14


def lost_messages(piece: Piece) -> Outcome:
    """Gate 6: for every type of message, the request, the reply, or the connection during execution is lost."""
    folder, rounds = piece.folder, piece.count // (3 * KINDS_OF_CALLS)
    numbers = array.array("f", range(250_000)).tobytes()
    about = json.dumps({"numbers": {"dtype": "F32", "shape": [250_000], "data_offsets": [0, len(numbers)]}}).encode()
    (folder / "numbers.safetensors").write_bytes(struct.pack("<Q", len(about)) + about + numbers)
    source = """
        import sys, time, torch, torch_remote
        n = 0
        state = torch.zeros(4, device="remote")
        big = torch.randn(3000)
        event = torch.Event("remote", enable_timing=True)
        def run():        # a new program and a known one
            state.add_(1); assert (state.view(-1)[: 1 + n % 3] * (n + 1)).sum().isfinite().item()
        def count():      # a run that is answered
            assert torch.nonzero(state >= 0).shape == (4, 1)
        def upload():
            assert torch.equal(big.to("remote").cpu(), big)
        def read():
            assert state.cpu().shape == (4,)
        def synchronize():
            torch.remote.synchronize()
        def memory():
            torch.remote.empty_cache(); assert torch.remote.mem_get_info()[0] > 0
        def mark():
            event.record(); event.synchronize()
        def free():
            state.clone().add_(1).sum().item()
        def profile():
            with torch.remote.profile(): state.mul(1).sum().item()
        def checkpointed():
            state.sub(0).sum().item()
        library = torch.library.Library("gate", "DEF")
        def has_op():     # an op that nobody has asked for yet
            library.define(f"op{n}(Tensor x) -> Tensor")
            try:
                getattr(torch.ops.gate, f"op{n}")(state)
            except NotImplementedError:
                return
            raise AssertionError("it has it")
        def file():       # is it there, and its parts
            numbers = torch.remote.load_file(sys.argv[1], on_worker=True)["numbers"]
            assert torch.equal(numbers.cpu(), torch.arange(250_000.0))
        def cancel():     # what was recorded before is done or dropped, what comes behind it is done
            torch.remote.synchronize()
            made = state.mul(2)
            torch.remote.cancel()
            try:
                assert torch.equal(made.cpu(), state.cpu() * 2)
            except RuntimeError as error:
                assert "cancel" in str(error), error
            assert (state * 3).cpu().equal(state.cpu() * 3)
        @torch_remote.function
        def there(x, step):
            import time
            time.sleep(0.05)
            x.add_(step)
            return x.sum()
        called = torch.zeros(5, device="remote")
        calls = 0
        def call():       # once, also in place
            global calls
            calls += 1
            assert there(called, 1).item() == 5 * calls
        all = [run, count, upload, read, synchronize, memory, mark, free, profile, checkpointed]
        all += [has_op, file, cancel, call]
        assert there(called, 0).item() == 0
        state.sum().item()
        print(len(all), flush=True)
        for line in sys.stdin:
            n += 1
            all[int(line)]()
            print("done", flush=True)
        assert (state.cpu() == state[0].item()).all()
        print(state[0].item(), flush=True)
    """
    allowed = (f"--allow-files={folder}", f"--allow-python={sys.executable}")
    with listening(folder, "--heartbeat", 1, *allowed) as worker:
        proxy = Proxy(worker.port, piece.seed)
        client = Python(
            [sys.executable, "-c", textwrap.dedent(source), folder / "numbers.safetensors"],
            env=environment(TORCH_REMOTE_WORKER=f"tcp://127.0.0.1:{proxy.port}"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert client.stdin is not None and client.stdout is not None
        types = int(client.stdout.readline())
        assert types == KINDS_OF_CALLS, types
        done, runs, wrong = 0, 0, 0
        for _ in range(rounds):
            for kind in range(types):
                for lost in ("up", "down", "while"):
                    if lost != "while":
                        proxy.swallow(lost)
                    client.stdin.write(f"{kind}\n")
                    client.stdin.flush()
                    if lost == "while":  # the request is sent again while the first one executes
                        time.sleep(proxy.random.random() * 0.03)
                        proxy.outage(0.02)
                    wrong += client.stdout.readline() != "done\n"
                    runs += kind == 0
                    done += 1
                    if wrong:
                        return Outcome(done, wrong, text="the client died")
        client.stdin.close()
        wrong += float(client.stdout.readline() or -1) != runs
        client.wait()
    return Outcome(done, wrong)
