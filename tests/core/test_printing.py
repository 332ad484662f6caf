"""Traces print as Python that runs: exact text of small ones, and every stage of many run from its text."""

from __future__ import annotations

import enum
import math
import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional

import switchgear as sg
from switchgear_core.ir.printing import Scope
from switchgear_core.ir.symbol import DEL, Source
from switchgear_core.ir.trace import compile_trace
from tests.core.against_eager import numbers
from tests.in_turn import in_turn
from tests.oracle import differences

T = torch.Tensor
CPU = torch.device("cpu")


def jit(target: Any) -> Any:
    return sg.jit(target, executors=["torch"])


def stable(text: str) -> str:
    """A printed trace without what changes from run to run: times and the lines of this file."""
    return re.sub(r"test_printing\.py:\d+", "test_printing.py:N", re.sub(r"[\d.]+ ms", "N ms", text))


def unfolded(text: str) -> str:
    """A printed trace in which each comment stands beside its code."""
    return re.sub(r"\n {8}# +", "  ", text)


def run(trace: sg.Trace, inputs: Sequence[T], **options: bool) -> Any:
    """Run the text of a trace next to its constants, but for those that are numbers: the text itself defines these."""
    namespace: dict[str, Any] = {
        name: value for name, value in trace.constants.items() if not isinstance(value, T) or value.dim()
    }
    exec(trace.python(**options), namespace)
    return namespace[trace.name](*inputs)


# --- exact text ---


def test_text_of_a_forward() -> None:
    def affine(x: T, w: T) -> T:
        return torch.tanh(functional.linear(x, w) + torch.tensor([1.0, 2.0]))

    jitted = jit(affine)
    jitted(torch.ones(4, 3), torch.ones(2, 3))
    traces = sg.last_traces(jitted)
    assert stable(str(traces[0])) == (
        "import torch\n"
        "\n"
        "def computation(t_0, t_1):\n"
        '    # t_0: "cpu f32[4, 3]"  t_1: "cpu f32[2, 3]"\n'
        '    t1 = torch.nn.functional.linear(t_0, t_1)  # t1: "cpu f32[4, 2]"  test_printing.py:N\n'
        '    t2 = torch.ops.aten.clone.default(c0)  # t2: "cpu f32[2]"  test_printing.py:N\n'
        '    t3 = torch.add(t1, t2)  # t3: "cpu f32[4, 2]"  test_printing.py:N\n'
        '    t4 = torch.tanh(t3)  # t4: "cpu f32[4, 2]"  test_printing.py:N\n'
        "    return (t4,)\n"
        "\n"
        "# c0: constant tensor [2] torch.float32\n"
        "# passes: capture N ms"
    )
    program, _, passes = stable(traces[-1].python()).partition("# passes: ")
    names = ["capture", "dead_code", "fold_constants", "claim", "dead_code", "free_last_used"]
    assert re.findall(r"(\w+) N ms", passes) == names
    assert program == (
        "import torch\n"
        "\n"
        "def computation(t_0, t_1):\n"
        '    # t_0: "cpu f32[4, 3]"  t_1: "cpu f32[2, 3]"\n'
        '    t1 = torch.nn.functional.linear(t_0, t_1)  # t1: "cpu f32[4, 2]"  test_printing.py:N\n'
        "    del t_0, t_1\n"
        '    t3 = torch.add(t1, t2)  # t3: "cpu f32[4, 2]"  test_printing.py:N\n'
        "    del t1\n"
        '    t4 = torch.tanh(t3)  # t4: "cpu f32[4, 2]"  test_printing.py:N\n'
        "    del t3\n"
        "    return (t4,)\n"
        "\n"
        "# t2: constant tensor [2] torch.float32\n"
    )
    shown = stable(traces[0].python(decompositions=True)).splitlines()
    start = shown.index('    t1 = torch.nn.functional.linear(t_0, t_1)  # t1: "cpu f32[4, 2]"  test_printing.py:N')
    assert shown[start + 1 : start + 3] == [
        "    #   t0 = torch.ops.aten.t.default(t_1)",
        "    #   t1 = torch.ops.aten.mm.default(t_0, t0)",
    ]


