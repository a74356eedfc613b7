"""What the device does so that nobody waits: traces that end in a wait are cut, at the same places each time."""

import torch
from torch import nn


def blocks(count: int, device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16)) for _ in range(count)]
    return nn.Sequential(*layers).to(device)


def test_what_is_waited_for_is_cut_from_its_second_time_on(counted, remote):
    net, x = blocks(20, remote), torch.randn(4, 16).to(remote)

    def step():
        with torch.no_grad(), counted() as c:
            result = net(x).sum().item()
        return result, c["flushes"], c["programs_built"], c["round_trips"]

    result, *first = step()
    assert first == [1, 1, 1]
    again, flushes, built, round_trips = step()
    assert flushes >= 3 and built == flushes and round_trips == 1
    assert again == result  # bit for bit
    for _ in range(3):
        assert step() == (result, flushes, 0, 1)


def test_other_sizes_need_no_other_programs(counted, remote):
    """A prompt and a sequence that grows, as in generation."""
    net, host = blocks(20, remote), blocks(20, torch.device("cpu"))

    def grow(length: int) -> None:
        x = torch.randn(length, 16)
        cache, its = x.to(remote), x.clone()
        for _ in range(4):
            with torch.no_grad():
                cache = torch.cat([cache, net(cache).mean(0, keepdim=True)])
                its = torch.cat([its, host(its).mean(0, keepdim=True)])
            torch.testing.assert_close(cache[-1].cpu(), its[-1])

    grow(3), grow(4)
    with counted() as c:
        for length in (5, 9, 7):
            grow(length)
    assert c["programs_built"] == 0


def test_training_is_the_same_bit_for_bit(remote, counted):
    """Cuts in forward, backward and optimizer; uncut where ops are recorded by torch.remote.trace."""

    def losses(steps: int) -> list[float]:
        net = blocks(12, remote)
        optimizer = torch.optim.Adam(net.parameters(), foreach=False)
        x = torch.linspace(-1, 1, 64).view(4, 16).to(remote)
        result = []
        for _ in range(steps):
            loss = net(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            result.append(loss.item())
        return result

    first = losses(6)  # built, and cut from its second step on
    losses(6)
    with counted() as c:
        assert losses(6) == first
    assert c["programs_built"] == 0


def test_tensors_that_the_script_still_holds_survive_a_cut(remote):
    net, x = blocks(20, remote), torch.randn(4, 16).to(remote)
    for _ in range(4):
        values = [x]
        with torch.no_grad():
            for layer in net:
                values.append(layer(values[-1]))
            values[-1].sum().item()
        for value, layer, expected in zip(values, net, values[1:], strict=False):
            torch.testing.assert_close(layer(value).detach().cpu(), expected.cpu())
