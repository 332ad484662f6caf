"""accelerate: a jitted model that it prepares, also for mixed precision, trains as eager's does."""

from __future__ import annotations

import pytest
import torch

from tests.libraries.tiny import Wrap, assert_same, batch, compiled_share, gpt2, itself, jitted

accelerate = pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings("default")


def trained(wrap: Wrap, precision: str) -> tuple[list[float], dict[str, torch.Tensor], torch.nn.Module]:
    """Losses, parameters and the model after six steps, gradients of two accumulated."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(mixed_precision=precision, cpu=True, gradient_accumulation_steps=2)
    plain = wrap(gpt2())
    model, optimizer = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters(), lr=0.01))
    model.train()
    losses = []
    for seed in range(6):
        torch.manual_seed(seed)
        with accelerator.accumulate(model):
            loss = model(**batch(seed)).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    unwrapped = accelerator.unwrap_model(model, keep_fp32_wrapper=False)
    return losses, dict(unwrapped.state_dict()), plain


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_prepared(precision: str) -> None:
    losses, parameters, _ = trained(itself, precision)
    own_losses, own_parameters, model = trained(jitted, precision)
    assert own_losses == losses
    assert_same(own_parameters, parameters)
    assert compiled_share(model) == 1
