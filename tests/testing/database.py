"""PyTorch's own operators as a plugin's, through the kit, which is to find nothing: `python -m tests.testing.database`.

Each operator of PyTorch's database is implemented by a function that calls it, and differentiated by a rule whose
pullback is PyTorch's derivative of it. What the kit says against one of these is a bug of the kit.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import itertools
import re
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import switchgear as sg
from switchgear import testing
from switchgear.errors import RegistrationError
from switchgear_core.ir.naming import symbols_of
from switchgear_core.ir.symbol import map_proxies
from switchgear_core.nesting import tensors_in
from switchgear_tools.testing.samples import is_random, samples_of, symbol_in, variants
from tests.databases.operators import operators, seed_everything
from tests.databases.refused import INEXACT_OPERATORS
from tests.databases.report import describe, examine_all
from tests.databases.verdict import Jit, Outcome, Verdict, jit_torch
from tests.oracle import Undefined
from tests.under_test import fraction, part

MODES = ("implementation", "rule")
#: What cannot be called in PyTorch itself, or gives nothing to compare with: modes, and why.
EXCLUDED = {
    "_chunk_cat": (MODES, "PyTorch 2.13 has a segmentation fault where tensors have no dimensions"),
    "nn.functional.multilabel_margin_loss": (MODES, "PyTorch 2.13 returns memory as it was found for no rows"),
    "nn.functional.pdist": (("rule",), "PyTorch 2.13 has a segmentation fault in the derivative of no rows"),
}
_REFUSED = "is not differentiable with respect to argument"


@functools.cache
def targets() -> dict[str, Any]:
    """What implementations are registered for, by the first entry of each; None where PyTorch has no one function."""
    found: dict[str, Any] = {}
    for name, entry in operators().items():
        target = _target(entry)
        if target is None or target not in found.values():
            found[name] = target
    return found


def _target(entry: Any) -> Any:
    symbol = symbol_in(entry)
    if symbol is not None:
        return symbol.fn
    packet = getattr(torch.ops.aten, entry.aten_name, None)
    with _Called() as called, warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")
        seed_everything()
        sample = next(iter(entry.sample_inputs("cpu", torch.float32, set_seed=False)))
        entry.op(sample.input, *sample.args, **sample.kwargs)
    return next((one for one in called.overloads if one.overloadpacket is packet), None)


class _Called(TorchDispatchMode):
    """The overloads that are called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.overloads: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.overloads.append(func)
        return func(*args, **(kwargs or {}))


def implementing(target: Any) -> sg.Executor:
    """An executor of which the implementation calls what it implements."""
    table = sg.Table("mine")
    table.implementation(target)(lambda *args, **kwargs: target(*args, **kwargs))
    return sg.Executor("mine", table=table)


def ruling(target: Any, *, draws: bool = False) -> sg.Table:
    """A rule of which the pullback is PyTorch's derivative: of a call that it makes again, or of the one that drew."""
    table = sg.Table("mine")

    @table.grad_rule(target, functools.partial(reads_no_data, target))
    def rule(*args: Any, **kwargs: Any) -> tuple[Any, Callable[..., Any]]:
        drawn = derivative(target, args, kwargs) if draws else None

        def pullback(*grads: Tensor) -> Any:
            _, vjp = drawn or derivative(target, args, kwargs)
            return vjp(grads)

        return target(*args, **kwargs) if drawn is None else drawn[0], pullback

    return table


