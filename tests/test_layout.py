"""The layout of the source: how much of it there is, and what import-linter in pyproject.toml cannot say."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import switchgear
import switchgear as sg
from scripts import core_size
from switchgear import parts
from switchgear_core import own
from switchgear_core.ir.symbol import Symbol
from switchgear_frontend.features import BUILT_IN
from tests.under_test import is_slow, slow_tests

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "core"
EXECUTORS = ROOT / "executors"
CORE_FILES = core_size.files_of(*core_size.PACKAGES, *core_size.SHIPPED)
#: The modules of public names beside the top.
MODULES: tuple[Any, ...] = (sg.capture, sg.executors, parts, sg.passes, sg.testing)
PUBLIC = {f"{module.__name__}.{name}" for module in (sg, *MODULES) for name in module.__all__}
EXECUTOR_FILES = sorted(EXECUTORS.rglob("*.py"))
PLUGIN_FILES = core_size.files_of(*core_size.SHIPPED)
#: The modules that know the plugin of the option `memory`: the option's values, and the plan of budgets.
KNOW_MEMORY = {"core/switchgear/jit.py", "core/switchgear/options.py", "core/switchgear_tools/plan.py"}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def imports(node: ast.AST, *, inside_functions: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements under a node that run, those in functions or those outside them."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    for child in ast.iter_child_nodes(node):
        if is_type_checking(child):
            continue
        if isinstance(child, functions):
            if inside_functions:
                yield from (found for found in ast.walk(child) if isinstance(found, ast.Import | ast.ImportFrom))
        elif isinstance(child, ast.Import | ast.ImportFrom):
            if not inside_functions:
                yield child
        else:
            yield from imports(child, inside_functions=inside_functions)


def targets(statement: ast.Import | ast.ImportFrom, module: str, *, is_package: bool) -> Iterator[str]:
    """The absolute names that an import statement asks for; for `from m import a`, both `m` and `m.a`."""
    if isinstance(statement, ast.Import):
        yield from (alias.name for alias in statement.names)
        return
    base = statement.module or ""
    if statement.level:
        parts = module.split(".")
        keep = len(parts) - statement.level + is_package
        base = ".".join([*parts[:keep], *([base] if base else [])])
    yield base
    yield from (f"{base}.{alias.name}" for alias in statement.names)


def imported_by(path: Path, root: Path) -> set[str]:
    """Every absolute name that a file imports when it is imported itself."""
    module, is_package = module_name(path, root), path.name == "__init__.py"
    statements = imports(parsed(path), inside_functions=False)
    return {name for statement in statements for name in targets(statement, module, is_package=is_package)}


@pytest.mark.parametrize("path", [*CORE_FILES, *core_size.files_of(core_size.TOOLS)], ids=relative)
def test_core_and_tools_import_no_executor_or_plugin(path: Path) -> None:
    tree = parsed(path)
    names = {
        name
        for inside in (False, True)
        for statement in imports(tree, inside_functions=inside)
        for name in targets(
            statement,
            module_name(path, core_size.folder_of(core_size.name_of(path).partition("/")[0]).parent),
            is_package=path.name == "__init__.py",
        )
    }
    known = {"switchgear_memory"} if relative(path) in KNOW_MEMORY else set()
    packages = {name.partition(".")[0] for name in names} - known
    assert not [name for name in packages - own.PACKAGES - {*core_size.SHIPPED} if name.startswith("switchgear_")]


@pytest.mark.parametrize("path", CORE_FILES, ids=relative)
def test_core_names_no_vendor(path: Path) -> None:
    """Only PyTorch's own operator names may hold one, as `cudnn_batch_norm` does."""
    code = re.sub(r"_aten\.\w+|torch\.\S+", "", path.read_text())
    assert not re.search(r"nvfuser|cublas|cudnn|triton|inductor", code, re.IGNORECASE)


def test_the_kernel_names_no_feature() -> None:
    """Neither its handlers nor its symbols, in code; import-linter has it that none is imported."""
    handlers = {type(handler) for feature in BUILT_IN for handler in feature.handlers}
    modules = [module for name, module in sys.modules.items() if name.startswith("switchgear_frontend.features.")]
    symbols = {
        (name, value.name)
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, Symbol) and value.fn.__module__ == module.__name__
    }
    names = {handler.__name__ for handler in handlers} | {part for symbol in symbols for part in symbol}
    assert len(handlers) > 15
    assert len(symbols) > 2
    for path in CORE_FILES:
        if "features" not in path.parts:
            words = {token.string.strip("\"'") for token in core_size.code_tokens(path)}
            assert not words & names, relative(path)


def comments(path: Path) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    return {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}


def uncommented_imports(path: Path) -> list[str]:
    """Imports inside functions without a comment that says which cost they avoid; a bare `noqa` says nothing."""
    said = {line: re.sub(r"#\s*(noqa|type)\S*(\s*[A-Z]+\d+,?)*", "", text) for line, text in comments(path).items()}
    found = imports(parsed(path), inside_functions=True)
    return [f"{relative(path)}:{node.lineno}" for node in found if len(said.get(node.lineno, "").split()) < 3]


