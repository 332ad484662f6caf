"""Do the tests notice faults? Put one small fault at a time into a copy of the source, and run tests that reach it.

    python -m scripts.mutants --number 120 --seed 1
    python -m scripts.mutants --number 30 --parametrizations 1 tests/core

All mutants stand in one copy of the checkout, each behind a switch that an environment variable turns on. One run of
the tests with all switches off records which tests pass, how long they take, and which mutants they reach. Each mutant
then runs its tests until a test fails or takes far too long; tests of the file named like its module come first.
Survivors are printed as `file:line: before -> after`; the exit status is 1 if fewer than `--least` percent are killed.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scripts.core_size import PACKAGES, SHIPPED

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (
    *(f"core/{name}" for name in PACKAGES),
    *(f"plugins/{name}" for name in SHIPPED),
    "executors/switchgear_torch",
)

#: Variables that name the active mutant, and the folder for the recording.
ACTIVE, RECORD = "SWITCHGEAR_MUTANT", "SWITCHGEAR_MUTANTS_RECORD"
#: The most recorded tests of one function; 0 for all.
PARAMETRIZATIONS = "SWITCHGEAR_MUTANTS_PARAMETRIZATIONS"

#: Limit for a mutant's tests: seconds for the start, plus a multiple of their time without mutants.
_START, _FACTOR = 90, 8
#: Slower tests, in seconds, run last.
_SLOW = 20

_SWITCH = f'''"""Says which mutant is on."""
import os
ACTIVE = int(os.environ.get({ACTIVE!r}, -1))
reached = set()
def on(number):
    reached.add(number)
    return number == ACTIVE
'''
_FUTURE = "from __future__ import annotations\n"
_IMPORT = "from __future__ import annotations; from switchgear import mutation_switch as _mutation_switch\n"

_FLIPPED: dict[type[ast.cmpop], str] = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: ">=",
    ast.LtE: ">",
    ast.Gt: "<=",
    ast.GtE: "<",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of a piece of a file: offsets in its text, and the new text; None deletes a statement."""

    file: str
    line: int
    kind: str
    begin: int
    end: int
    before: str
    after: str | None

    def __str__(self) -> str:
        after = "(deleted)" if self.after is None else " ".join(self.after.split())
        return f"{self.file}:{self.line}: {' '.join(self.before.split())} -> {after}"

    def switched(self, number: int) -> str:
        """Return source that makes the change when the switch is on."""
        on = f"_mutation_switch.on({number})"
        if self.after is None:
            return f"if not {on}: {self.before}"
        if self.kind == "return":
            other, value = self.after.removeprefix("return "), self.before.removeprefix("return ")
            return f"return {other} if {on} else ({value})"
        return f"(({self.after}) if {on} else ({self.before}))"


