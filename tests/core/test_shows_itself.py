"""Objects show themselves: a readable `repr` of at most 5,000 characters and 120 columns, and the same in notebooks."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import switchgear as sg
from switchgear_core.ir.symbol import DEL, Source
from switchgear_core.showing import folded, wrapped
from tests.core.training import backward, executor, forward, lines
from tests.falling_back import fallback_told

CPU = torch.device("cpu")
ATEN = torch.ops.aten


def proxy(name: str) -> sg.TensorProxy:
    return sg.TensorProxy(name, (1, 2), (2, 1), torch.float32, CPU)


def call(fn: Any, output: object, *args: object, source: Source | None = None) -> sg.BoundSymbol:
    return sg.BoundSymbol(sg.Symbol(str(fn), fn), args, {}, output, source=source)


def long_trace(count: int) -> sg.Trace:
    """A chain of so many sines."""
    values = [proxy(f"t{index}") for index in range(count + 1)]
    body = [call(ATEN.sin.default, values[index + 1], values[index]) for index in range(count)]
    return sg.Trace("computation", (values[0],), (values[-1],), tuple(body))


def wide_trace(count: int) -> sg.Trace:
    """One with more of everything than a line holds: inputs, results, arguments and deletions."""
    inputs = tuple([proxy(f"a_rather_long_name_{index}") for index in range(count)])
    stacked = proxy("stacked")
    parts = tuple([proxy(f"pa_{index}") for index in range(count)])
    body = (
        call(ATEN.stack.default, stacked, [*inputs], source=Source("model.py", 1, "a.module" * 30)),
        call(DEL.fn, None, *inputs),
        call(ATEN.unbind.int, parts, stacked),
    )
    body = (body[0], replace(body[1], symbol=DEL), body[2])
    return sg.Trace("computation", inputs, parts, body)


def run(text: str, *args: Tensor) -> Any:
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    return namespace["computation"](*args)


def is_narrow(text: str) -> bool:
    return max(map(len, text.splitlines())) <= 120


def is_short(text: str) -> bool:
    return len(text) <= 5_000 and len(text.splitlines()) <= 61 and is_narrow(text)


@pytest.fixture(scope="module")
def gpt2() -> Any:
    """A jitted GPT-2 of two blocks after a step."""
    config = GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=32, n_positions=16, bos_token_id=0, eos_token_id=0)
    jitted = sg.jit(GPT2LMHeadModel(config).train(), executors=["torch"])
    ids = torch.randint(0, 32, (2, 8))
    jitted(input_ids=ids, labels=ids).loss.backward()
    return jitted


# --- traces ---


def test_what_gpt2_shows_is_short(gpt2: Any) -> None:
    stages = [*sg.last_traces(gpt2), *sg.last_backward_traces(gpt2)]
    shown = [repr(replace(trace, links_shown=True)) for trace in stages]
    shown += map(
        repr, (sg.last_traces(gpt2), sg.last_backward_traces(gpt2), sg.last_choices(gpt2), sg.last_saved(gpt2))
    )
    shown += map(repr, backward(gpt2).bound_symbols)
    assert all(map(is_short, shown))
    assert all(is_narrow(trace.python(link=True)) for trace in (stages[0], backward(gpt2)))


def test_long_trace_shows_its_first_lines_and_how_many_are_left_out() -> None:
    trace = long_trace(5_000)
    text = repr(trace)
    assert is_short(text)
    assert str(trace) == text
    *shown, last = text.splitlines()
    count = sum(" = torch.ops.aten.sin.default(" in line for line in shown)
    assert count > 30
    assert last == f"# ... {5_001 - count:,} more lines; all of it: print(trace.python())"
    assert trace.python().count("aten.sin.default(") == 5_000


def test_short_trace_is_shown_whole_and_runs() -> None:
    trace = long_trace(20)
    assert repr(trace) == trace.python().rstrip()
    assert torch.equal(run(repr(trace), torch.ones(2))[0], trace.function()(torch.ones(2))[0])


def test_of_many_inputs_the_first_are_shown_before_the_calls() -> None:
    text = repr(wide_trace(500))
    assert is_short(text)
    assert "def computation(a_rather_long_name_0, " in text
    assert text.count("more lines of inputs") == 2
    assert text.endswith("more lines; all of it: print(trace.python())")


def test_folded_text_runs() -> None:
    trace = wide_trace(40)
    text = trace.python()
    assert is_narrow(text)
    inputs = [torch.full((2,), float(index)) for index in range(40)]
    assert all(map(torch.equal, run(text, *inputs), inputs))
    assert text.count("    del ") > 1
    assert text.count('"cpu f32[1, 2]"') == 40 + 1 + 40  # no type is parted


def test_constants_and_timings_come_last() -> None:
    jitted = sg.jit(lambda x: x * torch.tensor(2.5) + torch.tensor([1.0, 2.0]), executors=["torch"])
    jitted(torch.ones(2))
    head, end = forward(jitted).python().split("    return ")
    assert "passes" not in head
    assert "constant" not in head
    assert "torch.tensor(2.5, dtype=torch.float32)" in end
    assert re.search(r"# \w+: constant tensor \[2\] torch.float32\n# passes: capture [\d.]+ ms  ", end)


def test_bound_symbol_shows_its_line(gpt2: Any) -> None:
    trace = forward(gpt2)
    text = re.sub(r"\n {8}(?!#)", " ", trace.python())
    for item in lines(trace):
        code, _, _ = re.sub(r"\n {8}(?!#)", " ", repr(item)).partition("  #")
        assert f"\n    {code.strip()}" in text


def test_comments_stand_beside_the_code_as_far_as_they_fit() -> None:
    code = f"    t0 = f({', '.join(['argument'] * 5)})"
    comment = f"types  {'place ' * 9} module  {'rule ' * 25}"
    assert folded(code, comment) == [
        f"{code}  # types",
        f"        # {'place ' * 9} module",
        f"        #     {'rule ' * 21}".rstrip(),
        f"        #     {'rule ' * 4}".rstrip(),
    ]
    assert folded("", "short") == ["# short"]


@pytest.mark.parametrize(
    "text", ["", "   ", "x" * 500, "a  " * 200, "  indented " + "word " * 60, " " * 200 + "word " * 60, "two\nlines"]
)
def test_any_text_is_wrapped(text: str) -> None:
    shown = wrapped(text)
    assert shown
    assert all(len(line) <= 120 and line.isprintable() for line in shown)


# --- regions ---


class Fusing(sg.FusionExecutor):
    """Takes everything, and runs a region by PyTorch."""

    def supports(self, bound_symbol: sg.BoundSymbol) -> None:
        return None

    def compile(self, region: sg.Trace) -> Callable[..., Any]:
        return region.function()


class Waves(nn.Module):
    """Has so many operators in a submodule."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.count):
            x = torch.sin(x)
        return x


