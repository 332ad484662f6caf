"""The Python of a trace, read without running it: calls of operators, and constants; anything else is an error."""

from __future__ import annotations

import ast
import functools
import operator
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import get_overridable_functions

from switchgear_core import own
from switchgear_core import torch_private as internals
from switchgear_core.errors import InvalidInput
from switchgear_core.ir.naming import symbol_of
from switchgear_core.ir.printing import object_at
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import BoundSymbol, Symbol

_CPU = torch.device("cpu")
_GET_ITEM = Symbol("torch.Tensor.__getitem__", torch.Tensor.__getitem__)
#: Kinds of values that stand as paths among arguments.
_NAMED = (torch.dtype, torch.layout, torch.memory_format, internals.OpOverload)
#: Operators that read or write files.
_FILES = frozenset({"from_file", "read_file", "write_file", "save"})


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a parsed program: a call, or `alias`, the value that its result is another name of."""

    number: int
    call: BoundSymbol
    alias: str = ""


@dataclass(slots=True)
class Parsed:
    """A parsed program: its name, parameters, lines and outputs, and numbers that stand behind it as constants."""

    name: str = ""
    line: int = 0
    parameters: list[str] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    outputs: list[str | None] = field(default_factory=list)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)


def parsed(text: str, file: str) -> Parsed:
    """Parse the text of a trace.

    Raises:
        InvalidInput: the text is not such a program; with the line, and the remedy.
    """
    return _Parser(text, file).program


def value(name: str) -> TensorProxy:
    """Return a proxy that stands for a value of which the layout is not known yet."""
    return TensorProxy(name, (), (), torch.float32, _CPU)


class _Parser:
    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.program = Parsed()
        self._names: set[str] = set()
        try:
            module = ast.parse(text, file)
        except (SyntaxError, ValueError, RecursionError) as error:
            number = getattr(error, "lineno", None) or 1
            raise InvalidInput(f"{file}:{number}: {getattr(error, 'msg', error)}; it is no Python") from None
        for statement in module.body:
            self._outside(statement)
        if not self.program.name:
            raise InvalidInput(f"{file} has no function; a trace is one function")

    def error(self, node: Any, message: str) -> InvalidInput:
        return InvalidInput(f"{self.file}:{node.lineno}: {message}")

    def _outside(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname or alias.name.partition(".")[0] not in ("torch", "math", *own.PACKAGES):
                    raise self.error(
                        node, f"import {alias.name}: a trace needs torch alone; compute with torch's operators"
                    )
        elif isinstance(node, ast.FunctionDef) and not self.program.name:
            self._function(node)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and len(node.targets) == 1:
            self.program.constants[node.targets[0].id] = self._number(node.value)
        else:
            raise self.error(
                node, "a trace is one function, and numbers behind it; write the calls inside the function"
            )

    def _function(self, node: ast.FunctionDef) -> None:
        args, program = node.args, self.program
        special = [*args.posonlyargs, *args.kwonlyargs, *args.defaults, args.vararg, args.kwarg, *node.decorator_list]
        if any(special):
            raise self.error(node, "the parameters of a trace are plain names, and it has no decorators")
        program.name, program.line = node.name, node.lineno
        program.parameters = [arg.arg for arg in args.args]
        self._names.update(program.parameters)
        for statement in node.body[:-1]:
            self._statement(statement)
        last = node.body[-1]
        if not isinstance(last, ast.Return) or not isinstance(last.value, ast.Tuple):
            raise self.error(last, "the last line of a trace returns a tuple of names: return (t1, t2)")
        for item in last.value.elts:
            if isinstance(item, ast.Constant) and item.value is None:
                program.outputs.append(None)
            elif isinstance(item, ast.Name):
                program.outputs.append(item.id)
            else:
                raise self.error(item, "a trace returns names and None")

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Delete):
            return  # when values are freed is decided anew
        if isinstance(node, ast.Expr):
            output, expression = None, node.value
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            output, expression = self._target(node.targets[0]), node.value
        else:
            raise self.error(node, f"a {type(node).__name__} statement is no call; write t1 = torch.sin(t0)")
        if isinstance(expression, ast.Name) and isinstance(output, TensorProxy):
            alias = BoundSymbol(_GET_ITEM, (value(expression.id),), {}, output)
            self.program.lines.append(Line(node.lineno, alias, expression.id))
        elif isinstance(expression, ast.Subscript):
            args = (self._value(expression.value), self._index(expression.slice))
            self.program.lines.append(Line(node.lineno, BoundSymbol(_GET_ITEM, args, {}, output)))
        elif isinstance(expression, ast.Call):
            self.program.lines.append(Line(node.lineno, self._call(expression, output)))
        else:
            raise self.error(
                node, f"{ast.unparse(expression)!r} is no call of an operator; write t1 = torch.add(t0, 1)"
            )

    def _target(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Tuple):
            return tuple([self._target(item) for item in node.elts])
        if not isinstance(node, ast.Name):
            raise self.error(node, f"{ast.unparse(node)} = …: results have names; name it t1, say")
        if node.id == "_":
            return None
        if node.id in self._names:
            raise self.error(node, f"{node.id} is defined twice; give the second value another name")
        self._names.add(node.id)
        return value(node.id)

    def _call(self, node: ast.Call, output: object) -> BoundSymbol:
        path = self._path(node.func)
        symbol = _symbol_at(path)
        if symbol is None:
            raise self.error(
                node,
                f"{path} is no operator that PyTorch knows, and is not called; call one of torch.*, "
                "torch.nn.functional.* or torch.ops.*, and import the package that registers it first",
            )
        args = tuple([self._value(item) for item in node.args])
        kwargs = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise self.error(node, "** among arguments; write each by its name")
            kwargs[keyword.arg] = self._value(keyword.value)
        return BoundSymbol(symbol, args, kwargs, output)

    def _path(self, node: ast.expr) -> str:
        if isinstance(node, ast.Attribute):
            return f"{self._path(node.value)}.{node.attr}"
        if isinstance(node, ast.Name):
            return node.id
        raise self.error(node, f"{ast.unparse(node)} is no name of an operator; write torch.sin, say")

    def _value(self, node: ast.expr) -> Any:
        """Return the value of an argument."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return value(node.id)
        if isinstance(node, ast.Tuple):
            return tuple([self._value(item) for item in node.elts])
        if isinstance(node, ast.List):
            return [self._value(item) for item in node.elts]
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            return {self._value(key): self._value(item) for key, item in pairs if key is not None}
        if isinstance(node, ast.Call):
            return self._built(node)
        return self._atom(node)

    def _atom(self, node: ast.expr) -> Any:
        """Return a negative number, or a value such as `torch.float32`."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            number = self._value(node.operand)
            if type(number) in (int, float, complex):
                return -number
        elif isinstance(node, ast.Attribute):
            constant = _object_at(self._path(node))
            if isinstance(constant, _NAMED):
                return constant
        raise self.error(node, f"{ast.unparse(node)!r} is no constant; write a number, a name, or torch.float32, say")

    def _built(self, node: ast.Call) -> Any:
        """Return the value of `float("inf")`, `complex(0.0, 1.0)`, `slice(0, 2, 1)` or `torch.device("cpu")`."""
        makers = {"float": float, "complex": complex, "slice": slice, "torch.device": torch.device}
        path = self._path(node.func)
        args = [self._value(item) for item in node.args]
        if path in makers and not node.keywords:
            try:
                return makers[path](*args)
            except (TypeError, ValueError, RuntimeError) as error:
                raise self.error(node, f"{ast.unparse(node)}: {error}") from None
        raise self.error(
            node, f"{ast.unparse(node)!r} among arguments; give the call a line of its own: t1 = {path}(…)"
        )

    def _index(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Slice):
            ends = (node.lower, node.upper, node.step)
            return slice(*[None if end is None else self._value(end) for end in ends])
        if isinstance(node, ast.Tuple):
            return tuple([self._index(item) for item in node.elts])
        return self._value(node)

    def _number(self, node: ast.expr) -> torch.Tensor:
        """Return the tensor of `torch.tensor(1.0, dtype=torch.float32)`."""
        if isinstance(node, ast.Call) and self._path(node.func) == "torch.tensor" and len(node.args) == 1:
            number = self._value(node.args[0])
            kinds = {item.arg: self._value(item.value) for item in node.keywords}
            dtype = kinds.get("dtype")
            if (
                isinstance(number, (int, float, complex))
                and kinds.keys() == {"dtype"}
                and isinstance(dtype, torch.dtype)
            ):
                return torch.tensor(number, dtype=dtype)
        raise self.error(node, "a constant is a number, as in n0 = torch.tensor(1.0, dtype=torch.float32)")


def _object_at(path: str) -> Any:
    """Return the object at a path below `torch`, or None."""
    root, *names = path.split(".")
    if root != "torch":
        return object_at(path) if root in own.PACKAGES else None
    try:
        return functools.reduce(getattr, names, torch)
    except (AttributeError, RuntimeError):
        return None


def _symbol_at(path: str) -> Symbol | None:
    """Return the symbol of the operator at a path; None if there is none, or its calls are not trusted."""
    fn = _object_at(path)
    if fn is None or not _FILES.isdisjoint(path.split(".")) or not callable(fn):
        return None
    if isinstance(fn, internals.OpOverload):
        # others, such as `aten.save`, are of TorchScript, and run even on stand-ins
        has_tensors = any("Tensor" in str(result.type) for result in (*fn._schema.returns, *fn._schema.arguments))
        return Symbol(str(fn), fn) if has_tensors else None
    if path.partition(".")[0] != "torch":
        return next((symbol for symbol in _own_symbols(path) if symbol.fn is fn), None)
    return symbol_of(fn) if _computes(fn, path.rpartition(".")[2]) else None


def _computes(fn: Any, name: str) -> bool:
    """Check whether a function below `torch` computes tensors from tensors and numbers, and does nothing else.

    `torch.load` and `torch.Tensor.__reduce_ex__` are such that it must not call.
    """
    if fn in _functions():
        return True
    is_operator = hasattr(torch.ops.aten, name)
    if isinstance(fn, types.BuiltinFunctionType):
        return getattr(torch, name, None) is fn and is_operator
    if getattr(torch.Tensor, name, None) is not fn:
        return False
    if name.startswith("_"):
        plain = name.strip("_")
        names = (plain, f"{plain}_", plain[1:], f"{plain[1:]}_")  # __sub__, __and__, __rsub__, __rand__
        return any(len(one) > 1 and hasattr(operator, one) for one in names)
    return is_operator or isinstance(fn, types.MethodDescriptorType)


@functools.cache
def _functions() -> frozenset[Any]:
    """Return the functions of PyTorch's namespaces that hold nothing but operators."""
    table = get_overridable_functions()
    spaces = (torch.nn.functional, torch.functional, torch.linalg, torch.fft, torch.special)
    return frozenset([fn for space in spaces for fn in table[space]])


def _own_symbols(path: str) -> Iterator[Symbol]:
    """Yield the symbols of the module of Switchgear in which a path lies."""
    module = sys.modules.get(path.rpartition(".")[0])
    yield from (item for item in vars(module).values() if isinstance(item, Symbol)) if module else ()