def test_text_of_a_linked_backward() -> None:
    jitted = jit(torch.nn.Linear(100, 10, bias=False))
    jitted(torch.ones(10, 100)).sum().backward()
    forward, backward = sg.last_traces(jitted)[-1], sg.last_backward_traces(jitted)[-1]
    body = stable(forward.python()).split("\n\n")[1]
    assert body == (
        "def forward(t_0, t_weight):\n"
        '    # t_0: "cpu f32[10, 100]"  t_weight: "cpu f32[10, 100]"\n'
        '    t1 = torch.nn.functional.linear(t_0, t_weight)  # t1: "cpu f32[10, 10]"  test_printing.py:N\n'
        "    del t_weight\n"
        "    return (t1, t_0)"
    )
    tie = "forward: t1 = torch.nn.functional.linear  test_printing.py:N  rule: derived"
    linked = unfolded(stable(backward.python(link=True)).split("\n\n", 1)[1])
    assert linked.startswith("def backward(t_0, g_t1):\n")
    lines = [line.strip() for line in linked.splitlines() if " = torch." in line]
    assert lines
    assert all(tie in line for line in lines)
    assert not any("forward:" in line for line in backward.python().splitlines())


def test_text_of_an_empty_trace() -> None:
    assert sg.Trace("computation", (), (), ()).python() == "import torch\n\ndef computation():\n    return ()\n"


def test_type_strings() -> None:
    def proxy(dtype: torch.dtype, *shape: int) -> str:
        return sg.TensorProxy("t", shape, (), dtype, CPU).type_string

    assert [proxy(torch.bfloat16, 2, 3), proxy(torch.bool), proxy(torch.complex64, 0), proxy(torch.float8_e5m2, 1)] == [
        "cpu bf16[2, 3]",
        "cpu b8[]",
        "cpu c64[0]",
        "cpu float8_e5m2[1]",
    ]


# --- the parts of a line ---


X = sg.TensorProxy("x", (2,), (1,), torch.float32, CPU)
Y = sg.TensorProxy("y", (2,), (1,), torch.float32, CPU)


def received(*args: Any, **kwargs: Any) -> Any:
    """Stands for an operator: gives back what it is called with."""
    return args, kwargs


def call(*args: Any, output: Any = Y, fn: Any = received, **kwargs: Any) -> sg.BoundSymbol:
    return sg.BoundSymbol(sg.Symbol("nobody.knows.this", fn), args, kwargs, output)


def traced(*body: sg.BoundSymbol, outputs: Any = (Y,)) -> sg.Trace:
    return sg.Trace("computation", (X,), outputs, body)


class Colour(enum.IntEnum):
    RED = 1


VALUES = [
    0,
    -3,
    True,
    2.5,
    -0.0,
    1e-300,
    math.inf,
    -math.inf,
    3 + 2j,
    complex(math.inf, -0.0),
    "a 'quoted' \"text\"\n",
    b"\x00bytes",
    None,
    ...,
    torch.float16,
    torch.strided,
    torch.channels_last,
    torch.device("meta"),
    torch.device("cuda", 1),
    slice(None, 3, None),
    slice(1, None, 2),
    Colour.RED,
    torch.Size([2, 3]),
    (),
    (1,),
    (1, [2, (3,)], {"key": (4.0,), 5: None}),
    range(3),
    int,
    torch.sin,
    {"a": slice(0, 1)},
]


@in_turn(value=VALUES)
def test_argument_comes_through_its_text(value: Any) -> None:
    ((args, kwargs),) = compile_trace(traced(call(value, [value], keyword=value)))(torch.ones(2))
    for found in (args[0], args[1][0], kwargs["keyword"]):
        assert found == value
        assert isinstance(value, torch.Size) or type(found) is type(value)
        assert repr(found) == repr(value) or isinstance(value, torch.Size)


INDICES = (
    slice(None),
    slice(1, None),
    slice(None, -1, 2),
    0,
    None,
    ...,
    True,
    [0, 1],
    (),
    (0,),
    (slice(None), 1),
    (..., None),
)


@in_turn(index=INDICES)
def test_an_index_stands_in_brackets_and_means_what_it_meant(index: Any) -> None:
    jitted = jit(lambda x: x[index].sin())
    x = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(jitted(x), x[index].sin())
    text = sg.last_traces(jitted)[-1].python()
    assert "__getitem__" not in text
    assert "slice(" not in text
    assert torch.equal(run(sg.last_traces(jitted)[-1], [x])[0], x[index].sin())


@in_turn(
    value__text=[
        (CPU, 'torch.device("cpu")'),
        (torch.float16, "torch.float16"),
        ([CPU, 1], '[torch.device("cpu"), 1]'),
    ]
)
def test_a_program_that_runs_makes_no_device_anew(value: Any, text: str) -> None:
    scope, bound = Scope({}, (), False), Scope({}, (), True)
    assert (scope.expression(value), scope.values) == (text, {})
    printed = bound.expression(value)
    assert "torch.device(" not in printed
    assert eval(printed, {"torch": torch, **bound.values}) == value


