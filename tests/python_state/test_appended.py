"""Lists that code appends to: every call finds them changed, so the function runs in eager after a few."""

from __future__ import annotations

import copy
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import switchgear as sg
from switchgear import errors
from tests.falling_back import falls_back

#: So many calls are compiled, and so many made.
LIMIT, CALLS = 16, 18
LOG: list[Any] = []


class Model(nn.Module):
    """A layer with a log."""

    other: Any = ()

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.losses: Any = []
        self.same = self.losses
        self.held = {"losses": self.losses}

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = self.layer(x).square().mean()
        self.losses.append(loss.detach())
        return loss


class Queue(Model):
    def __init__(self) -> None:
        super().__init__()
        self.losses = deque()


class Extends(Model):
    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = self.layer(x).square().mean()
        self.losses.extend((loss.detach(), float(x.shape[0])))
        return loss


class InDict(Model):
    def __init__(self) -> None:
        super().__init__()
        self.logs: Any = {"loss": self.losses, "count": []}

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = self.layer(x).square().mean()
        for name in ("count",):
            self.logs[name].append(len(x))
        self.logs["loss"].append(loss.detach())
        return loss


class Twice(Model):
    def forward(self, x: Tensor) -> Tensor:
        LOG.append(x.sum())
        return super().forward(x)


def hooked() -> tuple[nn.Module, list[Any]]:
    outputs: list[Any] = []
    model = Model()
    model.layer.register_forward_hook(lambda _module, _inputs, output: outputs.append(output.detach()))
    return model, outputs


def _of(kind: type[Model]) -> Callable[[], tuple[nn.Module, Any]]:
    def make() -> tuple[nn.Module, Any]:
        model = kind()
        return model, model.losses

    return make


@pytest.mark.parametrize(
    "make",
    [*map(_of, (Model, Queue, Extends, InDict, Twice)), hooked],
    ids=["list", "deque", "extend", "in a dict", "global", "hook"],
)
def test_a_log_falls_back_after_a_few_calls(make: Callable[[], tuple[nn.Module, Any]]) -> None:
    model, log = make()
    model.load_state_dict({name: torch.ones_like(value) for name, value in model.state_dict().items()})
    jitted = sg.jit(model, executors=["torch"])
    LOG.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.RecompileWarning)
        for call in range(LIMIT):
            assert jitted(torch.full((2, 3), float(call))).item() == (3 * call + 1) ** 2
    with falls_back("changed, as for all entries before"):
        for call in range(LIMIT, CALLS):
            assert jitted(torch.full((2, 3), float(call))).item() == (3 * call + 1) ** 2
    logged = [one.square().mean().sqrt().item() for one in log if isinstance(one, Tensor)]
    squared = make is not hooked
    assert logged == pytest.approx([(3 * call + 1) ** (1 + squared) for call in range(CALLS)])
    assert [one.item() for one in LOG] == ([6 * call for call in range(CALLS)] if isinstance(model, Twice) else [])


def _by_text(model: Nested, value: Tensor) -> None:
    for place in range(2):
        model.logs[f"layer{place}"].append(value * place)


def _in_dicts(model: Nested, value: Tensor) -> None:
    model.nested["train"]["loss"].append(value)


def _in_list(model: Nested, value: Tensor) -> None:
    model.rows[0].append(value)
    model.rows[-1].extend((value, 1))


def _in_tuple(model: Nested, value: Tensor) -> None:
    model.pair[1].append(value)


def _beside_others(model: Nested, value: Tensor) -> None:
    names = {"a.b".replace(".", "_"): getattr(model, "training")}  # noqa: B009
    if names.copy():
        model.losses.append(value * model.scales["a"])


IDIOMS = (_by_text, _in_dicts, _in_list, _in_tuple, _beside_others)


class Nested(nn.Module):
    """Logs in containers."""

    def __init__(self, log: Callable[[Nested, Tensor], None]) -> None:
        super().__init__()
        self.log = log
        self.scales = nn.ParameterDict({"a": nn.Parameter(torch.ones(()))})
        self.losses: list[Any] = []
        self.logs: Any = {"layer0": [], "layer1": []}
        self.nested: Any = {"train": {"loss": []}}
        self.rows: Any = [[], []]
        self.pair: Any = ([], [])

    def held(self) -> Any:
        return self.losses, self.logs, self.nested, self.rows, self.pair

    def forward(self, x: Tensor) -> Tensor:
        self.log(self, x.detach().sum())
        return x * 2


