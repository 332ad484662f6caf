"""All that a call leaves behind, in eager and through `sg.jit`, and every way in which the two differ."""

from __future__ import annotations

import copy
import itertools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import switchgear as sg
from switchgear.errors import SwitchgearError
from tests.aot_behaviours.falls_back import FALLS_BACK, SOMETIMES
from tests.oracle import differences, fallbacks_recorded
from tests.under_test import EXECUTORS

_WRITTEN = "has a new version"

Target = Callable[..., Any]
Context = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Inputs:
    """The arguments of one call, and the leaves whose gradients are looked at."""

    leaves: tuple[Tensor, ...]
    args: tuple[Any, ...]


#: Makes the inputs anew, for everything about them may be changed by a call.
Make = Callable[[], Inputs]


def values(*shape: int, grad: bool = False, dtype: torch.dtype = torch.float64) -> Tensor:
    """Different numbers of few bits: sums and products of them are exact, in whatever order they are made."""
    count = torch.Size(shape).numel()
    numbers = (torch.arange(count) * 5 % 17 + 1).to(dtype) / 4
    return numbers.reshape(shape).clone().requires_grad_(grad)  # a leaf that is no view


def leaves(*shapes: tuple[int, ...], grad: bool | tuple[bool, ...] = True) -> Make:
    """Arguments that are leaves."""
    flags = grad if isinstance(grad, tuple) else (grad,) * len(shapes)

    def make() -> Inputs:
        made = tuple(values(*shape, grad=flag) for shape, flag in zip(shapes, flags, strict=True))
        return Inputs(made, made)

    return make


def results(*shapes: tuple[int, ...], grad: bool | tuple[bool, ...] = True) -> Make:
    """Arguments that are results of something, which may therefore be written to."""
    of_leaves = leaves(*shapes, grad=grad)

    def make() -> Inputs:
        made = of_leaves().leaves
        return Inputs(made, tuple(leaf + 1 for leaf in made))

    return make


def windows(shape: tuple[int, ...], *takes: Callable[[Tensor], Tensor], grad: bool = True) -> Make:
    """Arguments that are views of one result."""

    def make() -> Inputs:
        leaf = values(*shape, grad=grad)
        base = leaf + 1
        return Inputs((leaf,), tuple(take(base) for take in takes))

    return make


def arguments(*args: Any) -> Make:
    """These arguments, anew for each call; those that are leaves are the leaves, and one object stays one object."""

    def make() -> Inputs:
        copied = copy.deepcopy(args)
        tensors = [leaf for leaf in pytree.tree_leaves(copied) if isinstance(leaf, Tensor)]
        return Inputs(tuple(_distinct(tensors)), copied)

    return make


@dataclass(slots=True)
class Observation:
    """What a call left behind; every fact under a name that says where it was seen."""

    error: BaseException | None = None
    facts: dict[str, object] = field(default_factory=dict)

    def note(self, where: str, fact: object) -> None:
        """Keep a fact."""
        self.facts[where] = fact


def check(
    target: Target, *makes: Make, around: Context = nullcontext, refusable: str = "", unversioned: str = ""
) -> list[Observation]:
    """Compare eager with the jitted function, for each of the inputs first and once more from the cache.

    The jitted one may fall back only if `falls_back.py` says so of the test. Everything is done twice: with a backward
    right after the call, and with every output written to before it. An error in eager must be an error of the same
    type, or one of ours.

    Args:
        refusable: why a `SwitchgearError` is as good as eager's result: PyTorch's own compiler refuses the case, too.
        unversioned: why eager writes without a new version, where giving one is not wrong.

    Returns:
        The observations of eager.
    """
    seen: list[Observation] = []
    with fallbacks_recorded() as fallbacks:
        for write in (False, True):
            expected = _observe_all(target, lambda target, kinds: target, makes, around, write)
            actual = _observe_all(target, _jit, makes, around, write)
            faults = [
                f"{call}, {difference}"
                for call, one, other in zip(_names(len(makes), write), expected, actual, strict=True)
                for difference in _compare(one, other, refusable, unversioned)
            ]
            assert not faults, "\n".join(faults[:20])
            seen += expected
    _check_declared(fallbacks)
    return seen


