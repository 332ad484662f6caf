"""Check the English of pages and docstrings: glossary, length of sentences, the pronoun "what"; and names in code.

    python -m scripts.prose            # the files listed in pyproject.toml, [tool.prose]
    python -m scripts.prose FILE ...   # these files
    python -m scripts.prose --density  # words, and that pronoun per 1,000 words, of every page and docstring

A listed file stays listed. The list grows until it names all pages and modules. The messages of all modules are
checked, too: the texts of errors, warnings and refusals. So are the names of values: nouns, or assertions of booleans.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE = ("core", "executors", "plugins")
#: The most words of a sentence, and the most such pronouns per 1,000 words of a file.
SENTENCE, WHAT = 25, 2.0
#: Patterns of words to avoid, each with the words to use.
WORDS = {
    r"ma(?:k|d)\w* again|made anew": "recompute",
    r"beside": "next to, compared with",
    r"of late": "recently",
    r"otherwise than": "differently from",
    r"com(?:es?|ing) to (?:a|the) (?:same|sum)": "equals",
    r"tak(?:e|es|ing|en) apart": "flatten, split",
    r"take for granted": "guard",
    r"who (?:takes|took) part": "the executors of the call",
    r"whom": "name the executor",
    r"to the bit": "bit-identical",
    r"compil\w+ anew": "recompile",
    r"cotangents?": "grad output",
    r"what is kept": "residual, saved tensor",
}
_WORDS = [(re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), better) for pattern, better in WORDS.items()]
#: Words that name no value: participles and headless words. `left` is allowed next to `right`, for operands.
_NO_NAME = re.compile(
    "_*(again|apart|asked|called|chosen|done|found|given|gone|held|home|kept|known|left|listed|made|named|noted|put|"
    "removed|said|seen|sent|settled|shown|taken|told|used|what|who|whole|written)"
)
#: Calls with a message for users.
_TELLING = {"warn", "refuse", "_refuse", "Unsupported", "DataDependent", "Declined", "InvalidInput"}
_WORD = re.compile(r"[A-Za-z][\w'’-]*")


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs of a file, each with its line: of a page, or the docstrings and comments of a module."""
    text = path.read_text()
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                place = node.body[0].lineno if node.body else 1
                parts = re.split(r"\n\s*\n", ast.get_docstring(node) or "")
                yield from ((place, part) for part in parts if not part.startswith("    "))
        yield from comments(text)
        return
    text = re.sub(r"^```.*?^```$|<!--.*?-->", lambda block: "\n" * block[0].count("\n"), text, flags=re.M | re.S)
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith(("    ", "#")) and not re.fullmatch(r"[|\s:-]*", line):
            for cell in line.strip().removeprefix("- ").split("|"):
                yield number, cell


def comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield the comments of a module, those on neighbouring lines as one, each with its last line."""
    part: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        if part and line != last + 1:
            yield last, " ".join(part)
            part = []
        words = token.string.lstrip("#: ")
        part += [] if words.startswith(("type:", "noqa", "ruff:", "-- ")) else [words]
        last = line
    if part:
        yield last, " ".join(part)


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the messages of a module, each with its line: texts in errors, warnings and refusals."""
    for node in ast.walk(ast.parse(path.read_text())):
        call = node.exc if isinstance(node, ast.Raise) else node
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if isinstance(node, ast.Raise) or name in _TELLING:
            for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
                if text := _text(argument):
                    yield argument.lineno, text


def names(path: Path) -> list[str]:
    """Return the faults of the names bound in a module: variables, parameters, attributes, caught errors."""
    bound: list[tuple[str, int]] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.arg):
            bound.append((node.arg, node.lineno))
        elif isinstance(node, ast.ExceptHandler):
            bound.append((node.name or "", node.lineno))
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            bound.append((node.id if isinstance(node, ast.Name) else node.attr, node.lineno))
    place = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    allowed = "left" if "right" in dict(bound) else ""
    faulty = [(name, line) for name, line in bound if _NO_NAME.fullmatch(name) and name != allowed]
    return [f"{place}:{line}: {name!r} names no value: use a noun" for name, line in faulty]


def modules() -> list[Path]:
    """Return the modules of the code, without tests."""
    paths = [path for folder in CODE for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in paths if "tests" not in path.relative_to(ROOT).parts]


def _text(node: ast.expr) -> str:
    """Return the text of a string or an f-string, with `X` for each value."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else "`X`" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def plain(text: str) -> str:
    """Return text without code, links and marks of emphasis."""
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"[*_]{1,2}(\S.*?)[*_]{1,2}", r"\1", text)


def faults(path: Path, paragraphs: Iterable[tuple[int, str]] | None = None) -> list[str]:
    """Return the faults of a file, or only of some paragraphs, each as `file:line: fault`."""
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    lines, count, whats = list[str](), 0, 0
    for number, paragraph in texts(path) if paragraphs is None else paragraphs:
        text = plain(paragraph)
        words = _WORD.findall(text)
        count += len(words)
        whats += sum(word.lower() == "what" for word in words)
        for pattern, better in _WORDS:
            lines += [f"{name}:{number}: {met[0]!r}: {better}" for met in pattern.finditer(text)]
        for sentence in re.split(r"[.!?:;](?:\s|$)", text):
            length = len(_WORD.findall(sentence))
            if length > SENTENCE:
                lines.append(f"{name}:{number}: a sentence of {length} words: {' '.join(sentence.split())[:60]} ...")
    if whats > max(1, WHAT * count / 1000):
        lines.append(f"{name}: {whats} times 'what' in {count} words")
    return lines


def density(paths: Sequence[Path]) -> str:
    """Return the number of words, and the count of the pronoun per 1,000 words."""
    words = [word.lower() for path in paths for _, text in texts(path) for word in _WORD.findall(plain(text))]
    return f"{len(words):,} words, {1000 * words.count('what') / max(1, len(words)):.1f} times 'what' per 1,000"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print faults; return 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--density", action="store_true", help="print the densities of pages and docstrings")
    options = parser.parse_args(arguments)
    if options.density:
        print(f"pages: {density([ROOT / 'README.md', *(ROOT / 'docs').glob('*.md')])}")
        print(f"docstrings: {density(modules())}")
        return 0
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["prose"]["files"]
    paths = [path.resolve() for path in options.files] or [path for name in listed for path in sorted(ROOT.glob(name))]
    lines = [line for path in paths for line in faults(path)]
    code = [] if options.files else modules()
    lines += [line for path in code for line in (*faults(path, dict(messages(path)).items()), *names(path))]
    print("\n".join(lines) or f"{len(paths)} files, messages and names of {len(code)} modules: no faults")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
