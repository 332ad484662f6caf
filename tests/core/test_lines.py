"""What a pass asks of the lines of a trace, and how it replaces some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import switchgear as sg
from switchgear_core.ir.verify import verify
from tests.in_turn import in_turn

DOCS = Path(__file__).parents[2] / "docs"


def trace_of(function: Any, *args: Any) -> sg.Trace:
    jitted = sg.jit(function, executors=["torch"])
    jitted(*args)
    return sg.last_traces(jitted)[0]


def program() -> sg.Trace:
    return trace_of(lambda x: (torch.sin(x), torch.cos(torch.sin(x) * 2).exp()), torch.ones(3))


def test_makers_and_readers() -> None:
    trace = program()
    first, second, product, cosine, last = trace.bound_symbols
    lines = sg.passes.Lines(trace)
    assert lines.maker(first.output) is first
    assert lines.maker(trace.inputs[0]) is lines.maker(3) is None
    assert lines.readers(trace.inputs[0]) == (first, second)
    assert lines.readers(product.output) == (cosine,)

    def seen(*parts: sg.BoundSymbol, output: Any = last.output) -> str:
        return lines.seen_elsewhere(sg.passes.composite(last.symbol, (), output, parts))

    assert seen(first, last) == f"{first.output.name} is returned, or saved"
    assert seen(product, last) == f"{product.output.name} is read elsewhere too"
    assert seen(product, cosine, output=cosine.output) == ""
    assert seen(product, cosine, last, output=(cosine.output, last.output)) == ""
    both = product.output, last.output
    assert seen(product, last, output=both) == f"{product.output.name} is read before all of it is made"
    assert lines.back(last.output, through={"aten.exp.default"}) == [cosine, last]
    assert lines.back(trace.inputs[0]) == []
    assert lines.result() is trace
    assert last.symbol.name == "torch.exp"


def test_calls_are_replaced() -> None:
    trace = program()
    lines = sg.passes.Lines(trace)
    product, cosine = trace.bound_symbols[2:4]
    whole = sg.passes.composite(sg.Symbol("torch.tan", torch.tan), product.inputs, cosine.output, (product, cosine))
    assert (whole.subsymbols, whole.source) == ((product, cosine), cosine.source)
    lines.replace((product, cosine), whole)
    assert lines.maker(product.output) is None
    assert [item.symbol.name for item in verify(lines.result()).bound_symbols] == [
        "torch.sin",
        "torch.sin",
        "torch.tan",
        "torch.exp",
    ]


NORM = (
    "aten.mul.Tensor",
    "x",
    ("aten.rsqrt.default", ("aten.add.Tensor", ("aten.mean.dim", ("aten.mul.Tensor", "x", "x"), [-1], True), "eps")),
)


def norm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.rsqrt((x * x).mean(-1, keepdim=True).double() + 1e-5) * y


def test_a_pattern_is_matched() -> None:
    x, y = torch.ones(2, 3), torch.ones(2, 3)
    trace = trace_of(lambda x: norm(x, x), x)
    lines, through = sg.passes.Lines(trace), {"aten._to_copy.default"}
    match = lines.match(trace.bound_symbols[-1], NORM, through)
    assert match is not None
    assert match.parts == trace.bound_symbols
    assert match.values == {"x": trace.inputs[0], "eps": 1e-5}
    assert lines.match(trace.bound_symbols[-1], NORM) is None  # a cast stands between
    assert lines.match(trace.bound_symbols[0], NORM) is None
    other = trace_of(norm, x, y)
    assert sg.passes.Lines(other).match(other.bound_symbols[-1], NORM, through) is None  # one name, two values


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        (("aten.cat.default", [("aten.neg.default", "x"), "x"], -1), True),
        (("aten.cat.default", ["x", ("aten.neg.default", "x")], -1), False),
        (("aten.cat.default", [("aten.neg.default", "x")], -1), False),
        (("aten.cat.default", [("aten.neg.default", "x"), "x"], 0), False),
        (("aten.cat.default", [("aten.neg.default", "x"), "x"]), False),
    ],
)
def test_a_pattern_of_a_list(pattern: Any, matches: bool) -> None:
    trace = trace_of(lambda x: torch.cat([-x, x], -1), torch.ones(3))
    assert (sg.passes.Lines(trace).match(trace.bound_symbols[-1], pattern) is not None) == matches


def test_fresh_values_have_names_of_their_own() -> None:
    trace = program()
    lines = sg.passes.Lines(trace)
    value = trace.bound_symbols[0].output
    one, two = lines.fresh(value), lines.fresh(value)
    assert len({value.name, one.name, two.name}) == 3
    assert one.shape == value.shape


@in_turn(
    function__name__expected=[
        (lambda x: F.gelu(x), "approximate", "none"),
        (lambda x: F.gelu(x, approximate="tanh"), "approximate", "tanh"),
        (lambda x: F.softplus(x, 3.0), "beta", 3.0),
        (lambda x: F.layer_norm(x, (3,)), "eps", 1e-5),
        (lambda x: x.sum(0, keepdim=True), "keepdim", True),
    ],
)
def test_arguments_by_name(function: Any, name: str, expected: Any) -> None:
    call = trace_of(function, torch.ones(2, 3)).bound_symbols[0]
    assert sg.passes.argument(call, name) == expected
    with pytest.raises(TypeError, match="has no parameter 'nothing'"):
        sg.passes.argument(call, "nothing")


def test_the_leaf_of_a_call() -> None:
    call = trace_of(lambda x: F.linear(x, x), torch.ones(3, 3)).bound_symbols[0]
    assert sg.passes.leaf_of(call) is None  # a transpose and a product
    product = sg.passes.leaf_of(call.subsymbols[-1])
    assert product is not None
    assert product.symbol.name == "aten.mm.default"
    names = [item.name for item in torch.ops.aten.mm.default._schema.arguments]
    assert sg.passes.leaf_of(None) is None
    assert [sg.passes.argument(product, name) for name in names] == list(product.inputs)
