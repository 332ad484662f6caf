"""Runs a program in eager and jitted, from equal arguments, and says everything in which the two differ."""

from __future__ import annotations

import contextlib
import enum
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from unittest import mock

import torch
from torch import Tensor

import switchgear as sg
from switchgear_core import torch_private as internals
from switchgear_core.ir.symbol import BoundSymbol
from tests import under_test
from tests.fuzz.programs import SEED, Write
from tests.fuzz.state import scope_of
from tests.under_test import UnderTest

Function = Callable[..., Any]
Facts = dict[str, object]

#: What a refused call raises where it does not run in eager.
REFUSALS = (sg.errors.Unsupported, sg.errors.DataDependent, sg.errors.InvalidInput)

#: What eager's backward says where a tensor that it needs has been overwritten. A jitted function saves values and has
#: a gradient there, which nothing in eager compares with.
OVERWRITTEN = ("modified by an inplace operation", "its base or another view of its base has been modified")

#: What autograd says where it finds itself at fault.
INTERNAL = ("INTERNAL ASSERT FAILED", "returned an invalid gradient at index")

#: So many of the facts that differ are printed.
SHOWN = 6


class Outcome(enum.StrEnum):
    """What came of a program, the harmless first."""

    EQUAL = "compiled and equal"
    BOTH_RAISE = "eager raises, and so does the jitted function"
    BROKEN = "eager raises an internal error of PyTorch's"
    FALLBACK = "fallen back to eager"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one program. Verdicts of one cause have one `kind`, as far as that can be told."""

    outcome: Outcome
    detail: str = ""
    kind: str = ""
    fused: int = 0  # regions
    rounded: bool = False  # values and gradients are equal, but for the rounding of sums of gradients


class Subject(Protocol):
    """What can be judged: a `Program`, or functions written by hand."""

    @property
    def calls(self) -> Sequence[Any]:
        """One element for each call."""

    @property
    def options(self) -> dict[str, Any]:
        """Of `sg.jit`."""

    @property
    def write(self) -> Write | None:
        """What happens after the first gradient."""

    def make(self) -> Function:
        """The function or a new module."""

    def call(self, place: int) -> tuple[list[Tensor], tuple[Any, ...], dict[str, Any]]:
        """Leaves, arguments and keywords of a call, made anew."""

    def change(self, place: int, target: Any) -> None:
        """What happens before a call to the state of what `make` made."""

    def state(self, target: Any) -> dict[str, Any]:
        """What there is of Python state after a call."""


@dataclass(frozen=True, slots=True)
class Script:
    """A function and its arguments, written by hand: every call has the same ones."""

    arguments: Callable[[], tuple[list[Any], list[Tensor]]]
    function: Function
    calls: tuple[str, ...] = ("same", "same")
    write: Write | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def make(self) -> Function:
        """The function."""
        return self.function

    def call(self, _: int) -> tuple[list[Tensor], tuple[Any, ...], dict[str, Any]]:
        """Leaves, arguments, and no keywords."""
        arguments, leaves = self.arguments()
        return leaves, tuple(arguments), {}

    def change(self, place: int, target: Any) -> None:
        """Nothing."""

    def state(self, target: Any) -> dict[str, Any]:
        """None that is looked at."""
        return {}


@dataclass(frozen=True, slots=True, eq=False)
class Raised:
    """An error, as a fact: equal to another of its type."""

    error: Exception

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Raised) and type(self.error) is type(other.error)

    def __str__(self) -> str:
        return f"{type(self.error).__name__}: {(str(self.error).splitlines() or [''])[0]}"

    def says(self, messages: Sequence[str]) -> bool:
        """Whether its message has one of these."""
        return any(message in str(self.error) for message in messages)


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """What a tensor holds at one moment: equal as `torch.equal` says, and one NaN as good as another."""

    values: Tensor

    @classmethod
    def of(cls, tensor: Tensor) -> Values:
        """A copy of what the tensor holds now."""
        return cls(tensor.detach().resolve_conj().resolve_neg().clone())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Values) or _kind_of(self.values) != _kind_of(other.values):
            return False
        same = (self.values == other.values) | (self.values.isnan() & other.values.isnan())
        return bool(same.all())

    def __str__(self) -> str:
        text = " ".join(str(self.values.flatten()[:6].tolist()).split())
        return f"{text}{'…' if self.values.numel() > 6 else ''}"

    def is_near(self, other: Values) -> bool:
        """Whether what lies between the two is rounding."""
        one, two = self.values, other.values
        if _kind_of(one) != _kind_of(two) or not (one.is_floating_point() or one.is_complex()):
            return False
        largest = one[one.isfinite()].abs().max().item() if one.isfinite().any() else 0.0
        return torch.allclose(two, one, rtol=0, atol=8 * torch.finfo(one.dtype).eps * largest, equal_nan=True)


def _kind_of(tensor: Tensor) -> tuple[torch.dtype, torch.Size]:
    return tensor.dtype, tensor.shape


def judge(
    subject: Subject, jit: UnderTest | Callable[[Function], Function] | None = None, ignored: Sequence[str] = ()
) -> Verdict:
    """Run every call both ways, and compare all but the facts that have an ignored text in their name.

    `jit` other than `sg.jit` is for tests of the comparison.
    """
    jit = jit or UnderTest()
    under_test.fused_since(jit)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("error", sg.errors.PluginWarning)  # of a region that its executor fails on
        eager, other = subject.make(), subject.make()
        jitted = _jit(other, jit, subject.options)
        verdict = _Pair(subject, eager, jitted, other, ignored, under_test.is_exact(jit)).judge()
        if verdict.kind.startswith("call (only eager") and isinstance(jit, UnderTest):
            # what is not used is not computed, and raises no error
            eager, other = subject.make(), subject.make()
            with mock.patch.object(BoundSymbol, "stays", True):
                jitted = _jit(other, jit, subject.options)
                whole = _Pair(subject, eager, jitted, other, ignored, under_test.is_exact(jit)).judge()
            verdict = whole if whole.outcome is Outcome.BOTH_RAISE else verdict
    told = [warning.message for warning in caught if warning.category.__name__ == "FallbackWarning"]
    fallbacks = [f"{str(one).partition(':')[0]}: {getattr(one, 'reason', '')}" for one in told]
    faults = [message for message in fallbacks if "please report this" in message]
    if faults:
        return Verdict(Outcome.DIFFERENT, faults[0], _blurred(faults[0]))
    # Autograd sums gradients of a tensor that several graphs of a split function use graph by graph, not use by use.
    by_graphs = verdict.rounded and any("is split by TorchDynamo" in message for message in fallbacks)
    if fallbacks and (by_graphs or verdict.outcome in (Outcome.EQUAL, Outcome.BOTH_RAISE)):
        reason = fallbacks[0].partition(": ")[2]
        verdict = Verdict(Outcome.FALLBACK, fallbacks[0], _blurred(reason), rounded=by_graphs)
    return replace(verdict, fused=under_test.fused_since(jit))


def _jit(target: Function, jit: UnderTest | Callable[[Function], Function], options: dict[str, Any]) -> Function:
    if not isinstance(jit, UnderTest):
        return jit(target)
    options = {"specialize_on_data": jit.specialize_on_data, **options}
    jitted: Function = sg.jit(target, executors=jit.asked, fuel=jit.fuel, **options)
    return jitted


@dataclass(frozen=True, slots=True)
class _Pair:
    """One program in eager and jitted. other: what is jitted, whose state the jitted one works on."""

    subject: Subject
    eager: Function
    jitted: Function
    other: Function
    ignored: Sequence[str]
    exact: bool

    def judge(self) -> Verdict:
        """Call by call, up to the first that differs."""
        raised = ""
        for place in range(len(self.subject.calls)):
            expected, actual, unlike = self.compare(place)
            if any(isinstance(fact, Raised) and fact.says(INTERNAL) for fact in expected.values()):
                return Verdict(Outcome.BROKEN)
            refusal = actual.get("call")
            if isinstance(refusal, Raised) and isinstance(refusal.error, REFUSALS):
                return Verdict(Outcome.FALLBACK, str(refusal), _blurred(str(refusal)))
            if unlike and all("gradient" in one.fact for one in unlike):
                # Gradients of several results are summed in another order if one of them is a view, which is made
                # around the compiled call, or an argument. Those of each result by itself have to be equal; where it is
                # rounding, of this call alone, for those of several calls are summed call by call.
                cut = _is_rounding_of_gradients(unlike)
                alone = self.compare(place, apart=True, cut=cut)[2]
                unlike = alone if cut else alone and unlike
                if cut and _is_rounding_of_gradients(unlike) and self.writes_to_a_view(place, expected):
                    unlike = []
            if unlike and self.is_read_again_by_a_region(place, actual):
                unlike = [one for one in unlike if not _is_gradient(one.fact, after_a_write=True)]
            if unlike:
                shown = [f"call {place}: {one}" for one in unlike[:SHOWN]]
                shown += [f"… and {len(unlike) - SHOWN} more"] * (len(unlike) > SHOWN)
                rounded = _is_rounding_of_gradients(unlike)
                return Verdict(Outcome.DIFFERENT, "\n".join(shown), unlike[0].kind, rounded=rounded)
            if isinstance(expected.get("call"), Raised):
                raised = str(expected["call"])
        return Verdict(Outcome.BOTH_RAISE, raised, _blurred(raised)) if raised else Verdict(Outcome.EQUAL)

    def writes_to_a_view(self, place: int, expected: Facts) -> bool:
        """Whether a call writes to an argument that is a view, of which autograd sums gradients at its base.

        Or to one that is laid out otherwise than the gradient that it gets, which autograd sums in a copy laid out as
        it is.
        """
        _, args, kwargs = self.subject.call(place)
        return any(
            isinstance(value, Tensor)
            and (value._is_view() or not value.is_contiguous())
            and not value.is_leaf
            and expected.get(f"argument {name}: version has risen") is True
            for name, value in (*enumerate(args), *kwargs.items())
        )

    def is_read_again_by_a_region(self, place: int, actual: Facts) -> bool:
        """Whether the jitted call refuses gradients after a write as eager does where no region is checkpointed.

        A region is run again on what it finds behind the variables of its function, for which eager has no check.
        """
        refused = actual.get("gradient after the write")
        if not isinstance(refused, Raised) or not refused.says(OVERWRITTEN):
            return False
        with mock.patch.dict(scope_of(self.eager), checkpoint=_run_once):
            facts = observe(self.subject, self.eager, self.eager, place)
        return facts.get("gradient after the write") == refused

    def compare(self, place: int, *, apart: bool = False, cut: bool = False) -> tuple[Facts, Facts, list[Difference]]:
        """Eager's facts of a call, the jitted one's, and how they differ."""
        expected = observe(self.subject, self.eager, self.eager, place, apart=apart, cut=cut)
        actual = observe(self.subject, self.jitted, self.other, place, apart=apart, cut=cut)
        unlike = [
            one
            for one in differences(expected, actual)
            if not any(text in one.fact for text in self.ignored)
            and (self.exact or not one.is_near_enough_for_a_fusion)
        ]
        return expected, actual, unlike


def _run_once(function: Function, *args: Any, use_reentrant: bool) -> Any:
    return function(*args)


def observe(
    subject: Subject, function: Function, owner: Function, place: int, *, apart: bool = False, cut: bool = False
) -> Facts:
    """Call the function once, and look at everything afterwards.

    owner: the module whose state it works on. apart: gradients of each result by itself, not of all. cut: none of
    earlier calls by way of the state.
    """
    leaves, args, kwargs = subject.call(place)
    if cut:
        _cut_off(subject, owner)
    subject.change(place, owner)
    facts: Facts = {}
    arguments = [(f"argument {name}", value) for name, value in (*enumerate(args), *kwargs.items())]
    inputs = [(name, value) for name, value in arguments if isinstance(value, Tensor)]
    if isinstance(owner, torch.nn.Module):
        held = {**dict(owner.named_parameters()), **dict(owner.named_buffers())}
        inputs += [(f"state {name}", value) for name, value in held.items()]
        leaves = [*leaves, *owner.parameters()]
    before = [(value._version, Values.of(value)) for _, value in inputs]
    torch.default_generator.manual_seed(SEED)
    try:
        result = function(*args, **kwargs)
    except Exception as error:
        return {"call": Raised(error)}
    facts["random stream"] = Values.of(torch.get_rng_state())
    outputs: list[tuple[str, Tensor]] = []
    state = [pair for name, value in subject.state(owner).items() for pair in flatten(name, value)]
    for name, value in [*flatten("result", result), *state]:
        if isinstance(value, Tensor) and (internals.is_wrapper(value) or internals.is_fake(value)):
            facts[name] = "a tensor of the capture"
        elif isinstance(value, Tensor):
            outputs.append((name, value))
        else:
            facts[name] = (type(value).__name__, value)
    tensors = [*inputs, *outputs]
    facts |= look(tensors)
    # An argument that was not written to, or a leaf, would only hide that a gradient is None.
    pairs = list(zip(inputs, before, strict=True))
    written = [(name, value) for (name, value), (_, old) in pairs if Values.of(value) != old and not _is_leaf(value)]
    roots = [*outputs, *written]
    facts |= gradients(roots, leaves, "gradient", apart=apart)
    facts |= {f"{name}: version has risen": value._version > version for (name, value), (version, _) in pairs}
    if subject.write is not None and tensors:
        _, target = tensors[-1 - subject.write.slot % len(tensors)]
        with torch.no_grad() if subject.write.no_grad else contextlib.nullcontext(), contextlib.suppress(RuntimeError):
            target.logical_not_() if target.dtype is torch.bool else target.mul_(2)
        facts |= {f"after the write: {name}": fact for name, fact in look(tensors).items()}
        facts |= gradients(roots, leaves, "gradient after the write", apart=apart)
    return facts


def _cut_off(subject: Subject, owner: Function) -> None:
    """Take the history of its state away."""
    held = [*owner.buffers()] if isinstance(owner, torch.nn.Module) else []
    state = [value for name, part in subject.state(owner).items() for _, value in flatten(name, part)]
    for value in (*held, *state):
        if isinstance(value, Tensor):
            with contextlib.suppress(RuntimeError):  # a view, which keeps its history, or asked for it raises
                if value.grad_fn is not None:
                    value.detach_()


def flatten(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Everything in a nest, by path; of a container its type and keys."""
    if isinstance(value, (tuple, list)):
        yield f"{name}: container", (type(value).__name__, len(value))
        for place, part in enumerate(value):
            yield from flatten(f"{name}[{place}]", part)
    elif isinstance(value, dict):
        yield f"{name}: container", ("dict", tuple(value))
        for key, part in value.items():
            yield from flatten(f"{name}[{key!r}]", part)
    else:
        yield name, value


