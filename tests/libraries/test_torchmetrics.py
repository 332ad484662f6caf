"""torchmetrics: metrics of what jitted modules return, and jitted ones."""

from __future__ import annotations

import copy

import pytest
import torch

import switchgear as sg
from tests.libraries.tiny import itself, jitted

torchmetrics = pytest.importorskip("torchmetrics")
pytestmark = pytest.mark.filterwarnings("default")


def test_metrics_of_results() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    found = []
    for wrap in (itself, jitted):
        metrics = torchmetrics.MetricCollection(
            [
                torchmetrics.classification.MulticlassAccuracy(3),
                torchmetrics.classification.MulticlassF1Score(3),
                torchmetrics.classification.MulticlassAUROC(3, thresholds=5),
                torchmetrics.classification.MulticlassConfusionMatrix(3),
            ]
        )
        called = wrap(model)
        generator = torch.Generator().manual_seed(1)
        for _ in range(4):
            x = torch.randn(6, 4, generator=generator)
            metrics.update(called(x).softmax(-1), torch.randint(0, 3, (6,), generator=generator))
        found.append(metrics.compute())
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


@pytest.mark.parametrize("name", ["MeanSquaredError", "MeanAbsoluteError", "R2Score", "MeanMetric"])
def test_a_jitted_metric(name: str) -> None:
    plain = getattr(torchmetrics, name)()
    metric = sg.jit(copy.deepcopy(plain), executors=["torch"])
    for seed in range(4):
        torch.manual_seed(seed)
        arguments = torch.randn(5), torch.rand(5)
        assert torch.equal(metric(*arguments), plain(*arguments))
    assert torch.equal(metric.compute(), plain.compute())
    metric.reset()
    plain.reset()
    assert torch.equal(metric(*arguments), plain(*arguments))
