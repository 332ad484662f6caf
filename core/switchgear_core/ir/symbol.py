"""Symbols and bound symbols: an operator, and one call of an operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from switchgear_core.ir.choice import Choice, Implementation
from switchgear_core.ir.printing import BOXED, Scope, object_at
from switchgear_core.ir.proxy import TensorProxy, copier
from switchgear_core.nesting import PLAIN
from switchgear_core.showing import Shown, folded, limited
from switchgear_core.source_text import is_name, plain

#: Draws random numbers: never merged, recomputed, reordered or removed.
RANDOM = "random"
#: The backward recomputes the results. This tag and the next two may be followed by a colon and the name of one result.
RECOMPUTE = "recompute"
#: Results that the backward reads are saved.
SAVE = "save"
#: Results that the backward reads are to be moved to the host; not done yet, so they are saved.
OFFLOAD = "offload"
#: The user's name for a result, and the result's name follow, after colons.
NAMED = "named"
#: Inside a region of `torch.utils.checkpoint`; the region's number follows, greater for inner regions.
CHECKPOINT = "checkpoint:"
#: Inside such a region, but not recomputed: a selective policy says so.
SAVED = "saved"
#: PyTorch turns grad mode off in a part of the call: PyTorch's autograd differentiates the call as a whole.
GRAD_OFF_INSIDE = "grad_off_inside"
#: A call of a `torch.autograd.Function`: user code, run once, when captured.
CUSTOM_FUNCTION = "custom_function"
#: Recorded by a pullback: part of the backward, whatever its inputs.
BACKWARD = "backward"
#: Added by the grad pass to recompute a forward line in the backward.
RECOMPUTED = "recomputed"
#: Computes a gradient requested by the function: a forward line for enclosing code, and no gradient flows back.
INNER_GRADIENT = "inner_gradient"
#: Would be a write in place: never part of a region, because regions cannot write to their arguments.
IN_PLACE = "in place"
#: Raises if the data of a call is not what the trace is for: never removed, and run before any draw.
CHECK = "check"
#: A check that keeps its place: earlier draws are undone if it raises.
LATE = "late"
#: Decides a branch: bit-identical to PyTorch's result, or the branch would differ from eager's.
EXACT = "exact"


@dataclass(frozen=True, slots=True)
class Symbol:
    """Operation of a line, identified by its qualified name: of PyTorch, of an operator, or of Switchgear."""

    name: str
    fn: Callable[..., Any] = field(compare=False, repr=False)
    #: The derivative of a symbol of Switchgear: a rule of the form "pullback".
    pullback: Callable[..., Any] | None = field(default=None, compare=False, repr=False)
    #: An `OwnGradient`, for symbols that such a rule cannot express.
    gradient: Any = field(default=None, compare=False, repr=False)
    #: Whether the symbol has an effect other than its result, so that its calls stay even if unread.
    effect: bool = field(default=False, compare=False, repr=False)


def _delete(*values: object) -> None:
    """Stand for `del` in a trace: the names end here."""


#: Symbol that ends the life of its argument proxies; prints as a `del` statement.
DEL = Symbol("del", _delete)


def _box(*values: object) -> list[object]:
    """Collect the arguments of a following call in a list."""
    return [*values]


#: Symbol that puts its arguments in the list for the next call, whose argument is `BOXED`; prints as an assignment.
BOX = Symbol("box", _box)


def _after(part: object, base: object) -> object:
    """Return `base` under another name."""
    return base


#: Symbol that renames `base` after a write to its view `part`; prints as an assignment.
AFTER = Symbol("after", _after)


@dataclass(frozen=True, slots=True)
class Source:
    """The place of a call in the user's code.

    `module` is the path of the calling `nn.Module`, or empty; `function` is the name of the code at the line. `callers`
    are the calls that led there, the innermost first; `ranges` the names of the user's enclosing `record_function`
    blocks, the outermost first.
    """

    file: str
    line: int
    module: str = ""
    function: str = field(default="", compare=False, repr=False)
    callers: tuple[Source, ...] = field(default=(), compare=False, repr=False)
    ranges: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __str__(self) -> str:
        place = f"{self.file.rsplit('/', 1)[-1]}:{self.line}"
        return f"{place} {self.module}" if self.module else place


@dataclass(frozen=True, slots=True)
class RuleOrigin:
    """The rule that made a backward bound symbol: `owner` is the owner of its table, or `derived`."""

    owner: str
    form: str

    def __str__(self) -> str:
        return f"{self.owner} ({self.form})"


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """A link from a backward bound symbol to its forward one, with the rule."""

    forward: BoundSymbol
    rule: RuleOrigin


@dataclass(frozen=True, slots=True, eq=False)
class BoundSymbol(Shown):
    """Line of a trace: a symbol, its arguments and its results.

    Attributes:
        symbol: the operation.
        args: proxies and Python values, nested in tuples, lists and dicts.
        kwargs: likewise, by name.
        output: a proxy, None, or a nested tuple of these.
        subsymbols: the decomposition; empty for a leaf.
        implementation: the function that runs the line, once an executor has claimed the line.
        choices: decisions about the composites around the line, then about the line. A region has its parts' choices.
        wholes: composites around the line, the outermost first, for executors that run a composite as a single call.
    """

    symbol: Symbol
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Any
    subsymbols: tuple[BoundSymbol, ...] = ()
    source: Source | None = None
    grad_enabled: bool = True
    tags: frozenset[str] = frozenset()
    links: tuple[Link, ...] = ()
    implementation: Implementation | None = None
    choices: tuple[Choice, ...] = ()
    wholes: tuple[BoundSymbol, ...] = ()
    inputs: tuple[TensorProxy, ...] = field(init=False, repr=False)
    outputs: tuple[TensorProxy, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        keywords = proxies(self.kwargs) if self.kwargs else ()
        object.__setattr__(self, "inputs", (*proxies(self.args), *keywords))
        object.__setattr__(self, "outputs", tuple(proxies(self.output)))

    def __repr__(self) -> str:
        return limited(folded(*line(self, Scope({}, (), False), link=False)))

    @property
    def is_leaf(self) -> bool:
        """Whether the call has no decomposition."""
        return not self.subsymbols

    @property
    def fused_by(self) -> str:
        """The executor that runs the subsymbols as a region; empty if the line is not a region."""
        if self.implementation is None or not self.subsymbols:
            return ""
        claimed = any(part.implementation is not None for part in self.subsymbols)
        return self.implementation.owner if claimed else ""

    @property
    def is_random(self) -> bool:
        """Whether the call, or a part of it, draws random numbers."""
        return RANDOM in self.tags

    @property
    def stays(self) -> bool:
        """Whether the call runs even if no other line reads its results."""
        return self.symbol.effect or not self.tags.isdisjoint((RANDOM, CHECK))

    @property
    def is_check(self) -> bool:
        """Whether the call raises for data that the trace does not fit; no line may write before it."""
        return CHECK in self.tags

    def reading(self, values: Mapping[str, TensorProxy]) -> BoundSymbol:
        """Return the call with other arguments.

        Args:
            values: the new arguments, by the names of the replaced ones.

        Returns:
            A new call; this one if it reads none of them.
        """
        if values and any(proxy.name in values for proxy in self.inputs):
            return renamed(self, values, lambda proxy: proxy)
        return self

    def with_implementation(self, implementation: Implementation) -> BoundSymbol:
        """Replace the implementation of the call.

        Args:
            implementation: the new implementation.

        Returns:
            A new call.
        """
        return changed(self, implementation=implementation)


_copied = copier(BoundSymbol)
_NESTS = frozenset({"args", "kwargs", "output"})


def changed(bound_symbol: BoundSymbol, **changes: object) -> BoundSymbol:
    """Return a copy with changes, as `dataclasses.replace`, without a new search for unchanged proxies."""
    copy = _copied(bound_symbol, **changes)
    if not _NESTS.isdisjoint(changes):
        copy.__post_init__()
    return copy


def line(bound_symbol: BoundSymbol, scope: Scope, link: bool) -> tuple[str, str]:
    """Return the text of a call, and its source as a comment; with `link`, a backward's forward line and rule."""
    if bound_symbol.symbol is DEL:
        return f"del {scope.items(bound_symbol.inputs)}", ""
    if bound_symbol.symbol is BOX:
        return f"args = [{scope.items(bound_symbol.args)}]", ""
    types = "  ".join([f'{proxy.name}: "{proxy.type_string}"' for proxy in bound_symbol.outputs])
    return _call(bound_symbol, scope), f"{types}  {_origin(bound_symbol, link)}".rstrip()


