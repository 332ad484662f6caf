"""What calls and values are called: symbols of attributes, and a proxy's defaults."""

from __future__ import annotations

import pytest
import torch

import switchgear as sg
from switchgear_core.ir.naming import symbol_of


@pytest.mark.parametrize(("name", "way"), [("shape", "__get__"), ("data", "__set__"), ("grad", "__delete__")])
def test_reading_and_setting_an_attribute_has_no_symbol(name: str, way: str) -> None:
    assert symbol_of(getattr(getattr(torch.Tensor, name), way)) is None


def test_a_function_and_its_method_have_one_symbol() -> None:
    assert symbol_of(torch.Tensor.sin) == symbol_of(torch.sin) == sg.Symbol("torch.sin", torch.sin)


def test_a_proxy_is_by_default_plain() -> None:
    proxy = sg.TensorProxy("x", (2,), (1,), torch.float32, torch.device("cpu"))
    assert not any((proxy.requires_grad, proxy.storage_offset, proxy.is_conj, proxy.is_neg))


def test_an_executor_that_compiles_nothing_says_so() -> None:
    region = sg.Trace("computation", (), (), ())
    for asked in (lambda: Idle("idle").compile(region), lambda: Idle("idle").compile_all([region])):
        with pytest.raises(NotImplementedError, match="Idle compiles nothing"):
            asked()


class Idle(sg.FusionExecutor):
    """Has no `compile`."""

    def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
        return None