def test_nan_comes_through_its_text() -> None:
    ((args, _),) = compile_trace(traced(call(math.nan, complex(0, math.nan))))(torch.ones(2))
    assert math.isnan(args[0])
    assert math.isnan(args[1].imag)


@pytest.mark.parametrize(
    "output",
    [Y, (Y,), (Y, None), (None, (Y,)), ((Y, None), (None,))],
    ids=["one", "tuple of one", "with a hole", "nested", "two nested"],
)
def test_output_of_every_nesting_is_unpacked(output: Any) -> None:
    def example(pattern: Any) -> Any:
        return tuple(map(example, pattern)) if isinstance(pattern, tuple) else (7 if pattern is Y else None)

    assert compile_trace(traced(call(X, output=output, fn=lambda x: example(output))))(torch.ones(2)) == (7,)


def test_call_without_output_still_runs() -> None:
    seen: list[Any] = []
    compile_trace(traced(call(X, output=None, fn=seen.append), outputs=(X,)))(torch.ones(2))
    assert len(seen) == 1


def test_none_among_the_outputs() -> None:
    x = torch.ones(2)
    assert compile_trace(traced(outputs=(None, X, None)))(x) == (None, x, None)


def test_freed_names_are_gone() -> None:
    trace = traced(call(X, output=Y), sg.BoundSymbol(DEL, (X,), {}, None), outputs=(Y, X))
    with pytest.raises(UnboundLocalError):
        compile_trace(trace)(torch.ones(2))


def test_boxed_function_empties_its_list() -> None:
    arguments = [torch.ones(2)]
    result = compile_trace(traced(outputs=(X,)), boxed=True)(arguments)
    assert len(result) == 1
    assert arguments == []
    assert compile_trace(sg.Trace("backward", (), (), ()), boxed=True)([]) == ()


def test_callable_without_a_path_is_a_constant() -> None:
    def local(x: T) -> T:
        return x * 5

    text = traced(call(X, fn=local)).python()
    assert "# local: constant <function" in text
    assert "y = local(x)" in text
    assert torch.equal(compile_trace(traced(call(X, fn=local)))(torch.ones(2))[0], torch.full((2,), 5.0))


def test_equal_names_of_different_callables_stay_apart() -> None:
    def make(factor: float) -> Callable[[T], T]:
        def scaled(x: T) -> T:
            return x * factor

        return scaled

    z = sg.TensorProxy("z", (2,), (1,), torch.float32, CPU)
    body = (call(X, fn=make(2)), call(Y, output=z, fn=make(3)))
    trace = sg.Trace("computation", (X,), (Y, z), body)
    first, second = compile_trace(trace)(torch.ones(2))
    assert (first[0].item(), second[0].item()) == (2.0, 6.0)


# once: a constant's name is not kept apart from the builtins that the text uses: float, slice, complex
@pytest.mark.parametrize("name", ["computation", "x", "y", "args", "float", "slice", "torch", "del", "complex"])
def test_name_of_a_callable_that_the_text_uses_otherwise(name: str) -> None:
    def local(x: T, *others: Any) -> T:
        assert others == (math.inf, slice(0, 1), 1j)
        return x * 5

    local.__name__ = local.__qualname__ = name
    trace = traced(call(X, math.inf, slice(0, 1), 1j, fn=local))
    for boxed in (False, True):
        compiled = compile_trace(trace, boxed=boxed)
        (result,) = compiled([torch.ones(2)]) if boxed else compiled(torch.ones(2))
        assert torch.equal(result, torch.full((2,), 5.0))


def test_executor_whose_function_is_called_forward() -> None:
    table = sg.Table("mine")

    @table.implementation(torch.sin)
    def forward(x: T) -> T:
        return torch.sin(x)

    jitted = sg.jit(lambda x: torch.sin(x) * 2, executors=[sg.Executor("mine", table=table), "torch"])
    for x in (numbers(3), numbers(3, grad=True)):
        assert torch.equal(jitted(x), torch.sin(x) * 2)


def test_source_is_shown_with_the_module_path() -> None:
    assert str(Source("/home/user/model.py", 12, "layers.0.mlp")) == "model.py:12 layers.0.mlp"
    assert str(Source("/home/user/model.py", 12)) == "model.py:12"