def look(tensors: Sequence[tuple[str, Tensor]]) -> Facts:
    """What a program can tell about tensors, and about which are one and which share memory."""
    facts: Facts = {}
    objects: dict[int, str] = {}
    storages: dict[int, tuple[str, Any]] = {}
    for name, tensor in tensors:
        position = tensor.storage_offset() * tensor.element_size()
        neighbour, start = storages.setdefault(tensor.untyped_storage()._cdata, (name, position))
        facts[f"{name}: same object as"] = objects.setdefault(id(tensor), name)
        facts[f"{name}: in the memory of"] = (neighbour, position - start)
        facts[f"{name}: type"] = (type(tensor).__name__, tensor.dtype, tuple(tensor.shape))
        facts[f"{name}: requires_grad"] = tensor.requires_grad
        facts[f"{name}: is leaf"] = _is_leaf(tensor)
        facts[f"{name}: values"] = Values.of(tensor)
    return facts


def _is_leaf(tensor: Tensor) -> object:
    try:
        return tensor.is_leaf
    except RuntimeError as error:  # a view whose base was written to may refuse to say
        return Raised(error)


def gradients(roots: Sequence[tuple[str, Tensor]], leaves: Sequence[Tensor], name: str, *, apart: bool) -> Facts:
    """Of a weighted sum of whatever is differentiable, by every leaf."""
    if apart:
        return {
            fact: value
            for root in roots
            for fact, value in gradients([root], leaves, f"{name} of {root[0]}", apart=False).items()
        }
    leaves = [leaf for leaf in leaves if leaf.requires_grad]
    try:
        unique = {id(root): root for _, root in roots if root.requires_grad}
        if not unique or not leaves:
            return {}
        found = torch.autograd.grad(_loss(list(unique.values())), leaves, retain_graph=True, allow_unused=True)
    except Exception as error:
        return {name: Raised(error)}
    return {
        f"{name} of leaf {place}": None if grad is None else Values.of(grad.to_dense() if grad.is_sparse else grad)
        for place, grad in enumerate(found)
    }


