"""Options of single executors, and the defaults of all options."""

from __future__ import annotations

import importlib
import inspect
import pickle
import pydoc
import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

import switchgear as sg
from conftest import shipped
from switchgear.errors import InvalidInput, UnknownExecutor
from switchgear_core.registry.parts import installed_parts
from switchgear_core.registry.plugins import Plugins, load
from switchgear_runtime.last_call import compiler_of
from tests.core.made_up import Site, executor_plugin, rules_plugin

SCALES = """
class Scaling(sg.Executor):
    def __init__(self, *, factor=1.0, offset=0.0):
        super().__init__("scaling")
        self.factor = factor
        if factor == 0:
            raise ValueError("factor is not zero")

    def claim(self, call, entry):
        if call.symbol.name != "torch.sin":
            return sg.Declined("no sine")
        return sg.executors.Implementation(self.name, lambda x: torch.sin(x) * self.factor)

@sg.hookimpl
def switchgear_executors():
    return [Scaling()]

@sg.hookimpl
def switchgear_passes():
    return [sg.passes.PassPlacement("nothing", "before_grad", lambda trace, context: trace)]
"""


@pytest.fixture
def plugins(site: Site, monkeypatch: pytest.MonkeyPatch) -> Plugins:
    found = load(
        [
            *shipped(group="switchgear"),
            site.add("scaling", SCALES),
            site.add("plain", executor_plugin("plain")),
            site.add("rules", rules_plugin("rules")),
        ]
    )
    for name in ("switchgear.jitting", "switchgear.options"):
        monkeypatch.setattr(importlib.import_module(name), "installed", lambda *listed: found)
    return found


X = torch.linspace(-1, 1, 5)
BOTH = ["scaling", "torch"]


@pytest.mark.usefixtures("plugins")
def test_options_are_an_object_in_the_list() -> None:
    import made_up_switchgear_scaling_scaling as module  # type: ignore[import-not-found]

    by_name = sg.jit(torch.sin, executors=BOTH, options={"scaling": {"factor": 3.0}})
    by_object = sg.jit(torch.sin, executors=[module.Scaling(factor=3.0), "torch"])
    assert torch.equal(by_name(X), torch.sin(X) * 3.0)
    assert torch.equal(by_object(X), by_name(X))
    assert torch.equal(sg.jit(torch.sin, executors=BOTH)(X), torch.sin(X))
    one, two = (compiler_of(jitted).selection for jitted in (by_name, by_object))
    assert [placement.name for placement in one.passes] == [placement.name for placement in two.passes]
    assert "nothing" in [placement.name for placement in one.passes]
    assert "executors: scaling (factor=3.0), torch" in str(sg.explain(by_name))


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"scaling": {"facter": 3.0}}, InvalidInput, "no option facter; did you mean 'factor'"),
        ({"plain": {"fast": True}}, InvalidInput, "executor plain has no option fast; it has none"),
        ({"torch": {"fast": True}}, InvalidInput, "executor torch has no option fast; it has none"),
        ({"scaling": {"factor": 0}}, InvalidInput, "options of executor scaling: factor is not zero"),
        ({"rules": {"fast": True}}, InvalidInput, "'rules', a package of rules"),
        (
            {"scalling": {}},
            UnknownExecutor,
            "no executor 'scalling' takes part in this call; did you mean 'scaling'",
        ),
    ],
)
def test_options_that_there_are_not(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        sg.jit(torch.sin, executors=["scaling", "plain", "torch", "rules"], options=options)


@pytest.mark.usefixtures("plugins")
def test_an_object_has_its_own_options() -> None:
    with pytest.raises(InvalidInput, match="an object in executors: make it with its options"):
        sg.jit(torch.sin, executors=[sg.Executor("own"), "torch"], options={"own": {}})


@pytest.mark.usefixtures("plugins")
def test_times_are_remembered_by_options() -> None:
    """What the contest remembers times by holds the label, whatever an executor says of its options."""

    def label(**options: Any) -> str:
        jitted = sg.jit(torch.sin, executors=BOTH, options={"scaling": options})
        return compiler_of(jitted).selection.claimants[0].label

    assert len({label(), label(factor=2.0), label(factor=3.0)}) == 3


def test_inductor_says_which_options_it_has() -> None:
    inductor = pytest.importorskip("switchgear_inductor").InductorExecutor()
    configured = inductor.configured({"max_autotune": True, "progress": False})
    assert configured.fingerprint() != inductor.fingerprint()
    assert not configured.progress
    with pytest.raises(InvalidInput, match="no option max_autotun; did you mean 'max_autotune'"):
        inductor.configured({"max_autotun": True})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recompile_limit": "8"}, "recompile_limit='8' is not an integer of at least 0"),
        ({"recompile_limit": None}, "recompile_limit=None"),
        ({"recompile_limit": -1}, "recompile_limit=-1"),
        ({"recompile_limit": True}, "recompile_limit=True"),
        ({"cache_size": 2.5}, "cache_size=2.5 is not an integer of at least 1"),
        ({"cache_size": 0}, "cache_size=0"),
        ({"cache_size": None}, "cache_size=None"),
        ({"strict": "no"}, "strict='no' is not one of True, False"),
        ({"check": "no"}, "check='no'"),
        ({"link": "x"}, "link='x'"),
        ({"specialize_on_data": "x"}, "specialize_on_data='x' is not one of True, False, None"),
        ({"fallback": "no"}, "fallback='no' is not one of 'split', 'eager', 'error'"),
        ({"executors": []}, r"executors=\[\] is not a list with a name"),
        ({"prefer": ["torch"]}, r"prefer=\['torch'\] is not a dict"),
        ({"options": 3}, "options=3 is not a dict"),
        ({"grad_rules": 3}, "grad_rules=3 is not a Table, a name"),
        ({"decisions": 3}, "decisions=3 is not the path"),
        ({"methods": "forward"}, "methods='forward' is not a list of names"),
        ({"methods": 3}, "methods=3"),
        (
            {"passes": [lambda trace, context: trace]},
            r"passes=.*<lambda>.* is not a list of sg.passes.PassPlacement or '-",
        ),
        ({"passes": [3]}, r"passes=\[3\]"),
        ({"passes": "geglu"}, "passes='geglu'"),
        ({"passes": 3}, "passes=3"),
    ],
)
def test_values_that_mean_nothing(options: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        sg.jit(torch.sin, **options)
    if "methods" not in options:
        with pytest.raises(InvalidInput, match=message), sg.defaults(**options):
            pytest.fail("the block was entered")


def memory(jitted: Any) -> str:
    return str(compiler_of(jitted).selection.savings.option)


def test_defaults_hold_in_their_block() -> None:
    before = sg.jit(torch.sin)
    with sg.defaults(memory="lean", executors=["torch"]):
        inside = sg.jit(torch.sin)
        with sg.defaults(memory="balanced"):
            assert memory(sg.jit(torch.sin)) == "balanced"
            assert [one.name for one in compiler_of(sg.jit(torch.sin)).selection.executors] == ["torch"]
        assert memory(sg.jit(torch.sin, memory="eager")) == "eager"
        assert memory(sg.jit(executors=["torch"])(torch.sin)) == "lean"
        assert memory(before) == "auto"
        decorator = sg.jit(link=True)
    assert memory(inside) == memory(decorator(torch.sin)) == memory(pickle.loads(pickle.dumps(inside))) == "lean"
    assert memory(sg.jit(torch.sin)) == "auto"


def test_defaults_hold_in_their_thread() -> None:
    found: list[str] = []
    with sg.defaults(memory="lean"):
        thread = threading.Thread(target=lambda: found.append(memory(sg.jit(torch.sin))))
        thread.start()
        thread.join()
    assert found == ["auto"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"memori": "lean"}, TypeError, "no option memori; did you mean 'memory'"),
        ({"methods": ["forward"]}, TypeError, "no option methods"),
        (
            {"memory": "least"},
            ValueError,
            "memory='least' is not one of 'auto', 'eager', 'balanced', 'lean'; .*did you mean",
        ),
        ({"executors": ["tourch"]}, UnknownExecutor, "did you mean 'torch'"),
    ],
)
def test_defaults_that_there_are_not(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message), sg.defaults(**options):
        pytest.fail("the block was entered")
    assert memory(sg.jit(torch.sin)) == "auto"


