"""DataLoader with worker processes and pinned memory."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Squares(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, i):
        return torch.full((3,), float(i)), i * i


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pin", [False, True])
def test_batches_reach_the_device(device, workers, pin):
    before = torch.ones(1, device=device) + 1  # the device is in use before workers are forked
    loader = DataLoader(Squares(), 4, num_workers=workers, pin_memory=pin)
    total = torch.zeros((), dtype=torch.int64, device=device)
    for _ in range(2):
        for x, y in loader:
            if device.type == "remote" and pin:
                assert x.is_pinned()
            total += (x.to(device, non_blocking=True)[:, 0].long() ** 2 == y.to(device, non_blocking=True)).sum()
    assert total.item() == 40 and before.item() == 2


def test_persistent_workers_and_training(device):
    data = TensorDataset(torch.randn(32, 4), torch.randint(0, 2, (32,)))
    loader = DataLoader(data, 8, shuffle=True, num_workers=1, persistent_workers=True, pin_memory=True)
    net = torch.nn.Linear(4, 2).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(net(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert loss.isfinite().item()


def test_a_dataset_on_the_device(device):
    data = TensorDataset(torch.arange(10.0, device=device), torch.arange(10, device=device))
    seen = [y.tolist() for _, y in DataLoader(data, 5)]
    assert seen == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_spawned_workers(script):
    """A worker that imports the package itself uses its own device."""
    script(
        """
        import torch
        from torch.utils.data import DataLoader

        if True:
            import os
            DEVICE = os.environ.get("TORCH_REMOTE_TEST_DEVICE", "remote")
            if DEVICE == "remote":
                import torch_remote

        class OnDevice(torch.utils.data.Dataset):
            def __len__(self):
                return 4

            def __getitem__(self, i):
                return (torch.full((2,), float(i), device=DEVICE) * 2).cpu()

        if __name__ == "__main__":
            loader = DataLoader(OnDevice(), 2, num_workers=1, multiprocessing_context="spawn")
            assert [b.tolist() for b in loader] == [[[0, 0], [2, 2]], [[4, 4], [6, 6]]]
        """,
        timeout=120,
    )