def _numbers(held: Any) -> Any:
    if isinstance(held, dict):
        return {name: _numbers(value) for name, value in held.items()}
    if isinstance(held, (list, tuple)):
        return [_numbers(value) for value in held]
    return held.item() if isinstance(held, Tensor) else held


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("log", IDIOMS)
def test_logs_in_containers_hold_what_eager_logs(log: Callable[[Nested, Tensor], None]) -> None:
    model, eager = Nested(log), Nested(log)
    jitted = sg.jit(model, executors=["torch"])
    for call in range(2 * CALLS):
        if call == CALLS:
            for one in (model, eager):
                one.losses, one.rows[0], one.pair, one.logs["layer0"] = [], [], ([], []), []
                one.rows[1].clear()
                one.nested = {"train": {"loss": []}}
        x = torch.full((2, 3), float(call))
        assert torch.equal(jitted(x), eager(x))
        assert _numbers(model.held()) == _numbers(eager.held())
    assert sg.cache_info(jitted).entries


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("is_one_trace", [True, False])
def test_nested_logs_that_are_read_are_compiled_a_few_times(is_one_trace: bool) -> None:
    def log(model: Nested, value: Tensor) -> None:
        model.rows[0].append(value)
        model.nested["train"]["loss"].append(len(model.rows[0]) * (not is_one_trace))

    model, eager = Nested(log), Nested(log)
    jitted = sg.jit(model, executors=["torch"])
    for call in range(40):
        x = torch.full((2, 3), float(call))
        assert torch.equal(jitted(x), eager(x))
        assert _numbers(model.held()) == _numbers(eager.held())
    assert 0 < sg.cache_info(jitted).entries <= sg.cache_info(jitted).misses <= 17


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_values_that_come_to_the_same_count_as_others_do() -> None:
    class Named(nn.Module):
        name = ""

        def forward(self, x: Tensor) -> Tensor:
            return x * (2 if self.name else 3)

    model = Named()
    jitted = sg.jit(model, executors=["torch"])
    for call in range(40):
        model.name = f"call {call}"
        assert torch.equal(jitted(torch.ones(2)), torch.full((2,), 2.0))
    assert sg.cache_info(jitted).misses <= 17


def test_it_may_be_replaced_and_emptied() -> None:
    model = Model()
    jitted = sg.jit(model, executors=["torch"], strict=True)
    x = torch.ones(2, 3)
    jitted(x)
    first, model.losses = model.losses, []
    jitted(x)
    jitted(x)
    assert (len(first), len(model.losses)) == (1, 2)
    model.losses.clear()
    jitted(x)
    assert len(model.losses) == 1


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_bounded_deque_holds_the_last() -> None:
    recent: deque[Tensor] = deque(maxlen=3)

    def function(x: Tensor) -> Tensor:
        recent.append(x.sum())
        recent.append(x.sum() * 2)
        return x * 2

    jitted = sg.jit(function, executors=["torch"])
    for call in range(CALLS):
        jitted(torch.full((2,), float(call)))
        last = [2.0 * call, 4.0 * call]
        assert [one.item() for one in recent][-2:] == last
        assert len(recent) == min(2 * call + 2, 3)
    assert recent[0].item() == 4.0 * (CALLS - 2)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_dict_of_logs_that_changes_otherwise() -> None:
    logs: dict[str, list[Any]] = {"a": [], "b": []}

    def function(x: Tensor) -> Tensor:
        logs["a"].append(1)
        logs["b"].append(x.sum())
        return x * 2

    jitted = sg.jit(function, executors=["torch"])
    x = torch.ones(2)
    for call in range(CALLS):
        if call % 3 == 1:
            logs[f"c{call}"] = [1]
        jitted(x)
        assert (len(logs["a"]), len(logs["b"])) == (call + 1, call + 1)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_object_among_the_arguments_has_one() -> None:
    class Metrics:
        def __init__(self) -> None:
            self.sums: list[Tensor] = []

    def function(x: Tensor, metrics: Metrics) -> Tensor:
        metrics.sums.append(x.sum())
        return x * 2

    jitted = sg.jit(function, executors=["torch"])
    both = Metrics(), Metrics()
    for call in range(CALLS):
        jitted(torch.ones(3), both[call % 3 == 0])
    assert [len(metrics.sums) for metrics in both] == [12, 6]


def _length(model: Model) -> int:
    return len(model.losses)


def _same(model: Model) -> int:
    return len(model.same)


def _in_dict(model: Model) -> int:
    return len(model.held["losses"])


def _item(model: Model) -> int:
    return len(model.held["losses"][0])


def _by_name(model: Model) -> int:
    return len(getattr(model, "".join(("los", "ses"))))


def _all(model: Model) -> int:
    return max(len(value) for value in vars(model).values() if isinstance(value, list))


def _copied(model: Model) -> int:
    return len(copy.copy(model.losses))


def _passed(model: Model) -> int:
    return _size(model.losses)


def _size(log: list[Any]) -> int:
    return sum(1 for _ in log)


def _last(model: Model) -> int:
    return 1 if model.losses and model.losses[-1] is not None else 0


def _aliased(model: Model) -> int:
    held = model.held
    losses = held["losses"]
    return len(losses)


def _gone_down(model: Model) -> int:
    held: Any = model.held
    for name in ("losses",):
        held = held[name]
    return len(held)


def _gone_through(model: Model) -> int:
    count = 0
    for _ in model.held["losses"]:
        count += 1
    return count


def _unpacked(model: Model) -> int:
    (losses,) = model.held.values()
    return len(losses)


def _got_and_counted(model: Model) -> int:
    return len(model.held.get("losses", ()))


