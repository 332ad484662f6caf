"""Splitting: the protocol of a part that splits a refused function, and compiles the graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from torch import fx

from switchgear_runtime.entry import Entry
from switchgear_runtime.fallback import Fallbacks


class GraphCompiler(Protocol):
    """The compiler of one graph."""

    fallbacks: Fallbacks
    last: Entry | None

    def __call__(self, *args: object) -> object:
        """Run the graph."""


#: A function that compiles a graph, given the dynamic dimensions of tensor parameters, and a name.
CompileGraph: TypeAlias = Callable[
    [fx.GraphModule, Mapping[str, frozenset[int]], str], GraphCompiler
]


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A graph that TorchDynamo found, and the number of its calls."""

    compiler: GraphCompiler
    operators: int
    #: The first of the user's lines that the graph comes from.
    line: str = ""

    @property
    def refusals(self) -> list[str]:
        """The reasons why the graph runs in eager mode, if any."""
        reasons = self.compiler.fallbacks.reasons.values()
        return [str(one).partition("\n")[0] for one in reasons if one.calls]

    @property
    def is_compiled(self) -> bool:
        """Whether executors ran the graph in every call so far."""
        return self.compiler.last is not None and not self.refusals


class Splitting(Protocol):
    """A function as split into graphs.

    Attributes:
        name: the name of the function.
        doubt: why calls are not split from now on; empty if they are.
        ratio: the time of the parts divided by the time of the original function, once known.
    """

    name: str
    doubt: str
    ratio: float | None

    @property
    def graphs(self) -> Sequence[Graph]:
        """The graphs so far."""

    @property
    def breaks(self) -> Mapping[str, int]:
        """The reasons between graphs, with their counts."""

    def trust(self) -> str:
        """Return why a call is not split, before the call runs; else empty."""

    def run(self, *args: Any, **kwargs: Any) -> object:
        """Run the parts."""
