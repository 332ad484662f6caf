"""The masks and positions of Transformers' models: what depends on shapes alone is no work of a step."""

from __future__ import annotations

import re

import pytest
import torch

import switchgear as sg
from switchgear_core.ir.symbol import DEL
from tests.models.test_transformers import gpt2, llama, text

#: What Transformers and PyTorch build masks and positions of.
BUILDING = re.compile(r"arange|tril|triu|ones|zeros|full|scalar_tensor|\.(le|ge|lt|gt)\b|__(le|ge|lt|gt)__|cumsum")


def building(trace: sg.Trace) -> list[str]:
    """The lines of a trace that build masks."""
    items = (item for item in trace.bound_symbols if item.symbol is not DEL)
    return [item.symbol.name for item in items if BUILDING.search(item.symbol.name)]


@pytest.mark.parametrize("build", [gpt2, llama])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_no_mask_is_built_in_a_step(build: object, training: bool, masked: bool) -> None:
    assert callable(build)
    batch = text()
    if masked:
        batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    jitted = sg.jit(build().train(training), executors=["torch"])
    with torch.set_grad_enabled(training):
        loss = jitted(**batch).loss
    if training:
        loss.backward()
    traces = [sg.last_traces(jitted)[-1], *(sg.last_backward_traces(jitted)[-1:] if training else ())]
    assert building(sg.last_traces(jitted)[0]), "nothing to fold: the pattern is out of date"
    for trace in traces:
        assert not building(trace)
    wheres = [item for item in traces[0].bound_symbols if "where" in item.symbol.name]
    # a mask that depends on data is made once, and not in each layer
    assert len(wheres) <= masked