def _check_declared(fallbacks: list[tuple[str, str]]) -> None:
    """Fail if a fallback is not declared for the test that runs, or what is declared does not happen."""
    if EXECUTORS != ["torch"]:
        return  # others take other graphs
    function, _, mode = os.environ["PYTEST_CURRENT_TEST"].removesuffix(" (call)").partition("[")
    test = function.rpartition("/")[2]
    patterns = [
        pattern
        for pattern, tests in FALLS_BACK.items()
        if test in tests and (not tests[test] or mode[:-1] in tests[test])
    ]
    undeclared = [reason for _, reason in fallbacks if not any(re.search(one, reason, re.DOTALL) for one in patterns)]
    assert not undeclared, f"falls_back.py does not declare that it falls back: {undeclared[0]}"
    assert fallbacks or not patterns or test in SOMETIMES, f"it does not fall back, against falls_back.py: {patterns}"


def succeeds(observed: list[Observation]) -> bool:
    """Whether eager made all the calls: what a test asserts that is no test of an error."""
    return all(observation.error is None for observation in observed)


def _jit(target: Target, kinds: int) -> Target:
    # One compilation for each of the inputs, and no more: in the tests the warning of one more is an error.
    jitted: Target = sg.jit(target, executors=EXECUTORS, recompile_limit=kinds, dynamic=False)
    return jitted


def _names(count: int, write: bool) -> Iterator[str]:
    for call in ("first", "cached"):
        for index in range(count):
            yield f"{call} call" + (f" on inputs {index}" if count > 1 else "") + (", outputs written" * write)


def _observe_all(
    target: Target, wrap: Callable[[Target, int], Target], makes: tuple[Make, ...], around: Context, write: bool
) -> list[Observation]:
    copied = copy.deepcopy(target)  # a module is copied, a function is itself
    call = wrap(copied, len(makes))
    module = copied if isinstance(copied, torch.nn.Module) else None
    return [_observe(call, module, make(), around, write) for make in makes * 2]


def _observe(call: Target, module: torch.nn.Module | None, inputs: Inputs, around: Context, write: bool) -> Observation:
    seen = Observation()
    args = [leaf for leaf in pytree.tree_leaves(inputs.args) if isinstance(leaf, Tensor)]
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())} if module is not None else {}
    inside = {f"leaf {index}": leaf for index, leaf in enumerate(inputs.leaves)}
    inside |= {f"argument {index}": argument for index, argument in enumerate(args)} | state
    versions = {name: _version(tensor) for name, tensor in inside.items()}
    try:
        with around():
            output = call(*inputs.args)
    except Exception as error:
        seen.error = error
        return seen
    outputs, structure = pytree.tree_flatten(output)
    seen.note("structure of the output", structure)
    seen.note("what of the output is no tensor", [leaf for leaf in outputs if not isinstance(leaf, Tensor)])
    named = inside | {f"output {index}": leaf for index, leaf in enumerate(outputs) if isinstance(leaf, Tensor)}
    for name, version in versions.items():
        seen.note(f"{name} {_WRITTEN}", _version(inside[name]) != version)
    _note_tensors(seen, "after the call", named)
    if write:
        for index, leaf in enumerate(_distinct([leaf for leaf in outputs if isinstance(leaf, Tensor)])):
            seen.note(f"writing to output {index}", _error_of(leaf.mul_, 2))
        _note_tensors(seen, "after writing", named)
    _note_gradients(seen, named)
    _note_tensors(seen, "after the backward", named)
    return seen


def _note_tensors(seen: Observation, when: str, named: dict[str, Tensor]) -> None:
    for name, tensor in named.items():
        for fact, value in _facts(tensor).items():
            seen.note(f"{name} {when}: {fact}", value)
    for (one, first), (other, second) in itertools.combinations(named.items(), 2):
        seen.note(f"{one} and {other} {when}: relation", _relation(first, second))


