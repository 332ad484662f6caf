"""A budget: the tensors to save, chosen by an integer program for the least cost of recomputation.

Each value that the backward reads is saved, or its line is recomputed from values that are saved or recomputed in turn.
A line is recomputed once, before its first reader. The saved bytes are bounded. At moments of the backward, so is the
sum of bytes still saved and bytes recomputed early; exceeding that bound has a price. Otherwise everything would be
recomputed at once, from next to nothing, at eager's peak.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from switchgear_core.errors import InvalidInput
from switchgear_core.ir.aliasing import is_view
from switchgear_core.ir.proxy import TensorProxy, bytes_of
from switchgear_core.ir.symbol import BoundSymbol
from switchgear_memory.prices import Prices

#: The number of moments of the backward at which live bytes are counted.
_MOMENTS = 8
#: The bytes that may be moved to avoid holding one byte beyond the budget at such a moment.
_WORTH = 16
#: The bytes that may be moved for each byte not saved, where the budget is a cost.
_DEAR = 64
#: The cost of saving a byte: of two equal solutions, the smaller wins.
_KEEPING = 0.02
#: The accepted gap to the optimum, and the limit on nodes of the search.
_SEARCH: dict[str, bool | float | str] = {
    "output_flag": False,
    "mip_rel_gap": 0.03,
    "mip_max_nodes": 20,
    "threads": 1,
}

Terms = dict[int, float]


@dataclass(frozen=True, slots=True)
class Budget:
    """The limit on saved bytes, or without it the limit on the cost of recomputation, in units of `costs`."""

    bytes: int | None = None
    cost: float = math.inf


def within(
    forward: Sequence[BoundSymbol],
    read: Iterable[TensorProxy],
    later: Sequence[BoundSymbol],
    prices: Prices,
    budget: Budget,
) -> frozenset[str]:
    """Return the names of the values to save, which suffice for the `read` values of a forward.

    `later` are the lines of the backward. The values take at most `budget.bytes`, or the fewest bytes possible; or the
    fewest that `budget.cost` allows.
    """
    program = _Program()
    lines = _Lines(forward, prices, program)
    for proxy in read:
        if lines.is_made(proxy):
            program.at_least(lines.had(proxy), 1)
    for item, variable in lines.rerun.items():
        for proxy in item.inputs:
            if lines.is_made(proxy):
                program.at_least({variable: -1, **lines.had(proxy)}, 0)
    if budget.bytes is None:
        costs = {variable: program.costs[variable] for variable in lines.rerun.values()}
        program.at_most(costs, budget.cost)
        worth = {variable: price / _DEAR for variable, price in costs.items()}
        solution = program.solve({**lines.bytes, **worth})
        return frozenset(lines.saved) if solution is None else lines.chosen(solution)
    least = program.solve(lines.bytes)
    limit = max(budget.bytes, math.ceil(lines.held(least)))
    lines.bound(later, limit)
    program.at_most(lines.bytes, limit)
    solution = program.solve()
    return lines.chosen(least if solution is None else solution)


@dataclass(slots=True, eq=False)
class _Program:
    """Variables of at least 0 and, if integral, at most 1; their costs; and bounds of their sums."""

    costs: list[float] = field(default_factory=list)
    integral: list[bool] = field(default_factory=list)
    rows: list[tuple[Terms, float, float]] = field(default_factory=list)

    def variable(self, cost: float = 0.0, integral: bool = False) -> int:
        """Add a variable, and return its number."""
        self.costs.append(cost)
        self.integral.append(integral)
        return len(self.costs) - 1

    def at_least(self, terms: Terms, bound: float) -> None:
        """Require a weighted sum of variables to reach at least a bound."""
        self._hold(terms, bound, math.inf)

    def at_most(self, terms: Terms, bound: float) -> None:
        """Require a weighted sum of variables to reach at most a bound."""
        self._hold(terms, -math.inf, bound)

    def _hold(self, terms: Terms, lower: float, upper: float) -> None:
        # equal magnitudes, else the solver's tolerances have different meanings
        scale = 1 / (max(map(abs, terms.values()), default=0.0) or 1.0)
        scaled = {variable: factor * scale for variable, factor in terms.items()}
        self.rows.append((scaled, lower * scale, upper * scale))

    def solve(self, costs: Terms | None = None) -> list[float] | None:
        """Return a value for each variable, at the least cost that HiGHS finds; None without a solution."""
        highs = _solver()
        variables = range(len(self.costs))
        prices = self.costs if costs is None else [costs.get(variable, 0.0) for variable in variables]
        highest = max(prices, default=0.0) or 1.0
        kinds = highs.HighsVarType.kContinuous, highs.HighsVarType.kInteger
        model = highs.HighsLp()
        model.num_col_, model.num_row_ = len(variables), len(self.rows)
        model.col_cost_ = [price / highest for price in prices]
        model.col_lower_ = [0.0 for _ in variables]
        model.col_upper_ = [1.0 if is_integral else math.inf for is_integral in self.integral]
        model.integrality_ = [kinds[is_integral] for is_integral in self.integral]
        model.row_lower_ = [lower for _, lower, _ in self.rows]
        model.row_upper_ = [upper for _, _, upper in self.rows]
        matrix = model.a_matrix_
        matrix.format_ = highs.MatrixFormat.kRowwise
        matrix.start_ = [0, *itertools.accumulate(len(terms) for terms, _, _ in self.rows)]
        matrix.index_ = [variable for terms, _, _ in self.rows for variable in terms]
        matrix.value_ = [factor for terms, _, _ in self.rows for factor in terms.values()]
        solver = highs.Highs()
        for name, value in _SEARCH.items():
            solver.setOptionValue(name, value)
        solver.passModel(model)
        # HiGHS keeps the first thread count that a thread requests, and the user may want another
        thread = threading.Thread(target=solver.run)
        thread.start()
        thread.join()
        status = solver.getInfo().primal_solution_status
        is_found = status == highs.SolutionStatus.kSolutionStatusFeasible
        return [*solver.getSolution().col_value] if is_found else None


def _solver() -> Any:
    """Return the HiGHS module, which only budgets need.

    Raises:
        InvalidInput: highspy is not installed.
    """
    try:
        import highspy  # noqa: PLC0415 - importing Switchgear is not to need it
    except ImportError as error:
        raise InvalidInput(
            "a memory budget needs highspy, which is not installed: pip install 'highspy>=1.10,<1.16'"
        ) from error
    return highspy


class _Lines:
    """The variables of a forward: its saved values and its recomputed lines."""

    def __init__(self, forward: Sequence[BoundSymbol], prices: Prices, program: _Program) -> None:
        self.forward = forward
        self.program = program
        self.maker = {proxy.name: item for item in forward for proxy in item.outputs}
        self.saved: dict[str, int] = {}
        self.rerun: dict[BoundSymbol, int] = {}
        self.bytes: Terms = {}
        inputs = {proxy.name: proxy for item in forward for proxy in item.inputs}
        for name in prices.overwritten & inputs.keys() - self.maker.keys():
            self._save(inputs[name], bytes_of(inputs[name]))
        for item in forward:
            price = prices.recompute_price(item)
            if not isinstance(price, str):
                self.rerun[item] = program.variable(price, integral=not is_view(item))
            for proxy in item.outputs:
                if prices.saving(proxy, item) is not None:
                    self._save(proxy, prices.held(proxy, item))

    def _save(self, proxy: TensorProxy, size: int) -> None:
        variable = self.program.variable(_KEEPING * size, integral=True)
        self.saved[proxy.name] = variable
        self.bytes[variable] = size

    def is_made(self, proxy: TensorProxy) -> bool:
        """Check whether a value may have to be saved or recomputed, because it is no live input."""
        return proxy.name in self.maker or proxy.name in self.saved

    def had(self, proxy: TensorProxy) -> Terms:
        """Return the sum that says whether a value is saved or recomputed."""
        item = self.maker.get(proxy.name)
        places = self.saved.get(proxy.name), None if item is None else self.rerun.get(item)
        return {place: 1.0 for place in places if place is not None}

    def held(self, values: Any) -> float:
        """Return the saved bytes."""
        return math.fsum(values[variable] * size for variable, size in self.bytes.items())

    def chosen(self, values: Any) -> frozenset[str]:
        """Return the names of the saved values."""
        return frozenset(name for name, variable in self.saved.items() if values[variable] > 0.99)

    def bound(self, later: Sequence[BoundSymbol], limit: int) -> None:
        """Bound the live bytes at moments of the backward by `limit`, where the price is worth it."""
        first, last = self._turns(later)
        excess = self.program.variable(_WORTH)
        step = max(1, len(later) // _MOMENTS)
        for moment in range(step, len(later), step):
            runs = self._recomputed_by(first, moment)
            terms: Terms = {excess: -1.0}
            for name, variable in self.saved.items():
                if last[name] >= moment:
                    terms[variable] = self.bytes[variable]
            for item, variable in runs.items():
                waits = first[item] >= moment
                stays = first[item] < moment - step
                names = [p for p in item.outputs if waits or (stays and last[p.name] >= moment)]
                if names and not is_view(item):
                    terms[variable] = bytes_of(*names)
            self.program.at_most(terms, limit)

    def _turns(self, later: Sequence[BoundSymbol]) -> tuple[dict[BoundSymbol, int], dict[str, int]]:
        """Return the latest position at which each line is recomputed, and the position of each value's last read."""
        begins: defaultdict[str, int] = defaultdict(lambda: len(later))
        ends: defaultdict[str, int] = defaultdict(lambda: -1)
        for position, item in enumerate(later):
            for proxy in item.inputs:
                begins[proxy.name] = min(begins[proxy.name], position)
                ends[proxy.name] = position
        latest: dict[BoundSymbol, int] = {}
        for item in reversed(self.forward):
            begin = min((begins[proxy.name] for proxy in item.outputs), default=len(later))
            end = max((ends[proxy.name] for proxy in item.outputs), default=-1)
            # a value read by recomputed lines alone is recomputed for the last of them at the latest
            latest[item] = begin if begin < len(later) else end
            view = is_view(item)
            for proxy in item.inputs:
                begins[proxy.name] = min(begins[proxy.name], begin) if view else begins[proxy.name]
                ends[proxy.name] = max(ends[proxy.name], end if view else latest[item])
        return latest, ends

    def _recomputed_by(self, first: dict[BoundSymbol, int], moment: int) -> dict[BoundSymbol, int]:
        """Return the lines recomputed by a moment of the backward, each with its variable."""
        runs = {
            item: variable if first[item] < moment else self.program.variable() for item, variable in self.rerun.items()
        }
        for item, variable in runs.items():
            for proxy in item.inputs:
                source = self.maker.get(proxy.name)
                if source in runs and first[source] >= moment:
                    terms = {runs[source]: 1.0, variable: -1.0}
                    if proxy.name in self.saved:
                        terms[self.saved[proxy.name]] = 1.0
                    self.program.at_least(terms, 0)
        return runs
