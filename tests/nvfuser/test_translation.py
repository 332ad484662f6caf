"""Every translated operator, on calls from PyTorch's own database, against eager.

Replayed are the definition as it is recorded, everywhere, and what nvFuser itself makes of it, where it is installed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import switchgear as sg
from switchgear_nvfuser import NvfuserExecutor, lowering
from switchgear_nvfuser.executor import Runner
from switchgear_nvfuser.internals import Dispatched
from switchgear_nvfuser.lowering import lowered
from switchgear_nvfuser.translation import LEFT, TRANSLATIONS, Untranslatable, number, overload, translates
from tests.nvfuser.calls import Call, collected, region_of
from tests.nvfuser.replay import recorded, reprinted

OVERLOADS = sorted(map(str, TRANSLATIONS))
#: No kernel for the CPU to compare with; tested below.
NO_KERNEL = {"aten._fused_rms_norm_backward.default"}
RUNNERS = [recorded, pytest.param(reprinted, marks=pytest.mark.nvfuser)]
aten = torch.ops.aten


@functools.cache
def calls() -> dict[str, list[Call]]:
    torch.manual_seed(0)
    return {str(fn): found for fn, found in collected().items()}


def assert_near(found: Tensor, wanted: Tensor, exact: Callable[[], Tensor]) -> None:
    """Within the tolerance of eager's result; or not twice as far from that of 64 bits as eager's is."""
    rtol, atol = (1.6e-2, 1e-2) if wanted.element_size() == 2 else (1e-5, 1e-5)
    try:
        torch.testing.assert_close(found, wanted, equal_nan=True, rtol=rtol, atol=atol)
    except AssertionError:
        if not wanted.is_floating_point():
            raise
        true = exact()
        own, eagers = (found.double() - true).abs().max(), (wanted.double() - true).abs().max()
        assert own <= 2 * eagers, f"{own} from the exact result, and eager's {eagers}"


def in_double(value: Any) -> Any:
    """Arguments in 64 bits."""
    if isinstance(value, (tuple, list)):
        return [in_double(item) for item in value]
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value


def results(value: Any) -> list[Tensor]:
    return [item for item in (value if isinstance(value, (tuple, list)) else [value]) if item is not None]


def test_every_overload_takes_what_its_schema_says() -> None:
    for fn, translation in TRANSLATIONS.items():
        arguments = fn._schema.arguments
        given = [None for argument in arguments if not argument.kwarg_only]
        named = {argument.name: None for argument in arguments if argument.kwarg_only}
        inspect.signature(translation).bind(None, *given, **named)


def test_nothing_is_both_translated_and_left() -> None:
    assert not TRANSLATIONS.keys() & LEFT.keys()


def test_nothing_is_translated_that_draws_writes_or_reads_data() -> None:
    refused = (torch.Tag.nondeterministic_seeded, torch.Tag.data_dependent_output)
    for fn in TRANSLATIONS:
        assert not fn._schema.is_mutable, fn
        assert not set(fn.tags) & set(refused), fn


def test_two_translations_of_one_overload_are_an_error() -> None:
    with pytest.raises(sg.errors.RegistrationError, match=r"two translations of add\.Tensor"):
        translates("add.Tensor")(lambda t: None)


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("name", [name for name in OVERLOADS if name not in NO_KERNEL])
def test_operator_is_eagers(name: str, runner: Runner) -> None:
    executor = NvfuserExecutor(runner=runner)
    replayed = 0
    for call in calls()[name]:
        fn = overload(name.removeprefix("aten.").removesuffix(".default"))
        wanted = fn(*call.args, **call.kwargs)
        region, tensors = region_of(fn, call, wanted)
        if executor.supports(region.bound_symbols[0]) is not None:
            continue
        compiled = executor.compile(region)
        assert not isinstance(compiled, sg.Declined)
        found = compiled(*tensors)
        for place, (one, other, proxy) in enumerate(zip(found, results(wanted), region.outputs, strict=True)):
            assert proxy is not None
            assert one.stride() == proxy.stride
            assert_near(one, other, lambda: results(fn(*in_double(call.args), **call.kwargs))[place].double())  # noqa: B023 - called at once
        replayed += 1
    assert replayed, f"no call of {name} was replayed"


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("weighted", [True, False])
def test_rms_norm_backward(runner: Runner, weighted: bool) -> None:
    x, grad, weight = torch.randn(3, 5, 4), torch.randn(3, 5, 4), torch.randn(4) if weighted else None
    scale = (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    leaves = [x.clone().requires_grad_(), *([weight.clone().requires_grad_()] if weight is not None else [])]
    scaled = leaves[0] * (leaves[0].square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    out = scaled * leaves[1] if weighted else scaled
    wanted = torch.autograd.grad(out, leaves, grad)
    call = Call((grad, x, [4], scale, weight, [True, weighted]), {})
    region, tensors = region_of(aten._fused_rms_norm_backward.default, call, list(wanted))
    executor = NvfuserExecutor(runner=runner)
    assert executor.supports(region.bound_symbols[0]) is None
    compiled = executor.compile(region)
    assert not isinstance(compiled, sg.Declined)
    for found, own in zip(compiled(*tensors), wanted, strict=True):
        torch.testing.assert_close(found, own, rtol=1e-5, atol=1e-5)


def reason(fn: Any, *args: Any, **kwargs: Any) -> str:
    """Why a call is not taken."""
    region, _ = region_of(fn, Call(args, kwargs), fn(*args, **kwargs))
    with pytest.raises(Untranslatable) as caught:
        lowered(region.bound_symbols[0])
    return str(caught.value)


x, i = torch.randn(3, 4), torch.arange(4)


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        ((aten.mm.default, x, x.t()), "a product, for which there are libraries"),
        ((aten.add.Tensor, i.short(), i.short()), "nvFuser does not compute with int16 here"),
        ((aten.add.Tensor, x.to(torch.complex64), x), "nvFuser does not compute with complex64 here"),
        ((aten.sin.default, torch.randn((1,) * 9)), "9 dimensions, more than nvFuser's 8"),
        ((aten.sin.default, torch.randn(0, 3)), "a tensor without elements"),
        ((aten.slice.Tensor, x, 1, 0, 4, 2), "with step=2, which nvFuser's slice has not"),
        ((aten.div.Tensor_mode, i, i + 1), "integers divided by zero are not PyTorch's"),
        ((aten.floor_divide.default, i, i + 1), "integers divided by zero are not PyTorch's"),
        ((aten.flip.default, x, [0]), "nvFuser has no prims.rev.default, a part of it"),
        ((aten.nonzero.default, x), "nvFuser has no aten.nonzero.default"),
        ((aten.index.Tensor, x, [x[:, 0] > 9]), "a tensor without elements"),
        ((aten.index.Tensor, x, [i[:3], i[:3]]), "by several tensors"),
        ((aten.embedding_dense_backward.default, x, i[:3], 5, -1, False), "nvFuser's scatter does not"),
        ((aten.var.correction, x, [1]), "with correction=0.5, no integer"),
        ((aten.pow.Tensor_Scalar, i, 5), "integers to a power other than 1, 2 and 3"),
    ],
)
def test_reasons(args: tuple[Any, ...], wanted: str) -> None:
    named: dict[Any, dict[str, Any]] = {
        aten.div.Tensor_mode: {"rounding_mode": "floor"},
        aten.var.correction: {"correction": 0.5},
    }
    assert reason(*args, **named.get(args[0], {})).endswith(wanted)


def test_a_call_that_is_not_pytorchs() -> None:
    proxy = sg.TensorProxy("x", (3,), (1,), torch.float32, torch.device("cpu"))
    with pytest.raises(Untranslatable, match="no operator of PyTorch's"):
        lowered(sg.BoundSymbol(sg.Symbol("mine", lambda x: x), (proxy,), {}, proxy))


def test_more_than_one_device() -> None:
    one = sg.TensorProxy("x", (3,), (1,), torch.float32, torch.device("cpu"))
    other = sg.TensorProxy("y", (3,), (1,), torch.float32, torch.device("cuda", 0))
    with pytest.raises(Untranslatable, match="more than one device"):
        lowered(sg.BoundSymbol(sg.Symbol("to", aten._to_copy.default), (one,), {"device": other.device}, other))


@pytest.mark.parametrize(
    ("given", "dtype", "wanted"), [(1, torch.float32, 1.0), (2.0, torch.int64, 2), (1, torch.bool, True)]
)
def test_numbers(given: float, dtype: torch.dtype, wanted: float) -> None:
    found = number(given, dtype)
    assert (found, type(found)) == (wanted, type(wanted))


def test_numbers_that_are_none_of_a_dtype() -> None:
    with pytest.raises(Untranslatable, match=r"0\.5 among Int"):
        number(0.5, torch.int64)
    with pytest.raises(Untranslatable, match="no number"):
        number(1j, torch.float32)


def test_no_mode_sees_what_is_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "_lowered", {})
    seen: list[Any] = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    region, _ = region_of(aten.elu.default, Call((x,), {}), aten.elu.default(x))
    with Functions(), Dispatched(lambda func, args, kwargs: seen.append(func)):
        assert len(lowered(region.bound_symbols[0])) > 3
    assert not seen


def operators_called() -> Iterator[str]:
    """Every operator of nvFuser's that a definition of some call names."""
    executor = NvfuserExecutor(runner=recorded)
    for name, found in calls().items():
        fn = overload(name.removeprefix("aten.").removesuffix(".default"))
        for call in found:
            region, _ = region_of(fn, call, fn(*call.args, **call.kwargs))
            if executor.supports(region.bound_symbols[0]) is None:
                yield from (line.operator for line in executor.definition(region).lines)


@pytest.mark.nvfuser
def test_nvfuser_has_every_operator_that_is_called() -> None:
    from switchgear_nvfuser.availability import load

    with load().FusionDefinition() as fusion:
        missing = {name for name in operators_called() if not hasattr(fusion.ops, name)}
    assert not missing
