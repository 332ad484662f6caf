"""Caches as libraries have them, in small: of keys that grow, of a fixed length written in place, of rotary tables."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import Tensor, nn

from tests.python_state.scenario import Call, Scenario, Steps, case, changed, points, put, step


class DynamicCache:
    """Keys that grow along their length, by layer."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.seen = 0

    def update(self, key: Tensor, layer: int) -> Tensor:
        """Append, and return all."""
        if layer == 0:
            self.seen += key.shape[0]
        if len(self.keys) <= layer:
            self.keys.append(key)
        else:
            self.keys[layer] = torch.cat([self.keys[layer], key])
        return self.keys[layer]


class Decoder(nn.Module):
    """Two layers that read their keys from a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: Tensor, cache: Any) -> Any:
        """The next state, and the cache."""
        for number, layer in enumerate(self.layers):
            keys = cache.update(layer(x), number)
            x = (x @ keys.T).softmax(-1) @ keys
        return types.SimpleNamespace(last=x, cache=cache)


@case(entries=6)
def dynamic_cache_as_argument() -> Scenario:
    model = Decoder()

    def drive(call: Call) -> Steps:
        for _ in range(2):
            cache = DynamicCache()
            for seed in range(3):
                with torch.no_grad():
                    out = call(points(1, seed=seed), cache)
                yield out.last, out.cache is cache
                yield cache

    return Scenario(model, drive)


@case(entries=4)
def dynamic_cache_reordered_by_beams() -> Scenario:
    model = Decoder()

    def drive(call: Call) -> Steps:
        cache = DynamicCache()
        for seed in range(4):
            with torch.no_grad():
                yield call(points(2, seed=seed), cache).last
            cache.keys = [keys.flip(0) for keys in cache.keys]
        yield cache

    return Scenario(model, drive)


class StaticCache:
    """Keys of a fixed length, written in place at a position."""

    def __init__(self, length: int = 6) -> None:
        self.keys = [torch.zeros(length, 4) for _ in range(2)]
        self.position = torch.zeros(1, dtype=torch.long)

    def update(self, key: Tensor, layer: int) -> Tensor:
        """Write at the position, and return all."""
        self.keys[layer].index_copy_(0, self.position, key)
        return self.keys[layer]


@case(entries=1)
def static_cache_as_argument() -> Scenario:
    model = Decoder()

    def drive(call: Call) -> Steps:
        for _ in range(2):
            cache = StaticCache()
            for seed in range(3):
                with torch.no_grad():
                    yield call(points(1, seed=seed), cache).last
                cache.position += 1
                yield cache

    return Scenario(model, drive)


@case()
def static_cache_on_the_model() -> Scenario:
    model = Decoder()
    holder = types.SimpleNamespace(cache=StaticCache())

    def drive(call: Call) -> Steps:
        for seed in range(4):
            with torch.no_grad():
                yield call(points(1, seed=seed))
            holder.cache.position += 1
            if seed == 1:
                holder.cache = StaticCache(8)
        yield holder.cache

    return Scenario(lambda x: model(x, holder.cache).last, drive)


@case(entries=4)
def cache_in_a_tuple() -> Scenario:
    layer = nn.Linear(4, 4)

    def forward(x: Tensor, past: Any) -> Any:
        keys = layer(x)
        keys = keys if past is None else torch.cat([past[0], keys])
        return x @ keys.T, (keys,)

    def drive(call: Call) -> Steps:
        past = None
        for seed in range(4):
            out, past = call(points(1, seed=seed), past)
            yield out, past

    return Scenario(forward, drive)


class Rotary(nn.Module):
    """As litgpt's and falcon's: tables made anew when the length grows."""

    cos: Any

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("inverse", 1.0 / 10 ** torch.arange(4.0), persistent=False)
        self.base = 1.0
        self.length = 0
        self.cos = None

    def forward(self, x: Tensor) -> Tensor:
        """Scale by the table."""
        if x.shape[0] > self.length:
            self.length = x.shape[0]
            self.cos = (torch.arange(float(self.length))[:, None] * self.inverse * self.base).cos()  # type: ignore[operator]
        return x * self.cos[: x.shape[0]]  # type: ignore[no-any-return]


@case(entries=7)
def rotary_table_that_grows() -> Scenario:
    rotary = Rotary()

    def drive(call: Call) -> Steps:
        for rows in (2, 3, 2, 5, 3, 5, 2):
            yield step(call, points(rows))
            yield rotary.length, rotary.cos

    return Scenario(nn.Sequential(rotary, nn.Linear(4, 4)), drive)


@case()
def rotary_table_reset() -> Scenario:
    rotary = Rotary()
    return changed(rotary, lambda: put(rotary, base=2.0), lambda: put(rotary, length=0))