def test_traceback_through_a_compiled_trace_shows_its_line() -> None:
    def broken(x: T) -> T:
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside") as caught:
        compile_trace(traced(call(X, fn=broken)))(torch.ones(2))
    assert any(frame.line and "y = broken(x)" in frame.line for frame in traceback.extract_tb(caught.tb))


# --- every stage, run from its text ---


def elementwise(x: T, w: T) -> Any:
    return (x * w + 0.5).tanh(), x.exp() - torch.tensor([0.25, 1.5, math.inf, 2.0], dtype=x.dtype)


def in_place(x: T, w: T) -> Any:
    y = x * 1
    y[0] = w[1]
    y[:, 1:3].mul_(2)
    return y * w


def unseen(x: T, w: T) -> Any:
    with torch.no_grad():
        mask = w > 0
    return x * w * mask


def random(x: T, w: T) -> Any:
    return functional.dropout(x, 0.4) * w + torch.rand(3, 4, dtype=x.dtype)


def several(x: T, w: T) -> Any:
    values, indices = x.topk(2)
    return values, indices, *[part * 2 for part in w.split([1, 3], dim=1)], x.chunk(2)[1] + 1


def composite(x: T, w: T) -> Any:
    y = functional.gelu(functional.linear(x, w, w[:, 0]), approximate="tanh")
    y = functional.layer_norm(y, (3,), eps=1e-6)
    return functional.cross_entropy(y, torch.tensor([0, 2, 1]), label_smoothing=0.1, reduction="sum"), y.to(
        torch.float32
    )


def attention(x: T, w: T) -> Any:
    heads = [part.reshape(1, 1, 3, 4) for part in (x, w, x + w)]
    return functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)


def convolution(x: T, w: T) -> Any:
    image = (x[:, :, None] * w[:, None, :])[None]
    return functional.max_pool2d(functional.conv2d(image, image[0, :1, :3, :3][None].expand(1, 3, 3, 3), padding=1), 2)


def indexing(x: T, w: T) -> Any:
    return (
        x[..., 1] * 2,
        w[[0, 2]],
        x[:, None, ::2] + 1,
        torch.where(x > w, x, -1.0),
        x.index_select(0, torch.tensor([2, 0])),
    )


def numbers_of_no_dimension(x: T, w: T) -> Any:
    return x * torch.tensor(2.5) + torch.tensor(-math.inf, dtype=x.dtype), w * torch.tensor(3)


def creation(x: T, w: T) -> Any:
    mask = torch.ones(3, 4, dtype=torch.bool).tril()
    return x.masked_fill(mask, -math.inf), torch.arange(4, device=x.device) * w, torch.full_like(x, math.nan)


FUNCTIONS = [
    elementwise,
    in_place,
    unseen,
    random,
    several,
    composite,
    attention,
    convolution,
    indexing,
    creation,
    numbers_of_no_dimension,
]


