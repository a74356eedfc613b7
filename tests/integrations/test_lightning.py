"""Lightning: accelerator="remote", which "auto" selects, with Trainer and Fabric, in all precisions."""

import lightning
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch.utils.data import DataLoader, TensorDataset

REMOTE = torch.device("remote", 0)
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}


class Module(lightning.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.losses = []

    def training_step(self, batch, index):
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, index):
        self.log("validation", F.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)


def fit(classifier, examples, **options):
    """The device, the losses, and finally the validation loss."""
    options = {"max_epochs": 2, "enable_checkpointing": False, **QUIET, **options}
    trainer = lightning.Trainer(**options)
    module = Module(classifier())
    trainer.fit(module, DataLoader(TensorDataset(*examples), 16), DataLoader(TensorDataset(*examples), 32))
    return trainer.strategy.root_device, [*module.losses, trainer.callback_metrics["validation"].item()]


@pytest.fixture
def expected(classifier, examples):
    device, losses = fit(classifier, examples, accelerator="cpu")
    assert device == torch.device("cpu")
    return losses


@pytest.mark.parametrize(
    "options",
    [{}, {"accelerator": "remote"}, {"accelerator": "remote", "devices": [0]}, {"devices": "1"}, {"devices": -1}],
    ids=str,
)
def test_trainer_takes_the_device_and_trains_as_on_cpu(remote, classifier, examples, expected, options):
    device, losses = fit(classifier, examples, **options)
    assert device == REMOTE and losses == pytest.approx(expected, rel=1e-4)


def test_trainer_takes_the_device_of_a_strategy(remote, classifier, examples, expected):
    device, losses = fit(classifier, examples, strategy=SingleDeviceStrategy("remote"))
    assert device.type == "remote" and losses == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "bf16-true"])
def test_trainer_in_lower_precision(remote, classifier, examples, expected, precision):
    device, losses = fit(classifier, examples, precision=precision)
    assert device == REMOTE and losses == pytest.approx(expected, rel=5e-2) and losses != expected


def test_trainer_scales_losses_on_the_device(remote):
    plugin = lightning.Trainer(precision="16-mixed", **QUIET).precision_plugin
    assert plugin.device == "remote" and plugin.scaler.is_enabled() and plugin.scaler._device == "remote"


def test_a_checkpoint_is_written_and_resumed(remote, classifier, examples, tmp_path):
    trainer = lightning.Trainer(max_epochs=1, default_root_dir=tmp_path, **QUIET)
    data = DataLoader(TensorDataset(*examples), 16)
    trainer.fit(Module(classifier()), data)
    path = trainer.checkpoint_callback.best_model_path
    resumed, straight = Module(classifier()), Module(classifier())
    lightning.Trainer(max_epochs=2, enable_checkpointing=False, **QUIET).fit(resumed, data, ckpt_path=path)
    lightning.Trainer(max_epochs=2, enable_checkpointing=False, **QUIET).fit(straight, data)
    assert resumed.losses == pytest.approx(straight.losses[4:], rel=1e-4)


def test_what_cannot_be_is_refused_with_the_fix(remote, classifier, examples):
    with pytest.raises(ValueError, match="remote: devices=2, but the indices of this device are 0 to 0"):
        lightning.Trainer(accelerator="remote", devices=2, **QUIET)
    with pytest.raises(ValueError, match=r"needs torch\.distributed.*use num_nodes=1, devices=1"):
        lightning.Trainer(accelerator="remote", num_nodes=2, **QUIET)
    with pytest.raises(ValueError, match="got a strategy for cpu; leave strategy='auto'"):
        fit(classifier, examples, accelerator="remote", strategy=SingleDeviceStrategy("cpu"))


def step(classifier, examples, **options):
    fabric = lightning.Fabric(**options)
    fabric.launch()
    model = classifier()
    model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters(), 1e-2))
    losses = []
    for x, y in fabric.setup_dataloaders(DataLoader(TensorDataset(*examples), 16)):
        loss = F.cross_entropy(model(x), y)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return fabric.device, losses


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({}, 1e-4),
        ({"accelerator": "remote"}, 1e-4),
        ({"precision": "bf16-mixed"}, 5e-2),
        ({"precision": "16-mixed"}, 5e-2),
    ],
    ids=str,
)
def test_fabric_takes_the_device_and_trains_as_on_cpu(remote, classifier, examples, options, tolerance):
    device, expected = step(classifier, examples, accelerator="cpu")
    assert device == torch.device("cpu")
    device, losses = step(classifier, examples, **options)
    assert device == REMOTE and losses == pytest.approx(expected, rel=tolerance)


def test_the_packages_by_their_own_names(remote):
    import lightning_fabric
    import pytorch_lightning

    assert pytorch_lightning.Trainer(**QUIET).strategy.root_device == REMOTE
    assert lightning_fabric.Fabric().device == REMOTE
    assert lightning_fabric.Fabric(accelerator="cpu").device == torch.device("cpu")
