"""The verifier: every kind of fault is found, and shown with the lines around it and the pass that made it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import switchgear as sg
from switchgear import errors
from switchgear_core.ir.symbol import DEL
from switchgear_core.ir.verify import verify
from switchgear_core.passes import pipeline
from tests.core.against_eager import numbers


def proxy(name: str, **changes: Any) -> sg.TensorProxy:
    return replace(sg.TensorProxy(name, (2,), (1,), torch.float32, torch.device("cpu")), **changes)


def sin(output: Any, *args: Any, **kwargs: Any) -> sg.BoundSymbol:
    return sg.BoundSymbol(sg.Symbol("torch.sin", torch.sin), args, kwargs, output)


def free(*values: sg.TensorProxy) -> sg.BoundSymbol:
    return sg.BoundSymbol(DEL, values, {}, None)


X, A, B, C = proxy("x"), proxy("a"), proxy("b"), proxy("c")


def trace(*body: sg.BoundSymbol, inputs: Any = (X,), outputs: Any = (C,), **fields: Any) -> sg.Trace:
    return sg.Trace("computation", inputs, outputs, body, **fields)


GOOD = trace(sin(A, X), sin(B, A), free(A), sin(C, B))


def test_a_good_trace_is_returned_itself() -> None:
    assert verify(GOOD) is GOOD
    assert verify(trace(outputs=(X, None, X)))
    assert verify(trace(sin((A, (B, None)), [X, {"more": X}]), outputs=(A, B)))
    assert verify(trace(sin(C, proxy("held")), tensors={"held": torch.ones(2)}))


def scale(output: Any, target: sg.TensorProxy) -> sg.BoundSymbol:
    return sg.BoundSymbol(sg.Symbol("aten.mul_.Tensor", torch.ops.aten.mul_.Tensor), (target, 2), {}, output)


def flat(output: Any, base: sg.TensorProxy) -> sg.BoundSymbol:
    return sg.BoundSymbol(sg.Symbol("aten.view.default", torch.ops.aten.view.default), (base, [2]), {}, output)


def test_what_is_written_to_lives_on_under_its_new_name() -> None:
    assert verify(trace(sin(A, X), scale(B, A), free(A), sin(C, B)))
    assert verify(trace(sin(A, X), flat(B, A), scale(C, B)))


FAULTS: dict[str, tuple[Callable[[], sg.Trace], str]] = {
    "used before defined": (lambda: trace(sin(B, A), sin(A, X), sin(C, B)), "^a is used before it is defined"),
    "used after a write": (lambda: trace(sin(A, X), scale(B, A), sin(C, A)), "^a is used after its memory is written"),
    "a view of what is written": (
        lambda: trace(sin(A, X), flat(B, A), scale(proxy("d"), A), sin(C, B)),
        "^b is used after its memory is written",
    ),
    "given out after a write": (
        lambda: trace(sin(A, X), scale(B, A), outputs=(A,)),
        "^output: a is used after its memory is written",
    ),
    "an input is written to": (lambda: trace(scale(C, X)), "^x is written to, which is not the trace's own"),
    "so is a view of one": (lambda: trace(flat(A, X), scale(C, A)), "^a is written to, which is not the trace's own"),
    "so is a constant": (
        lambda: trace(scale(C, proxy("held")), tensors={"held": torch.ones(2)}),
        "^held is written to, which is not the trace's own",
    ),
    "used, never defined": (lambda: trace(sin(C, proxy("nowhere"))), "^nowhere is used before it is defined"),
    "hidden in a list": (lambda: trace(sin(C, [X, (A,)])), "^a is used before it is defined"),
    "hidden in a keyword": (lambda: trace(sin(C, X, other={"key": A})), "^a is used before it is defined"),
    "defined twice": (lambda: trace(sin(A, X), sin(A, X), sin(C, A)), "^a is defined twice"),
    "defined over an input": (lambda: trace(sin(X, X), sin(C, X)), "^x is defined twice"),
    "defined over a constant": (
        lambda: trace(sin(C, X), tensors={"c": torch.ones(2)}, outputs=(X,)),
        "^c is defined twice",
    ),
    "two outputs of one name": (lambda: trace(sin((C, C), X)), "^c is defined twice"),
    "input twice": (lambda: trace(sin(C, X), inputs=(X, X)), "^input x is defined twice"),
    "used after freed": (lambda: trace(sin(A, X), free(X), sin(C, X)), "^x is used after it is freed"),
    "freed twice": (lambda: trace(sin(C, X), free(X), free(X)), "^x is used after it is freed"),
    "output freed": (lambda: trace(sin(C, X), free(C)), "^output: c is used after it is freed"),
    "output missing": (lambda: trace(sin(A, X)), "^output: c is used before it is defined"),
    "other shape": (lambda: trace(sin(A, X), sin(C, replace(A, shape=(3,)))), r"(?s)^a is used as .*\(3,\).*\(2,\)"),
    "other stride": (lambda: trace(sin(A, X), sin(C, replace(A, stride=(2,)))), "^a is used as"),
    "other dtype": (lambda: trace(sin(A, X), sin(C, replace(A, dtype=torch.int64))), "^a is used as.*int64"),
    "other device": (
        lambda: trace(sin(A, X), sin(C, replace(A, device=torch.device("meta")))),
        "^a is used as.*meta",
    ),
    "other requires_grad": (lambda: trace(sin(A, X), sin(C, replace(A, requires_grad=True))), "^a is used as"),
    "output of other metadata": (lambda: trace(sin(C, X), outputs=(replace(C, shape=(9,)),)), "^output: c is used as"),
}


@pytest.mark.parametrize(("make", "message"), FAULTS.values(), ids=FAULTS)
def test_fault_is_found(make: Callable[[], sg.Trace], message: str) -> None:
    with pytest.raises(errors.InvalidTrace, match=message):
        verify(make())


def test_message_shows_the_lines_around_the_fault_and_the_pass() -> None:
    names = [proxy(f"v{index}") for index in range(9)]
    body = [sin(names[0], X), *(sin(after, before) for before, after in itertools.pairwise(names))]
    body[5] = sin(names[5], proxy("missing"))
    broken = trace(*body, outputs=(names[8],)).with_provenance("capture", 0.5).with_provenance("my_pass", 0.25)
    with pytest.raises(errors.InvalidTrace) as caught:
        verify(broken)
    assert str(caught.value) == (
        "missing is used before it is defined\n"
        "  in trace 'computation' as made by my_pass:\n"
        '      v2 = torch.sin(v1)  # v2: "cpu f32[2]"\n'
        '      v3 = torch.sin(v2)  # v3: "cpu f32[2]"\n'
        '      v4 = torch.sin(v3)  # v4: "cpu f32[2]"\n'
        '>     v5 = torch.sin(missing)  # v5: "cpu f32[2]"\n'
        '      v6 = torch.sin(v5)  # v6: "cpu f32[2]"\n'
        '      v7 = torch.sin(v6)  # v7: "cpu f32[2]"\n'
        '      v8 = torch.sin(v7)  # v8: "cpu f32[2]"'
    )


def test_missing_output_points_at_the_return() -> None:
    with pytest.raises(errors.InvalidTrace) as caught:
        verify(trace(sin(A, X)))
    assert str(caught.value).splitlines()[-1] == ">     return (c,)"
    assert "as made by no pass" in str(caught.value)


def test_the_verifier_runs_between_passes_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(GOOD, bound_symbols=GOOD.bound_symbols[1:])
    for setting, fails in (("1", True), ("", False)):
        monkeypatch.setenv("SWITCHGEAR_VERIFY", setting)
        stages = pipeline.Pipeline([GOOD])
        if fails:
            with pytest.raises(errors.InvalidTrace, match="as made by breaks"):
                stages.keep("breaks", broken, 0.0)
        else:
            assert stages.keep("breaks", broken, 0.0).bound_symbols == broken.bound_symbols


def test_the_verifier_does_not_run_between_passes_when_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHGEAR_VERIFY", "0")
    assert not pipeline.Pipeline([GOOD]).checking


def test_every_stage_of_real_programs_is_valid() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(), torch.nn.GELU())
    jitted = sg.jit(model, executors=["torch"])
    jitted(numbers(5, 3, dtype=torch.float32)).sum().backward()
    for stage in (*sg.last_traces(jitted), *sg.last_backward_traces(jitted)):
        assert verify(stage) is stage