def _loss(roots: Sequence[Tensor]) -> Tensor:
    generator = torch.Generator().manual_seed(SEED)
    loss = torch.zeros((), dtype=torch.float64)
    for root in roots:
        wide = torch.complex128 if root.is_complex() else torch.float64
        weight = torch.randn(root.shape, generator=generator, dtype=wide).to(root.dtype)
        term = (root * weight).sum()
        loss = loss + (term.real if term.is_complex() else term).to(torch.float64)
    return loss


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact in which a call of the jitted program is not what eager's is."""

    fact: str
    eager: object
    jitted: object

    def __str__(self) -> str:
        return f"{self.fact}: is {self.jitted}, eager's {self.eager}{' (by rounding only)' * self.is_rounding}"

    @property
    def is_rounding(self) -> bool:
        """Whether values differ in their last bits only."""
        return isinstance(self.eager, Values) and isinstance(self.jitted, Values) and self.eager.is_near(self.jitted)

    @property
    def is_error(self) -> bool:
        """Whether one side raises."""
        return isinstance(self.eager, Raised) or isinstance(self.jitted, Raised)

    @property
    def is_near_enough_for_a_fusion(self) -> bool:
        """Whether values are as near to eager's as those of an executor that fuses have to be."""
        if not isinstance(self.eager, Values) or not isinstance(self.jitted, Values):
            return False
        one, two = self.eager.values, self.jitted.values
        return _kind_of(one) == _kind_of(two) and under_test.is_near(one, two, None)

    @property
    def kind(self) -> str:
        """What is the same in differences of one cause."""
        error = next((side for side in (self.jitted, self.eager) if isinstance(side, Raised)), None)
        which = "" if error is None else f" ({'jitted' if error is self.jitted else 'only eager'}: {error})"
        return _blurred(f"{self.fact}{which}{' (by rounding only)' * self.is_rounding}")