def parts(bound_symbol: BoundSymbol, scope: Scope, link: bool, owner: str = "") -> Iterator[str]:
    """Yield the lines of a call's decomposition, as comments; in a region, each with its owner."""
    owner = owner or bound_symbol.fused_by
    for part in bound_symbol.subsymbols:
        origin = f"  {owner}  {_origin(part, link)}".rstrip() if owner else ""
        yield f"  {_call(part, scope)}{origin}"
        yield from [f"  {text}" for text in parts(part, scope, link, owner)]


def _call(bound_symbol: BoundSymbol, scope: Scope) -> str:
    symbol, implementation = bound_symbol.symbol, bound_symbol.implementation
    if symbol is AFTER:
        return f"{_target(bound_symbol.output)} = {scope.expression(bound_symbol.args[1])}"
    fn = implementation.fn if implementation else symbol.fn
    if fn is torch.Tensor.__getitem__:
        tensor, index = bound_symbol.args
        return f"{_target(bound_symbol.output)} = {scope.expression(tensor)}[{scope.index(index)}]"
    if implementation is not None and implementation.path:
        path = implementation.path
        function = scope.called(scope.at(path), object_at(path))
    else:
        function = scope.called(scope.callable(symbol.name, fn), fn)
    arguments = [scope.expression(value) for value in bound_symbol.args]
    for name, value in bound_symbol.kwargs.items():
        name, expression = plain(name), scope.expression(value)
        arguments.append(
            f"{name}={expression}" if is_name(name) else f"**{{{name!r}: {expression}}}"
        )
    text = ", ".join(arguments)
    if implementation is not None and implementation.boxed and BOXED not in bound_symbol.args:
        text = f"[{text}]"
    call = f"{function}({text})"
    return f"{_target(bound_symbol.output)} = {call}" if bound_symbol.outputs else call


