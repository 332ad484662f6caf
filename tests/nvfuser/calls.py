"""Calls of operator overloads with real tensors, taken from PyTorch's own database while it runs in eager."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import switchgear as sg
from switchgear_nvfuser.definition import frozen, mapped
from switchgear_nvfuser.translation import TRANSLATIONS
from tests.databases.opinfo import op_db

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
#: How many calls of one overload in one dtype are kept.
KEPT = 6
#: How many samples are run of an operator of the database.
SAMPLES = 2
#: Operators that are not run, by the beginnings of their names: they take long, and come to nothing new.
LEFT_OUT = (
    *("_batch_norm", "_native_batch", "_refs", "fft.", "grid_sampler", "linalg.", "lu", "masked.", "native_batch_norm"),
    *("nn.functional.adaptive", "nn.functional.avg", "nn.functional.conv", "nn.functional.cosine"),
    *("nn.functional.ctc", "nn.functional.embedding_bag", "nn.functional.fractional", "nn.functional.grid"),
    *("nn.functional.interpolate", "nn.functional.linear_cross", "nn.functional.max_", "nn.functional.multi_head"),
    *("nn.functional.pdist", "nn.functional.scaled_dot", "nn.functional.triplet", "nn.functional.upsample"),
    *("ormqr", "pca_lowrank", "pinverse", "signal.", "sparse", "special_", "special.", "stft", "svd", "torch.ops"),
)
_aten = torch.ops.aten


class Call(NamedTuple):
    """Arguments that an overload was called with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __str__(self) -> str:
        return str(mapped(lambda x: f"{str(x.dtype)[6:]}{list(x.shape)}{list(x.stride())}", tuple(self), Tensor))


