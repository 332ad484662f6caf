"""Runs a program eagerly and jitted, from equal arguments, and says everything in which the two differ."""

from __future__ import annotations

import contextlib
import enum
import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

import switchgear as sg
from tests import under_test
from tests.fuzz.functions import detached, distinct
from tests.fuzz.programs import Write
from tests.fuzz.source import SEED, Script, in_float64
from tests.under_test import UnderTest

Jit = Callable[[Callable[..., Any]], Callable[..., Any]]

#: The jit under test, if nothing else is said.
TORCH = UnderTest(strict=True)

#: The one way around the node in which a gradient may differ from eager's, by rounding or in strides.
AROUND = (
    "a gradient that flows both through the compiled function and around it (an argument, a view of one, or a view of "
    "a result is returned, which is made around it; or an argument is written to that is a view, shares memory with "
    "another, or where autograd does not see it, or that is given other sizes) is the sum of the same terms, added in "
    "another order; a sum has the layout of its first term"
)

#: The operators whose gradient may differ from eager's by rounding or in strides.
AS_STRIDED = (
    "as_strided, conj, view_as_real: a view that is used after its base was written to is made again, by autograd "
    "where it is used and with as_strided unless that cannot be, here by the call that made it; its gradient has the "
    "layout of the base there, and a sum over it is added in another order"
)

_NARROW = (torch.bfloat16, torch.float16)

#: What autograd says where it finds itself at fault.
INTERNAL = ("INTERNAL ASSERT FAILED", "returned an invalid gradient at index")

#: Errors that say "not here"; any other error of ours is a fault.
REFUSALS = (sg.errors.Unsupported, sg.errors.DataDependent, sg.errors.InvalidInput, sg.errors.NotDifferentiable)

#: What eager says where a tensor that a backward needs has been overwritten; the second, where that is one of several
#: views made at once, or a view of one.
OVERWRITTEN = (
    "modified by an inplace operation",
    "its base or another view of its base has been modified",
)


#: The fact that names the results that are views, and the arguments that were given other sizes, which says where
#: gradients flow and is not compared.
VIEWS = "(results that are views)"

#: The fact whether autograd made a view again, which is not compared either.
MADE_AGAIN = "(views made again)"

#: Begins the facts that were seen after the write that follows the first gradient.
AFTERWARDS = "after the write: "


class Outcome(enum.StrEnum):
    """What came of a program, the harmless first."""

    EQUAL = "equal"
    BOTH_RAISE = "both raise"
    #: The function overwrote what eager's backward needs, so eager refuses to differentiate. The jitted program saves
    #: values and not tensors, and has a gradient: it is compared with that of an eager that saves copies.
    OVERWRITTEN = "equal to eager that saves copies, eager's own backward raises"
    EXCEPTED = "gradients equal but for the order of a sum"
    #: Eager itself stops with an assertion that asks for a bug report.
    BROKEN = "eager raises an internal error of PyTorch's"
    REFUSED = "refused"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class Raised:
    """An error, as a result to be compared."""

    error: Exception

    def __eq__(self, other: object) -> bool:
        """The same type of error; ours may stand for any of eager's."""
        return isinstance(other, Raised) and (
            type(self.error) is type(other.error) or isinstance(other.error, sg.errors.SwitchgearError)
        )

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"{type(self.error).__name__}: {str(self.error).splitlines()[0] if str(self.error) else ''}"

    @property
    def is_refusal(self) -> bool:
        """Whether it is one of ours that says that the program is not supported."""
        return isinstance(self.error, REFUSALS)


@dataclass(frozen=True, slots=True)
class Bits:
    """The values of a tensor at one moment, equal bit by bit; one NaN is as good as another."""

    values: Tensor

    @classmethod
    def of(cls, tensor: Tensor) -> Bits:
        """What the tensor holds now."""
        values = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        return cls(torch.view_as_real(values) if values.is_complex() else values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Bits):
            return False
        one, two = self.values, other.values
        if one.dtype != two.dtype or one.shape != two.shape:
            return False
        same = one == two
        if one.is_floating_point():
            same = (same & (one.signbit() == two.signbit())) | (one.isnan() & two.isnan())
        return bool(same.all())

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        text = " ".join(str(self.values.flatten()[:6].tolist()).split())
        return f"{text}{'…' if self.values.numel() > 6 else ''}"