def fused(count: int) -> Any:
    jitted = sg.jit(nn.Sequential(nn.Identity(), Waves(count)), executors=[Fusing("fusing"), "torch"])
    jitted(torch.ones(3, requires_grad=True)).sum().backward()
    return jitted


def test_region_shows_its_operators_with_owner_and_module() -> None:
    jitted = fused(3)
    text = forward(jitted).python()
    parts = re.findall(r"^    #   t\d+ = torch\.ops\.aten\.sin\.default\(\w+\)  fusing  \S+:\d+ 1$", text, re.MULTILINE)
    assert len(parts) == 3
    assert "3 operators by fusing" in text
    assert "compiled by fusing" in text
    linked = backward(jitted).python(link=True)
    assert re.search(
        r"^    #   t\d+ = .*\)  fusing  forward: t\d = torch\.sin  \S+ 1\s+(# +)?rule: derived", linked, re.MULTILINE
    )


def test_region_with_many_operators_shows_the_first() -> None:
    trace = forward(fused(100))
    assert is_short(repr(trace))
    assert "#   ... 88 more operators" in repr(trace)
    assert repr(trace).endswith("# ... shortened; all of it: print(trace.python())")
    assert trace.python().count("  fusing  ") == 100


def test_a_call_that_an_executor_takes_whole_shows_no_parts() -> None:
    mine = executor("mine", {nn.functional.gelu: lambda x, approximate="none": x * 2})
    jitted = sg.jit(lambda x: nn.functional.gelu(x), executors=[mine, "torch"])
    jitted(torch.ones(3))
    assert "#   " not in forward(jitted).python().partition("# passes")[0]


# --- lists ---


def test_stages_show_name_operators_and_meaning() -> None:
    stages = sg.last_traces(fused(3))
    shown = repr(stages).splitlines()
    assert len(shown) == len(stages)
    assert re.match(r" +0  capture +computation +\d operators  calls as the function makes them$", shown[0])
    assert re.search(r"fuse +forward .* by fusing 3 in 1 region  each region one call", repr(stages))
    assert shown[-1].endswith("this runs")


def test_part_of_a_list_shows_itself_as_well(gpt2: Any) -> None:
    stages = sg.last_traces(gpt2)
    assert repr(stages[1:3]).count("\n") == 1
    assert isinstance(stages[-1], sg.Trace)
    assert repr(stages[:0]) == "()"


def test_equal_choices_are_counted(gpt2: Any) -> None:
    choices = sg.last_choices(gpt2)
    text = repr(choices)
    assert re.match(r" *\d\d x aten\.view\.default: execution by torch\n", text)
    assert "no grad rule for" not in text
    assert repr(choices[0]) == f"<{choices[0]}>"
    assert is_short(repr(replace(choices[0], declined=(("other", "a reason " * 900),))))


def test_long_list_says_how_many_are_left_out(gpt2: Any) -> None:
    count = sum(len(wrapped(row)) for row in sg.last_choices(gpt2).rows())
    shown = repr(sg.last_choices(gpt2)).splitlines()
    assert shown[-1] == f"... {count - len(shown) + 1} more lines"


# --- what users hold ---