def _target(output: object, *, nested: bool = False) -> str:
    if isinstance(output, TensorProxy):
        return output.name
    if not isinstance(output, tuple):
        return "_"
    names = ", ".join(_target(item, nested=True) for item in output) + (
        "," if len(output) == 1 else ""
    )
    return f"({names})" if nested else names


def _origin(bound_symbol: BoundSymbol, link: bool) -> str:
    """Return the source of a call; for a region, the number of its calls, whose own lines show sources."""
    if bound_symbol.subsymbols and bound_symbol.fused_by:
        return f"{len(bound_symbol.subsymbols)} operators by {bound_symbol.fused_by}"
    if link and bound_symbol.links:
        forwards = ", ".join(dict.fromkeys(_forward(item.forward) for item in bound_symbol.links))
        rules = ", ".join(dict.fromkeys(str(item.rule) for item in bound_symbol.links))
        return f"forward: {forwards}  rule: {rules}"
    return str(bound_symbol.source or "")


def _forward(bound_symbol: BoundSymbol) -> str:
    names = ", ".join(proxy.name for proxy in bound_symbol.outputs)
    return f"{names} = {bound_symbol.symbol.name}  {bound_symbol.source or ''}".rstrip()


def policy_of(item: BoundSymbol, result: TensorProxy) -> str:
    """Return the tag of a line that says where the backward has a result from, or an empty string."""
    tags = item.tags
    policies = RECOMPUTE, SAVE, OFFLOAD
    return next((tag for tag in policies if tag in tags or f"{tag}:{result.name}" in tags), "")


def inherited(tags: Iterable[str]) -> frozenset[str]:
    """Return the tags that the parts of a call inherit."""
    kinds = RECOMPUTED, RECOMPUTE, SAVE, OFFLOAD, NAMED
    return frozenset(tag for tag in tags if tag.partition(":")[0] in kinds)


def region_of(item: BoundSymbol) -> str | None:
    """Return the tag of the `torch.utils.checkpoint` region of a bound symbol in a joint trace, or None.

    The tag comes from the differentiated or recomputed call; for a sum of gradients, from all terms.
    """
    tags = [link.forward.tags for link in item.links] or [item.tags]
    shared = frozenset.intersection(*tags)
    return next((tag for tag in shared if tag.startswith(CHECKPOINT)), None)


def with_parts(bound_symbols: Iterable[BoundSymbol]) -> Iterator[BoundSymbol]:
    """Yield bound symbols, each followed by its whole decomposition."""
    for bound_symbol in bound_symbols:
        yield bound_symbol
        yield from with_parts(bound_symbol.subsymbols)


def renamed(
    bound_symbol: BoundSymbol,
    env: Mapping[str, TensorProxy],
    define: Callable[[TensorProxy], TensorProxy] | None = None,
) -> BoundSymbol:
    """Return a copy that reads the values of `env`, and defines those of `define` (parts first), by default `env`."""

    def read(proxy: TensorProxy) -> TensorProxy:
        return env.get(proxy.name, proxy)

    args, kwargs = map_proxies(read, (bound_symbol.args, dict(bound_symbol.kwargs)))
    parts = tuple([renamed(part, env, define) for part in bound_symbol.subsymbols])
    define_or_read = define or read
    return _copied(
        bound_symbol,
        args=args,
        kwargs=kwargs,
        output=map_proxies(define_or_read, bound_symbol.output),
        subsymbols=parts,
        inputs=tuple([read(proxy) for proxy in bound_symbol.inputs]),
        outputs=tuple([define_or_read(proxy) for proxy in bound_symbol.outputs]),
    )


def proxies(value: object) -> list[TensorProxy]:
    """Return the proxies in nested tuples, lists and dicts, in order."""
    result: list[TensorProxy] = []
    _collect(value, result)
    return result


def _collect(value: Any, result: list[TensorProxy]) -> None:
    kind = type(value)
    if kind is TensorProxy:
        result.append(value)
    elif kind in PLAIN:
        return
    elif isinstance(value, (tuple, list)):
        for item in value:
            if type(item) is TensorProxy:
                result.append(item)
            elif type(item) not in PLAIN:
                _collect(item, result)
    elif isinstance(value, Mapping):
        for item in value.values():
            _collect(item, result)


def map_proxies(function: Callable[[TensorProxy], Any], value: Any) -> Any:
    """Return `value` with each proxy in nested tuples, lists and dicts replaced by `function(proxy)`."""
    kind = type(value)
    if kind is TensorProxy:
        return function(value)
    if kind in PLAIN:
        return value
    if isinstance(value, tuple):
        return tuple([map_proxies(function, item) for item in value])
    if isinstance(value, list):
        return [map_proxies(function, item) for item in value]
    if isinstance(value, dict):
        return {key: map_proxies(function, item) for key, item in value.items()}
    return value