Facts = dict[str, object]

#: So many of the facts that differ are printed.
SHOWN = 8


@dataclass(slots=True)
class Observation:
    """What one call of a program did, as facts by name, in the order in which they were seen."""

    facts: Facts = field(default_factory=dict)

    def attempt(self, name: str, action: Callable[[], Any]) -> Any:
        """The action's result; an error becomes a fact of that name."""
        try:
            return action()
        except Exception as error:
            self.facts[name] = Raised(error)
            return None


def observe(script: Script, function: Callable[..., Any], kind: str, *, saves_copies: bool = False) -> Facts:
    """Call `function` with the script's arguments, as the kind of call says, and look at everything afterwards."""
    seen = Observation()
    args, leaves = script.arguments()
    if kind in ("distinct", "detached"):
        args, leaves = (distinct if kind == "distinct" else detached)(args)
    before = {place: arg._version for place, arg in enumerate(args) if isinstance(arg, Tensor)}
    layouts = {place: _layout(args[place]) for place in before if args[place].requires_grad}
    # a view gets a new node from whatever happens to its base
    nodes = {place: args[place].grad_fn for place in before if not args[place]._is_view()}
    torch.default_generator.manual_seed(SEED)
    mode = torch.no_grad() if kind == "no_grad" else contextlib.nullcontext()
    with mode, _saving_copies() if saves_copies else contextlib.nullcontext():
        result = seen.attempt("call", lambda: function(*args))
    if "call" in seen.facts:
        return seen.facts
    outputs = result if isinstance(result, tuple) else (result,)
    seen.facts["structure"] = (type(result).__name__, len(outputs), [type(output).__name__ for output in outputs])
    seen.facts["random stream"] = Bits.of(torch.get_rng_state())
    for place, version in before.items():
        seen.facts[f"argument {place}: version has risen"] = args[place]._version > version
        seen.facts[f"argument {place}: has a new node"] = place in nodes and args[place].grad_fn is not nodes[place]
    outer = {f"output {place}": value for place, value in enumerate(outputs) if isinstance(value, Tensor)}
    inner = {f"argument {place}": value for place, value in enumerate(args) if isinstance(value, Tensor)}
    # Arguments first: what comes later is then said to be an argument, or to share storage with one.
    named = inner | {f"leaf {place}": value for place, value in enumerate(leaves)} | outer
    seen.facts.update(look(named))
    views = [name for name, value in outer.items() if value._is_view() and value.requires_grad]
    seen.facts[VIEWS] = [*views, *(place for place, layout in layouts.items() if _layout(args[place]) != layout)]
    seen.facts[MADE_AGAIN] = any(map(_makes_again, outer.values()))
    # What was written to is a result too. Any other argument would only hide that a gradient is None.
    roots = [*outer.values(), *(args[place] for place, version in before.items() if args[place]._version > version)]
    seen.facts.update(gradients(roots, leaves, script.omitted, "gradient"))
    if script.write is not None and not isinstance(seen.facts.get("gradient"), Raised):
        targets = [*outer.values(), *inner.values()]
        target = targets[script.write.slot % len(targets)]
        versions = {name: tensor._version for name, tensor in named.items()}
        seen.attempt("the write afterwards", lambda: write_to(target, script.write))
        prefix = AFTERWARDS
        seen.facts |= {f"{prefix}{name}: version has risen": t._version > versions[name] for name, t in named.items()}
        seen.facts |= look(named, prefix)
        seen.facts |= gradients(roots, leaves, script.omitted, "second gradient")
    return seen.facts


