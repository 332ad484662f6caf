"""Transformers' Trainer with a jitted model: its losses and parameters are eager's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from tests.libraries.tiny import Wrap, assert_same, batch, compiled_share, gpt2, itself, jitted

pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings("default")


class Texts(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Sixteen texts."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: value[0] for name, value in batch(index, 1).items()}


def trainer_of(model: nn.Module, folder: Path, **options: Any) -> transformers.Trainer:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        num_train_epochs=2,
        logging_steps=1,
        save_steps=3,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=3,
        **options,
    )
    return transformers.Trainer(model=model, args=arguments, train_dataset=Texts(), eval_dataset=Texts())


def logged(trainer: transformers.Trainer) -> list[float]:
    losses = [entry.get("loss", entry.get("eval_loss")) for entry in trainer.state.log_history]
    return [loss for loss in losses if loss is not None]


def trained(wrap: Wrap, folder: Path, **options: Any) -> tuple[list[float], dict[str, Tensor], nn.Module]:
    """Losses and parameters after training and evaluation, and the model."""
    model = wrap(gpt2())
    trainer = trainer_of(model, folder, **options)
    trainer.train()
    trainer.evaluate()
    return logged(trainer), {name: value.clone() for name, value in model.state_dict().items()}, model


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bf16": True},
        {"gradient_accumulation_steps": 2},
        {"label_smoothing_factor": 0.1},
        {"gradient_checkpointing": True},
    ],
    ids=["plain", "bf16", "accumulation", "smoothing", "checkpointing"],
)
def test_trains_and_evaluates(options: dict[str, Any], tmp_path: Path) -> None:
    losses, parameters, _ = trained(itself, tmp_path / "eager", **options)
    own_losses, own_parameters, model = trained(jitted, tmp_path / "jitted", **options)
    assert own_losses == losses
    assert_same(own_parameters, parameters)
    assert compiled_share(model) == 1


def test_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    losses, parameters, _ = trained(jitted, tmp_path)
    model = jitted(gpt2())
    trainer = trainer_of(model, tmp_path / "again")
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    trainer.evaluate()
    assert logged(trainer) == losses
    assert_same(dict(model.state_dict()), parameters)
    plain = gpt2()
    eager = trainer_of(plain, tmp_path / "eager")
    eager.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert_same(dict(plain.state_dict()), parameters)