@pytest.mark.parametrize("decompositions", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_forward_stage_runs(function: Callable[..., Any], decompositions: bool) -> None:
    inputs = [numbers(3, 4), numbers(3, 4) * 2]
    expected = flat(function, inputs)
    jitted = jit(function)
    jitted(*inputs)
    for trace in sg.last_traces(jitted):
        torch.manual_seed(11)
        found = run(trace, inputs, decompositions=decompositions)
        assert not list(differences(expected, list(found), str(trace)))


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_training_stage_runs(function: Callable[..., Any], link: bool) -> None:
    inputs = [numbers(3, 4, grad=True), (numbers(3, 4) * 2).requires_grad_()]
    expected = flat(function, inputs)
    differentiable = [output for output in expected if output.requires_grad]
    cotangents = [torch.full_like(output, 1.5) for output in differentiable]
    gradients = list(torch.autograd.grad(differentiable, inputs, cotangents, allow_unused=True))
    jitted = jit(function)
    torch.manual_seed(11)
    outputs = jitted(*inputs)
    leaves = [outputs] if isinstance(outputs, T) else list(outputs)
    torch.autograd.grad([leaf for leaf in leaves if leaf.requires_grad], inputs, cotangents, allow_unused=True)
    plain = [leaf.detach() for leaf in expected]
    with torch.no_grad():
        saved: list[Any] = []
        for trace in sg.last_traces(jitted):
            torch.manual_seed(11)
            plain_inputs = [tensor.detach() for tensor in inputs]
            given = [*plain_inputs, *cotangents] if trace.name == "joint" else plain_inputs
            found = list(run(trace, given, link=link))
            assert not list(differences(plain, found[: len(plain)], str(trace)))
            if trace.name == "joint":
                assert not list(differences(gradients, found[len(plain) :], str(trace)))
            if trace.name == "forward":
                saved = found[len(plain) :]
        for trace in sg.last_backward_traces(jitted):
            if trace.name == "backward":
                assert not list(differences(gradients, list(run(trace, [*saved, *cotangents], link=link)), str(trace)))


def flat(function: Callable[..., Any], inputs: list[T]) -> list[T]:
    torch.manual_seed(11)
    result = function(*inputs)
    return [result] if isinstance(result, T) else list(result)


def test_every_stage_of_a_module_runs() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU(), torch.nn.Dropout(0.2))
    jitted = jit(model)
    x = numbers(5, 4, dtype=torch.float32)
    state = {f"t_{name.replace('.', '_')}": value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(11)
    result = jitted(x)
    result.sum().backward()
    for trace in sg.last_traces(jitted):
        torch.manual_seed(11)
        given = [
            {**state, "t_0": x, "g": torch.ones_like(result)}[p.name if p.name[0] == "t" else "g"] for p in trace.inputs
        ]
        found = run(trace, given)
        assert torch.equal(found[0], result.detach())
        buffers = [value for name, value in model.named_buffers()]
        assert all(any(torch.equal(value, other) for other in found[1:] if other is not None) for value in buffers)


class Region(sg.FusionExecutor):
    """Compiles every operator of PyTorch's, as functions that no path leads to."""

    def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
        return None

    def compile(self, region: sg.Trace) -> Callable[..., Any]:
        return region.function()


def test_stages_with_compiled_regions_run() -> None:
    jitted = sg.jit(elementwise, executors=[Region("region"), "torch"], compile="now")
    inputs = [numbers(3, 4, grad=True), numbers(3, 4, grad=True)]
    outputs = jitted(*inputs)
    cotangents = [torch.full_like(output, 1.5) for output in outputs]
    gradients = torch.autograd.grad(outputs, inputs, cotangents)
    forward, backward = sg.last_traces(jitted)[-1], sg.last_backward_traces(jitted)[-1]
    assert all(any("region_" in name for name in trace.constants) for trace in (forward, backward))
    with torch.no_grad():
        found = [value.detach() for value in run(forward, inputs)]
        assert not list(differences([output.detach() for output in outputs], found[:2], str(forward)))
        assert not list(differences(list(gradients), list(run(backward, [*found[2:], *cotangents])), str(backward)))


def test_an_implementation_without_a_path_runs() -> None:
    table = sg.Table("mine")
    table.implementation(torch.sin)(lambda x: torch.sin(x) * 1)
    jitted = sg.jit(torch.sin, executors=[sg.Executor("mine", table=table), "torch"])
    x = numbers(3)
    jitted(x)
    trace = sg.last_traces(jitted)[-1]
    assert [*trace.constants] == ["constant"]
    assert torch.equal(run(trace, [x])[0], torch.sin(x))


def test_a_trace_of_what_no_path_leads_to_runs_with_and_without_its_parts() -> None:
    part, whole = call(X, range(2), fn=lambda *_: None), call(X, range(3), range(4))
    trace = traced(replace(whole, subsymbols=(part,)))
    for decompositions in (False, True):
        assert run(trace, [torch.ones(2)], decompositions=decompositions)[0][0][1:] == (range(3), range(4))


def test_names_follow_paths() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2)])
            self.norm = torch.nn.LayerNorm(2)

        def forward(self, x: T) -> T:
            return self.norm(self.layers[0](x))  # type: ignore[no-any-return]

    jitted = jit(Model())
    jitted(torch.ones(1, 2))
    assert [proxy.name for proxy in sg.last_traces(jitted)[0].inputs] == [
        "t_0",
        "t_layers_0_weight",
        "t_layers_0_bias",
        "t_norm_weight",
        "t_norm_bias",
    ]


def test_provenance_names_passes_in_order_with_times() -> None:
    jitted = jit(elementwise)
    jitted(numbers(3, 4, grad=True), numbers(3, 4))[0].sum().backward()
    names = [mark.name for mark in sg.last_backward_traces(jitted)[-1].provenance]
    assert names[:5] == ["capture", "dead_code", "differentiate", "fold_constants", "partition"]
    assert names[-1] == "free_last_used"
    assert all(mark.seconds >= 0 for mark in sg.last_backward_traces(jitted)[-1].provenance)
