"""lightning: modules that are jitted, whole, inside, or by their `training_step`, train as in eager."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import switchgear as sg
from tests.libraries.tiny import Wrap, assert_same, itself, jitted

lightning = pytest.importorskip("lightning")
torchmetrics = pytest.importorskip("torchmetrics")
pytestmark = pytest.mark.filterwarnings("default")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


class Classifier(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """Logs its loss and its accuracy."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=3)
        self.losses: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)  # type: ignore[no-any-return]

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def on_train_batch_end(self, outputs: Any, batch: list[Tensor], index: int) -> None:
        self.losses.append(outputs["loss"].item())

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        x, y = batch
        self.accuracy(self(x), y)
        self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=0.01)


def loader() -> torch.utils.data.DataLoader[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(4)
    points = torch.randn(24, 4, generator=generator)
    classes = torch.randint(0, 3, (24,), generator=generator)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(points, classes), batch_size=8)


def fitted(classifier: Any, folder: Path, precision: str = "32-true") -> tuple[list[float], dict[str, Tensor]]:
    lightning.seed_everything(3, verbose=False)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        precision=precision,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(classifier, loader(), loader())
    return [*classifier.losses, float(trainer.callback_metrics["accuracy"])], dict(classifier.model.state_dict())


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_module_inside(precision: str, tmp_path: Path) -> None:
    (losses, parameters), (own_losses, own_parameters) = (
        fitted(Classifier(wrap(network())), tmp_path, precision) for wrap in (itself, jitted)
    )
    assert own_losses == losses
    assert len(losses) == 7
    assert_same(own_parameters, parameters)


def test_the_training_step(tmp_path: Path) -> None:
    losses, parameters = fitted(Classifier(network()), tmp_path)
    classifier = Classifier(network())
    classifier.training_step = sg.jit(classifier.training_step, executors=["torch"])  # type: ignore[method-assign]
    own_losses, own_parameters = fitted(classifier, tmp_path)
    assert own_losses == losses
    assert_same(own_parameters, parameters)
    assert sg.cache_info(classifier.training_step).fallbacks == 0


@pytest.mark.parametrize("wrap", [jitted])
def test_the_whole(wrap: Wrap, tmp_path: Path) -> None:
    losses, parameters = fitted(Classifier(network()), tmp_path)
    own_losses, own_parameters = fitted(wrap(Classifier(network())), tmp_path)
    assert own_losses == losses
    assert_same(own_parameters, parameters)
