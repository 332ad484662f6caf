"""Print the size of the core and of shipped plugins by room, with the limits in `core/budget.toml`.

The exit status is 1 if a limit is exceeded.

    python -m scripts.core_size

Code lines hold code: no blank, comment or docstring. Tokens are Python's, without layout and comments. Complexity is
cyclomatic, as counted by ruff's C901.
"""

from __future__ import annotations

import ast
import functools
import io
import json
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "core"
KERNEL = "switchgear_core"
#: The packages whose functions, files and classes have limits.
PACKAGES = ("switchgear", KERNEL, "switchgear_frontend", "switchgear_runtime")
TOOLS = "switchgear_tools"
#: The parts that ship with `switchgear`.
SHIPPED = tuple(sorted(path.name for path in (ROOT / "plugins").glob("switchgear_*")))
BUDGET = ROOT / "core" / "budget.toml"

_LAYOUT = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)


@dataclass(slots=True)
class Size:
    """Sums over some files, and the sizes of their classes."""

    lines: int = 0
    tokens: int = 0
    anys: int = 0
    files: dict[str, int] = field(default_factory=dict)
    classes: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def density(self) -> float:
        """Tokens per code line."""
        return self.tokens / max(self.lines, 1)


def code_tokens(path: Path) -> list[tokenize.TokenInfo]:
    """Return the tokens of a file without layout, comments and docstrings."""
    text = path.read_text()
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if ast.get_docstring(node) is not None:
            docstrings.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [token for token in tokens if token.type not in _LAYOUT and token.start[0] not in docstrings]


def folder_of(package: str) -> Path:
    """Return the folder of a package."""
    return (ROOT / "plugins" if package in SHIPPED else SOURCE) / package


def files_of(*packages: str) -> list[Path]:
    """Return the files of some packages."""
    return sorted(path for package in packages for path in folder_of(package).rglob("*.py"))


def name_of(path: Path) -> str:
    """Return the name of a file, from its package on."""
    return "/".join(path.relative_to(ROOT).parts[1:])


def room_of(path: Path) -> str:
    """Return the room of a file: a folder of the core, or the package."""
    package, *folders = name_of(path).split("/")[:-1]
    return f"{package}/{folders[0]}" if package == KERNEL and folders else package


def measure(paths: list[Path]) -> Size:
    """Return the total size of some files."""
    size = Size()
    for path in paths:
        one = _size_of(path)
        size.files.update(one.files)
        size.lines += one.lines
        size.tokens += one.tokens
        size.anys += one.anys
        size.classes.update(one.classes)
    return size


@functools.cache
def _size_of(path: Path) -> Size:
    tokens, name = code_tokens(path), name_of(path)
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    anys = sum(token.string == "Any" for token in tokens)
    return Size(len(lines), len(tokens), anys, {name: len(lines)}, dict(class_sizes(path, name)))


def class_sizes(path: Path, name: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the number of methods and of attributes of each class in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ClassDef):
            continue
        methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
        fields = {
            item.target.id
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        }
        assigned = {
            target.attr
            for method in methods
            for item in ast.walk(method)
            if isinstance(item, (ast.Assign, ast.AnnAssign))
            for target in (item.targets if isinstance(item, ast.Assign) else [item.target])
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
        }
        yield f"{name}:{node.name}", (len(methods), len(fields | assigned))


def complexities() -> dict[str, int]:
    """Return the cyclomatic complexity of each function of the core, by file and name."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "C901", "--output-format", "json"]
    options = [
        "--config",
        "lint.mccabe.max-complexity=0",
        "--exit-zero",
        *(str(folder_of(name)) for name in (*PACKAGES, *SHIPPED)),
    ]
    output = subprocess.run([*command, *options], capture_output=True, text=True, check=True).stdout
    values: dict[str, int] = {}
    for item in json.loads(output):
        match = re.fullmatch(r"`(.*)` is too complex \((\d+) > 0\)", item["message"])
        assert match is not None, item
        place = name_of(Path(item["filename"]))
        values[f"{place}:{item['location']['row']} {match[1]}"] = int(match[2])
    return values


def report() -> list[str]:
    """Print the figures; return a line for each exceeded limit."""
    budget = tomllib.loads(BUDGET.read_text())
    goal, limits, exceptions = budget["goal"], budget["limits"], budget["exceptions"]
    folders: dict[str, list[Path]] = defaultdict(list)
    for path in files_of(*PACKAGES, *SHIPPED, TOOLS):
        folders[room_of(path)].append(path)
    over: list[str] = []
    total, kernel = measure(files_of(*PACKAGES, *SHIPPED)), measure(files_of(KERNEL))
    everything = measure(files_of(*PACKAGES, *SHIPPED, TOOLS))
    print(f"{'room':<32}{'lines':>8}{'budget':>8}{'left':>8}{'tokens/line':>14}")
    for name, paths in sorted(folders.items()):
        size = measure(paths)
        allowed = budget["rooms"].get(name)
        rest = "" if allowed is None else str(allowed - size.lines)
        print(f"{name:<32}{size.lines:>8}{allowed or '':>8}{rest:>8}{size.density:>14.1f}")
        if allowed is None:
            over.append(f"{name} has no budget")
        elif size.lines > allowed:
            over.append(f"{name} has {size.lines} code lines, {size.lines - allowed} over its budget")
    complexity = complexities()
    share = sum(value <= limits["complexity"] for value in complexity.values()) / len(complexity)
    figures = {
        f"code lines of the core (goal {goal['core']})": (kernel.lines, limits["core"]),
        f"code lines of all packages (goal {goal['all']})": (everything.lines, limits["all"]),
        f"tokens a code line (goal {goal['density']})": (round(total.density, 2), limits["density"]),
        f"Any per 100 code lines (goal {goal['anys']})": (
            round(100 * total.anys / total.lines, 2),
            limits["anys"],
        ),
        f"% of functions more complex than {limits['complexity']}": (
            round(100 - 100 * share, 2),
            limits["complex_share"],
        ),
        "complexity of the worst function": (max(complexity.values()), limits["complexity_of_all"]),
    }
    for name, (value, limit) in figures.items():
        print(f"{name:<44}{value:>8} of {limit}")
        if value > limit:
            over.append(f"{name}: {value}, over {limit}")
    for name, lines in total.files.items():
        if lines > limits["file"] and name not in exceptions:
            over.append(f"{name} has {lines} code lines, over {limits['file']}")
    for name, (methods, attributes) in total.classes.items():
        if (methods > limits["methods"] or attributes > limits["attributes"]) and name not in exceptions:
            over.append(f"{name} has {methods} methods and {attributes} attributes")
    return over


def main() -> int:
    """Print the report and the exceeded limits."""
    over = report()
    for line in over:
        print(f"OVER: {line}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
