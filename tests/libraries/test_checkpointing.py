"""Gradient checkpointing of Transformers' models, switched on and off after calls."""

from __future__ import annotations

import pytest
import torch
import transformers

from tests.libraries.tiny import assert_same, batch, compiled_share, gpt2, itself, jitted

pytestmark = pytest.mark.filterwarnings("default")


def test_checkpointing_switched_on_late() -> None:
    states = []
    for wrap in (itself, jitted):
        model = wrap(gpt2()).train()
        assert isinstance(model, transformers.PreTrainedModel)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for seed in range(6):
            if seed == 2:
                model.gradient_checkpointing_enable({"use_reentrant": False})
            if seed == 4:
                model.gradient_checkpointing_disable()
            torch.manual_seed(seed)
            optimizer.zero_grad()
            loss = model(**batch(seed)).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        states.append((losses, dict(model.state_dict())))
    assert compiled_share(model) == 1
    (expected, parameters), (found, own_parameters) = states
    assert found == expected
    assert_same(own_parameters, parameters)