@pytest.mark.parametrize(
    ("variable", "text", "option", "value"),
    [
        ("SWITCHGEAR_EXECUTORS", "torch", "executors", ["torch"]),
        ("SWITCHGEAR_EXECUTORS", "..., -torch", "executors", [..., "-torch"]),
        ("SWITCHGEAR_EXECUTORS", "auto", "executors", "auto"),
        ("SWITCHGEAR_MEMORY", "lean", "memory", "lean"),
        ("SWITCHGEAR_FALLBACK", "error", "fallback", "error"),
        ("SWITCHGEAR_CHECK", "1", "check", True),
        ("SWITCHGEAR_CHECK", "0", "check", False),
    ],
)
def test_environment(variable: str, text: str, option: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, text)
    own = {option: value} if option != "fallback" else {}
    jitted: Any = sg.jit(torch.sin)
    assert {name: jitted._switchgear_rejit.keywords[name] for name in own} == own
    with sg.defaults(memory="balanced"):
        assert memory(sg.jit(torch.sin)) == "balanced"


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("SWITCHGEAR_EXECUTORS", "tourch"),
        ("SWITCHGEAR_MEMORY", "least"),
        ("SWITCHGEAR_FALLBACK", "never"),
        ("SWITCHGEAR_CHECK", "yes"),
        ("SWITCHGEAR_VERIFY", "maybe"),
    ],
)
def test_a_bad_value_names_its_variable(variable: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {option.variable for option in installed_parts().options.values()} | {"SWITCHGEAR_VERIFY"}
    assert variable in known
    monkeypatch.setenv(variable, text)
    with pytest.raises(InvalidInput, match=f"{variable}={text} in the environment: "):
        sg.jit(torch.sin)


def test_types_are_kept() -> None:
    """For mypy, which checks the tests too, and fails where an error that is ignored here is none."""

    def scaled(x: Tensor, factor: float = 2.0) -> Tensor:
        return x * factor

    function: Callable[[Tensor, float], Tensor] = sg.jit(scaled)
    module: nn.Linear = sg.jit(nn.Linear(2, 2), executors=["torch"])
    decorated: Callable[[Tensor, float], Tensor] = sg.jit(memory="lean")(scaled)
    assert function is not decorated
    assert module.in_features == 2
    if TYPE_CHECKING:
        _: str = sg.jit(scaled)(X)  # type: ignore[assignment]
        sg.jit(scaled)("x")  # type: ignore[arg-type]
        sg.jit(scaled, compile="soon")  # type: ignore[call-overload]
        sg.defaults(memori="lean")  # type: ignore[call-arg]


def test_help_of_jit_is_short_and_groups_the_options() -> None:
    text = pydoc.render_doc(sg.jit)
    assert len(text.splitlines()) <= 120
    arguments = (inspect.getdoc(sg.jit) or "").partition("Returns:")[0]
    described = re.findall(r"^    (\w+): ", arguments, re.MULTILINE)
    assert set(described) == {"function", *installed_parts().options}
    assert described[1:7] == ["executors", "strict", "fallback", "dynamic", "compile", "memory"]