def _layout(tensor: Tensor) -> tuple[torch.Size, tuple[int, ...]]:
    return tensor.shape, tensor.stride()


def _makes_again(tensor: Tensor) -> bool:
    """Whether autograd's graph of a tensor has a view in it that it made again."""
    try:
        pending, seen = [tensor.grad_fn], set()
    except RuntimeError:  # a view that autograd lets nobody use
        return False
    while pending:
        node = pending.pop()
        if node is not None and node not in seen:
            seen.add(node)
            pending += [before for before, _ in node.next_functions]
    lazily = (node for node in seen if node.name().startswith(("ConjBackward", "ViewAsRealBackward")))
    return any(node.name().startswith("AsStridedBackward") for node in seen) or any(
        before is not None and before.name().endswith("CopySlices")
        for node in lazily
        for before, _ in node.next_functions
    )


def _saving_copies() -> contextlib.AbstractContextManager[Any]:
    return torch.autograd.graph.saved_tensors_hooks(_copied, lambda copy: copy)


def _copied(tensor: Tensor) -> Tensor:
    """A copy of a tensor that lies in memory as it does, since kernels sum by strides."""
    if tensor.is_conj() or tensor.is_neg() or tensor.layout is not torch.strided:
        return tensor.detach().clone()
    memory = tensor.untyped_storage().clone()
    with torch.no_grad():
        return torch.empty(0, dtype=tensor.dtype).set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())


def look(named: dict[str, Tensor], prefix: str = "") -> Facts:
    """Everything about tensors, and about how they hang together, that a program can tell."""
    seen = Observation()
    first: dict[int, str] = {}
    bases: dict[int, str] = {}
    # a base that nobody else shows is no fact: what an operator makes inside and returns a view of
    unique = {id(tensor): tensor for tensor in named.values()}
    seen_often = Counter(id(tensor._base) for tensor in unique.values() if tensor._base is not None)
    seen_often.update(unique.keys())
    storages: dict[int, tuple[str, int | torch.SymInt]] = {}
    for name, tensor in named.items():
        base = tensor._base
        position = tensor.storage_offset() * tensor.element_size()
        earliest, start = storages.setdefault(tensor.untyped_storage()._cdata, (name, position))
        same = first.setdefault(id(tensor), name)
        seen.facts |= {
            f"{prefix}{name}: same object as": same,
            f"{prefix}{name}: shares storage with": earliest,
            f"{prefix}{name}: distance in storage": position - start,
            f"{prefix}{name}: base": seen_often[id(base)] > 1 and bases.setdefault(id(base), f"that of {name}"),
        }
        for fact, find in _FACTS.items():
            # A view whose base was written to may refuse to say: that is then the fact.
            value = seen.attempt(f"{prefix}{name}: {fact}", lambda find=find, tensor=tensor: find(tensor))  # type: ignore[misc]
            seen.facts.setdefault(f"{prefix}{name}: {fact}", value)
    # A base that is itself at hand is that very object on both sides.
    seen.facts |= {f"{prefix}{first[base]}: is base": of for base, of in bases.items() if base in first}
    return seen.facts


def _strides(tensor: Tensor) -> object:
    """Those that mean something: where a dimension has one place or none, any stride is right."""
    significant = zip(tensor.stride(), tensor.shape, strict=True)
    return tuple(stride if size > 1 else 0 for stride, size in significant) if tensor.numel() else ()


#: What a program can tell about a tensor by itself.
_FACTS: dict[str, Callable[[Tensor], object]] = {
    "type": lambda tensor: type(tensor).__name__,
    "dtype": lambda tensor: tensor.dtype,
    "shape": lambda tensor: tuple(tensor.shape),
    "stride": lambda tensor: _strides(tensor),
    "offset": lambda tensor: tensor.storage_offset(),
    "conjugate and negative bit": lambda tensor: (tensor.is_conj(), tensor.is_neg()),
    "requires_grad": lambda tensor: tensor.requires_grad,
    "is leaf": lambda tensor: tensor.is_leaf,
    "has grad_fn": lambda tensor: tensor.grad_fn is not None,
    "values": Bits.of,
}


