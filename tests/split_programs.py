"""Small programs that capture refuses, next to eager: each is split by TorchDynamo rightly, or runs as it is.

`python -m tests.split_programs [part of a name]` runs them all, each stopped in three ways: values, gradients, types,
strides, attributes, random streams, errors and writes of three calls, between which things change.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import copy
import dataclasses
import enum
import functools
import gc
import inspect
import operator
import random
import sys
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import switchgear as sg
from switchgear_runtime.last_call import compiler_of

#: Programs by name: given a way to stop capture, each makes a function, and what changes before a call, if anything.
PROGRAMS: dict[str, Callable[[Callable[[Tensor], object]], Any]] = {}


def program(make: Callable[[Callable[[Tensor], object]], Any]) -> Callable[..., Any]:
    """Add a program."""
    PROGRAMS[make.__name__] = make
    return make


def stops() -> dict[str, Callable[[Tensor], object]]:
    """What capture refuses, and TorchDynamo breaks a graph at."""
    generator = torch.Generator().manual_seed(0)

    def branch(x: Tensor) -> None:
        if x.sum() > 1e9:
            x.exp()

    return {
        "branch": branch,
        "print": lambda x: print(end=""),
        "generator": lambda x: torch.rand(1, generator=generator),
    }


class Clip(torch.autograd.Function):
    """Ten times its argument, the gradient clipped."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Any) -> Any:
        return x * 10

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g.clamp(-1, 1)

    @staticmethod
    def jvp(ctx: Any, t: Any) -> Any:
        return t * 3


class Mapped(torch.autograd.Function):
    """Twice its argument; three times under vmap."""

    @staticmethod
    def forward(x: Any) -> Any:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 2

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Any) -> Any:
        return x * 3, in_dims[0]