def _chosen(model: Model) -> int:
    losses = model.held["losses"] if model.training else []
    return len(losses)


def _stored_elsewhere(model: Model) -> int:
    model.other = model.held["losses"]
    return len(model.other)


def _of_locals(model: Model) -> int:
    losses = model.held["losses"]
    losses.extend(())
    return max(len(value) for value in locals().values() if isinstance(value, list))


def _added_to_another(model: Model) -> int:
    other: list[Any] = []
    other += model.held["losses"]
    return len(other)


NESTED_READS = (
    *(_aliased, _gone_down, _gone_through, _unpacked, _got_and_counted, _chosen, _stored_elsewhere),
    *(_of_locals, _added_to_another),
)


def assert_logs_as_eager(model: Model, eager: Model) -> None:
    jitted = sg.jit(model, executors=["torch"])
    for call in range(CALLS):
        x = torch.full((2, 3), float(call))
        assert torch.equal(jitted(x), eager(x))
        assert len(model.losses) == len(eager.losses) == call + 1
    assert sg.cache_info(jitted).entries


@pytest.mark.parametrize("read", NESTED_READS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_looks_at_how_many_there_are_and_decides_later(read: Callable[[Model], int]) -> None:
    class Deciding(Model):
        def forward(self, x: Tensor) -> Tensor:
            self.held["losses"].append(x)
            return x * (2 if read(self) < 5 else 3)

    assert_logs_as_eager(Deciding(), Deciding())


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("read", [_length, _same, _in_dict, _item, _by_name, _all, _copied, _passed, _last])
def test_what_reads_it_sees_what_is_there(read: Callable[[Model], int]) -> None:
    class Reading(Model):
        def forward(self, x: Tensor) -> Tensor:
            self.held["losses"].append(x)
            return x * read(self)

    assert_logs_as_eager(Reading(), Reading())


@dataclass
class Record:
    losses: list[Any] = field(default_factory=list)


def _keyword_default(x: Tensor, *, losses: Any = []) -> Tensor:  # noqa: B006
    losses.append(1)
    return x * len(losses)


def _represented(x: Tensor, record: Record = Record()) -> Tensor:  # noqa: B008
    record.losses.append(1)
    return x * len(repr(record))


def _matched(x: Tensor, record: Record = Record()) -> Tensor:  # noqa: B008
    record.losses.append(1)
    match record:
        case Record(losses=[_, _]):
            return x * 2
    return x


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("function", [_keyword_default, _represented, _matched])
def test_reads_that_no_name_in_code_tells(function: Any) -> None:
    twin, (jitted, eager) = copy.deepcopy(function), ([], [])  # a deep copy of a function is itself
    results = sg.jit(twin, executors=["torch"])
    x = torch.ones(2)
    LOG.clear()
    state = _state_of(function)
    for _ in range(CALLS):
        jitted.append(results(x))
    _put_back(function, state)
    for _ in range(CALLS):
        eager.append(function(x))
    assert all(map(torch.equal, jitted, eager))
    assert sg.cache_info(results).entries


def test_a_log_among_the_arguments_that_is_read() -> None:
    jitted = sg.jit(lambda x, logs: (logs["a"].append(7), x * len(logs["a"]))[1], executors=["torch"], strict=True)
    for log in (deque([1], maxlen=2), deque([1], maxlen=1), deque([1, 2], maxlen=5)):
        for _ in range(3):
            assert jitted(torch.ones(()), {"a": log}) == len(log)


APPEND = LOG.append


def test_a_bound_method_of_a_list() -> None:
    def function(x: Tensor) -> Tensor:
        APPEND(x.sum())
        return x * 2

    LOG.clear()
    jitted = sg.jit(function, executors=["torch"], strict=True)
    for call in range(CALLS):
        jitted(torch.full((2,), float(call)))
    assert [one.item() for one in LOG] == [2.0 * call for call in range(CALLS)]


POPPED: deque[float] = deque()
POP = POPPED.popleft


def test_a_bound_method_that_takes_from_a_container() -> None:
    jitted = sg.jit(lambda x: x * POP(), executors=["torch"], strict=True)
    POPPED.extend((1.0, 2.0, 3.0))
    assert [jitted(torch.ones(())).item() for _ in range(3)] == [1.0, 2.0, 3.0]
    assert not POPPED


def _state_of(function: Any) -> Any:
    return copy.deepcopy((function.__defaults__, function.__kwdefaults__))


def _put_back(function: Any, state: Any) -> None:
    function.__defaults__, function.__kwdefaults__ = state
    LOG.clear()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_list_of_a_class_with_its_own_append() -> None:
    class Window(list):  # type: ignore[type-arg]
        def append(self, value: object) -> None:
            if len(self) == 3:
                del self[0]
            super().append(value)

    class Windowed(Model):
        def __init__(self) -> None:
            super().__init__()
            self.losses = Window()

    model = Windowed()
    jitted = sg.jit(model, executors=["torch"])
    for call in range(CALLS):
        jitted(torch.ones(2, 3))
        assert len(model.losses) == min(call + 1, 3)
