"""`executors="auto"`: regions go to who is measured to be fastest, and what was measured is remembered."""

from __future__ import annotations

import json
import runpy
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import switchgear as sg
from conftest import shipped
from switchgear import disk_cache, machine
from switchgear.errors import CacheWarning, ExecutorFailed, PluginWarning
from switchgear_contest import contest, measuring
from switchgear_core.regions.choose import Contestants
from switchgear_core.registry import plugins
from switchgear_core.registry.order import select
from switchgear_core.registry.selection import Selection
from tests.core.made_up import Site
from tests.core.training import choice, forward, leaf, lines, operators
from tests.oracle import assert_same, assert_trains_as_eager

#: Plugins with an executor each that takes products with numbers: `fast` multiplies once, `slow` dawdles, `failing`
#: does not run on what is made up.
FUSING = """
import time

class Fusing(sg.FusionExecutor):
    compiled = 0

    def supports(self, bound_symbol):
        known = bound_symbol.symbol.name in ("aten.mul.Tensor", "aten.embedding.default")
        return None if known else sg.Declined("no product")

    def fingerprint(self):
        return OPTIONS

    def compile(self, region):
        type(self).compiled += 1
        return RUN(region)

OPTIONS = ""
executor = Fusing({name!r}, priority={priority})

@sg.hookimpl
def switchgear_executors():
    return [executor]
"""
FAST = """
def RUN(region):
    (value,), factor = region.inputs, 1
    for item in region.bound_symbols:
        factor *= item.args[1]
    return lambda a: (a * factor,)
"""
SLOW = """
def RUN(region):
    function = region.function()
    def run(*args):
        end = time.perf_counter() + 0.002
        while time.perf_counter() < end:
            pass
        return function(*args)
    return run
"""
WRONG = """
def RUN(region):
    return lambda *args: tuple(torch.zeros(out.shape) for out in region.outputs)
"""
FAILING = """
def RUN(region):
    function = region.function()
    def run(*args):
        if args[0].max() < 1:
            raise RuntimeError("not these")
        return function(*args)
    return run
"""


CONTEST = EntryPoint("contest", "switchgear_contest", "switchgear")


