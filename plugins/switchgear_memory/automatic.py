"""The saved tensors by default, as few as cost hardly any time, and under a budget.

Where no executor fuses, each recomputed line takes its full time: eager's tensors are saved. Where an executor fuses,
elementwise lines cost next to nothing, because they run where their results are read; their results are never saved.
Other lines are recomputed as far as that takes little time compared with the program. Under a budget, the fastest
solution is chosen. "lean" is a budget, too: half of the bytes of "balanced", or of the default if those are fewer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter

import torch

from switchgear_core.errors import InvalidInput
from switchgear_core.grad.partition import recomputed
from switchgear_core.grad.recompute import links_again
from switchgear_core.ir.dead_code import live
from switchgear_core.ir.proxy import bytes_of
from switchgear_core.ir.symbol import RECOMPUTED, BoundSymbol, proxies
from switchgear_core.ir.trace import Names, Trace
from switchgear_core.registry.savings import AS_EAGER, Body, Problem, Saving
from switchgear_memory.budget import Budget, within
from switchgear_memory.costs import cost
from switchgear_memory.normalisations import CAST, with_statistics
from switchgear_memory.option import MemoryOption, budget_of
from switchgear_memory.prices import Prices, to_save

#: The part of a program's time for recomputation by default, without lines that cost next to nothing.
_SHARE = 0.015
#: The bytes below which recomputation and the optimiser's time do not pay off.
_FEW = 2**16
#: The part of eager's bytes below which recomputation does not pay off.
_LITTLE = 1 / 64


@dataclass(frozen=True, slots=True)
class ByOption:
    """Saves as the option `memory` says, except "eager"; what exceeds a budget is an error, unless `may_exceed`."""

    option: MemoryOption
    may_exceed: bool = False

    @property
    def is_eager_unfused(self) -> bool:
        """Whether the same values as in eager mode are saved where no executor fuses."""
        return self.option == "auto"

    def choose(self, problem: Problem) -> Saving:
        """Choose the saved values of a forward.

        Raises:
            InvalidInput: the budget cannot be met.
        """
        solver = _Solver(problem)
        if self.option == "auto":
            return solver.automatic().saving
        if self.option == "balanced":
            return solver.cut(fused=False).saving
        if self.option == "lean":
            default = solver.automatic()
            half = min(solver.cut(fused=False).bytes, default.bytes) // 2
            limit = max(half, int(_LITTLE * problem.eager_bytes()))
            return solver.at_most(limit, default).saving
        budget, eager = budget_of(self.option), problem.eager_bytes()
        limit = budget if isinstance(budget, int) else int((budget or 0.0) * eager)
        solution = solver.at_most(limit, solver.fastest())
        if solution.bytes > limit and not self.may_exceed:
            longer = extra(problem.trace, solution.replay, problem.fuses)
            raise InvalidInput(
                f"memory={self.option!r} allows {limit:,} bytes to be saved for the backward, where eager saves "
                f"{eager:,}; the least possible is {solution.bytes:,}, for which a step takes an estimated "
                f"{longer:.0%} longer: give it that or more; sg.plan shows the price of more bytes"
            )
        return solution.saving


def extra(trace: Trace, lines: Iterable[BoundSymbol], fuses: bool) -> float:
    """Return the estimated time of the recomputed lines, as a part of the time of all lines of a joint trace."""
    return cost(lines, fused=fuses) / (cost(trace.bound_symbols, fused=fuses) or 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class _Solution:
    """A choice, with its saved bytes, inputs excluded, and its recomputed lines."""

    saving: Saving
    bytes: int
    replay: Body


@dataclass(eq=False)
class _Solver:
    """Solutions of one problem; with executors that fuse, at the prices of fused lines."""

    problem: Problem

    @cached_property
    def body(self) -> Body:
        """The lines to recompute; where an executor fuses, normalisations are recomputed from their statistics."""
        problem = self.problem
        return with_statistics(problem.forward, problem.names) if problem.fuses else problem.forward

    def fastest(self) -> _Solution:
        """Return the fastest solution, regardless of bytes: only lines that cost next to nothing are recomputed."""
        return self.cut(fused=True) if self.problem.fuses else self._solution(AS_EAGER.choose(self.problem))

    def automatic(self) -> _Solution:
        """Return the solution with the fewest bytes that takes hardly longer than the fastest."""
        free = self.fastest()
        if not self.problem.fuses or free.bytes < _FEW:
            return free
        most = cost(free.replay, fused=True) + _SHARE * cost(self.problem.trace.bound_symbols, fused=True)
        return min(free, self._within(Budget(cost=most)), key=attrgetter("bytes"))

    def at_most(self, limit: int, first: _Solution) -> _Solution:
        """Return `first` if it saves at most `limit` bytes, else the fastest solution that does, or the least."""
        return first if first.bytes <= limit else self._within(Budget(bytes=limit))

    def cut(self, *, fused: bool) -> _Solution:
        """Return the solution of the lowest price."""
        body = self.body if fused else self.problem.forward
        prices = Prices.of(self.problem, body, fused=fused)
        return self._solution(Saving(to_save(body, self.problem.read, prices), body, prices.reason, self.packed))

    def _within(self, budget: Budget) -> _Solution:
        prices = Prices.of(self.problem, self.body, fused=self.problem.fuses, is_budget=True)
        saved = within(self.body, self.problem.read, self.problem.later, prices, budget)
        return self._solution(Saving(saved, self.body, prices.reason, self.packed))

    @cached_property
    def packed(self) -> dict[str, tuple[BoundSymbol, BoundSymbol]]:
        """The lines to and from booleans for each packed value of zeros and ones, by name."""
        prices = Prices.of(self.problem, self.problem.forward)
        drawn = [item for item in self.problem.forward if item.outputs and prices.narrows(item.outputs[0], item)]
        return {item.outputs[0].name: _packed(item, self.problem.names) for item in drawn}

    def _solution(self, saving: Saving) -> _Solution:
        problem = self.problem
        replay, values = recomputed(saving.body, problem.read, saving.saved)
        lines = live((*replay, *problem.later), proxies(problem.trace.outputs[problem.count :]))
        alive = {proxy.name for proxy in problem.trace.inputs} - problem.overwritten
        packed = {name: unpack.inputs[0] for name, (_, unpack) in saving.packed.items()}
        size = bytes_of(*(packed.get(name, proxy) for name, proxy in values.items() if name not in alive))
        return _Solution(saving, size, tuple([item for item in lines if RECOMPUTED in item.tags]))


def _packed(line: BoundSymbol, names: Names) -> tuple[BoundSymbol, BoundSymbol]:
    (drawn,) = line.outputs
    flags = replace(drawn, name=names.claim(f"{drawn.name}_as_bool"), dtype=torch.bool)
    unpack = BoundSymbol(CAST, (flags,), {"dtype": drawn.dtype}, drawn, source=line.source, links=links_again(line))
    return BoundSymbol(CAST, (drawn,), {"dtype": torch.bool}, flags), unpack
