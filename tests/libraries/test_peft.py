"""peft: adapters of a jitted model are trained, switched off and on, merged, scaled, added and loaded as in eager."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.libraries.tiny import Wrap, assert_same, batch, compiled_share, gpt2, itself, jitted

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("default")

CONFIGS: dict[str, dict[str, Any]] = {
    "LoraConfig": {"r": 4, "lora_dropout": 0.1, "target_modules": ["c_attn"], "fan_in_fan_out": True},
    "IA3Config": {"target_modules": ["c_attn", "c_proj"], "feedforward_modules": ["c_proj"], "fan_in_fan_out": True},
    "PromptTuningConfig": {"num_virtual_tokens": 3},
    "PrefixTuningConfig": {"num_virtual_tokens": 3},
}


def adapted(kind: str = "LoraConfig") -> Any:
    config = getattr(peft, kind)(task_type="CAUSAL_LM", **CONFIGS[kind])
    torch.manual_seed(1)
    return peft.get_peft_model(gpt2(), config)


def loss_of(model: Any) -> torch.Tensor:
    torch.manual_seed(5)
    loss: torch.Tensor = model(**batch(5)).loss
    return loss


def steps(model: Any, count: int = 2) -> Iterator[float]:
    optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=1.0)
    for _ in range(count):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        yield loss.item()


def life(wrap: Wrap) -> tuple[list[float], dict[str, torch.Tensor], Any]:
    """Losses along the life of a model with a LoRA adapter."""
    model: Any = wrap(adapted()).train()
    losses = [*steps(model)]
    with model.disable_adapter():
        losses.append(loss_of(model).item())
    losses += steps(model)
    model.eval()
    losses.append(loss_of(model).item())
    model.base_model.disable_adapter_layers()
    losses.append(loss_of(model).item())
    model.base_model.enable_adapter_layers()
    model.merge_adapter()
    losses.append(loss_of(model).item())
    model.unmerge_adapter()
    losses.append(loss_of(model).item())
    torch.manual_seed(2)
    model.add_adapter("other", peft.LoraConfig(init_lora_weights=False, **CONFIGS["LoraConfig"]))
    model.set_adapter("other")
    losses.append(loss_of(model).item())
    for module in model.modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            module.scale_layer(0.5)
    losses.append(loss_of(model).item())
    model.set_adapter("default")
    losses.append(loss_of(model).item())
    return losses, dict(model.state_dict()), model


def test_life_of_an_adapter() -> None:
    losses, parameters, _ = life(itself)
    own_losses, own_parameters, model = life(jitted)
    assert own_losses == losses
    assert len(set(losses)) > 6
    assert_same(own_parameters, parameters)
    assert compiled_share(model) == 1


@pytest.mark.parametrize("kind", CONFIGS)
def test_kinds_of_adapters(kind: str) -> None:
    plain, model = adapted(kind), jitted(adapted(kind))
    assert [*steps(model, 3)] == [*steps(plain, 3)]
    assert_same(model.state_dict(), plain.state_dict())
    assert compiled_share(model) == 1


def test_loaded(tmp_path: Path) -> None:
    source = adapted()
    [*steps(source)]
    source.save_pretrained(tmp_path)
    losses = []
    for wrap in (itself, jitted):
        model: Any = wrap(peft.PeftModel.from_pretrained(gpt2(), tmp_path)).eval()
        with torch.no_grad():
            losses.append([loss_of(model).item()])
            with model.disable_adapter():
                losses[-1].append(loss_of(model).item())
            losses[-1].append(model.merge_and_unload()(**batch(5)).loss.item())
    assert losses[0] == losses[1]
    assert losses[0][0] != losses[0][1]


def test_jitted_inside() -> None:
    config = peft.LoraConfig(task_type="CAUSAL_LM", **CONFIGS["LoraConfig"])
    runs = []
    for wrap in (itself, jitted):
        model = wrap(gpt2())
        torch.manual_seed(1)
        runs.append([*steps(peft.get_peft_model(model, config).train())])
    assert runs[0] == runs[1]
    assert compiled_share(model) == 1
