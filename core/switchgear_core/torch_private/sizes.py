"""Symbolic sizes: PyTorch's `ShapeEnv`, and its expressions as Python."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from switchgear_core.errors import Unsupported
from switchgear_core.patches import Change, replaced
from switchgear_core.torch_private.fakes import enable_python_dispatcher


@functools.cache
def _symbolic() -> Any:
    """Return PyTorch's symbolic sizes, with names from `s0`; imported on first use, because sympy is slow to import."""
    names = (
        "torch._guards",
        "torch.fx.experimental.symbolic_shapes",
        "torch.utils._sympy.printers",
    )
    guards, symbolic_shapes, printers = map(importlib.import_module, names)

    class Place(guards.Source):  # type: ignore[name-defined, misc]
        def __init__(self, name: str) -> None:
            self._name = name

        @property
        def name(self) -> str:
            return self._name

    class ShapeEnv(symbolic_shapes.ShapeEnv):  # type: ignore[name-defined, misc]
        where: Callable[[], str]
        results: dict[object, object]

        def _generate_unique_id(self, source_name: str) -> int:
            self.unique_ids.add(number := len(self.unique_ids))
            return number

        def _get_stack_summary(
            self, is_debug: bool = False, framework_loc: object = None
        ) -> object:
            return symbolic_shapes.SLoc(self.where(), None), ""

        def _check_frozen(self, expr: object, concrete_val: object) -> None:
            if self.frozen:
                raise Unsupported(f"{expr} is asked for, and its value is not known any more")

    return ShapeEnv, Place, symbolic_shapes.DimDynamic.DYNAMIC, printers.PythonPrinter()


def new_shape_env(where: Callable[[], str]) -> object:
    """Return an environment for symbolic sizes; it keeps each decision as a guard with the result of `where()`."""
    env = _symbolic()[0](
        allow_scalar_outputs=False,
        allow_dynamic_output_shape_ops=False,
        specialize_zero_one=True,
        duck_shape=False,
    )
    env.where = where
    env.results = {}
    return env


@contextlib.contextmanager
def arithmetic_remembered(shape_env: Any) -> Iterator[None]:
    """Return a context in which the arithmetic of an environment is done once per operands: it dominates captures."""
    nodes = importlib.import_module("torch.fx.experimental.sym_node").SymNode
    with contextlib.ExitStack() as stack:
        for name in _ARITHMETIC:
            function = _remembering(name, getattr(nodes, name), shape_env, shape_env.results)
            stack.enter_context(replaced(nodes, name, function))
        yield


def _remembering(
    name: str, original: Callable[..., object], env: object, results: dict[object, object]
) -> Callable[..., object]:
    def operation(node: Any, other: Any) -> object:
        if node.shape_env is not env or getattr(other, "shape_env", None) is not env:
            return original(node, other)
        key = name, node._expr, node.pytype, other._expr, other.pytype
        result = results.get(key)
        if result is None:
            result = results[key] = original(node, other)
        return result

    return operation


#: Operations of symbolic sizes without effects.
_ARITHMETIC = ("add", "sub", "mul", "floordiv", "mod", "eq", "ne", "lt", "le", "gt", "ge")


def new_size(shape_env: Any, place: str, value: int) -> torch.SymInt:
    """Return a symbolic size, at least 2, with the value `value` in the captured call."""
    _, kind, dynamic, _ = _symbolic()
    symbol = shape_env.create_symbol(value, kind(place), dynamic)
    return shape_env.create_symintnode(symbol, hint=value)  # type: ignore[no-any-return]


def decided(shape_env: Any, start: int = 0) -> list[tuple[str, str]]:
    """Return the conditions behind all decisions from the `start`th on, as Python, each with its place.

    Raises `Unsupported` if a condition cannot be stated exactly: it computes with floats.
    """
    for guard in shape_env.guards[start:]:
        if not _compares_integers(guard.expr):
            raise Unsupported(
                f"{guard.expr} was asked for, which computes with floats, {guard.sloc.framework_loc}"
            )
    return [
        (python_of_expression(guard.expr), str(guard.sloc.framework_loc))
        for guard in shape_env.guards[start:]
    ]