class Installed:
    """Plugins that are installed beside `torch` and `contest` for a test, as a process that starts finds them."""

    def __init__(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        self._site = site
        monkeypatch.setattr(
            plugins, "entry_points", lambda group: [*shipped(group=group), CONTEST, *site.entry_points()]
        )

    def add(self, name: str, run: str, *, priority: int = 0) -> None:
        self._site.add(name, FUSING.format(name=name, priority=priority) + run)
        self.start_again()

    def edit(self, name: str, run: str) -> None:
        file = Path(self.module(name).__file__)
        file.write_text(file.read_text().partition("def RUN")[0] + run)
        self.start_again()

    def start_again(self) -> None:
        for module in [module for module in sys.modules if module.startswith("made_up_")]:
            del sys.modules[module]
        plugins.loaded_once.cache_clear()

    def module(self, name: str) -> Any:
        plugins.installed()
        return sys.modules[f"made_up_switchgear_{name}_{name}"]

    def compiled(self, name: str) -> int:
        """How many regions the executor has compiled since it started."""
        return int(self.module(name).Fusing.compiled)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(disk_cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def installed(site: Site, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    yield Installed(site, monkeypatch)
    plugins.loaded_once.cache_clear()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For each measurement, how many functions took part."""
    calls: list[int] = []

    def counting(functions: Sequence[Any], *rest: Any) -> measuring.Measurement:
        calls.append(len(functions))
        return measuring.measured(functions, *rest)

    monkeypatch.setattr(contest, "measured", counting)
    return calls


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run beside others: they wait until times are steady."""
    monkeypatch.setattr(measuring, "PATIENCE", 60.0)
    monkeypatch.setattr(measuring, "MOST_UNSTEADY", 10_000)


def product(a: Tensor) -> Tensor:
    for _ in range(32):
        a = a * 2
    return a


def check(function: Callable[..., Any] = product, *args: Tensor, **options: Any) -> Any:
    """The jitted function, called twice with eager's result."""
    args = args or (torch.rand(3, 5),)
    jitted = sg.jit(function, executors="auto", **options)
    for _ in range(2):
        assert_same(jitted(*args), function(*args))
    return jitted


def test_the_faster_is_taken(installed: Installed) -> None:
    installed.add("fast", FAST)
    jitted = check()
    (line,) = lines(forward(jitted))
    assert line.implementation is not None
    assert line.implementation.owner == "fast"
    report = str(sg.explain(jitted).operators())
    assert report.splitlines()[0] == "executors: fast, torch; regions as chosen by contest"
    assert "aten.mul.Tensor: execution by fast (in fast_computation_0 (fast: " in report
    assert " µs, torch: " in report


def test_the_slower_is_declined(installed: Installed) -> None:
    installed.add("slow", SLOW)
    jitted = check()
    assert operators(forward(jitted)) == ["aten.mul.Tensor"] * 32
    assert "aten.mul.Tensor: execution by torch; slow: not faster as measured, slow: " in str(
        sg.explain(jitted).operators()
    )


@pytest.mark.parametrize("first", ["slow", "fast"])
def test_the_fastest_of_several(installed: Installed, measured: list[int], first: str) -> None:
    for name, run in (("slow", SLOW), ("fast", FAST)):
        installed.add(name, run, priority=int(name == first))
    jitted = check()
    assert [item.implementation.owner for item in lines(forward(jitted)) if item.implementation] == ["fast"]
    assert measured == [3]
    report = str(sg.explain(jitted).operators())
    assert "execution by fast" in report
    assert all(f"{name}: " in report for name in ("slow", "fast", "torch"))


def test_it_is_the_default(installed: Installed) -> None:
    installed.add("fast", FAST)
    installed.add("slow", SLOW, priority=1)
    jitted = sg.jit(product)
    assert_same(jitted(torch.ones(3)), product(torch.ones(3)))
    assert [item.implementation.owner for item in lines(forward(jitted)) if item.implementation] == ["fast"]


def test_nobody_fuses(installed: Installed) -> None:
    jitted = check()
    assert operators(forward(jitted)) == ["torch.mul"] * 32


def test_operators_that_stay_outside_are_as_without_the_candidate(installed: Installed) -> None:
    """Buffers are reused."""
    installed.add("slow", SLOW)
    jitted = check(product, torch.rand(200, 200))
    assert any(stage.provenance[-1].name == "reuse_buffers" for stage in sg.last_traces(jitted))


def test_gradients(installed: Installed) -> None:
    installed.add("fast", FAST)
    jitted = assert_trains_as_eager(product, leaf(4), executors="auto")
    for trace in (sg.last_traces(jitted)[-1], sg.last_backward_traces(jitted)[-1]):
        assert [item.implementation.owner for item in lines(trace) if item.implementation] == ["fast"]


# What is remembered.


@pytest.mark.parametrize(("name", "run", "compiled"), [("fast", FAST, 1), ("slow", SLOW, 0)])
def test_remembered_when_started_again(
    installed: Installed, measured: list[int], name: str, run: str, compiled: int
) -> None:
    installed.add(name, run)
    first = str(sg.explain(check()).operators())
    assert (installed.compiled(name), measured) == (1, [2])
    installed.start_again()
    again = check()
    assert (installed.compiled(name), measured) == (compiled, [2])
    assert str(sg.explain(again).operators()) == first


def test_alike_regions_are_measured_once(installed: Installed, measured: list[int]) -> None:
    installed.add("slow", SLOW)
    check(lambda a, b: (product(a).sin(), product(b).cos()), torch.rand(3), torch.rand(3))
    assert measured == [2]
    assert installed.compiled("slow") == 1


def test_what_times_depend_on(
    installed: Installed, measured: list[int], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    installed.add("fast", FAST)
    check()
    check(product, torch.rand(5, 3))
    check(product, torch.rand(5, 3).t())
    check(product, torch.rand(3, 5, dtype=torch.float64))
    monkeypatch.setattr(installed.module("fast"), "OPTIONS", "other")
    check()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    check()
    monkeypatch.setattr(machine, "_versions", lambda: {"PyTorch": "2.99"})
    check()
    assert len(measured) == len(disk_cache.everything()) == 7
    check()
    assert len(measured) == 7


def damaged(file: Path) -> Iterator[str]:
    content = json.loads(file.read_text().partition("\n")[2])
    texts = ["[" * 100_000, "[]", json.dumps(content | {"key": "another"})]
    for value in (None, 1, [1.0], [1.0, "1"], [1.0, -1.0], [1.0, float("nan")], {"torch": 1.0}):
        texts.append(json.dumps(content | {"value": value}))
    yield ""
    yield from texts
    # of the right digest: somebody wrote them
    yield from [f"{disk_cache.digest_of(text.encode())}\n{text}" for text in texts]


def test_a_damaged_cache_is_written_anew(installed: Installed, measured: list[int], folder: Path) -> None:
    installed.add("fast", FAST)
    check()
    (file,) = disk_cache.everything()
    for count, text in enumerate(damaged(file), 2):
        file.write_text(text)
        check()
        assert len(measured) == count
    file.write_bytes(b"\xff\xfe")
    check()
    before = len(measured)
    check()
    assert len(measured) == before
    assert disk_cache.everything() == [file]


def test_no_folder_can_be_made(installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(disk_cache.CACHE_VARIABLE, str(tmp_path / "file" / "folder"))
    installed.add("fast", FAST)
    with pytest.warns(CacheWarning, match=r"nothing is kept on disk: .*Not a directory.*; name a folder of your own"):
        jitted = check()
    assert len(lines(forward(jitted))) == 1


def test_where_the_folder_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(disk_cache.CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    disk_cache.store("a", [1])
    assert list((tmp_path / "xdg" / "switchgear").iterdir())
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert disk_cache.load("a") is None
    disk_cache.store("a", [2])
    assert disk_cache.load("a") == [2]
    assert list((tmp_path / ".cache" / "switchgear").iterdir())


def test_times_do_not_outlive_an_edit_of_the_plugin(installed: Installed, measured: list[int]) -> None:
    installed.add("mine", SLOW)
    assert choice_of(check()).owner == "torch"
    installed.edit("mine", FAST)
    assert [line.implementation.owner for line in lines(forward(check())) if line.implementation] == ["mine"]
    assert measured == [2, 2]


def test_code_that_another_process_cannot_import_is_measured_by_each(folder: Path) -> None:
    def made(module: str) -> Selection:
        kind = type("Mine", (sg.Executor,), {"__module__": module})
        return select(plugins.installed(["torch"]), [kind("mine"), "torch"])

    code = [one.code for one in made("__main__").claimants]
    assert code[0] is None
    assert code[1]
    assert made(__name__).claimants[0].code


def test_an_unsteady_time_is_not_remembered(
    installed: Installed, measured: list[int], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "PATIENCE", 0.0)
    monkeypatch.setattr(measuring._Runner, "is_steady", False)
    installed.add("fast", FAST)
    assert "; unsteady, so measured again by other processes" in str(sg.explain(check()).operators())
    assert not disk_cache.everything()
    check()
    assert measured == [2, 2]


# What goes wrong.


def test_who_is_fast_and_wrong_is_out(installed: Installed, folder: Path) -> None:
    installed.add("wrong", WRONG)
    installed.add("fast", FAST, priority=-1)
    with pytest.warns(
        PluginWarning,
        match=r"executor wrong 1\.0 is out .* result 0 differs from PyTorch's operators by up to .*wrong_\w+\.py",
    ):
        jitted = check(lambda a: product(a * 0.5))
    assert [line.implementation.owner for line in lines(forward(jitted)) if line.implementation] == ["fast"]
    assert "wrong: out, for result 0 differs" in str(sg.explain(jitted).operators())
    assert not disk_cache.everything()
    (file,) = (folder / "faults").iterdir()
    with pytest.raises(ExecutorFailed, match=r"executor wrong 1\.0 .*differs from PyTorch's operators"):
        runpy.run_path(str(file))


def test_random_numbers_are_not_compared() -> None:
    def unlike(arguments: Any, results: Any, expected: Any) -> str:
        return "" if torch.equal(results, expected) else "other"

    def run(reference: Callable[[], Tensor]) -> dict[int, str]:
        cpu = {torch.device("cpu")}
        return measuring.measured([lambda: torch.ones(2), reference], [], [], cpu, unlike).faults

    assert run(lambda: torch.rand(2)) == {}
    assert run(lambda: torch.zeros(2)) == {0: "other"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_where_terms_cancel_a_more_exact_result_is_right(dtype: torch.dtype) -> None:
    def cancelling(x: Tensor) -> Tensor:
        return (x * 1000 + 0.1).sum() - (x * 1000).sum() - 0.1 * x.numel()

    x = torch.rand(1000).to(dtype)
    jitted = sg.jit(cancelling, executors=["torch"])
    jitted(x)
    trace = sg.last_traces(jitted)[0]
    expected = (cancelling(x),)
    exact = (cancelling(x.double()).to(dtype),)
    region = sg.executors.Region(trace, trace, ())
    assert not Contestants.unlike(region, [x], exact, expected)
    assert Contestants.unlike(region, [x], (exact[0] + 1000,), expected)


def test_memory_that_nobody_has_written_to_is_not_compared() -> None:
    jitted = sg.jit(lambda x: (torch.empty_like(x), x + 1), executors=["torch"])
    x = torch.zeros(3)
    jitted(x)
    trace = sg.last_traces(jitted)[0]
    region = sg.executors.Region(trace, trace, ())
    assert not Contestants.unlike(region, [x], (x + 7, x + 1), (x, x + 1))
    assert Contestants.unlike(region, [x], (x, x + 2), (x, x + 1))


def test_what_cannot_be_measured_is_declined(installed: Installed, folder: Path) -> None:
    installed.add("failing", FAILING)
    with pytest.warns(PluginWarning, match="executor failing 1.0 is out of the contest .*: it raised RuntimeError"):
        jitted = check(product, torch.ones(3) * 4)
    found = choice_of(jitted)
    assert found.declined == (("failing", "out, for it raised RuntimeError: not these"),)
    assert not disk_cache.everything()


def test_a_region_that_fails_to_compile_is_declined(installed: Installed, folder: Path) -> None:
    installed.add("failing", "RUN = lambda region: sg.Declined('no luck')")
    jitted = check()
    assert choice_of(jitted).declined == (("failing", "no luck"),)
    assert not disk_cache.everything()
    listed = sg.jit(product, executors=["failing", "torch"])
    a = torch.rand(3)
    assert_same(listed(a), product(a))
    assert choice_of(listed).declined == (("failing", "no luck"),)


def choice_of(jitted: Any) -> sg.executors.Choice:
    return next(one for one in sg.last_choices(jitted) if (one.kind, one.symbol) == ("execution", "aten.mul.Tensor"))


def test_fuel(installed: Installed) -> None:
    installed.add("fast", FAST)
    jitted = check(lambda a: product(product(a).sin()), fuel=1)
    assert operators(forward(jitted)) == ["fast_computation_0", "torch.sin", *["aten.mul.Tensor"] * 32]
    assert "fast: no fuel is left for its region" in str(sg.explain(jitted).operators())


def test_a_region_that_all_decline(installed: Installed) -> None:
    installed.add("fast", FAST)
    jitted = check(lambda a: a * 2)
    assert choice(jitted, "execution", "aten.mul.Tensor").declined[0] == (
        "fast",
        "a region of 1 operators, fewer than 2",
    )


def test_a_device_that_nothing_can_be_measured_on(installed: Installed, folder: Path) -> None:
    installed.add("slow", SLOW)
    jitted = sg.jit(product, executors="auto")
    assert jitted(torch.empty(3, device="meta")).device.type == "meta"
    assert "slow: not measured, for that raised" in str(sg.explain(jitted).operators())
    assert not disk_cache.everything()


def test_any_other_name_is_no_list() -> None:
    with pytest.raises(TypeError, match=r"write \['torch'\]"):
        sg.jit(product, executors="torch")


# Measuring.


def test_what_is_global_is_as_before(installed: Installed, recwarn: pytest.WarningsRecorder) -> None:
    installed.add("fast", FAST)
    state = torch.get_rng_state()
    with torch.inference_mode(), torch.device("meta"):
        jitted = sg.jit(product, executors="auto")
        jitted(torch.rand(3, device="cpu"))
        assert torch.is_inference_mode_enabled()
        assert torch.rand(3).device.type == "meta"
    assert torch.is_grad_enabled()
    assert len(lines(forward(jitted))) == 1
    torch.set_rng_state(state)
    wanted = torch.rand(3)
    torch.set_rng_state(state)
    sg.jit(lambda a: product(a) * 4, executors="auto")(torch.ones(3))
    assert torch.equal(torch.rand(3), wanted)
    assert not recwarn.list


def test_indices_are_valid(installed: Installed) -> None:
    installed.add("slow", SLOW)

    def look_up(table: Tensor, index: Tensor) -> Tensor:
        return torch.nn.functional.embedding(index, table) * 2

    jitted = check(look_up, torch.rand(3, 4), torch.tensor([2, 0, 1]))
    assert "slow: not faster as measured" in str(sg.explain(jitted).operators())


def proxy(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype = torch.float32) -> sg.TensorProxy:
    return sg.TensorProxy("x", shape, stride, dtype, torch.device("cpu"))


@pytest.mark.parametrize(
    ("shape", "stride", "dtype"),
    [
        ((2, 3), (3, 1), torch.float32),
        ((2, 3), (1, 2), torch.bfloat16),
        ((2, 3), (0, 5), torch.float8_e4m3fn),
        ((0, 3), (3, 1), torch.float64),
        ((), (), torch.complex64),
        ((4,), (1,), torch.int64),
        ((4,), (2,), torch.bool),
    ],
)
def test_made_up_tensors(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> None:
    seen: list[Tensor] = []

    def look(*tensors: Tensor) -> None:
        seen[:] = tensors

    layouts = [proxy(shape, stride, dtype)] * 2
    found = measuring.measured([look, look], [], layouts, {torch.device("cpu")}, lambda *results: "")
    assert all(0 < seconds < 1 for seconds in found.seconds)
    for tensor in seen:
        assert (tensor.shape, tensor.stride(), tensor.dtype) == (shape, stride, dtype)
        values = tensor.to(torch.complex128).abs()
        assert ((values >= 0.09) & (values <= 0.91)).all() if layouts[0].is_differentiable else (values == 0).all()
    assert seen[0].untyped_storage().data_ptr() != seen[1].untyped_storage().data_ptr() or 0 in shape


def test_what_takes_long_runs_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []

    def slow() -> None:
        calls.append(time.process_time())
        while time.process_time() < calls[-1] + 0.3:
            pass

    monkeypatch.setattr(measuring, "PATIENCE", 0.5)  # which the fewest calls take, however steady they are
    found = measuring.measured([slow, lambda: None], [], [], {torch.device("cpu")}, lambda *results: "")
    assert found.seconds[0] > 0.25 > found.seconds[1]
    assert len(calls) == 1 + measuring.FEWEST