def derivative(target: Any, args: Any, kwargs: Any) -> tuple[Any, Callable[..., Any]]:
    """What a call gives, and PyTorch's derivative by its tensors: None by those that it has none by."""
    leaves, structure = pytree.tree_flatten((args, kwargs))
    places = [place for place, one in enumerate(leaves) if isinstance(one, Tensor)]

    def linearised(real: Sequence[int]) -> tuple[Any, Any]:
        def outputs(*tensors: Tensor) -> tuple[tuple[Tensor, ...], Any]:
            given = dict(zip(real, tensors, strict=True))
            again, named = pytree.tree_unflatten([given.get(i, one) for i, one in enumerate(leaves)], structure)
            result = target(*again, **named)
            return tuple(filter(is_real, tensors_in(result))), result

        found: Any = torch.func.vjp(outputs, *[leaves[place] for place in real], has_aux=True)
        _, vjp, result = found
        return result, vjp

    def is_differentiable(place: int) -> bool:
        try:
            linearised([place])
        except RuntimeError as error:
            if _REFUSED not in str(error):
                raise
            return False
        return True

    real = [place for place in places if is_real(leaves[place])]
    try:
        result, vjp = linearised(real)
    except RuntimeError as error:
        if _REFUSED not in str(error):
            raise
        real = [*filter(is_differentiable, real)]
        result, vjp = linearised(real)

    def pullback(grads: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        found = dict(zip(real, vjp(tuple(grad for grad in grads if grad is not None)), strict=True))
        return tuple(found.get(place) for place in places)

    return result, pullback


def reads_no_data(target: Any, call: sg.BoundSymbol) -> bool | str:
    """Whether PyTorch's derivative of a call asks for no data, which is not there while a rule is traced."""
    with FakeTensorMode(), torch.enable_grad():
        args, kwargs = map_proxies(_fake, (call.args, dict(call.kwargs)))
        try:
            result, vjp = derivative(target, args, kwargs)
            vjp([torch.empty_like(one) for one in tensors_in(result) if is_real(one)])
        except (DataDependentOutputException, DynamicOutputShapeException):
            return "PyTorch's derivative reads the data"
        except Exception:  # for the kit to find
            return True
    return True


def _fake(proxy: sg.TensorProxy) -> Tensor:
    return torch.empty_strided(proxy.shape, proxy.stride, dtype=proxy.dtype, device=proxy.device)


def draws_numbers(target: Any) -> bool:
    """Whether random numbers are drawn in one of the samples."""
    samples = itertools.chain.from_iterable(samples_of(one.name) for one in symbols_of(target))
    return any(is_random(one) for sample in samples for one in itertools.islice(variants(sample), 1))


def is_real(tensor: Tensor) -> bool:
    """Whether it is of floating-point or complex numbers, which is what is differentiated."""
    return tensor.is_floating_point() or tensor.is_complex()


def examine(name: str, jit: Jit = jit_torch) -> list[Verdict]:
    """What the kit says to one entry, as a plugin's implementation and as its rule."""
    return [examine_mode(name, mode) for mode in MODES]


def examine_mode(name: str, mode: str) -> Verdict:
    """What the kit says to one entry."""
    target = targets()[name]
    if target is None:
        return Verdict(Outcome.SKIPPED, name, mode, "", detail="no one function of PyTorch's")
    if isinstance(INEXACT_OPERATORS.get(name), Undefined):
        return Verdict(Outcome.SKIPPED, name, mode, "", detail="its result is memory as it was found")
    modes, reason = EXCLUDED.get(name, ((), ""))
    if mode in modes:
        return Verdict(Outcome.SKIPPED, name, mode, "", detail=reason)
    if mode == "rule" and not operators()[name].supports_autograd:
        return Verdict(Outcome.SKIPPED, name, mode, "", detail="PyTorch has no derivative of it")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if mode == "rule":
                testing.check_rule(ruling(target, draws=draws_numbers(target)), target)
            else:
                testing.check_implementation(implementing(target), target)
    except RegistrationError as error:
        return Verdict(Outcome.SKIPPED, name, mode, "", detail=str(error))
    except testing.Failures as error:
        untaken = re.search("no call was taken; mine says: (.*)", str(error))
        if untaken is not None:
            return Verdict(Outcome.SKIPPED, name, mode, "", detail=_reason(untaken[1]))
        return Verdict(Outcome.WRONG, name, mode, "", detail=str(error))
    return Verdict(Outcome.EQUAL, name, mode, "")


def _reason(said: str) -> str:
    """Why no call was taken, without what differs from operator to operator."""
    if "calls of it run in eager" in said:
        return "its calls fall back"
    return "its calls are seen by other names, of what it calls" if "no " in said or "not seen" in said else said


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the database and report; the exit status says whether the kit found anything."""
    options = _parser().parse_args(arguments)
    k, parts = options.fraction
    chosen = [name for name in targets() if re.search(options.filter, name) and part(name, parts) == k]
    begin = time.monotonic()
    verdicts = examine_all(chosen, examine, jit_torch, options.jobs, options.seconds)
    for verdict in verdicts:
        if verdict.outcome not in (Outcome.EQUAL, Outcome.SKIPPED):
            print(describe(verdict))
    print(f"\n{len(chosen)} of {len(targets())} operators in {time.monotonic() - begin:.0f} s")
    for mode in MODES:
        print(_summary(mode, [verdict for verdict in verdicts if verdict.mode in (mode, "any")]))
    return int(any(verdict.outcome not in (Outcome.EQUAL, Outcome.SKIPPED) for verdict in verdicts))


def _summary(mode: str, verdicts: list[Verdict]) -> str:
    counts = collections.Counter(verdict.outcome for verdict in verdicts)
    failed = counts.total() - counts[Outcome.EQUAL] - counts[Outcome.SKIPPED]
    reasons: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.outcome is Outcome.SKIPPED:
            reasons.setdefault(verdict.detail, []).append(verdict.name)
    lines = [f"{mode}: {counts[Outcome.EQUAL]} passed, {failed} failed, {counts[Outcome.SKIPPED]} skipped"]
    lines += [f"    {reason}: {len(names)} ({', '.join(names)})" for reason, names in reasons.items()]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.testing.database", description=__doc__)
    parser.add_argument("--filter", default="", metavar="REGEX", help="only operators whose name matches")
    parser.add_argument("--fraction", type=fraction, default=(0, 1), metavar="K/N", help="only part K, from 0, of N")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="worker processes (default: 2)")
    parser.add_argument("--seconds", type=float, default=600.0, metavar="S", help="of an entry, at most (default: 600)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