class Scaled(torch.autograd.Function):
    """An old-style Function."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * 7 + x * 0


def apply(kind: Any, x: Any) -> Any:
    return kind.apply(x)


def clipped_sum(x: Tensor) -> Tensor:
    return Clip.apply(x).sum()  # type: ignore[no-any-return, no-untyped-call]


def transformed(name: str, transform: Callable[[Tensor], Any]) -> None:
    def make(stop: Callable[[Tensor], object]) -> Any:
        def f(x: Tensor) -> Any:
            stop(x)
            return transform(x)

        return f

    make.__name__ = name
    program(make)


for title, called in {
    "grad": lambda x: torch.func.grad(clipped_sum)(x),
    "grad_and_value": lambda x: torch.func.grad_and_value(clipped_sum)(x),
    "vjp": lambda x: torch.func.vjp(Clip.apply, x)[1](torch.ones_like(x) * 5)[0],
    "jvp": lambda x: torch.func.jvp(Clip.apply, (x,), (torch.ones_like(x),))[1],
    "jacrev": lambda x: torch.func.jacrev(clipped_sum)(x),
    "jacfwd": lambda x: torch.func.jacfwd(clipped_sum)(x),
    "hessian": lambda x: torch.func.hessian(lambda x: clipped_sum(x.sin()))(x),
    "linearize": lambda x: torch.func.linearize(Clip.apply, x)[1](torch.ones_like(x)),
    "vmap": lambda x: torch.vmap(Mapped.apply)(x),
    "vmap_of_grad": lambda x: torch.vmap(torch.func.grad(clipped_sum))(x),
    "autograd_functional_jacobian": lambda x: torch.autograd.functional.jacobian(clipped_sum, x),
    "autograd_functional_hvp": lambda x: torch.autograd.functional.hvp(lambda x: clipped_sum(x * x), x, x)[1],
    "functorch_grad": lambda x: __import__("functorch").grad(clipped_sum)(x),
    "grad_of_a_partial": lambda x: functools.partial(torch.func.grad, clipped_sum)()(x),
    "transform_by_name": lambda x: getattr(torch.func, "gr" + "ad")(clipped_sum)(x),
    "plain_grad": lambda x: torch.func.grad(lambda x: x.sin().sum())(x),
    "plain_vmap": lambda x: torch.vmap(torch.sin)(x),
    "plain_apply": lambda x: apply(Clip, x),
    "old_apply": lambda x: apply(Scaled, x) * 2,
    "old_apply_under_vmap_grad": lambda x: torch.autograd.grad(apply(Scaled, x).sum(), x, create_graph=True)[0],
    "version": lambda x: (x * 2, x._version),
    "is_leaf_of_input_and_result": lambda x: (x.is_leaf, (x * 2).is_leaf, (x * 2).detach().is_leaf),
    "is_leaf_under_no_grad": lambda x: torch.no_grad()(lambda: (x * 2).is_leaf)(),
    "output_nr": lambda x: tuple(part.output_nr for part in x.unbind()),
    "grad_fn_name": lambda x: type((x * 2).grad_fn).__name__,
    "grad_fn_is_none": lambda x: (x * 2, (x * 2).grad_fn is None, x.detach().grad_fn is None),
    "next_functions": lambda x: len((x * x).grad_fn.next_functions),
    "retains_grad": lambda x: (x * 2).retains_grad,
    "data_pointer": lambda x: (x.data_ptr() == x.view(-1).data_ptr(), x.data_ptr() == (x * 1).data_ptr()),
    "storage": lambda x: x.untyped_storage().nbytes() + (x[:, :1]).untyped_storage().nbytes(),
    "storage_offset": lambda x: (x[1:].storage_offset(), x[:, 1:] * 2),
    "is_view": lambda x: (x.view(-1)._is_view(), (x * 2)._is_view()),
    "shares": lambda x: x.is_set_to(x.view_as(x)),
    "identities": lambda x: (x.view_as(x) is x, id(x) == id(x), x.contiguous() is x, x.to(x.dtype) is x),
    "identity_of_id": lambda x: len({id(x), id(x * 2), id(x)}),
    "hash_of_tensors": lambda x: len({x, x * 2, x}) + hash(x) * 0,
    "is_compiling": lambda x: x * (3 if torch.compiler.is_compiling() else 2),
    "is_dynamo_compiling": lambda x: x * (3 if torch.compiler.is_dynamo_compiling() else 2),
    "dynamo_is_compiling": lambda x: x * (3 if torch._dynamo.is_compiling() else 2),
    "utils_is_compiling": lambda x: x * (3 if torch._utils.is_compiling() else 2),
    "external_utils_is_compiling": lambda x: x * (3 if torch._dynamo.external_utils.is_compiling() else 2),
    "is_exporting": lambda x: x * (3 if torch.compiler.is_exporting() else 2),
    "deepcopy_of_leaf": lambda x: copy.deepcopy(x) * 2,
    "deepcopy_of_result": lambda x: copy.deepcopy(x * 2),
    "detached_write": lambda x: (x.detach().mul_(1), x * 2),
    "clone_strides": lambda x: (x.t().clone(), x.t().contiguous(), torch.zeros_like(x.t())),
    "type_of": lambda x: (type(x).__name__, x.type(), nn.Parameter(x.detach()) * 2),
    "python_numbers": lambda x: (x.shape[0] * 2.5, x.dim(), x.numel(), len(x), x.stride(), x.is_contiguous()),
    "size_type": lambda x: (type(x.shape).__name__, type(x.size()).__name__, tuple(x.shape), x.shape),
    "repr": lambda x: repr(x * 2),
    "format": lambda x: f"{x.sum():.3f} {x.sum().item():.2f}",
    "bool_and_float": lambda x: (bool(x.sum() > 0), float(x.mean()), int(x.sum()), complex(x.sum())),
    "tolist": lambda x: [value * 2 for row in x.tolist() for value in row],
    "numpy": lambda x: torch.from_numpy(x.detach().numpy() * 2) + x,
    "numpy_ufunc": lambda x: (numpy.exp(x.detach()), numpy.asarray(x.detach()).sum()),
    "array_scalars": lambda x: (numpy.float32(2) * x, x * numpy.float64(0.1), numpy.int64(3) * x.sum()),
    "nonzero": lambda x: (x > 0).nonzero() * 2,
    "mask": lambda x: x[x > 0] * 2,
    "unique": lambda x: torch.unique(x.detach().round(), return_counts=True),
    "rng_state": lambda x: (torch.get_rng_state(), torch.rand(2), torch.get_rng_state()),
    "fork_rng": lambda x: (forked(), torch.rand(2)),
    "seeded": lambda x: (torch.manual_seed(5).initial_seed(), torch.rand(2), torch.initial_seed()),
    "python_random": lambda x: x * random.random() + random.randint(1, 9),
    "numpy_random": lambda x: x * float(numpy.random.rand()) + numpy.random.default_rng(0).random(),
    "dropout": lambda x: nn.functional.dropout(x, 0.5) + torch.rand_like(x) + torch.randn(3) + torch.randperm(3),
    "int_subclass": lambda x: x * (Special(3) * 2) + Special(2),
    "float_subclass": lambda x: x * (SpecialFloat(3.0) * 2),
    "str_subclass": lambda x: {"shout": x, "loud": x * 2}[SpecialText("loud") + ""],
    "bool_of_int_enum": lambda x: x * Kind.TWO + (Kind(2) is Kind.TWO) + Kind.TWO.value,
    "str_enum": lambda x: (Word.A in ("a", "b"), Word.A + "b", x * len(Word.A)),
    "tuple_subclass": lambda x: sum(SpecialTuple((x, x * 2)), x) + len(SpecialTuple((x,))),
    "list_subclass": lambda x: SpecialList([x, x * 2])[0] + len(SpecialList([x])),
    "dict_subclass": lambda x: SpecialDict(a=x)["b"] + SpecialDict(a=x)["a"],
    "named_tuple": lambda x: Pair(x, x * 2)._replace(a=x * 3),
    "dataclass": lambda x: dataclasses.replace(Data(x), b=3).scaled(),
    "try_attribute": lambda x: tried(x),
    "try_attribute_later": lambda x: tried(x * 2),
    "suppressed": lambda x: suppressed(x),
    "exception_state": lambda x: caught(x),
    "exception_groups": lambda x: chained(x),
    "finally_order": lambda x: ordered(x),
    "generator_left_open": lambda x: left_open(x),
    "generator_sent": lambda x: sent(x),
    "frame_names": lambda x: (inspect.currentframe().f_code.co_name, x * 2),  # type: ignore[union-attr]
    "getframe": lambda x: (sys._getframe(0).f_code.co_name, sys._getframe(0).f_lineno, x * 2),
    "locals": lambda x: (sorted(locals()), x * 2),
    "eval": lambda x: eval("x * 2"),
    "sorted_by_item": lambda x: sorted(x.detach().view(-1), key=lambda v: -v.item())[0],
    "warning": lambda x: warned(x),
    "weak_reference": lambda x: (weakref.ref(x)() is x, weakref.ref(x * 2)() is None),
    "garbage": lambda x: (gc.collect() >= 0, x * 2),
    "refcount": lambda x: (sys.getrefcount(x * 2), x * 2),
    "hook_on_result": lambda x: hooked(x),
    "hook_on_input_view": lambda x: hooked(x.view(-1)),
    "retain_grad": lambda x: retained(x),
    "data_write": lambda x: data_written(x.detach().clone().requires_grad_()),
    "data_assigned": lambda x: data_assigned(x.detach().clone()),
    "set_": lambda x: x.detach().clone().set_(torch.ones(2)) * 2,
    "resize_": lambda x: x.detach().clone().resize_(2, 2).sum() * 0 + x,
    "swap": lambda x: swapped(x.detach().clone(), x.detach() * 2),
    "requires_grad_flips": lambda x: (x.detach().requires_grad_().is_leaf, (x * 2).requires_grad, x.detach() * 1),
    "inplace_versions": lambda x: versions(x.detach().clone()),
    "base": lambda x: (x.view(-1)._base is x, (x * 2)._base is None, (x * 2).t()._base is None),
    "checkpointed": lambda x: checkpoint(lambda x: nn.functional.dropout(x.sin(), 0.5).cos(), x, use_reentrant=False),
    "saved_hooks": lambda x: packed(x),
    "inner_backward": lambda x: backwards(x),
    "autograd_grad": lambda x: torch.autograd.grad(x.sin().sum(), x, create_graph=True)[0] * 2,
    "double_grad": lambda x: torch.autograd.grad(
        torch.autograd.grad(x.sin().sum(), x, create_graph=True)[0].sum(), x, create_graph=True
    )[0],
    "forward_mode": lambda x: forward(x),
    "no_grad_result": lambda x: torch.no_grad()(lambda x: x * 2)(x).requires_grad,
    "inference": lambda x: inferred(x.detach()),
    "set_grad": lambda x: toggled(x),
    "autocast": lambda x: autocast(x),
    "default_dtype": lambda x: typed(x),
    "deterministic": lambda x: (torch.are_deterministic_algorithms_enabled(), x * 2),
    "context_variable": lambda x: (CONTEXT.get(), x * CONTEXT.get()),
    "function_mode": lambda x: counted_calls(x),
    "dispatch_mode": lambda x: counted_operators(x),
    "subclass": lambda x: x.as_subclass(Sub) * 2,
    "parameter": lambda x: type(nn.Parameter(x.detach()) * 2).__name__,
    "sparse": lambda x: (x.to_sparse() * 2).to_dense(),
    "complex": lambda x: (
        torch.view_as_real(torch.complex(x, x).conj() * 2j) + torch.complex(x, x).conj().imag[..., None]
    ),
    "complex_flags": lambda x: (torch.complex(x, x).conj().is_conj(), torch.complex(x, x).conj().imag.is_neg()),
    "out_argument": lambda x: torch.mul(x.detach(), 2, out=torch.empty(0)),
    "list_of_results": lambda x: [x, [x * 2, {"a": x.view(-1), "b": (x,)}]],
    "same_object_twice": lambda x: (lambda y: [y, y, x, y is y])(x * 2),
    "views_of_one": lambda x: (lambda y: (y, y.t(), y[0], y.view(-1)))(x * 2),
    "ordered_dict": lambda x: collections.OrderedDict(b=x, a=x * 2),
    "default_dict": lambda x: collections.defaultdict(list, {"a": [x]}),
    "counter": lambda x: (collections.Counter("abca"), x * 2),
    "deque": lambda x: collections.deque([x, x * 2, x * 3], maxlen=2),
    "operator_functions": lambda x: operator.itemgetter(0)(x) + operator.attrgetter("T")(x)[0, 0],
    "reduce": lambda x: functools.reduce(operator.add, [x, x * 2, x]),
    "match": lambda x: matched(x),
    "walrus": lambda x: [y := x * 2, y + 1],
    "kwargs": lambda x: (lambda **k: {name: value * 2 for name, value in k.items()})(b=x, a=x * 2),
    "float_edges": lambda x: x * float("nan") + x * -0.0 + float("inf"),
    "int_division": lambda x: (-7 // 2, -7 % 3, divmod(-7, 2), x.detach() // 2, x % 2, -x.detach() // 2),
    "large_int": lambda x: (2**70 % 1000, x * (2**40), 1 << 65),
    "negative_zero": lambda x: (x * 0.0, -x * 0, torch.copysign(x, torch.tensor(-0.0)), 0.0 * -1),
}.items():
    transformed(title, called)


class Special(int):
    def __mul__(self, other: Any) -> int:
        return int(self) * int(other) + 100

    def __add__(self, other: Any) -> int:
        return -1

    __radd__ = __add__


class SpecialFloat(float):
    def __mul__(self, other: Any) -> float:
        return -5.0


class SpecialText(str):
    def __add__(self, other: str) -> str:
        return "shout"


class Kind(enum.IntEnum):
    ONE = 1
    TWO = 2


class Word(str, enum.Enum):  # noqa: UP042
    A = "a"


class SpecialTuple(tuple[Any, ...]):
    def __len__(self) -> int:
        return 7

    def __iter__(self) -> Iterator[Any]:
        return iter([self[0]])


class SpecialList(list[Any]):
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(-1)


class SpecialDict(dict[str, Any]):
    def __missing__(self, key: str) -> Any:
        return self["a"] * 3


Pair = collections.namedtuple("Pair", ["a", "b"])


@dataclasses.dataclass
class Data:
    a: Any
    b: int = 2

    def scaled(self) -> Any:
        return self.a * self.b


CONTEXT: contextvars.ContextVar[int] = contextvars.ContextVar("context", default=3)


class Sub(Tensor):
    pass


def forked() -> Tensor:
    with torch.random.fork_rng():
        return torch.rand(2)


def tried(x: Any) -> Any:
    try:
        scale = x.scale
    except AttributeError:
        scale = 2
    return x * scale


def suppressed(x: Any) -> Any:
    y = x * 2
    with contextlib.suppress(AttributeError):
        y = y * x.scale
    return y


def caught(x: Tensor) -> Any:
    class Failed(Exception):
        def __init__(self, value: Any, code: int) -> None:
            super().__init__(value)
            self.code = code

    try:
        raise Failed(x * 2, 5)
    except Failed as error:
        return error.args[0] * error.code, error.__traceback__ is not None, sys.exc_info()[0] is Failed


def chained(x: Tensor) -> Any:
    try:
        try:
            raise KeyError("a")
        except KeyError as error:
            raise ValueError("b") from error
    except ValueError as error:
        return type(error.__cause__).__name__, type(error.__context__).__name__, x * 2


def ordered(x: Tensor) -> Any:
    steps = []
    try:
        steps.append("try")
        return x * 2, steps
    finally:
        steps.append("finally")


def left_open(x: Tensor) -> Any:
    steps = []

    def numbers() -> Iterator[Tensor]:
        try:
            yield x * 2
            steps.append("second")
            yield x * 3
        finally:
            steps.append("closed")

    iterator = numbers()
    first = next(iterator)
    iterator.close()  # type: ignore[attr-defined]
    return first, steps


def sent(x: Tensor) -> Any:
    def echo() -> Any:
        value = x
        while True:
            value = yield value * 2

    talk = echo()
    next(talk)
    return talk.send(x * 3)


def warned(x: Tensor) -> Any:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.warn("careful", stacklevel=1)
    return len(seen), str(seen[0].message), seen[0].lineno, x * 2


def hooked(x: Tensor) -> Any:
    y = x * 2
    y.register_hook(lambda grad: grad * 3)
    return y.sin()


def retained(x: Tensor) -> Any:
    y = x * 2
    y.retain_grad()
    return y.sin(), y.retains_grad


def data_written(x: Tensor) -> Any:
    y = x * x
    x.data.mul_(3)
    return y, x, x._version, torch.autograd.grad(y.sum(), x)[0]


def data_assigned(x: Tensor) -> Any:
    x.data = torch.ones(4)
    return x * 2, x.shape


def swapped(x: Tensor, y: Tensor) -> Any:
    torch.utils.swap_tensors(x, y)
    return x, y


def versions(x: Tensor) -> Any:
    before = x._version
    x.mul_(2)
    y = x.view(-1)
    y.add_(1)
    return x._version - before, y._version, (x * 2)._version


def packed(x: Tensor) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        return x.sin() * x


def backwards(x: Tensor) -> Any:
    leaf = x.detach().clone().requires_grad_()
    leaf.sin().sum().backward()
    return leaf.grad, leaf.grad.requires_grad  # type: ignore[union-attr]


def forward(x: Tensor) -> Any:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.detach(), torch.ones_like(x))
        return forward_ad.unpack_dual(Clip.apply(dual)).tangent  # type: ignore[no-untyped-call]


def inferred(x: Tensor) -> Any:
    with torch.inference_mode():
        y = x * 2
        return y.is_inference(), y


def toggled(x: Tensor) -> Any:
    with torch.no_grad():
        a = x * 2
        with torch.enable_grad():
            b = x * 3
    return a, b, a.requires_grad, b.requires_grad, torch.is_grad_enabled()


def autocast(x: Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x.t()
    return y, y.dtype, torch.is_autocast_enabled("cpu")


def typed(x: Tensor) -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        return torch.ones(2) * 2, x * 2
    finally:
        torch.set_default_dtype(torch.float32)


def counted_calls(x: Tensor) -> Any:
    names = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with Mode():
        y = torch.sin(x) * 2
    return y, names


def counted_operators(x: Tensor) -> Any:
    names = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with Mode():  # type: ignore[no-untyped-call]
        y = torch.sin(x) * 2
    return y, names


def matched(x: Tensor) -> Any:
    case: Any = {"kind": "double", "value": x}
    match case:
        case {"kind": "double", "value": value}:
            return value * 2
    return x


# --- what changes between calls ---


@program
def closure_changes(stop: Any) -> Any:
    factor = 2.0

    def f(x: Tensor) -> Any:
        stop(x)
        return x * factor

    def change(call: int) -> None:
        nonlocal factor
        factor = float(call)

    return f, change


@program
def defaults_change(stop: Any) -> Any:
    def f(x: Tensor, factor: float = 2.0, *, offset: float = 1.0) -> Any:
        stop(x)
        return x * factor + offset

    def change(call: int) -> None:
        f.__defaults__ = (float(call),)
        f.__kwdefaults__ = {"offset": float(call)}

    return f, change


@program
def code_changes(stop: Any) -> Any:
    def f(x: Tensor) -> Any:
        stop(x)
        return x * 2

    def other(x: Tensor) -> Any:
        stop(x)
        return x * 3

    def change(call: int) -> None:
        f.__code__ = other.__code__

    return f, change


@program
def function_attribute_changes(stop: Any) -> Any:
    def f(x: Tensor) -> Any:
        stop(x)
        f.calls += 1  # type: ignore[attr-defined]
        return x * f.scale, f.calls  # type: ignore[attr-defined]

    f.scale, f.calls = 2, 0  # type: ignore[attr-defined]
    return f, lambda call: setattr(f, "scale", call)


@program
def tensor_attribute_comes(stop: Any) -> Any:
    weight = torch.ones(3)

    def f(x: Tensor) -> Any:
        stop(x)
        return tried(weight) * x + getattr(weight, "offset", 0)

    def change(call: int) -> None:
        weight.scale, weight.offset = call * 3, call  # type: ignore[attr-defined]

    return f, change


@program
def argument_attribute_comes(stop: Any) -> Any:
    def f(x: Tensor) -> Any:
        stop(x)
        return tried(x), hasattr(x, "scale")

    return f, None, lambda call, x: setattr(x, "scale", call) if call else None


@program
def helper_is_replaced(stop: Any) -> Any:
    helpers = types.SimpleNamespace(run=lambda x: x * 2)

    def f(x: Tensor) -> Any:
        stop(x)
        return helpers.run(x)

    def change(call: int) -> None:
        helpers.run = (lambda x: (x * 3, x._version)) if call == 1 else (lambda x: clipped_grad(x))

    return f, change


def clipped_grad(x: Tensor) -> Any:
    return torch.func.grad(clipped_sum)(x)


@program
def branch_to_another_function(stop: Any) -> Any:
    state = {"call": 0}

    def f(x: Tensor) -> Any:
        y = (x * 2).detach()
        y.add_(1)
        stop(x)
        return y + versioned(y) if state["call"] else y

    return f, lambda call: state.update(call=call)


def versioned(x: Tensor) -> int:
    return x._version


@program
def custom_function_behind_a_registry(stop: Any) -> Any:
    registry = {"plain": torch.sin, "clip": Clip.apply}
    state = {"name": "plain"}

    def f(x: Tensor) -> Any:
        stop(x)
        return torch.func.grad(lambda x: registry[state["name"]](x).sum())(x)

    return f, lambda call: state.update(name="clip")


@program
def module_in_training(stop: Any) -> Any:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))

    def f(x: Tensor) -> Any:
        stop(x)
        return model(x), model[1].num_batches_tracked.clone()

    return f, lambda call: model.train(call % 2 == 0)


@program
def hooks_come_and_go(stop: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    handles: list[Any] = []

    def f(x: Tensor) -> Any:
        stop(x)
        return model(x)

    def change(call: int) -> None:
        if handles:
            handles.pop().remove()
        else:
            handles.append(model.register_forward_hook(lambda module, args, result: result * 3))

    return f, change


@program
def parameter_is_replaced(stop: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Linear(3, 3)

    def f(x: Tensor) -> Any:
        stop(x)
        return model(x)

    return f, lambda call: setattr(model, "weight", nn.Parameter(torch.ones(3, 3) * call))


@program
def parameter_data_is_replaced(stop: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Linear(3, 3)

    def f(x: Tensor) -> Any:
        stop(x)
        return model(x)

    return f, lambda call: setattr(model.weight, "data", torch.ones(3, 3) * call)


@program
def buffer_is_written(stop: Any) -> Any:
    count, log = torch.zeros(3), list[Any]()

    def f(x: Tensor) -> Any:
        count.add_(x.detach().sum(0))
        stop(x)
        log.append(len(log))
        return x * count, list(log), count.clone()

    return f, lambda call: count.zero_()


@program
def argument_is_written(stop: Any) -> Any:
    def f(x: Tensor) -> Any:
        y = x.detach()
        y.mul_(2)
        stop(x)
        y[0] = 5
        return x * 1, y

    return f


@program
def class_changes(stop: Any) -> Any:
    class Config:
        scale = 2

        def run(self, x: Any) -> Any:
            return x * self.scale

    config = Config()

    def f(x: Tensor) -> Any:
        stop(x)
        return config.run(x), hasattr(config, "extra")

    def change(call: int) -> None:
        if call == 1:
            Config.scale = 5
            Config.extra = 1  # type: ignore[attr-defined]
        else:
            Config.run = lambda self, x: x * 9  # type: ignore[method-assign]

    return f, change


@program
def subclass_of_int_comes(stop: Any) -> Any:
    state = {"factor": 3}

    def f(x: Tensor) -> Any:
        stop(x)
        return x * (state["factor"] * 2)

    return f, lambda call: state.update(factor=Special(3))


@program
def modes_change(stop: Any) -> Any:
    def f(x: Tensor) -> Any:
        stop(x)
        return x @ x.t(), torch.is_grad_enabled()

    def change(call: int) -> None:
        torch.set_grad_enabled(call == 2)

    return f, change


@program
def sizes_change(stop: Any) -> Any:
    def f(x: Tensor) -> Any:
        stop(x)
        return x * x.shape[0], x.shape[0] > 3

    return f, None, lambda call, x: x.data.resize_(call + 2, 3).fill_(1) if call else None


@program
def dtype_and_layout_change(stop: Any) -> Any:
    def f(x: Tensor) -> Any:
        stop(x)
        return x * 2, x.t().contiguous().stride(), x.dtype

    return f, None, lambda call, x: setattr(x, "data", x.data.double() if call == 1 else x.data.t().contiguous().t())


@program
def user_compiled_inside(stop: Any) -> Any:
    compiled = torch.compile(lambda x: x.sin() * 2, backend="eager")

    def f(x: Tensor) -> Any:
        stop(x)
        return compiled(x) * 2

    return f


@program
def open_generator_between_calls(stop: Any) -> Any:
    numbers = iter(range(100))

    def f(x: Tensor) -> Any:
        stop(x)
        return x * next(numbers)

    return f


@program
def own_random_generators(stop: Any) -> Any:
    generator, python = torch.Generator().manual_seed(1), random.Random(1)

    def f(x: Tensor) -> Any:
        stop(x)
        return x * torch.rand(3, generator=generator) * python.random()

    return f, lambda call: generator.manual_seed(call)


@program
def weak_dictionary(stop: Any) -> Any:
    known: Any = weakref.WeakKeyDictionary()

    def f(x: Tensor) -> Any:
        stop(x)
        known[Data] = len(known)
        return x * 2, len(known), x in known

    return f


@program
def global_counter(stop: Any) -> Any:
    def f(x: Tensor) -> Any:
        global COUNT
        stop(x)
        COUNT += 1
        return x * COUNT

    def reset(call: int) -> None:
        global COUNT
        COUNT = call

    reset(0)
    return f, reset


COUNT = 0


@program
def optimizer_step(stop: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    optimizer = torch.optim.Adam(model.parameters())

    def f(x: Tensor) -> Any:
        stop(x)
        optimizer.zero_grad()
        loss = model(x.detach()).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach(), model.weight.detach().clone(), model.weight.grad

    return f


# --- running them ---


def described(value: Any) -> Any:
    """What a value is, as something that compares exactly."""
    if isinstance(value, Tensor):
        plain = value.detach().to_dense() if value.layout is not torch.strided else value.detach()
        return (
            *(type(value).__name__, value.dtype, tuple(value.shape), value.requires_grad, value.is_leaf),
            *(plain.stride(), plain.resolve_conj().resolve_neg().flatten().view(torch.uint8).numpy().tobytes()),
        )
    if isinstance(value, numpy.ndarray):
        return type(value).__name__, value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return type(value).__name__, [(described(key), described(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple, collections.deque)):
        shape = {} if not isinstance(value, collections.deque) else {"maxlen": value.maxlen}
        return type(value).__name__, shape, [described(item) for item in list.__iter__(list(value))]
    return type(value).__name__, repr(value)


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [one for item in value.values() for one in tensors(item)]
    if isinstance(value, (list, tuple, collections.deque)):
        return [one for item in value for one in tensors(item)]
    return []


def differentiated(result: Any, x: Tensor) -> Any:
    losses = [one.abs().sum() for one in tensors(result) if one.requires_grad and one is not x]
    if not losses or not torch.is_grad_enabled():
        return None
    with torch.enable_grad():
        return described(torch.autograd.grad([one * one for one in losses], x, allow_unused=True)[0])


def observations(name: str, stop: str, jit: bool) -> tuple[list[Any], Any]:
    """What three calls do, and the function."""
    made = PROGRAMS[name](stops()[stop])
    function, change, prepare = (*made, None, None)[:3] if isinstance(made, tuple) else (made, None, None)
    called = sg.jit(function, executors=["torch"], fallback="split") if jit else function
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    seen: list[Any] = []
    for call in range(3):
        if change is not None and call:
            change(call)
        x = (torch.linspace(-1, 2, 6).reshape(2, 3) * (call + 1)).requires_grad_()
        if prepare is not None:
            prepare(call, x)
        try:
            result = called(x)
            seen.append((described(result), differentiated(result, x)))
        except Exception as error:
            seen.append((type(error).__name__, str(error).partition("\n")[0]))
        seen.append((described(x), described(x.grad), x._version))
        seen.append((torch.get_rng_state().tolist(), random.random(), float(numpy.random.rand())))
        torch.set_grad_enabled(True)
    return seen, called


def verdict(name: str, stop: str) -> tuple[str, str]:
    """How a program ran, "captured", "split", "eager" or "wrong"; with the first difference."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, _ = observations(name, stop, jit=False)
        seen, jitted = observations(name, stop, jit=True)
    for step, (one, other) in enumerate(zip(seen, expected, strict=True)):
        if one != other:
            return "wrong", f"step {step}: {str(one)[:150]} is not {str(other)[:150]}"
    compiler = compiler_of(jitted)
    reasons = [one for one in compiler.fallbacks.reasons.values() if one.calls]
    if not reasons:
        return "captured", ""
    compiled = any(graph.is_compiled for split in compiler.splits.values() for graph in split.graphs)
    return ("split" if compiled else "eager"), str(reasons[0]).partition("\n")[0][-150:]


def main(words: list[str]) -> int:
    counts: collections.Counter[str] = collections.Counter()
    for name in PROGRAMS:
        if words and not any(word in name for word in words):
            continue
        for stop in stops():
            torch.compiler.reset()
            how, why = verdict(name, stop)
            counts[how] += 1
            if how == "wrong" or words:
                print(f"{how:8} {name}, stopped by {stop}: {why}", flush=True)
    print(len(PROGRAMS), "programs:", dict(counts))
    return counts["wrong"]


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