def test_jitted_function_says_what_came_of_its_calls() -> None:
    jitted = sg.jit(lambda x: x * 2, executors=["torch"])
    assert repr(jitted).endswith("<lambda>): not called yet>")
    jitted(torch.ones(2))
    assert repr(jitted).endswith("<lambda>): 1 call, 1 compiled entry, 0 in eager>")
    jitted(torch.ones(2, 3))
    jitted(torch.ones(2, 3))
    assert repr(jitted).endswith("<lambda>): 3 calls, 2 compiled entries, 0 in eager>")
    assert repr(sg.jit(torch.sin)) == "<sg.jit(sin): not called yet>"


def test_jitted_function_says_that_it_fell_back() -> None:
    jitted = sg.jit(lambda x: x * x.sum().item(), executors=["torch"], fallback="eager")
    with fallback_told():
        jitted(torch.ones(2))
    assert repr(jitted).endswith("1 call, 0 compiled entries, 1 in eager>")


def test_jitted_module_shows_in_a_notebook_what_came_of_its_calls() -> None:
    jitted: Any = sg.jit(nn.Linear(3, 4), executors=["torch"])
    jitted(torch.ones(2, 3))
    html = jitted._repr_html_()
    assert "# sg.jit: 1 call, 1 compiled entry, 0 in eager" in html
    assert "Linear(in_features=3, out_features=4, bias=True)" in html


def test_jitted_module_that_has_its_own_display_keeps_it() -> None:
    class Own(nn.Linear):
        def _repr_html_(self) -> str:
            return "<b>mine</b>"

    jitted: Any = sg.jit(Own(3, 4), executors=["torch"])
    assert jitted._repr_html_() == "<b>mine</b>"


def test_plan_is_a_table() -> None:
    plan = sg.plan(nn.Linear(3, 4), torch.ones(2, 3))
    assert repr(plan) == str(plan)
    assert repr(plan).startswith("memory  saved bytes")


def test_tables_executors_and_regions_are_a_line() -> None:
    mine = executor("mine", {torch.sin: torch.cos, torch.cos: torch.sin}, {torch.exp: torch.exp})
    assert repr(mine.table) == "<Table 'mine': implementations of torch.sin, torch.cos; grad rules for torch.exp>"
    assert repr(sg.Table("empty")) == "<Table 'empty': empty>"
    assert repr(mine) == "Executor('mine', priority=0)"
    assert repr(sg.Executor("other", version="1.2")) == "Executor('other', priority=0, version='1.2')"
    assert repr(sg.executors.Registry()) == "<Registry: 0 implementations, 0 grad rules>"
    assert repr(sg.Fuel(3)) == "<Fuel: 0 regions fused, limit 3>"
    region = sg.executors.Region(long_trace(2), long_trace(2), (Fusing("fusing"),))
    assert repr(region) == "<Region of 2 operators for fusing: aten.sin.default, aten.sin.default>"
    assert is_short(repr(sg.executors.Region(long_trace(999), long_trace(999), ())))


def test_notebooks_get_escaped_text_without_scripts_or_colours(gpt2: Any) -> None:
    plan = sg.plan(nn.Linear(3, 4), torch.ones(2, 3))
    trace = forward(gpt2)
    identity: Any = lambda x: x  # noqa: E731
    mine: Any = sg.jit(identity)
    objects: tuple[Any, ...]
    objects = (trace, trace.bound_symbols[0], sg.last_traces(gpt2), sg.last_choices(gpt2), mine, plan, sg.Table("mine"))
    for shown in (*objects, gpt2):
        html = shown._repr_html_()
        assert len(html) < 20_000
        assert set(re.findall(r"</?(\w+)", html)) <= {"pre", "span"}
        assert not re.search(r"[\"; ](background-)?color:|http", html)
    assert "<lambda>" not in mine._repr_html_()
    assert "&lt;lambda&gt;" in mine._repr_html_()


def test_names_with_markup_are_escaped() -> None:
    model = nn.Sequential()
    model.add_module("<script>alert(1)</script>", nn.Linear(3, 4))
    jitted: Any = sg.jit(model, executors=["torch"])
    jitted(torch.ones(2, 3))
    for shown in (forward(jitted), forward(jitted).bound_symbols[0], jitted):
        html = shown._repr_html_()
        assert "<script" not in html
        assert "&lt;script&gt;" in html


def test_terminal_and_environment_change_nothing(monkeypatch: pytest.MonkeyPatch, gpt2: Any) -> None:
    text = repr(forward(gpt2))
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    assert repr(forward(gpt2)) == text
    assert "\x1b" not in text
    assert lines(forward(gpt2))


def test_report_on_plugins_is_a_line_or_two_each() -> None:
    report = sg.plugin_report()
    assert len(re.findall(r"^\S", repr(report), re.MULTILINE)) == len(report)
    assert re.search(r"^torch [\d.]+: loaded, executors: torch", repr(report), re.MULTILINE)


def test_a_module_with_many_parts_shows_the_first_in_a_notebook() -> None:
    jitted: Any = sg.jit(nn.Sequential(*[nn.Linear(3, index + 1) for index in range(300)]))
    assert len(jitted._repr_html_()) < 6_000
    assert re.search(r"\.\.\. \d+ more lines</pre>$", jitted._repr_html_())
