"""Methods of what a function makes: what they read, and which function each is, is guarded, however it is named."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import switchgear as sg

RATES = [2.0]
SETTINGS = {"bias": 1.0}


class Scaling:
    """Knows its rate by a list."""

    def _set_up(self) -> None:
        self.bias = SETTINGS["bias"]

    def scaled(self, x: Tensor) -> Tensor:
        return x * RATES[0]

    def doubled(self, x: Tensor) -> Tensor:
        return x * 2

    @property
    def rate(self) -> float:
        return RATES[0]


class Shifting(Scaling):
    """Asks for what its base does under other names."""

    def __init__(self) -> None:
        super()._set_up()

    def shifted(self, x: Tensor) -> Tensor:
        return super().scaled(x) + self.doubled(x) + self.bias


class Extending(Scaling):
    """Asks for what its base does under the same name."""

    def scaled(self, x: Tensor) -> Tensor:
        return super().scaled(x) + 1


class Mixin:
    """Asks for what stands beside it among the bases."""

    def through(self, x: Tensor) -> Tensor:
        return super().scaled(x) + 1  # type: ignore[misc,no-any-return]


class Mixed(Mixin, Scaling):
    """Both."""


class Slotted:
    """Has no `__dict__`."""

    __slots__ = ("x",)

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def scaled(self) -> Tensor:
        return self.x * RATES[0]


class Tripling:
    """Lies where the one that was made before it did."""

    def scaled(self, x: Tensor) -> Tensor:
        return x * 3 + SETTINGS["bias"]


def _super(x: Tensor) -> Tensor:
    return Shifting().shifted(x)


def _super_of_the_same_name(x: Tensor) -> Tensor:
    return Extending().scaled(x)


def _beside(x: Tensor) -> Tensor:
    return Mixed().through(x)


def _slots(x: Tensor) -> Tensor:
    return Slotted(x).scaled()


def _property(x: Tensor) -> Tensor:
    return x * Shifting().rate


def _unbound(x: Tensor) -> Tensor:
    return Scaling.scaled(Scaling(), x)


def _unbound_by_an_alias(x: Tensor) -> Tensor:
    kind = Scaling
    return kind.scaled(kind(), x)


def _mapped(x: Tensor) -> Tensor:
    one, two = map(Slotted.scaled, [Slotted(x), Slotted(x + 1)])
    return one + two


def _computed_name(x: Tensor) -> Tensor:
    return getattr(Slotted(x), "sca" + "led")()  # type: ignore[no-any-return]


def _one_place(x: Tensor) -> Tensor:
    makers: tuple[type[Any], ...] = (Scaling, Tripling)
    for kind in makers:
        x = kind().scaled(x)
    return x


def _class_made_inside(x: Tensor) -> Tensor:
    class Own(Scaling):
        pass

    return Own().scaled(x)


def _partial(x: Tensor) -> Tensor:
    return functools.partial(Scaling.scaled, Scaling())(x)


FUNCTIONS = (
    *(_super, _beside, _slots, _property, _unbound, _unbound_by_an_alias, _mapped, _computed_name, _one_place),
    *(_class_made_inside, _partial, _super_of_the_same_name),
)


def _other(self: Any, x: Tensor | None = None) -> Tensor:
    return (self.x if x is None else x) * 7


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_what_methods_read_is_guarded_and_so_are_they(
    function: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contents that change, methods that are replaced, and all as before: eager's results, compiled."""
    jitted = sg.jit(function, executors=["torch"], strict=True)
    x = torch.randn(3)

    def agrees() -> bool:
        return torch.equal(jitted(x), function(x))

    assert agrees()
    with monkeypatch.context() as patch:
        patch.setattr(f"{__name__}.RATES", [5.0])
        patch.setitem(SETTINGS, "bias", 3.0)
        assert agrees()
        RATES[0] = 6.0
        assert agrees()
        for kind in (Scaling, Slotted, Tripling):
            patch.setattr(kind, "scaled", _other)
        patch.setattr(Scaling, "doubled", _other)
        patch.setattr(Scaling, "rate", property(lambda self: 11.0))
        assert agrees()
    assert agrees()
    # floats that change are inputs, if the methods only multiply by them
    assert sg.cache_info(jitted).entries in (3, 4)