class _Collector(TorchDispatchMode):
    """Keeps the first calls of every translated overload that differ in metadata."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # of PyTorch
        self.found: dict[Any, list[Call]] = defaultdict(list)
        self.seen: dict[Any, int] = defaultdict(int)
        self.known: set[Any] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in TRANSLATIONS:
            tensors: list[Tensor] = []
            mapped(tensors.append, (args, kwargs), Tensor)
            dtypes = tuple(dict.fromkeys(x.dtype for x in tensors))
            described = mapped(lambda x: (x.dtype, x.shape, x.stride()), (args, kwargs), Tensor)
            key = (func, frozen(described))
            if key not in self.known and self.seen[func, dtypes] < KEPT and not any(x.is_complex() for x in tensors):
                self.known.add(key)
                self.seen[func, dtypes] += 1
                self.found[func].append(Call(*mapped(copied, (args, kwargs), Tensor)))
        return func(*args, **kwargs)


def copied(x: Tensor) -> Tensor:
    """A tensor of its own, laid out alike."""
    fresh = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
    return x.detach().clone() if 0 in x.stride() else fresh.copy_(x.detach())


def by_hand() -> dict[Any, list[Call]]:
    """Calls that the database does not come to."""
    x, i = torch.arange(12.0).reshape(3, 4) / 7 - 1, torch.arange(6) - 2
    return {
        _aten.all.dims: [
            Call(
                (
                    x > 0,
                    [0, 1],
                ),
                {},
            )
        ],
        _aten.any.dims: [
            Call(
                (
                    x > 0,
                    [1],
                    True,
                ),
                {},
            )
        ],
        _aten.arange.start: [Call((2, 7), {})],
        _aten.clamp.default: [Call((x, -0.5, 0.5), {}), Call((x, None, 0.5), {}), Call((i, -1), {"max": 2})],
        _aten.bitwise_and.Scalar: [
            Call(
                (
                    i,
                    3,
                ),
                {},
            )
        ],
        _aten.bitwise_or.Scalar: [
            Call(
                (
                    i,
                    3,
                ),
                {},
            )
        ],
        _aten.bitwise_xor.Scalar: [
            Call(
                (
                    i,
                    3,
                ),
                {},
            )
        ],
        _aten.clamp_max.default: [
            Call(
                (
                    x,
                    0.5,
                ),
                {},
            ),
            Call(
                (
                    i,
                    1,
                ),
                {},
            ),
        ],
        _aten.div.Scalar_mode: [
            Call(
                (
                    x,
                    0.3,
                ),
                {"rounding_mode": "trunc"},
            ),
            Call(
                (
                    x,
                    0.3,
                ),
                {"rounding_mode": None},
            ),
        ],
        _aten.fmod.Scalar: [
            Call(
                (
                    x,
                    0.3,
                ),
                {},
            )
        ],
        _aten.remainder.Scalar: [
            Call(
                (
                    x,
                    -0.3,
                ),
                {},
            )
        ],
        _aten._fused_rms_norm.default: [
            Call(
                (
                    x,
                    [4],
                    None,
                    1e-5,
                ),
                {},
            ),
            Call(
                (
                    x,
                    [3, 4],
                    x * 2,
                    None,
                ),
                {},
            ),
            Call(
                (
                    x.bfloat16(),
                    [4],
                    x[0].bfloat16(),
                    None,
                ),
                {},
            ),
        ],
        _aten._reshape_alias.default: [
            Call(
                (
                    x,
                    [4, 3],
                    [3, 1],
                ),
                {},
            )
        ],
        _aten.lerp.Tensor: [
            Call(
                (
                    x,
                    x + 1,
                    x[0],
                ),
                {},
            )
        ],
        _aten.nll_loss_forward.default: [
            Call(
                (
                    x,
                    torch.tensor([0, 3, -100]),
                    x[0].abs(),
                    1,
                    -100,
                ),
                {},
            )
        ],
        _aten.view.default: [
            Call(
                (
                    x,
                    [3, 1, 4],
                ),
                {},
            )
        ],
    }


def collected() -> dict[Any, list[Call]]:
    """The calls by overload, those of backwards among them."""
    collector = _Collector()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for info in (one for one in op_db if not one.name.startswith(LEFT_OUT)):
            for dtype in DTYPES:
                for sample in _samples(info, dtype):
                    _run(info, sample, collector)
    for overload, calls in by_hand().items():
        collector.found[overload].extend(calls)
    return collector.found


def _samples(info: Any, dtype: torch.dtype) -> Iterator[Any]:
    if dtype not in info.supported_dtypes("cpu"):
        return
    grad = info.supports_autograd and dtype == torch.float32
    try:
        for count, sample in enumerate(info.sample_inputs("cpu", dtype, requires_grad=grad)):
            if count == SAMPLES:
                return
            yield sample
    except (RuntimeError, TypeError, NotImplementedError, ImportError):
        return


def _run(info: Any, sample: Any, collector: _Collector) -> None:
    try:
        with collector:
            result = info.op(sample.input, *sample.args, **sample.kwargs)
            first = result[0] if isinstance(result, (tuple, list)) and result else result
            if isinstance(first, Tensor) and first.requires_grad and not first.is_complex():
                first.sum().backward()
    except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError, AssertionError, AttributeError):
        return


def proxy(name: str, x: Tensor) -> sg.TensorProxy:
    """A proxy of a tensor's metadata."""
    return sg.TensorProxy(name, tuple(x.shape), tuple(x.stride()), x.dtype, x.device)


def region_of(overload: Any, call: Call, result: Any) -> tuple[sg.Trace, list[Tensor]]:
    """A region of one call, and the tensors to run it on."""
    tensors: dict[int, Tensor] = {}

    def given(x: Tensor) -> sg.TensorProxy:
        tensors.setdefault(id(x), x)
        return proxy(f"x{list(tensors).index(id(x))}", x)

    args, kwargs = mapped(given, tuple(call), Tensor)
    made: list[sg.TensorProxy] = []

    def out(x: Tensor) -> sg.TensorProxy:
        # an output of a region is no view, so none that was expanded
        made.append(proxy(f"y{len(made)}", x.contiguous() if 0 in x.stride() else x))
        return made[-1]

    output = mapped(out, tuple(result) if isinstance(result, list) else result, Tensor)
    item = sg.BoundSymbol(sg.Symbol(str(overload), overload), args, kwargs, output)
    inputs = tuple(given(x) for x in tensors.values())
    return sg.Trace("region", inputs, tuple(made), (item,)), list(tensors.values())
