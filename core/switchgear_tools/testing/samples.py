"""Samples: calls of an operator, from PyTorch's operator database or its author, and variants of each."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from switchgear_core.errors import RegistrationError
from switchgear_core.ir.naming import symbol_of
from switchgear_core.ir.symbol import Symbol
from switchgear_core.nearness import tolerances
from switchgear_core.nesting import map_tensors, tensors_in, twin
from switchgear_core.torch_private.operator_database import operator_database

#: The most that are taken of what PyTorch's database has for an operator.
MOST = 6
DTYPES = (torch.float32, torch.float64, torch.bfloat16)


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
        shown = [_shown(value) for value in self.args]
        shown += [f"{name}={_shown(value)}" for name, value in self.kwargs.items()]
        return f"{self.name} ({', '.join(shown)})"

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
            if changed is not sample and not _near(results, _results(changed, _compact)):
                continue
        except Exception:  # PyTorch refuses it, as the operator's author may
            continue
        yield changed


def _results(sample: Sample, copy: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [*tensors_in(sample.mapped(copy)())]


def _near(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Whether results are the same; a few kernels of PyTorch's read repeated elements as if each were there."""
    for result, other in zip(some, others, strict=True):
        near, most = tolerances(other)
        if result.layout is torch.strided and not torch.allclose(
            result, other, near, most, equal_nan=True
        ):
            return False
    return True


def _variants(sample: Sample, dtypes: Sequence[torch.dtype]) -> Iterator[Sample]:
    yield sample
    tensors = [tensor for tensor in sample.tensors() if tensor.layout is torch.strided]
    if any(tensor.is_floating_point() for tensor in tensors):
        for dtype in dtypes:
            if any(tensor.is_floating_point() and tensor.dtype != dtype for tensor in tensors):
                yield sample.mapped(
                    functools.partial(_cast, dtype=dtype), str(dtype).removeprefix("torch.")
                )
    for name, change in _layouts(tensors):
        yield sample.mapped(functools.partial(_where_strided, change), name)


def _where_strided(
    change: Callable[[torch.Tensor], torch.Tensor], tensor: torch.Tensor
) -> torch.Tensor:
    return change(tensor) if tensor.layout is torch.strided else tensor


def _layouts(
    tensors: Sequence[torch.Tensor],
) -> Iterator[tuple[str, Callable[[torch.Tensor], torch.Tensor]]]:
    """How tensors may be laid out otherwise, and called."""
    dims = {tensor.dim() for tensor in tensors}
    if dims - {0}:
        yield "non-contiguous", _with_gaps
        yield "expanded", _repeated
    if dims - {0, 1}:
        yield "transposed", _transposed
    if 4 in dims:
        yield "channels-last", _channels_last
    if 0 not in dims and len({tensor.shape for tensor in tensors}) == 1:
        yield "empty", lambda tensor: tensor[:0]
        if tensors[0].numel():
            yield "without dimensions", lambda tensor: tensor.flatten()[0]


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _compact(tensor: torch.Tensor) -> torch.Tensor:
    return (
        tensor.detach().clone(memory_format=torch.contiguous_format)
        if tensor.layout is torch.strided
        else twin(tensor)
    )


def _with_gaps(tensor: torch.Tensor) -> torch.Tensor:
    return torch.stack([tensor, tensor], -1)[..., 0] if tensor.dim() else tensor


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.mT.contiguous().mT if tensor.dim() > 1 else tensor


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def _repeated(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:1].expand(tensor.shape) if tensor.dim() and tensor.numel() else tensor


def _shown(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{[*value.shape]}"
    return f"{value!r:.60}"
