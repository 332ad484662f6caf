"""Attributes of PyTorch's own modules, changed between calls."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from tests.python_state.scenario import Call, Scenario, Steps, case, changed, points, put, step


@case()
def dropout_probability() -> Scenario:
    drop = nn.Dropout(0.9)
    return changed(nn.Sequential(nn.Linear(4, 4), drop), lambda: put(drop, p=0.0), lambda: put(drop, p=0.5))


@case()
def momentum_of_batch_norm() -> Scenario:
    norm = nn.BatchNorm1d(4)
    module = nn.Sequential(nn.Linear(4, 4), norm)

    def drive(call: Call) -> Steps:
        for momentum in (0.1, 0.1, 0.5, 0.5):
            put(norm, momentum=momentum)
            yield step(call, points(), of=module)
            yield dict(norm.named_buffers())

    return Scenario(module, drive)


@case(falls_back="a momentum of None reads a tensor that counts")
def batch_norm_recomputed() -> Scenario:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    def drive(call: Call) -> Steps:
        norm: Any = module[1]
        with torch.no_grad():
            yield call(points())
        norm.reset_running_stats()
        norm.momentum = None
        with torch.no_grad():
            for seed in range(3):
                yield call(points(seed=seed))
                yield dict(norm.named_buffers())

    return Scenario(module, drive)


@case(falls_back="a momentum of None reads a tensor that counts")
def swa_update() -> Scenario:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    def drive(call: Call) -> Steps:
        class Model(nn.Module):
            def forward(self, x: Tensor) -> Any:
                return call(x)

        model = Model()
        model.inner = module
        yield step(call, points(), of=module)
        for seed in range(3):
            update_bn([points(seed=seed).detach() for _ in range(3)], model)
            yield dict(module.named_buffers())

    return Scenario(module, drive)


@case()
def tracking_of_statistics() -> Scenario:
    norm = nn.BatchNorm1d(4)

    def drive(call: Call) -> Steps:
        for tracks in (True, True, False, False):
            put(norm, track_running_stats=tracks)
            yield step(call, points(), of=norm)
            yield dict(norm.named_buffers())

    return Scenario(norm, drive)


@case()
def epsilon() -> Scenario:
    norm = nn.LayerNorm(4)
    return changed(norm, lambda: put(norm, eps=10.0))


@case()
def slope() -> Scenario:
    act = nn.LeakyReLU(0.1)
    return changed(nn.Sequential(nn.Linear(4, 4), act), lambda: put(act, negative_slope=0.5))


def _convolution(**change: Any) -> Scenario:
    conv = nn.Conv1d(3, 2, 3, padding=1)
    return changed(conv, lambda: put(conv, **change), args=(points(3).reshape(1, 3, 4).detach().requires_grad_(),))


@case()
def stride() -> Scenario:
    return _convolution(stride=(2,))


@case()
def padding() -> Scenario:
    return _convolution(padding=(2,))


@case()
def dilation() -> Scenario:
    return _convolution(dilation=(2,), padding=(2,))


@case()
def reduction_of_a_loss() -> Scenario:
    loss = nn.CrossEntropyLoss()
    labels = torch.tensor([0, 1, 2])
    return changed(
        lambda x: loss(x, labels), lambda: put(loss, reduction="sum"), lambda: put(loss, label_smoothing=0.1)
    )


@case()
def padding_index_of_an_embedding() -> Scenario:
    embed = nn.Embedding(8, 4)
    return changed(embed, lambda: put(embed, padding_idx=2, max_norm=0.5), args=(torch.tensor([1, 2, 2]),))


@case()
def output_size_of_a_pool() -> Scenario:
    pool = nn.AdaptiveAvgPool1d(2)
    return changed(pool, lambda: put(pool, output_size=1))


@case()
def train_and_eval() -> Scenario:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
    return changed(module, module.eval, module.train, lambda: module[1].eval())


@case()
def freezing() -> Scenario:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    return changed(module, lambda: module[0].requires_grad_(False), lambda: module[0].requires_grad_(True))


@case()
def layer_replaced() -> Scenario:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    return changed(module, lambda: module.__setitem__(1, nn.ReLU()), lambda: module.append(nn.Linear(4, 1)))


@case()
def weights_tied_and_bias_removed() -> Scenario:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    first, last = module[0], module[2]
    return changed(module, lambda: put(last, weight=first.weight), lambda: put(last, bias=None))


@case()
def heads_of_attention() -> Scenario:
    attention = nn.MultiheadAttention(4, 2, dropout=0.0)
    return changed(
        lambda x: attention(x, x, x, need_weights=False)[0],
        lambda: put(attention, num_heads=4, head_dim=1),
        lambda: put(attention, dropout=0.5),
    )