class _Candidates(ast.NodeVisitor):
    """Visitor that collects mutants of code that runs when a function is called, not when a module is imported."""

    def __init__(self, file: str, text: str) -> None:
        self.mutants: list[Mutant] = []
        self._file = file
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self._text = text
        self._depth = 0

    def _offset(self, line: int, column: int) -> int:
        """Return the offset in characters; AST columns count bytes."""
        text = self._lines[line - 1]
        return self._starts[line - 1] + len(text.encode()[:column].decode())

    def _span(self, node: Any) -> tuple[int, int]:
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def _source(self, node: ast.AST) -> str:
        begin, end = self._span(node)
        return self._text[begin:end]

    def _add(self, node: Any, kind: str, after: str | None) -> None:
        if self._depth:
            begin, end = self._span(node)
            self.mutants.append(Mutant(self._file, node.lineno, kind, begin, end, self._text[begin:end], after))

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        self._depth += 1
        for part in node.body if isinstance(node.body, list) else [node.body]:
            self.visit(part)
        self._depth -= 1

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _visit_function

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Skip f-strings: Python 3.11 does not know the places of their parts."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """Skip assertions: their conditions hold anyway."""

    def visit_MatchValue(self, node: ast.MatchValue) -> None:
        """Skip patterns: a pattern takes no condition."""

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            first, (second,) = node.left, node.comparators
            flipped = _FLIPPED[type(node.ops[0])]
            self._add(node, "comparison", f"({ast.unparse(first)}) {flipped} ({ast.unparse(second)})")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        word = " and " if isinstance(node.op, ast.And) else " or "
        for dropped in node.values:
            # later operands may read a name that this operand binds
            if not any(isinstance(part, ast.NamedExpr) for part in ast.walk(dropped)):
                others = [f"({ast.unparse(value)})" for value in node.values if value is not dropped]
                self._add(node, "operand", word.join(others))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add(node, "not", ast.unparse(node.operand))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if type(node.value) is int:
            self._add(node, "constant", str(node.value + 1))

    def visit_Return(self, node: ast.Return) -> None:
        value = ast.unparse(node.value) if node.value is not None else "None"
        if value != "None" and self._source(node).startswith("return "):
            self._add(node, "return", {"True": "return False", "False": "return True"}.get(value, "return None"))
        self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        is_effect = isinstance(node, (ast.AugAssign, ast.Raise, ast.Continue, ast.Break, ast.Delete)) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        )
        is_effect |= isinstance(node, ast.Assign) and not any(isinstance(name, ast.Name) for name in node.targets)
        if is_effect and isinstance(node, ast.stmt):
            begin = self._offset(node.lineno, node.col_offset)
            if not self._text[self._starts[node.lineno - 1] : begin].strip():  # the statement has its line to itself
                self._add(node, "statement", None)
        super().generic_visit(node)


def candidates(file: str, text: str) -> list[Mutant]:
    """Return every mutant of a file."""
    visitor = _Candidates(file, text)
    visitor.visit(ast.parse(text))
    return visitor.mutants


def chosen(texts: dict[str, str], number: int, seed: int) -> list[Mutant]:
    """Choose random mutants, at most one for each line, without overlaps."""
    everything = [mutant for file, text in texts.items() for mutant in candidates(file, text) if _FUTURE in text]
    random.Random(seed).shuffle(everything)
    mutants: list[Mutant] = []
    spans: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    lines = set[tuple[str, int]]()
    for mutant in everything:
        is_apart = all(mutant.end <= begin or end <= mutant.begin for begin, end in spans[mutant.file])
        if is_apart and (mutant.file, mutant.line) not in lines:
            spans[mutant.file].append((mutant.begin, mutant.end))
            lines.add((mutant.file, mutant.line))
            mutants.append(mutant)
        if len(mutants) == number:
            break
    return sorted(mutants, key=lambda mutant: (mutant.file, mutant.line))


def switched(file: str, text: str, mutants: Sequence[Mutant]) -> str:
    """Return the text of a file with all of its mutants behind switches; line numbers stay."""
    mine = [(number, mutant) for number, mutant in enumerate(mutants) if mutant.file == file]
    for number, mutant in sorted(mine, key=lambda pair: -pair[1].begin):
        text = text[: mutant.begin] + mutant.switched(number) + text[mutant.end :]
    return text.replace(_FUTURE, _IMPORT, 1) if mine else text


# --- hooks of pytest, in the copy: this file is a plugin there ---


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep a limited number of tests of each function, the same tests in every process."""
    most = int(os.environ.get(PARAMETRIZATIONS, 0))
    counts = Counter[str]()
    remaining = []
    for item in items:
        counts[item.nodeid.partition("[")[0]] += 1
        if not most or counts[item.nodeid.partition("[")[0]] <= most:
            remaining.append(item)
    items[:] = remaining


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Record the mutants that a test reaches."""
    switch = sys.modules.get("switchgear.mutation_switch")
    if switch is None or RECORD not in os.environ:
        return (yield)
    switch.reached.clear()
    begin = time.perf_counter()
    failed = item.session.testsfailed
    result = yield
    line = {
        "test": item.nodeid,
        "seconds": time.perf_counter() - begin,
        "reached": sorted(switch.reached),
        "failed": item.session.testsfailed > failed,
    }
    with open(f"{os.environ[RECORD]}/{os.getpid()}.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
    return result


# --- running ---


@dataclass(frozen=True, slots=True)
class Test:
    """A test that passes without a mutant."""

    name: str
    seconds: float
    reached: frozenset[int]


@dataclass(frozen=True, slots=True)
class Fate:
    """The end of a mutant: `killer` is a test, "too long", or empty for a survivor."""

    mutant: Mutant
    killer: str
    tests: int
    reaching: int


class Copy:
    """A copy of the checkout that holds the mutants."""

    def __init__(self, folder: Path, mutants: Sequence[Mutant]) -> None:
        self.folder = folder / "copy"
        self._mutants = mutants
        self._record = folder / "record"
        self._record.mkdir()
        ignored = shutil.ignore_patterns(".*", "build", "dist", "site", "__pycache__", "*.pyc", "shared")
        shutil.copytree(ROOT, self.folder, ignore=ignored)
        for hidden in (".github", ".ci"):
            if (ROOT / hidden).is_dir():
                shutil.copytree(ROOT / hidden, self.folder / hidden)
        for file in {mutant.file for mutant in mutants}:
            path = self.folder / file
            path.write_text(switched(file, path.read_text(), mutants))
        (self.folder / "core/switchgear/mutation_switch.py").write_text(_SWITCH)
        self._environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(str(self.folder / part) for part in ("core", "executors", "plugins", ".")),
            "OMP_NUM_THREADS": "1",
            "XDG_CACHE_HOME": str(folder / "cache"),
            "TMPDIR": str(folder),
        }

    def _pytest(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "scripts.mutants", "-p", "no:cacheprovider"]
        return subprocess.Popen(
            [*command, *arguments],
            cwd=self.folder,
            env=self._environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def record(self, paths: Sequence[str], jobs: int, parametrizations: int) -> list[Test]:
        """Run the tests with every mutant off; return the passing tests that reach a mutant."""
        variables = {RECORD: str(self._record), PARAMETRIZATIONS: str(parametrizations)}
        process = self._pytest("-n", str(jobs if jobs > 1 else 0), *paths, **variables)
        output, _ = process.communicate()
        print(output.rstrip().rpartition("\n")[2], flush=True)
        lines = [json.loads(line) for file in self._record.iterdir() for line in file.read_text().splitlines()]
        if not lines:
            raise SystemExit(f"no test ran:\n{output[-4000:]}")
        return [
            Test(line["test"], line["seconds"], frozenset(line["reached"]))
            for line in lines
            if line["reached"] and not line["failed"]
        ]

    def fate(self, number: int, tests: Sequence[Test], most: int) -> Fate:
        """Run the tests that reach a mutant: at first `most` tests, then three times as many more."""
        mutant = self._mutants[number]
        reaching = sorted((test for test in tests if number in test.reached), key=lambda test: _distance(test, mutant))
        count = 0
        for part in (reaching[:most], reaching[most : 4 * most]):
            if part:
                count += len(part)
                killer = self._killer(number, part)
                if killer:
                    return Fate(mutant, killer, count, len(reaching))
        return Fate(mutant, "", count, len(reaching))

    def _killer(self, number: int, tests: Sequence[Test]) -> str:
        limit = _START + _FACTOR * sum(test.seconds for test in tests)
        process = self._pytest("-n", "0", "-x", *(test.name for test in tests), **{ACTIVE: str(number)})
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            return "too long"
        if process.returncode == 0:
            return ""
        failed = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        return failed[0].split()[1] if failed else f"exit status {process.returncode}"


def _distance(test: Test, mutant: Mutant) -> tuple[Any, ...]:
    """Order tests: not slow, in the file named like the module, in its folder, reaching few mutants, quick."""
    file, module = Path(test.name.partition("::")[0]), Path(mutant.file)
    is_own = file.stem.removeprefix("test_") in (module.stem, module.stem + "s")
    return test.seconds > _SLOW, not is_own, module.parent.name not in str(file), len(test.reached), test.seconds


def report(fates: Sequence[Fate], least: float) -> int:
    """Print the table and the survivors; return the exit status."""
    by_folder: defaultdict[str, list[Fate]] = defaultdict(list)
    for fate in fates:
        parts = Path(fate.mutant.file).parts
        by_folder[parts[2] if len(parts) > 3 else parts[1]].append(fate)
    print(f"\n{'folder':<18}{'mutants':>8}{'killed':>8}{'too long':>10}{'survived':>10}")
    for folder, rows in [*sorted(by_folder.items()), ("all", list(fates))]:
        late = sum(fate.killer == "too long" for fate in rows)
        alive = sum(not fate.killer for fate in rows)
        print(f"{folder:<18}{len(rows):>8}{len(rows) - late - alive:>8}{late:>10}{alive:>10}")
    survivors = [fate for fate in fates if not fate.killer]
    for fate in survivors:
        print(f"\n{fate.mutant}\n    {fate.mutant.kind}: survived {fate.tests} of {fate.reaching} tests that reach it")
    killed = 100 * (1 - len(survivors) / max(len(fates), 1))
    print(f"\n{len(fates) - len(survivors)} of {len(fates)} killed: {killed:.1f} %, at least {least:g} % are asked for")
    return killed < least


def main(arguments: Sequence[str] | None = None) -> int:
    """Make mutants, run tests with each mutant, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", default=["tests"], metavar="TESTS", help="as pytest takes them")
    parser.add_argument("--number", type=int, default=120, help="of mutants (default: 120)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests-per-mutant", type=int, default=40, help="at first; survivors meet three times as many")
    parser.add_argument("--parametrizations", type=int, default=3, help="of a test, at most; 0: all (default: 3)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--least", type=float, default=90, metavar="PERCENT", help="to be killed (default: 90)")
    parser.add_argument("--list", action="store_true", help="print the mutants, and run nothing")
    options = parser.parse_args(arguments)
    files = sorted(path for source in SOURCES for path in (ROOT / source).rglob("*.py"))
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in files}
    mutants = chosen(texts, options.number, options.seed)
    if options.list:
        print("\n".join(f"{number} {mutant.kind} {mutant}" for number, mutant in enumerate(mutants)))
        return 0
    with tempfile.TemporaryDirectory(prefix="switchgear-mutants-") as folder:
        copy = Copy(Path(folder), mutants)
        begin = time.perf_counter()
        tests = copy.record(options.tests, options.jobs, options.parametrizations)
        print(
            f"{len(tests)} tests reach {len(mutants)} mutants; recorded in {time.perf_counter() - begin:.0f} s",
            flush=True,
        )
        with ThreadPoolExecutor(options.jobs) as pool:
            fates = []
            for fate in pool.map(lambda n: copy.fate(n, tests, options.tests_per_mutant), range(len(mutants))):
                print(f"{'killed' if fate.killer else 'SURVIVED':<9}{fate.mutant}  {fate.killer}", flush=True)
                fates.append(fate)
    return report(fates, options.least)


if __name__ == "__main__":
    sys.exit(main())
