"""What `sg.explain` returns: the summary, its details, and the dict."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import switchgear as sg
from switchgear_tools.explanation import Explanation
from tests.core.against_eager import numbers
from tests.libraries.tiny import gpt2

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "explain.schema.json").read_text())


class Absent(sg.Executor):
    def unavailable(self) -> str:
        return "no such device"


class Fusing(sg.FusionExecutor):
    """Takes sines and cosines."""

    def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
        is_taken = bound_symbol.symbol.name in ("aten.sin.default", "aten.cos.default")
        return None if is_taken else sg.Declined(f"no kernel for {len(bound_symbol.inputs)} tensors")

    def compile(self, region: sg.Trace) -> Any:
        return region.function()


def prints(x: Tensor) -> Tensor:
    print("hello")
    return x.sin()


def branches(x: Tensor) -> Tensor:
    y = x.sin()
    return y.cos() if y.sum() > 0 else y.exp()


def called(function: Any, *args: Any, **options: Any) -> Any:
    jitted = sg.jit(function, **{"executors": ["torch"], **options})
    jitted(*args)
    return jitted


def faults(value: Any, schema: dict[str, Any], place: str = "") -> list[str]:
    """How a value differs from a JSON schema, as far as ours goes."""
    assert schema.keys() <= {
        *["type", "properties", "required", "additionalProperties", "items", "enum", "$schema", "title", "description"]
    }
    names: dict[str, Any] = {"object": dict, "array": (list, tuple), "string": str, "boolean": bool, "null": type(None)}
    kinds: dict[str, Any] = {**names, "integer": int, "number": (int, float)}
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    is_bool = isinstance(value, bool) and "boolean" not in types
    if is_bool or not any(isinstance(value, kinds[one]) for one in types):
        return [f"{place}: {value!r} is no {types}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{place}: {value!r}"]
    found = []
    if isinstance(value, dict):
        own, others = schema.get("properties", {}), schema["additionalProperties"]
        found += [f"{place}.{name} is missing" for name in {*schema.get("required", ())} - value.keys()]
        for name, part in value.items():
            kind = own.get(name, others)
            found += [f"{place}.{name} is unknown"] if not kind else faults(part, kind, f"{place}.{name}")
    elif isinstance(value, (list, tuple)):
        found += [fault for part in value for fault in faults(part, schema["items"], f"{place}[]")]
    return found


def checked(explanation: Explanation) -> dict[str, Any]:
    """The dict of an explanation, which the schema describes, as JSON holds it."""
    assert faults(explanation.as_dict(), SCHEMA) == []
    held: dict[str, Any] = json.loads(json.dumps(explanation.as_dict()))
    return held


def test_says_once_who_was_skipped_and_names_those_alone_who_objected() -> None:
    picky = sg.Table("picky")
    picky.implementation(torch.ops.aten.sin.default, checker=lambda x: sg.Declined("not today"))(torch.sin)
    executors: list[str | sg.Executor] = [
        Absent("absent"),
        sg.Executor("picky", table=picky),
        sg.Executor("idle"),
        "torch",
    ]
    with pytest.warns(sg.errors.PluginWarning, match="absent is listed but skipped"):
        jitted = sg.jit(lambda x: x.sin().cos(), executors=executors)
    jitted(numbers(3, grad=True)).sum().backward()
    who = ("executors: picky, idle, torch", "skipped: absent: unavailable: no such device")
    report = sg.explain(jitted).operators().lines
    assert report[:2] == who
    assert "   2 x aten.sin.default: execution by torch; picky: not today" in report
    assert not any("absent" in line or "idle" in line for line in report[2:])
    assert str(sg.explain(jitted)).splitlines()[2:4] == [*who]


def test_the_summary_of_a_training_step() -> None:
    jitted = sg.jit(lambda x: (x.sin().cos() * x).sum(), executors=[Fusing("fusing"), "torch"], memory="lean")
    jitted(numbers(8, grad=True)).backward()
    text = str(sg.explain(jitted))
    assert "<lambda>\n1 call, compiled once, 0 fell back\n" in text
    assert (
        "executor  forward  backward  regions\ntorch           2         7\nfusing          2         4        2\n"
        in text
    )
    assert "saved for the backward: 0 bytes in 0 tensors, 0.00 of eager's 128 bytes," in text
    assert "\nnot fused, and why\n" in text
    assert re.search(r"  fusing: no kernel for \d to \d tensors\n", text)


def test_forty_lines_for_gpt2() -> None:
    ids = torch.zeros(1, 4, dtype=torch.int64)
    cases: list[tuple[int, list[str | sg.Executor]]] = [(12, ["torch"]), (2, [Fusing("fusing"), "torch"])]
    for layers, executors in cases:
        jitted = sg.jit(gpt2(layers), executors=executors)
        jitted(input_ids=ids, labels=ids).loss.backward()
        explanation = sg.explain(jitted)
        lines = str(explanation).splitlines()
        assert len(lines) <= 40
        assert max(map(len, lines)) <= 80
        checked(explanation)


@pytest.mark.slow
@pytest.mark.discovery
def test_forty_lines_for_gpt2_by_default() -> None:
    jitted = sg.jit(gpt2(12))
    ids = torch.zeros(1, 4, dtype=torch.int64)
    for _ in range(2):
        jitted(input_ids=ids, labels=ids).loss.backward()
        sg.wait(jitted)
    explanation = sg.explain(jitted)
    lines = str(explanation).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert checked(explanation)["by_executor"][0]["gain_seconds"] > 0


def test_nothing_called_yet() -> None:
    explanation = sg.explain(sg.jit(prints))
    assert str(explanation).startswith("prints\nnot called yet; sg.explain(f, *args) explains a call before it runs\n")
    details = [explanation.gradients(), explanation.saved(), explanation.guards(), explanation.recompilations()]
    assert [str(one) for one in details] == [
        "no operator is differentiated",
        "nothing is saved",
        "no guards: nothing is compiled",
        "nothing was compiled",
    ]
    assert checked(explanation)["calls"]["total"] == 0


@pytest.mark.filterwarnings("ignore::switchgear.errors.FallbackWarning")
def test_only_fallbacks() -> None:
    explanation = sg.explain(called(prints, torch.ones(3)))
    text = str(explanation)
    assert text.startswith("prints\n1 call, never compiled, 1 fell back\n")
    assert "1 of 1 calls (100%) ran in eager, not compiled:\n  1 x Unsupported: the function prints" in text
    assert 'sg.jit(..., fallback="error")' in text
    (fallback,) = checked(explanation)["calls"]["fallbacks"]
    assert str(explanation.fallbacks()) == f"   1 x {fallback['reason']} (0 split by TorchDynamo)"


@pytest.mark.filterwarnings("ignore::switchgear.errors.FallbackWarning")
def test_a_split_function_shows_the_executors_of_its_graphs() -> None:
    explanation = sg.explain(called(branches, torch.ones(3), specialize_on_data=False, fallback="split"))
    text = str(explanation)
    assert "TorchDynamo: 2 of 2 graphs compiled, with " in text
    assert "executor  forward\ntorch " in text
    graphs = checked(explanation)["calls"]["splits"][0]["graphs"]
    assert [program["graph"] for program in checked(explanation)["programs"]] == [one["place"] for one in graphs]


def test_several_entries() -> None:
    jitted = called(torch.sin, torch.ones(3))
    jitted(torch.ones(3, dtype=torch.float64))
    explanation = sg.explain(jitted)
    assert "2 calls, compiled twice, 0 fell back; the last one shown" in str(explanation)
    first, second = explanation.recompilations().lines
    assert first == "   1. the first call"
    assert second.startswith("   2. the dtype of argument 0 changed from ")


@pytest.mark.parametrize("columns", ["40", "60", "300"])
def test_it_is_wrapped_and_never_cut(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    jitted = called(lambda x: (x.sin() * x).sum(), numbers(8, grad=True), executors=[Fusing("fusing"), "torch"])
    wide = sg.explain(jitted).text(80)
    monkeypatch.setenv("COLUMNS", columns)
    text = str(sg.explain(jitted))
    assert all(len(line) <= min(int(columns), 80) or " " not in line.strip() for line in text.splitlines())
    assert text.split() == wide.split()


def test_guards_tell_the_data_that_a_program_is_for() -> None:
    jitted = called(lambda x: x * 2 if x.sum() > 0 else x, torch.ones(3), specialize_on_data=True)
    (line,) = [one for one in sg.explain(jitted).guards().lines if one.startswith("data")]
    assert re.fullmatch(r"data at test_explain\.py:\d+: True", line)
    jitted(-torch.ones(3))
    reason = sg.explain(jitted).recompilations().lines[-1]
    assert re.search(
        r"item\(\), or a branch on a tensor, gave True, and gives False, in .*test_explain\.py:\d+", reason
    )


def test_reasons_that_differ_in_numbers_alone_show_their_range() -> None:
    class Counting(Fusing):
        def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
            return sg.Declined(f"of {bound_symbol.inputs[0].shape[0]} rows, fewer than 8")

    jitted = called(lambda x, y: (x.sin(), y.sin()), torch.ones(3), torch.ones(5), executors=[Counting("own"), "torch"])
    assert "own: of 3 to 5 rows, fewer than 8" in str(sg.explain(jitted))


def test_a_number_sign_in_a_reason_is_no_number() -> None:
    class Counting(Fusing):
        def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
            return sg.Declined("of # rows" if bound_symbol.inputs[0].shape[0] == 3 else "of 5 rows")

    jitted = called(lambda x, y: (x.sin(), y.sin()), torch.ones(3), torch.ones(5), executors=[Counting("own"), "torch"])
    text = str(sg.explain(jitted))
    assert "own: of # rows" in text
    assert "own: of 5 rows" in text


def test_long_reasons_say_that_there_is_more() -> None:
    reason = "because " + "of this and that " * 40

    class Chatty(Fusing):
        def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
            return sg.Declined(f"{reason}\nand more")

    jitted = called(torch.sin, torch.ones(3), executors=[Chatty("chatty"), "torch"])
    assert re.search(r"chatty: because of this[^.]+ …\n", str(sg.explain(jitted)))
    assert reason in str(sg.explain(jitted).operators())


def test_in_a_notebook_markup_is_text() -> None:
    module = nn.Sequential()
    module.add_module("<b>", nn.Tanh())
    explanation = sg.explain(called(lambda x: module(x), torch.ones(3)))
    shown = explanation._repr_html_()
    assert shown.startswith("<pre ")
    assert "&lt;lambda&gt;" in shown
    assert "<b>" not in shown + explanation.guards()._repr_html_()
    assert repr(explanation) == str(explanation)


def test_details_show_their_first_lines_and_print_all() -> None:
    def function(x: Tensor) -> Tensor:
        for number in range(100):
            x = (x * number).sin()
        return x.sum()

    saved = sg.explain(called(function, numbers(3, grad=True))).saved()
    assert len(repr(saved)) <= 5_000
    assert repr(saved).endswith(" more lines")
    assert len(str(saved).splitlines()) == len(saved.lines) == len(saved.records) + 1