@pytest.mark.parametrize("path", [*CORE_FILES, *EXECUTOR_FILES, *PLUGIN_FILES], ids=relative)
def test_imports_inside_functions_say_why(path: Path) -> None:
    assert not uncommented_imports(path)


@pytest.mark.parametrize("path", EXECUTOR_FILES, ids=relative)
def test_executors_import_public_names_only(path: Path) -> None:
    own = path.relative_to(EXECUTORS).parts[0]
    statements = [node for inside in (False, True) for node in imports(parsed(path), inside_functions=inside)]
    names = {
        name
        for statement in statements
        for name in targets(statement, module_name(path, EXECUTORS), is_package=path.name == "__init__.py")
    }
    ours = {name for name in names if name.partition(".")[0].startswith("switchgear")} - {"switchgear"}
    strange = {name for name in ours if not name.startswith(own)}
    assert strange <= PUBLIC


@pytest.mark.parametrize("path", EXECUTOR_FILES, ids=relative)
def test_executors_use_public_names_only(path: Path) -> None:
    """`import switchgear as sg`, then `sg.trace.Trace`: public is what stands in `__all__`, not what can be reached."""
    tree = parsed(path)
    aliases = {
        alias.asname or alias.name
        for statement in imports(tree, inside_functions=False)
        if isinstance(statement, ast.Import)
        for alias in statement.names
        if alias.name == "switchgear"
    }
    spelled = {ast.unparse(node).partition(".") for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used = {name for alias, _, name in spelled if alias in aliases}
    modules = "|".join(module.__name__.rpartition(".")[2] for module in MODULES)
    assert {re.match(rf"(({modules})\.)?\w+", name)[0] for name in used} <= {  # type: ignore[index]
        name.partition(".")[2] for name in PUBLIC
    }


def test_public_names_exist_once() -> None:
    assert len(switchgear.__all__) == len(set(switchgear.__all__))
    assert not [name for name in switchgear.__all__ if not hasattr(switchgear, name)]


def test_size_of_the_core(capsys: pytest.CaptureFixture[str]) -> None:
    assert not core_size.report()
    assert "code lines of the core" in capsys.readouterr().out


def test_exceptions_from_the_limits_are_needed() -> None:
    """One that is not any more goes."""
    budget = tomllib.loads(core_size.BUDGET.read_text())
    size, limits = core_size.measure(CORE_FILES), budget["limits"]
    files = {name for name, lines in size.files.items() if lines > limits["file"]}
    classes = {
        name
        for name, (methods, attributes) in size.classes.items()
        if methods > limits["methods"] or attributes > limits["attributes"]
    }
    assert budget["exceptions"].keys() == files | classes


def test_no_file_without_a_topic() -> None:
    vague = {"utils", "util", "common", "helpers", "helper", "misc"}
    assert not [relative(path) for path in [*CORE_FILES, *EXECUTOR_FILES, *PLUGIN_FILES] if path.stem in vague]


def test_no_source_root_hides_a_package() -> None:
    """A folder `torch/` under a source root would be imported in place of PyTorch."""
    roots = [CORE, EXECUTORS, ROOT / "plugins"]
    folders = [path for root in roots for path in root.iterdir() if path.is_dir() and path.name != "__pycache__"]
    names = {path.name for path in folders if path.name.isidentifier()}
    assert all(name == "switchgear" or name.startswith("switchgear_") for name in names)
    assert not any((root / "__init__.py").exists() for root in roots)


def test_every_executor_has_an_entry_point() -> None:
    packages = {path.parent.name for path in EXECUTORS.glob("*/__init__.py")}
    projects = [tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"] for folder in ("core", ".")]
    entries = {key: value for project in projects for key, value in project["entry-points"]["switchgear"].items()}
    assert entries == {name.removeprefix("switchgear_"): name for name in packages}


@pytest.mark.parametrize("start", [start for start, _ in slow_tests()])
def test_what_is_left_out_by_default_is_there(start: str) -> None:
    file, _, name = start.partition("::")
    assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text()


def test_a_share_of_a_battery_runs_by_default_and_all_of_it_by_night() -> None:
    names = [f"tests/test_modes.py::test_autocast[{number}]" for number in range(300)]
    assert 60 < sum(not is_slow(name) for name in names) < 140
    assert is_slow("tests/fuzz/test_programs.py::test_random_programs")
    assert not is_slow("tests/test_layout.py::test_anything")


def test_the_top_offers_public_names_alone() -> None:
    assert {*dir(sg)} == {*sg.__all__, "__version__"}
    assert all(hasattr(module, name) for module in (sg, *MODULES) for name in module.__all__)
    assert len(sg.__all__) <= 40
