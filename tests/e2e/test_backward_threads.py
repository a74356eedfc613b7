"""Backward passes in threads, on devices that torch's engine did not know when it counted devices."""

import pytest

# In each function the engine chooses a queue at another place: the root, a node, a gradient from the CPU, several
# roots.
PASSES = """
import threading, torch, torch.utils.checkpoint

def leaves(place):
    return [torch.full((3,), float(i), device=place, requires_grad=True) for i in (1, 2)]

def chain(x, y):
    return ((x * y).sin() * x).sum()

def one_root(places):
    x, y = leaves(places[-1])
    chain(x, y).backward()
    return x, y

def given_gradient(places):
    x, y = leaves(places[-1])
    out, gradient = x * y, torch.ones(3, device=places[-1])
    return lambda: (out.backward(gradient), (x, y))[1]

def several_roots(places):
    (x, y), (z, w) = leaves(places[0]), leaves(places[-1])
    roots = [chain(x, y), chain(z, w), chain(z, y.to(places[-1]))]
    return lambda: (torch.autograd.backward(roots), (x, y, z, w))[1]

def loss_on_the_cpu(places):
    x, y = leaves(places[-1])
    loss = ((x * y).cpu() * 2).sum()
    return lambda: (loss.backward(), (x, y))[1]

def through_all(places):
    x, y = leaves(places[-1])
    a = x * y
    for place in (*places, "cpu", *reversed(places)):
        a = (a.to(place) * 1.5).tanh()
    return lambda: (a.sum().backward(), (x, y))[1]

def engine_wanted(places):
    torch.autograd.set_multithreading_enabled(True)
    return one_root(places)

def twice_differentiated(places):
    x, y = leaves(places[-1])
    (gradient,) = torch.autograd.grad(chain(x, y), x, create_graph=True)
    return lambda: (gradient.pow(2).sum().backward(), (x, y))[1]

def checkpointed(places):
    x, y = leaves(places[-1])
    loss = torch.utils.checkpoint.checkpoint(chain, x, y, use_reentrant=True) * 2
    return lambda: (loss.backward(), (x, y))[1]

def in_thread(function):
    result = []
    thread = threading.Thread(target=lambda: result.append(function()))
    thread.start()
    thread.join()
    return result[0]

def check(places):
    for way in (one_root, given_gradient, several_roots, loss_on_the_cpu, through_all, engine_wanted,
                twice_differentiated, checkpointed):
        found = []
        for at in (["cpu"] * len(places), places):
            made = way(at) if way in (given_gradient, loss_on_the_cpu) else in_thread(lambda: way(at))
            made = in_thread(made) if callable(made) else made  # the forward pass was in another thread
            found.append([x.grad.cpu() for x in made])
        for ours, cpus in zip(*reversed(found)):
            torch.testing.assert_close(ours, cpus)
"""

ADDED = """
import torch_remote
x = torch.ones(3, device="remote", requires_grad=True)
x.sum().backward()  # the engine counts
check(["remote:0"])
machine = torch_remote.RemoteMachine(gpu_count=2, threads=1).start()
check(["remote:0", "remote:2"])
check(["remote:1"])
"""

LATE = """
x = torch.ones(3, requires_grad=True)
x.sum().backward()  # the engine counts: there is no device yet
import torch_remote
assert x.to("remote").sum().item() == 3
check(["remote:0"])
"""


@pytest.mark.parametrize("order", [ADDED, LATE], ids=["a machine is added", "imported late"])
def test_backward_passes_run_in_any_thread(script, remote, order):
    script(PASSES + order)
