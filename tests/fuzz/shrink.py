"""Makes a program small that still differs: statements, then parts of expressions, are taken away one by one."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tests.fuzz.programs import Program

#: A small program is a help, not a proof: after so many attempts what is smallest so far is taken.
ATTEMPTS = 400


def shrink(program: Program, differs: Callable[[Program], bool]) -> Program:
    """A smaller program for which `differs` holds; greedy, until nothing more can be taken away."""
    attempts, seen = 0, {repr(program)}
    while attempts < ATTEMPTS:
        for smaller in _smaller(program):
            if repr(smaller) in seen:
                continue
            seen.add(repr(smaller))
            attempts += 1
            if differs(smaller):
                program = smaller
                break
            if attempts == ATTEMPTS:
                return program
        else:
            return program
    return program


def _smaller(program: Program) -> Iterator[Program]:
    """Every program with one thing less, the largest things first."""
    for place in range(len(program.calls)) if len(program.calls) > 1 else ():
        rest = [text for other, text in enumerate(program.calls) if other != place]
        yield replace(program, calls=tuple(_numbered(text, number) for number, text in enumerate(rest)))
    if program.write:
        yield replace(program, write=None)
    if program.options:
        yield replace(program, options={})
    yield from (replace(program, function=text) for text in _edits(program.function, _without_a_statement))
    yield from (replace(program, function=text) for text in _edits(program.function, _without_a_name))
    yield from _without_an_argument(program)
    yield from (replace(program, function=text) for text in _edits(program.function, _with_a_simpler_expression))
    for place, call in enumerate(program.calls):
        for text in _edits(call, _with_a_simpler_expression):
            yield replace(program, calls=(*program.calls[:place], text, *program.calls[place + 1 :]))


def _numbered(call: str, number: int) -> str:
    return f"def call_{number}" + call[call.index("(") :]


def _edits(text: str, edit: Callable[[ast.Module], Iterator[ast.Module]]) -> Iterator[str]:
    before = ast.unparse(ast.parse(text))
    for tree in edit(ast.parse(text)):
        after = ast.unparse(ast.fix_missing_locations(tree))
        if after != before and len(after) < len(before):
            yield after


def _bodies(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse"):
            body = getattr(node, name, None)
            if isinstance(body, list):
                yield body


def _without_a_statement(tree: ast.Module) -> Iterator[ast.Module]:
    """Without one statement, or with its body in place of a block."""
    for body in list(_bodies(tree)):
        for place in reversed(range(len(body))):
            statement, inner = body[place], getattr(body[place], "body", [])
            body[place : place + 1] = [] if len(body) > 1 else [ast.Pass()]
            yield copy.deepcopy(tree)
            body[place : place + (len(body) == 1 and isinstance(body[0], ast.Pass))] = [statement]
            if inner and not isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                body[place : place + 1] = inner
                yield copy.deepcopy(tree)
                body[place : place + len(inner)] = [statement]


def _without_a_name(tree: ast.Module) -> Iterator[ast.Module]:
    """Without `y = x`: what reads y reads x."""
    for body in list(_bodies(tree)):
        for place, statement in enumerate(body if len(body) > 1 else ()):
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name(id=other)):
                    del body[place]
                    renamed = copy.deepcopy(tree)
                    body.insert(place, statement)
                    for node in ast.walk(renamed):
                        if isinstance(node, ast.Name) and node.id == name:
                            node.id = other
                    yield renamed


def _without_an_argument(program: Program) -> Iterator[Program]:
    """Without one positional argument, in the function and in every call."""
    for number in reversed(range(program.calls[0].count("    a"))):
        try:
            function = _without_parameter(program.function, f"a{number}")
            calls = tuple(_without_element(call, f"a{number}") for call in program.calls)
        except ValueError:
            continue
        yield replace(program, function=function, calls=calls)


def _without_parameter(text: str, name: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(argument.arg == name for argument in node.args.args):
            node.args.args = [argument for argument in node.args.args if argument.arg != name]
            return ast.unparse(tree)
    raise ValueError(name)


def _without_element(text: str, name: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            arguments = node.value.elts[1]
            if isinstance(arguments, ast.Tuple):
                arguments.elts = [one for one in arguments.elts if ast.unparse(one) != name]
    return ast.unparse(tree)


def _with_a_simpler_expression(tree: ast.Module) -> Iterator[ast.Module]:
    """With an expression replaced by one that it is made of."""
    for node in ast.walk(tree):
        for field, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                for part in _parts(value):
                    setattr(node, field, part)
                    yield copy.deepcopy(tree)
                setattr(node, field, value)
            elif isinstance(value, list) and value and isinstance(value[0], ast.expr):
                yield from _with_a_simpler_element(tree, value)


def _with_a_simpler_element(tree: ast.Module, elements: list[Any]) -> Iterator[ast.Module]:
    for place, element in enumerate(list(elements)):
        for part in _parts(element):
            elements[place] = part
            yield copy.deepcopy(tree)
        elements[place] = element
        del elements[place]
        yield copy.deepcopy(tree)
        elements.insert(place, element)


def _parts(expression: ast.expr) -> list[ast.expr]:
    if isinstance(expression, ast.BinOp):
        return [expression.left, expression.right]
    if isinstance(expression, ast.Call):
        receiver = [expression.func.value] if isinstance(expression.func, ast.Attribute) else []
        return [*expression.args, *receiver]
    if isinstance(expression, (ast.Attribute, ast.Subscript, ast.Starred)):
        return [expression.value]
    if isinstance(expression, (ast.Tuple, ast.List)):
        return list(expression.elts)
    if isinstance(expression, ast.Dict):
        return list(expression.values)
    return [expression.operand] if isinstance(expression, ast.UnaryOp) else []
