"""Samples: calls of an operator, from PyTorch's operator database or its author, and variants of each."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch

from switchgear_core.errors import RegistrationError
from switchgear_core.ir.naming import symbol_of
from switchgear_core.ir.symbol import Symbol
from switchgear_core.nearness import Named, differences, named
from switchgear_core.nesting import map_tensors, tensors_in, twin
from switchgear_core.torch_private.operator_database import operator_database

#: The limit on samples of PyTorch's database for an operator.
MOST = 6
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
_Change: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
_SOME = range(1, 65)
#: Other layouts of tensors, with the numbers of dimensions that each is of.
_LAYOUTS: tuple[tuple[str, range, _Change], ...] = (
    ("non-contiguous", _SOME, lambda tensor: torch.stack([tensor, tensor], -1)[..., 0]),
    ("expanded", _SOME, lambda tensor: tensor[:1].expand(tensor.shape)),
    ("transposed", _SOME[1:], lambda tensor: tensor.mT.contiguous().mT),
    (
        "channels-last",
        range(4, 5),
        lambda tensor: tensor.contiguous(memory_format=torch.channels_last),
    ),
)


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Call of a function that calls the operator: `function(*args, **kwargs)`.

    Attributes:
        function: the function, or the operator itself.
        args: its arguments by position.
        kwargs: its arguments by name.
        name: the name in messages.
        narrow: selects the differentiable part of a result; None for all of it.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    name: str = "sample"
    narrow: Callable[[Any], Any] | None = None

    def __str__(self) -> str:
        texts = [_shown(value) for value in self.args]
        texts += [f"{name}={_shown(value)}" for name, value in self.kwargs.items()]
        return f"{self.name} ({', '.join(texts)})"

    def tensors(self) -> list[torch.Tensor]:
        """Collect the tensors among the arguments.

        Returns:
            The tensors, in order.
        """
        return [*tensors_in((self.args, self.kwargs))]

    def mapped(self, function: Callable[[torch.Tensor], torch.Tensor], name: str = "") -> Sample:
        """Replace the tensors of the sample.

        Args:
            function: a function from each tensor to another.
            name: an addition to the sample's name.

        Returns:
            A new sample.
        """
        args, kwargs = map_tensors(function, (self.args, self.kwargs))
        return replace(
            self, args=args, kwargs=kwargs, name=f"{self.name}, {name}" if name else self.name
        )

    def then(self, function: Callable[[Any], Any]) -> Sample:
        """Pass the result of the sample through a function.

        Args:
            function: a function of the result.

        Returns:
            A new sample.
        """
        first = self.function
        return replace(self, function=lambda *args, **kwargs: function(first(*args, **kwargs)))

    def __call__(self) -> Any:
        """Call the function.

        Returns:
            Its result.
        """
        return self.function(*self.args, **self.kwargs)


def samples_of(symbol: str, samples: Sequence[Sample] = ()) -> list[Sample]:
    """The author's samples of an operator, or PyTorch's. Raises `RegistrationError` where there are none."""
    candidates = [*samples] or [*_in_database(symbol)]
    if not candidates:
        why = (
            f"PyTorch's database has no samples of {symbol}"
            if _by_symbol()
            else "PyTorch's database of operators cannot be imported: pip install 'switchgear[testing]'"
        )
        raise RegistrationError(
            f"{why}; or give some: samples=[testing.Sample({symbol}, (x, ...))]"
        )
    places = [place * (len(candidates) - 1) // max(MOST - 1, 1) for place in range(MOST)]
    return [*samples] or [candidates[place] for place in dict.fromkeys(places)]


def _in_database(symbol: str) -> Iterator[Sample]:
    for entry in _by_symbol().get(
        symbol.rpartition(".")[0] if symbol.startswith("aten.") else symbol, ()
    ):
        dtypes = entry.supported_dtypes("cpu")
        usual = (torch.float32, torch.int64, torch.bool, torch.complex64)
        dtype = next((candidate for candidate in usual if candidate in dtypes), None)
        if dtype is None:
            continue
        torch.manual_seed(0)
        for index, sample in enumerate(entry.sample_inputs("cpu", dtype, set_seed=False)):
            args = (sample.input, *sample.args)
            name = f"sample {index} of {entry.full_name}"
            yield Sample(entry.op, args, sample.kwargs, name, sample.output_process_fn_grad)


@functools.cache
def _by_symbol() -> dict[str, list[Any]]:
    entries: dict[str, list[Any]] = {}
    for entry in operator_database():
        symbol = symbol_in(entry)
        names = {symbol.name if symbol else "", f"aten.{entry.aten_name}"}
        for name in names:
            entries.setdefault(name, []).append(entry)
    return entries


def symbol_in(entry: Any) -> Symbol | None:
    """Return the function that an entry of the database calls: its own, or the one of its name."""
    functions: list[object] = [entry.op]
    for root in (torch, torch.Tensor):
        with contextlib.suppress(AttributeError):
            functions.append(operator.attrgetter(entry.name)(root))
    symbols = (symbol_of(function) for function in functions if callable(function))
    return next((symbol for symbol in symbols if symbol is not None), None)


def variants(sample: Sample, dtypes: Sequence[torch.dtype] = DTYPES) -> Iterator[Sample]:
    """Yield a sample in other dtypes and layouts, empty and without dimensions, if PyTorch runs these correctly."""
    for changed in _variants(sample, dtypes):
        try:
            results = _results(changed, twin)
            # a few kernels of PyTorch read repeated elements as if each were there
            if changed is not sample and any(differences(results, _results(changed, _compact))):
                continue
        except Exception:  # PyTorch refuses it, as the operator's author may
            continue
        yield changed


def is_random(sample: Sample) -> bool:
    """Check whether PyTorch draws random numbers, or gives other results in the next run."""
    before = torch.get_rng_state()
    first, second = (named(sample.mapped(twin)()) for _ in range(2))
    return any(differences(first, second)) or not torch.equal(before, torch.get_rng_state())


def _results(sample: Sample, copy: Callable[[torch.Tensor], torch.Tensor]) -> Named:
    torch.manual_seed(0)
    return named(sample.mapped(copy)())


def _compact(tensor: torch.Tensor) -> torch.Tensor:
    return twin(tensor.contiguous() if tensor.layout is torch.strided else tensor)


def _variants(sample: Sample, dtypes: Sequence[torch.dtype]) -> Iterator[Sample]:
    yield sample
    tensors = [tensor for tensor in sample.tensors() if tensor.layout is torch.strided]
    floats = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    for dtype in dtypes:
        if floats - {dtype}:
            cast = functools.partial(_cast, dtype=dtype)
            yield sample.mapped(cast, str(dtype).removeprefix("torch."))
    layouts = [*_LAYOUTS]
    if len({tensor.shape for tensor in tensors}) == 1 and tensors[0].dim():
        layouts.append(("empty", _SOME, lambda tensor: tensor[:0]))
        if tensors[0].numel():
            layouts.append(("without dimensions", _SOME, lambda tensor: tensor.flatten()[0]))
    for name, dims, change in layouts:
        if any(tensor.dim() in dims for tensor in tensors):
            yield sample.mapped(functools.partial(_laid_out, dims, change), name)


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _laid_out(dims: range, change: _Change, tensor: torch.Tensor) -> torch.Tensor:
    is_meant = tensor.layout is torch.strided and tensor.dim() in dims
    return change(tensor) if is_meant else tensor


def _shown(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{[*value.shape]}"
    return f"{value!r:.60}"
