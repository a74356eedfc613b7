"""Trains a small CNN on scikit-learn's digits (1797 images, 8x8) and reports the accuracy on a held-out fifth.

bazel run //examples:train_digits -- --device remote --epochs 8

The loop is plain eager PyTorch. The device runs ahead of this process, which waits once an epoch, where it reads the
loss and the accuracy.
"""

import argparse
import json
import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

import torch_remote  # noqa: F401  registers the device `remote`


class DigitsNet(nn.Module):
    """Three convolutions and two linear layers; 49,000 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(64 * 2 * 2, 96), nn.ReLU(), nn.Linear(96, 10))

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images))


def digits(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """The training and the test set: images in [0, 1] of shape (1, 8, 8), labels 0 to 9."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    train, test = train_test_split(range(len(labels)), test_size=0.2, random_state=seed, stratify=data.target)
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def train_epoch(
    model: nn.Module,
    loader: DataLoader,
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler,
    device: torch.device,
    bar: tqdm,
) -> Iterator[Tensor]:
    """One pass over the training set; yields each step's loss, still on the device."""
    model.train()
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        bar.update(len(images))
        yield loss.detach()


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader, device: torch.device) -> float:
    """Share of the loader's images that the model gets right. Waits for the device once."""
    model.eval()
    right = torch.zeros((), dtype=torch.int64, device=device)
    count = 0
    for images, labels in loader:
        right += (model(images.to(device)).argmax(1) == labels.to(device)).sum()
        count += len(images)
    return right.item() / count


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="remote", help="remote (default), remote:1, cpu, ...")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=4e-3, help="the schedule's highest learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0, help="processes that load data")
    parser.add_argument("--losses", metavar="FILE", help="write the losses of the first 50 steps there, as JSON")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    device = torch.device(args.device)
    torch.manual_seed(args.seed)

    train_set, test_set = digits(args.seed)
    order = torch.Generator().manual_seed(args.seed)
    train_loader = DataLoader(train_set, args.batch_size, shuffle=True, generator=order, num_workers=args.workers)
    test_loader = DataLoader(test_set, 4 * args.batch_size)

    model = DigitsNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    steps = args.epochs * len(train_loader)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=args.lr, total_steps=steps)

    first_losses: list[Tensor] = []
    begin = time.perf_counter()
    with tqdm(total=args.epochs * len(train_set), unit=" samples", unit_scale=True) as bar:
        for epoch in range(1, args.epochs + 1):
            total = torch.zeros((), device=device)
            for loss in train_epoch(model, train_loader, optimizer, scheduler, device, bar):
                total += loss
                if len(first_losses) < 50:
                    first_losses.append(loss)
            mean_loss = total.item() / len(train_loader)
            test_accuracy = accuracy(model, test_loader, device)
            bar.set_postfix(loss=f"{mean_loss:.4f}", accuracy=f"{test_accuracy:.2%}")
            bar.write(f"epoch {epoch:2d}  loss {mean_loss:.4f}  test accuracy {test_accuracy:.2%}")
    seconds = time.perf_counter() - begin
    print(f"{args.epochs * len(train_set) / seconds:,.0f} samples/s, {seconds:.1f} s, accuracy {test_accuracy:.2%}")

    if args.losses:
        with open(args.losses, "w") as file:
            json.dump(torch.stack(first_losses).tolist(), file)
    if device.type == "remote":
        for name, value in torch.remote.stats().items():
            print(f"{name:20} {value:>14,}")


if __name__ == "__main__":
    main()