def _facts(tensor: Tensor) -> dict[str, object]:
    history = _history(tensor)
    return {
        "type": type(tensor),
        "dtype": tensor.dtype,
        "device": tensor.device,
        "shape": tuple(tensor.shape),
        "strides": tensor.stride(),
        "offset": tensor.storage_offset(),
        "grad_fn": history,
        "requires_grad": history == "lost" or tensor.requires_grad,
        "is_leaf": history != "lost" and tensor.is_leaf,
        "inference": tensor.is_inference(),
        "values": tensor.detach().clone(memory_format=torch.contiguous_format),
    }


def _history(tensor: Tensor) -> str:
    """Whether there is a `grad_fn`. It is lost, and autograd knows nothing more of the tensor, if the tensor is one of
    several that one call viewed a base as, and the base was written to.
    """
    try:
        return "none" if tensor.grad_fn is None else "some"
    except RuntimeError:
        return "lost"


def _is_leaf(tensor: Tensor) -> bool:
    return _history(tensor) == "none"


def _relation(first: Tensor, second: Tensor) -> tuple[str, ...]:
    """Same object, same memory, and whether autograd knows both as one tensor's views."""
    facts = {
        "identical": first is second,
        "same storage": first.untyped_storage()._cdata == second.untyped_storage()._cdata,
        "same base": _base(first) is _base(second),
    }
    return tuple(name for name, holds in facts.items() if holds)


def _base(tensor: Tensor) -> Tensor:
    base = tensor._base
    return tensor if base is None else base


def _version(tensor: Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _note_gradients(seen: Observation, named: dict[str, Tensor]) -> None:
    """Backward from all that has a history, written arguments among it, each with grad outputs of its own."""
    roots = [
        tensor
        for name, tensor in named.items()
        if _history(tensor) == "some" or (_is_leaf(tensor) and tensor.requires_grad and name.startswith("output"))
    ]
    roots = _distinct(roots)
    if roots:
        grads = [values(*root.shape, dtype=root.dtype).to(root.device) + index for index, root in enumerate(roots)]
        seen.note("backward", _error_of(torch.autograd.backward, roots, grads))
    for name, leaf in named.items():
        if not _is_leaf(leaf):
            continue
        seen.note(f"gradient of {name}: is there", leaf.grad is not None)
        if leaf.grad is not None:
            seen.note(f"gradient of {name}: layout", leaf.grad.layout)
            grad = leaf.grad.to_dense()
            for fact, value in (_facts(grad) | {"strides": _steps(grad)}).items():
                seen.note(f"gradient of {name}: {fact}", value)


def _steps(tensor: Tensor) -> tuple[int | None, ...]:
    """The strides of the dimensions that have more than one element: any other leads nowhere, and PyTorch's own
    formulas set it as it happens.
    """
    return tuple(None if size == 1 else step for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _error_of(function: Callable[..., Any], *args: Any) -> str:
    """The type of the error that a call raises, or "works"."""
    try:
        function(*args)
    except Exception as error:
        return type(error).__name__
    return "works"


def _distinct(tensors: list[Tensor]) -> list[Tensor]:
    return list({id(tensor): tensor for tensor in tensors}.values())


def _compare(expected: Observation, actual: Observation, refusable: str, unversioned: str) -> Iterator[str]:
    if isinstance(actual.error, SwitchgearError):
        if expected.error is None and not refusable:
            yield f"refused: {type(actual.error).__name__}: {actual.error}"
    elif type(expected.error) is not type(actual.error):
        yield f"raised {actual.error!r}, eager {expected.error!r}"
    else:
        for where, fact in expected.facts.items():
            found = actual.facts.get(where, "missing")
            if isinstance(fact, Tensor) and isinstance(found, Tensor):
                # Where shapes or dtypes differ that is said already.
                if (fact.shape, fact.dtype) == (found.shape, found.dtype):
                    yield from differences(fact, found, where)
            elif (type(fact) is not type(found) or fact != found) and not (unversioned and where.endswith(_WRITTEN)):
                yield f"{where} is {found}, eager's {fact}"
        for where in actual.facts.keys() - expected.facts.keys():
            yield f"{where} is {actual.facts[where]}, in eager there is none"