def _is_rounding_of_gradients(unlike: Sequence[Difference]) -> bool:
    return all(one.is_rounding and "gradient" in one.fact for one in unlike)


_ABSENT = "not there"


def differences(eager: Facts, jitted: Facts) -> list[Difference]:
    """Every fact that is not the same on both sides: errors first, versions last."""
    for after_a_write in (False, True):
        group = {name for name in (*eager, *jitted) if _is_gradient(name, after_a_write)}
        refused = (eager[name] for name in group & eager.keys())
        if any(isinstance(fact, Raised) and fact.says(OVERWRITTEN) for fact in refused):
            eager, jitted = ({k: v for k, v in facts.items() if k not in group} for facts in (eager, jitted))
    unlike = [
        Difference(fact, eager.get(fact, _ABSENT), jitted.get(fact, _ABSENT))
        for fact in dict.fromkeys((*eager, *jitted))
        if eager.get(fact, _ABSENT) != jitted.get(fact, _ABSENT)
    ]
    return sorted(unlike, key=lambda one: (not one.is_error, "version" in one.fact))


def _is_gradient(fact: str, after_a_write: bool) -> bool:
    return fact.startswith("gradient") and fact.startswith("gradient after the write") == after_a_write


def _blurred(message: str) -> str:
    """A message without what is particular to one program."""
    message = message.partition("\n")[0]
    message = re.sub(r"\(?/[^ ]*|<program>:\d+|line \d+", "…", message)
    message = re.sub(r"\[torch[^\]]*\]|\[[\d, ]*\]|\([\d, ]*\)", "[…]", message)
    message = re.sub(r"^((after the write: )?(argument|state|result))[^:(]*:", r"\1:", message)
    return re.sub(r"\d+", "N", message)[:160]