def gradients(results: Sequence[Tensor], leaves: Sequence[Tensor], omitted: int, name: str) -> Facts:
    """Of a weighted sum of whatever is differentiable, with respect to every leaf."""
    seen = Observation()
    found = seen.attempt(name, lambda: _gradients(results, leaves, omitted))
    for place, grad in enumerate(found or ()):
        seen.facts[f"{name} of leaf {place}: is None"] = grad is None
        if grad is not None:
            seen.facts[f"{name} of leaf {place}: stride"] = _strides(grad)
            seen.facts[f"{name} of leaf {place}: values"] = Bits.of(grad)
    return seen.facts


def _gradients(results: Sequence[Tensor], leaves: Sequence[Tensor], omitted: int) -> Sequence[Tensor | None]:
    unique = {id(tensor): tensor for tensor in results}
    roots = [t for t in unique.values() if t.requires_grad and (t.is_floating_point() or t.is_complex())]
    kept = [root for place, root in enumerate(roots) if not omitted >> place & 1] or roots
    leaves = [leaf for leaf in leaves if leaf.requires_grad]
    if not kept or not leaves:
        return []
    return torch.autograd.grad(_loss(kept), leaves, retain_graph=True, allow_unused=True)


def _loss(roots: Sequence[Tensor]) -> Tensor:
    generator = torch.Generator().manual_seed(SEED)
    loss = torch.zeros((), dtype=torch.float64)
    for root in roots:
        wide = torch.complex128 if root.is_complex() else torch.float64
        weight = torch.randn(root.shape, generator=generator, dtype=wide).to(root.dtype)
        part = (root * weight).sum()
        loss = loss + (part.real if part.is_complex() else part).to(torch.float64)
    return loss