def decide_all(number: Any) -> object:
    """Fix every size in a symbolic number to its value in the captured call; return the number as Python computed it.

    Its expression may have the same sums and products in another order, and round differently.
    """
    env, value = number.node.shape_env, number.node.hint
    for symbol in sorted(number.node.expr.free_symbols, key=str):
        int(env.create_symintnode(symbol, hint=int(env.backed_var_to_val[symbol])))
    return value


def composites_of_sizes(
    fn: Callable[..., object], args: tuple[Any, ...]
) -> AbstractContextManager[Any]:
    """Return a context that keeps sizes symbolic where C++ accepts numbers only.

    The functions are products of matrices before 2.13, and LSTMs. Their parts have no other implementation in Python.
    """
    name = getattr(fn, "__name__", "")
    if name == "lstm":
        # PyTorch 2.13 (torch/_decomp/decompositions.py: _rnn_helper) forgets the dropout between layers:
        # tests/test_symbolic_sizes.py, test_an_lstm_is_compiled_once_for_all_lengths
        is_native = len(args) != _LSTM_ARGUMENTS or (args[5] and args[6])
    else:
        is_native = _TORCH >= (2, 13) or name not in _PRODUCTS
    return contextlib.nullcontext() if is_native else enable_python_dispatcher()


_PRODUCTS = ("matmul", "__matmul__", "__rmatmul__", "linear")
#: The arguments of `torch.lstm`; the dropout and the training flag are the sixth and the seventh.
_LSTM_ARGUMENTS = 9


_TORCH = tuple(map(int, torch.__version__.split(".")[:2]))


def guard_count(shape_env: Any) -> int:
    """Return the number of decisions about the sizes of an environment."""
    return len(shape_env.guards)


def set_closed(shape_env: Any, closed: bool) -> None:
    """Close an environment, so that further decisions raise `Unsupported`, or open it again."""
    shape_env.frozen = closed


@contextlib.contextmanager
def shown_class(kind: type, new_class: Callable[[Any], type]) -> Iterator[None]:
    """Return a context in which instances report another class to `isinstance`."""
    # setattr would set the class of the class; setting `__doc__` makes Python drop its attribute cache
    attributes = gc.get_referents(vars(kind))[0]

    def set_class(new_class: property | None) -> None:
        attributes.pop("__class__", None) if new_class is None else attributes.update(
            __class__=new_class
        )
        kind.__doc__ = kind.__doc__

    change = Change(set_class, None)
    try:
        set_class(property(new_class))
        yield
    finally:
        change.undo()


SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def python_of_number(number: Any, *, simplified: bool = True) -> str:
    """Return a symbolic number as Python over the names of sizes; `simplified` by all decisions so far."""
    return python_of_expression(number.node.expr if simplified else number.node._expr)


def names_in(number: Any) -> set[str]:
    """Return the names of the sizes in a symbolic number, after all decisions so far."""
    return {str(symbol) for symbol in number.node.expr.free_symbols}


@functools.lru_cache(4096)
def python_of_expression(expression: object) -> str:
    """Return a sympy expression as Python."""
    return str(_symbolic()[3].doprint(expression))


def _compares_integers(expression: Any) -> bool:
    if expression.is_Boolean or expression.is_Relational:
        return all(map(_compares_integers, expression.args))
    return bool(expression.is_integer)


def hint_of(number: Any) -> Any:
    """Return the value of a symbolic number in the captured call."""
    node = number.node
    return eval(
        python_of_number(number),
        {"torch": torch},
        {str(k): int(v) for k, v in node.shape_env.backed_var_to_val.items()},
    )
