"""One call of an operator or module, compiled and in eager, and the verdict on the comparison."""

from __future__ import annotations

import copy
import itertools
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import torch
from torch.utils import _pytree as pytree

from switchgear.errors import CaptureError, NotDifferentiable, PluginWarning
from tests import under_test
from tests.oracle import Exactness, Fused, Tolerance, differences, fallbacks_recorded
from tests.under_test import UnderTest

Target = Callable[..., Any]
Jit = Callable[[Target], Target]


#: What the databases are run through: the torch executor alone, whose results are eager's to the bit.
jit_torch = UnderTest()

#: The same for what data decides: values and shapes that are read, and checked in later calls.
jit_on_data = UnderTest(specialize_on_data=True)


class Outcome(StrEnum):
    """How a call fared, from best to worst."""

    SKIPPED = "skipped"  # eager itself raises
    EQUAL = "equal"
    FELL_BACK = "fell back"  # equal, by running eager; a warning says why
    REFUSED = "refused"  # a typed error
    WRONG = "wrong"
    CRASH = "crash"  # any other error


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome for one call; `detail` is the error, or the list of differences."""

    outcome: Outcome
    name: str
    mode: str
    sample: str
    error: str = ""
    detail: str = ""
    fused: int = 0  # regions


@dataclass(frozen=True, slots=True)
class Case:
    """A call to be made; never made on these very arguments, but on copies of them."""

    name: str
    mode: str
    sample: str
    target: Target
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    gradient: bool
    #: Leaves of an output only what has a gradient (eager refuses those that depend on a gauge, as of `eigh`).
    narrow: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """All that a call leaves behind."""

    output: object
    random_state: tuple[torch.Tensor, ...]
    arguments: object
    state: object
    gradients: object


def judge(case: Case, jit: Jit, exactness: Exactness = None) -> Verdict:
    """Make the call twice, in eager and compiled (the second time from the cache), and compare."""

    def verdict(outcome: Outcome, error: BaseException | None = None, detail: str = "") -> Verdict:
        kind = type(error).__name__ if error is not None else ""
        return Verdict(
            outcome, case.name, case.mode, case.sample, kind, detail or str(error or ""), under_test.fused_since(jit)
        )

    under_test.fused_since(jit)
    if not under_test.is_exact(jit) and (exactness is None or isinstance(exactness, Tolerance)):
        exactness = Fused(exactness)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", PluginWarning)  # a region that its executor fails on, and leaves to others
        try:
            case, expected = _observe_eager(case)
        except Exception as error:
            return verdict(Outcome.SKIPPED, error)
        before = global_state()
        try:
            with fallbacks_recorded() as fallbacks:
                actual = _observe_twice(case, jit)
        except (CaptureError, NotDifferentiable) as error:
            faults = list(differences(before, global_state(), "left behind in the global state"))
            return verdict(Outcome.WRONG if faults else Outcome.REFUSED, error, "\n".join([*faults, str(error)]))
        except Exception as error:
            return verdict(Outcome.CRASH, error, _where_it_crashed(error))
        faults = list(differences(before, global_state(), "left behind in the global state"))
        differing = _compare(expected, actual, exactness)
        if differing and isinstance(exactness, Fused):
            differing = _compare(expected, actual, exactness, _observe_exact(case))
        faults += differing
        if faults:
            return verdict(Outcome.WRONG, None, "\n".join(faults))
        if fallbacks:
            (kind, reason), *_ = fallbacks
            return replace(verdict(Outcome.FELL_BACK, None, reason), error=kind)
        return verdict(Outcome.EQUAL)


def _observe_eager(case: Case) -> tuple[Case, list[Observation]]:
    """What eager does, and the case as eager can do it: on the whole output, or else on what of it has a gradient."""
    if case.narrow is None or not case.gradient:
        return case, _observe_twice(case, _same_target)
    whole = _with_narrow(case, None)
    try:
        return whole, _observe_twice(whole, _same_target)
    except Exception:
        return case, _observe_twice(case, _same_target)


def _observe_exact(case: Case) -> list[Observation]:
    """What eager does in float64; nothing where it cannot."""
    target = copy.deepcopy(case.target).double() if isinstance(case.target, torch.nn.Module) else case.target
    try:
        args, kwargs = pytree.tree_map(under_test.in_float64, _copied((tuple(case.args), dict(case.kwargs))))
        return _observe_twice(replace(case, target=target, args=args, kwargs=kwargs), _same_target)
    except Exception:
        return []


def _with_narrow(case: Case, narrow: Callable[[Any], Any] | None) -> Case:
    return Case(case.name, case.mode, case.sample, case.target, case.args, case.kwargs, case.gradient, narrow)


def _same_target(target: Target) -> Target:
    return target


def _observe_twice(case: Case, jit: Jit) -> list[Observation]:
    target = copy.deepcopy(case.target)  # a module is copied, a function is itself
    called = jit(target)
    return [_observe(case, target, called, seed) for seed in (0, 1)]


def _observe(case: Case, target: Target, called: Target, seed: int) -> Observation:
    args, kwargs = _copied((tuple(case.args), dict(case.kwargs)))
    module = target if isinstance(target, torch.nn.Module) else None
    wanted = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if _requires_grad(leaf)]
    if module is not None:
        wanted += [parameter for parameter in module.parameters() if parameter.requires_grad]
    torch.manual_seed(seed)
    with torch.set_grad_enabled(case.gradient):
        output = called(*args, **kwargs)
    random_state = under_test.random_state()
    gradients = _gradients(case.narrow(output) if case.narrow else output, wanted) if case.gradient else None
    state = dict(called.state_dict()) if isinstance(called, torch.nn.Module) else None
    return Observation(output, random_state, (args, kwargs), state, gradients)


def _copied(arguments: Any) -> Any:
    """The arguments in tensors of their own, which alias each other as the originals do."""
    memo: dict[int, Any] = {}
    leaves, structure = pytree.tree_flatten(arguments)
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and id(leaf) not in memo:
            memo[id(leaf)] = _copied_tensor(leaf, memo)
    return pytree.tree_unflatten([copy.deepcopy(leaf, memo) for leaf in leaves], structure)


def _copied_tensor(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    if tensor.layout not in (torch.strided, torch.sparse_coo):
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)  # the others know no deepcopy
    if tensor.is_leaf:
        copied: torch.Tensor = copy.deepcopy(tensor, memo)
        return copied
    # It is the result of something; so is its copy, and its gradient is asked for as it is.
    source: torch.Tensor = copy.deepcopy(tensor.detach(), memo)
    return source.requires_grad_().clone()


def _gradients(output: object, wanted: list[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
    outputs = [leaf for leaf in pytree.tree_leaves(output) if _requires_grad(leaf)]
    if not outputs or not wanted:
        return ()
    torch.manual_seed(7)
    return torch.autograd.grad(outputs, wanted, [_grad_output(leaf) for leaf in outputs], allow_unused=True)


def _grad_output(output: torch.Tensor) -> torch.Tensor:
    if output.layout is torch.strided:
        return torch.randn_like(output)
    return torch.randn(output.shape, dtype=output.dtype, device=output.device).to_sparse(layout=output.layout)


def _requires_grad(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def _compare(
    expected: list[Observation], actual: list[Observation], exactness: Exactness, exact: Sequence[Observation] = ()
) -> list[str]:
    parts: dict[str, Callable[[Observation], object]] = {
        "output": lambda seen: seen.output,
        "arguments afterwards": lambda seen: seen.arguments,
        "module state afterwards": lambda seen: seen.state,
        "gradients": lambda seen: seen.gradients,
    }
    faults: list[str] = []
    calls = itertools.zip_longest(("first", "cached"), expected, actual, exact)
    for call, one, other, third in calls:
        faults += differences(one.random_state, other.random_state, f"{call} call, random stream")
        for name, part in parts.items():
            faults += differences(
                part(one), part(other), f"{call} call, {name}", exactness, part(third) if third else None
            )
    return faults


def global_state() -> dict[str, object]:
    """The process-wide switches that a capture flips; none may stay flipped."""
    return {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "is_compiling": torch.compiler.is_compiling(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "function modes": torch._C._len_torch_function_stack(),
        "functionalization": torch._C._dispatch_tls_is_dispatch_key_included("Functionalize"),
        "functorch level": torch._C._functorch.maybe_current_level(),
        "default dtype": torch.get_default_dtype(),
        "multithreaded backward": torch._C._is_multithreading_enabled(),
    }


def _where_it_crashed(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    shown = [frame for frame in frames if "switchgear" in frame.filename][-2:] or frames[-2:]
    places = " <- ".join(f"{frame.filename.rsplit('/', 2)[-1]}:{frame.lineno} {frame.name}" for frame in shown[::-1])
    return f"{type(error).__name__}: {error}\n  at {places}"