def write_to(target: Tensor, write: Write | None) -> None:
    """Do what a user may do with whatever is at hand once the program has returned."""
    how = write.how if write is not None else ""
    part = target[0] if how == "row" and target.dim() and target.shape[0] else target
    with torch.no_grad() if how == "no_grad" else contextlib.nullcontext():
        if target.dtype is torch.bool:
            part.logical_not_()
        else:
            part.mul_(2)


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact in which a call of the jitted program is not what eager's is."""

    call: str
    fact: str
    eager: object
    jitted: object

    def __str__(self) -> str:
        return f"{self.call}: {self.fact}: is {self.jitted}, eager's {self.eager}{self.distance}"

    @property
    def is_one_sided(self) -> bool:
        """Whether it is a fact on one side only."""
        return _ABSENT in (self.eager, self.jitted)

    @property
    def distance(self) -> str:
        """How far values lie apart."""
        one, two = self.eager, self.jitted
        if not isinstance(one, Bits) or not isinstance(two, Bits) or one.values.shape != two.values.shape:
            return ""
        inexact = one.values.is_floating_point() or one.values.is_complex()
        if not inexact or one.values.dtype != two.values.dtype:
            return ""
        relative, absolute = (2e-2, 1e-2) if one.values.dtype in _NARROW else (1e-4, 1e-5)
        near = torch.allclose(one.values, two.values, relative, absolute, equal_nan=True)
        return " (by rounding only)" if near else ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one program."""

    outcome: Outcome
    detail: str = ""
    kind: str = ""  # what verdicts of the same cause have in common, as far as that can be told
    fused: int = 0  # regions


def judge(script: Script, jit: Jit = TORCH) -> Verdict:
    """Run the script both ways, every call of it, and compare."""
    under_test.fused_since(jit)
    exact = under_test.is_exact(jit)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of eager's, about what programs do, and of ours, about recompilation
        warnings.simplefilter("error", sg.errors.PluginWarning)  # of a region that its executor fails on
        jitted = jit(script.function)
        verdicts = [_judge_call(script, jit, jitted, place, exact) for place in range(len(script.calls))]
    order = list(Outcome)
    worst = max(verdicts, key=lambda verdict: order.index(verdict.outcome))  # the first of the worst
    return replace(worst, fused=under_test.fused_since(jit))


def _judge_call(script: Script, jit: Jit, jitted: Callable[..., Any], place: int, exact: bool) -> Verdict:
    kind = script.calls[place]
    call = f"call {place + 1} ({kind} arguments)" if kind != "no_grad" else f"call {place + 1} (under no_grad)"
    eager = observe(script, script.function, kind)
    ours = observe(script, jitted, kind)
    refusal = next((fact for fact in ours.values() if isinstance(fact, Raised) and fact.is_refusal), None)
    expected, equal = eager, Outcome.EQUAL
    if _is_stale(eager.get("gradient")) and not isinstance(ours.get("gradient"), Raised):
        expected, equal = observe(script, script.function, kind, saves_copies=True), Outcome.OVERWRITTEN
        # Eager that saves copies never notices that they are stale; what the write afterwards does stays comparable.
        expected, ours = _without_second_gradient(expected), _without_second_gradient(ours)
    if _is_stale(expected.get("second gradient")) and not isinstance(ours.get("second gradient"), Raised):
        expected, ours, equal = _without_second_gradient(expected), _without_second_gradient(ours), Outcome.OVERWRITTEN
    found = differences(expected, ours, call)
    if found and not exact:
        found = _beyond_rounding(found, script, kind, saves_copies=expected is not eager)
    if not found:
        raised = isinstance(eager.get("call"), Raised)
        return (
            Verdict(Outcome.BOTH_RAISE, str(eager["call"]), _blurred(str(eager["call"]))) if raised else Verdict(equal)
        )
    if any(isinstance(fact, Raised) and any(error in str(fact) for error in INTERNAL) for fact in expected.values()):
        return Verdict(Outcome.BROKEN, str(found[0]), _kind(found[0]))
    if refusal is not None and all(
        one.jitted is _ABSENT or (isinstance(one.jitted, Raised) and one.jitted.is_refusal) for one in found
    ):
        return Verdict(Outcome.REFUSED, str(refusal), _blurred(str(refusal)))
    around = _flows_around(eager)
    if around or eager.get(MADE_AGAIN):
        left = [one for one in found if not _by_order_of_a_sum(one)]
        if all("gradient of leaf" in one.fact for one in left):
            left = _beyond_rounding(left, script, kind, saves_copies=expected is not eager) if left else left
            left = _different_in_float64(left, script, jit, kind, saves_copies=expected is not eager) if left else left
        if not left:
            reason = AROUND if around else AS_STRIDED
            return Verdict(Outcome.EXCEPTED, reason, reason)
    shown = [str(one) for one in found[:SHOWN]] + [f"… and {len(found) - SHOWN} more"] * (len(found) > SHOWN)
    prefix = "only when called again: " if kind in script.calls[:place] else ""
    return Verdict(Outcome.DIFFERENT, "\n".join(shown), f"{prefix}{_kind(found[0])}")


def _beyond_rounding(found: list[Difference], script: Script, kind: str, *, saves_copies: bool) -> list[Difference]:
    """The differences that are more than those of values as near to eager's as a fusion executor's have to be."""
    wide = in_float64(script)
    exact = observe(wide, wide.function, kind, saves_copies=saves_copies) if wide else {}
    return [one for one in found if not _is_near(one, exact.get(one.fact))]


def _different_in_float64(
    found: list[Difference], script: Script, jit: Jit, kind: str, *, saves_copies: bool
) -> list[Difference]:
    """The differences but those of 16 bits that are none in float64: a sum of 16 bits that cancels is noise."""
    wide = in_float64(script)
    if wide is None or not all(_is_narrow(one.eager) and _is_narrow(one.jitted) for one in found):
        return found
    exact = observe(wide, wide.function, kind, saves_copies=saves_copies)
    ours = observe(wide, jit(wide.function), kind)
    return [
        one
        for one in found
        if not _is_near(Difference(one.call, one.fact, exact.get(one.fact), ours.get(one.fact)), None)
    ]


def _is_narrow(fact: object) -> bool:
    return isinstance(fact, Bits) and fact.values.dtype in _NARROW


def _is_near(one: Difference, exact: object) -> bool:
    eager, jitted = one.eager, one.jitted
    if not isinstance(eager, Bits) or not isinstance(jitted, Bits):
        return False
    if (eager.values.dtype, eager.values.shape) != (jitted.values.dtype, jitted.values.shape):
        return False
    reference = exact.values if isinstance(exact, Bits) and exact.values.dtype is torch.float64 else None
    if reference is not None and reference.shape != eager.values.shape:
        reference = None
    return under_test.is_near(eager.values, jitted.values, reference)


def _is_stale(fact: object) -> bool:
    return isinstance(fact, Raised) and any(message in str(fact) for message in OVERWRITTEN)


def _by_order_of_a_sum(one: Difference) -> bool:
    return "gradient of leaf" in one.fact and bool(one.distance or one.fact.endswith(": stride"))


def _flows_around(eager: Facts) -> bool:
    """Whether a result is a view, or shares memory with an argument or another: gradients then flow around the node.

    An argument that was written to is a result as well, and where autograd did not see the write is no result of the
    node.
    """
    end = ": shares storage with"
    together: dict[object, list[str]] = {}
    for fact, earliest in eager.items():
        name = fact.removesuffix(end)
        if name == fact or fact.startswith(AFTERWARDS):
            continue
        if name.startswith("output") or eager[f"{name}: same object as"] == name:
            together.setdefault(earliest, []).append(name)
    if eager.get(VIEWS):
        return True
    written = {name for names in together.values() for name in names if eager.get(f"{name}: version has risen")}
    unseen = {name for name in written if eager[f"{name}: requires_grad"] and not eager[f"{name}: has a new node"]}
    return bool(unseen) or any(
        len(names) > 1 and any(name.startswith("output") or name in written for name in names)
        for names in together.values()
    )


class _Absent:
    def __str__(self) -> str:
        return "not there"


_ABSENT = _Absent()


def differences(eager: Facts, jitted: Facts, call: str) -> list[Difference]:
    """Every fact that is not the same on both sides: errors, then the others in the order in which they were seen."""
    found = [
        Difference(call, fact, eager.get(fact, _ABSENT), jitted.get(fact, _ABSENT))
        for fact in dict.fromkeys((*eager, *jitted))
        if fact not in (VIEWS, MADE_AGAIN) and eager.get(fact, _ABSENT) != jitted.get(fact, _ABSENT)
    ]
    raised = [one for one in found if isinstance(one.jitted, Raised)]
    raised += [one for one in found if isinstance(one.eager, Raised) and one not in raised]
    # What is not there because of an error goes without saying.
    return raised + [one for one in found if one not in raised and not (raised and one.is_one_sided)]


def _without_second_gradient(facts: Facts) -> Facts:
    return {name: value for name, value in facts.items() if not name.startswith("second gradient")}


def _kind(difference: Difference) -> str:
    raised = [side for side in (difference.jitted, difference.eager) if isinstance(side, Raised)]
    which = "" if not raised else f" ({'jitted' if raised[0] is difference.jitted else 'only eager'}: {raised[0]})"
    return _blurred(f"{difference.fact}{which}{difference.distance}")


def _blurred(message: str) -> str:
    """A message without what is particular to one program."""
    message = re.sub(r"tests\.fuzz\.functions\.\w+", "…", message)
    message = re.sub(r"\(?/[^ ]*|<program>:\d+|line \d+", "…", message)
    message = re.sub(r"\[torch[^\]]*\]|\[[\d, ]*\]|\([\d, ]*\)", "[…]", message)
    message = re.sub(r"\b[0-9a-f]{8,}\b", "…", message)
    return re.sub(r"\d+", "N", message).partition("\n")[0][:160]
