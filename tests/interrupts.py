"""Interrupt first calls at random instructions, and check that nothing of the capture is left.

    python -m tests.interrupts --number 2000 --seed 0

Each child process interrupts many first calls, one after another: by a `KeyboardInterrupt` raised at a random bytecode
or at a random call or return, by real SIGINTs, and by asynchronous exceptions. While the exception is there, as in
notebooks, all patched names, modes, random streams and locks are compared with those of before.
"""

from __future__ import annotations

import argparse
import builtins
import collections
import ctypes
import faulthandler
import gc
import importlib
import json
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import switchgear as sg

#: A call that an interrupt is to meet.
Call = Callable[[], Any]
LOG: list[float] = []


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.norm = nn.BatchNorm1d(4)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        with torch.no_grad():
            scale = x.norm()
        result: torch.Tensor = self.norm(checkpoint(self.layers, x, use_reentrant=False)) / scale
        return result


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2


def arithmetic(x: torch.Tensor) -> torch.Tensor:
    rows = [Double.apply(row).sin() for row in x]  # type: ignore[no-untyped-call]
    LOG.append(1.0)
    with torch.autocast("cpu", torch.bfloat16):
        return torch.stack(rows) @ x.mT.exp()


def derivatives(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.func.vmap(torch.func.grad(lambda row: row.sin().sum()))(x)
    return result


def data_dependent(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    return y * 2 if y.sum().item() > 100 else y.cos()


def _call(function: Callable[..., Any], **options: Any) -> Call:
    jitted = sg.jit(function, executors=["torch"], **options)
    x = torch.linspace(-1, 1, 12).reshape(3, 4).clone().requires_grad_()

    def call() -> list[torch.Tensor]:
        x.grad = None
        result = jitted(x)
        result = result[0] if isinstance(result, tuple) else result
        result.float().sum().backward()
        return [result.detach(), x.grad]

    return call


def _net(kind: Callable[[], nn.Module], **options: Any) -> Call:
    torch.manual_seed(0)
    return _call(kind(), **options)


#: What is called for the first time, each time a new function. Where PyTorch's own TorchDynamo takes a function apart,
#: what it leaves of its own is not looked at.
PROGRAMS: dict[str, Callable[[], Call]] = {
    "a module": lambda: _net(Net),
    "arithmetic": lambda: _call(lambda x: arithmetic(x)),
    "derivatives": lambda: _call(lambda x: derivatives(x)),
    "derivatives by sg": lambda: _call(sg.grad(lambda x: (x * x).sum())),
    "a recurrent layer": lambda: _net(lambda: nn.GRU(4, 2)),
    "symbolic sizes": lambda: _call(lambda x: x.reshape(-1).cumsum(0) + len(x), dynamic={"x": {0}}),
    "split": lambda: _call(lambda x: data_dependent(x)),
    "refused": lambda: _call(lambda x: data_dependent(x), fallback="eager"),
}


#: So many seconds a child may take for one call.
PATIENCE = 300
#: What takes far longer than others under a trace.
_SLOW = {"symbolic sizes", "split"}


class Injection:
    """Raises `KeyboardInterrupt` at one instruction: that of a frame, or at a call or a return."""

    def __init__(self, at: int, opcode: int = 0) -> None:
        self.at, self.opcode = at, opcode
        self.events = 0
        self.where = ""

    def _raise(self, frame: Any) -> None:
        sys.settrace(None)
        sys.setprofile(None)
        code = frame.f_code
        self.where = f"{code.co_filename}:{frame.f_lineno} {code.co_name} +{frame.f_lasti}"
        raise KeyboardInterrupt

    def trace(self, frame: Any, event: str, argument: object) -> Any:
        """Count calls; then the instructions of one of them."""
        self.events += 1
        if self.events - 1 != self.at or self.where:
            return None
        frame.f_trace_opcodes = True
        left = self.opcode

        def local(frame: Any, event: str, argument: object) -> Any:
            nonlocal left
            left -= 1
            if not self.where and (left < 0 or event == "return"):
                self._raise(frame)
            return local

        return local

    def profile(self, frame: Any, event: str, argument: object) -> None:
        """Count calls and returns, those of C too."""
        self.events += 1
        if self.events - 1 == self.at and not self.where:
            self._raise(frame)


def _later(seconds: float, interrupt: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(seconds, interrupt)
    timer.start()
    return timer


def _async() -> None:
    thread = ctypes.c_ulong(threading.main_thread().ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(KeyboardInterrupt))


def interrupted(
    call: Call, kind: str, rng: random.Random, lengths: dict[str, float]
) -> tuple[BaseException | None, str]:
    """Run a call that is interrupted; the exception that came out, and where it was raised."""
    opcode = rng.choice([rng.randrange(8), rng.randrange(200)])
    injection = Injection(rng.randrange(int(lengths[kind]) or 1), opcode)
    timer = None
    try:
        if kind == "trace":
            sys.settrace(injection.trace)
        elif kind == "profile":
            sys.setprofile(injection.profile)
        else:
            kill = _async if kind == "async" else lambda: os.kill(os.getpid(), signal.SIGINT)
            timer = _later(rng.random() * lengths["time"], kill)
        try:
            call()
        finally:
            sys.settrace(None)
            sys.setprofile(None)
        if timer is not None:
            timer.join()
            time.sleep(0.05)  # where it arrives after the call
    except KeyboardInterrupt as error:
        frames = list(traceback.walk_tb(error.__traceback__))
        code = frames[-1][0].f_code
        return error, injection.where or f"{code.co_filename}:{frames[-1][1]} {code.co_name}"
    finally:
        if timer is not None:
            timer.join()
    return None, injection.where


def measured(program: Callable[[], Call]) -> dict[str, float]:
    """How many events of each kind a first call has, and how long it takes."""
    lengths: dict[str, float] = {}
    for kind in ("trace", "profile"):
        counter, call = Injection(-1), program()
        put = sys.settrace if kind == "trace" else sys.setprofile
        put(getattr(counter, kind))
        try:
            call()
        finally:
            put(None)
        lengths[kind] = counter.events
    call, start = program(), time.perf_counter()
    call()
    lengths["time"] = time.perf_counter() - start
    return {**lengths, "signal": 0, "async": 0}


def _holders() -> tuple[list[Any], list[Any]]:
    """The namespaces that capture patches; all of PyTorch's, and of the standard library where users call C."""
    often = [builtins, importlib, sys, logging, logging.Logger, warnings, time, torch, torch._C, torch.Tensor]
    often += [nn.Module, torch.autograd.Function, torch.overrides, torch.compiler, torch.random, torch.SymInt]
    often += [torch.utils.checkpoint, type(os.environ), socket.socket, os, Net, Double]
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] in _WATCHED]
    classes = {one for module in modules for one in vars(module).values() if isinstance(one, type)}
    return often, [*modules, *classes]


_WATCHED = {"torch", "io", "threading", "subprocess", "contextlib", "random", "copy", "datetime", "uuid", "tempfile"}


class Before:
    """What has to be after an interrupt as it is now."""

    def __init__(self) -> None:
        self.often, self.names = (
            [(holder, type(holder), dict(vars(holder))) for holder in holders] for holders in _holders()
        )
        self.state = self._state()
        torch.manual_seed(0)
        self.plain = Net()
        self.x = torch.linspace(-1, 1, 12).reshape(3, 4)
        self.expected = self.plain(self.x).detach()

    @staticmethod
    def _state() -> dict[str, Any]:
        c: Any = torch._C
        include, exclude = c._dispatch_tls_local_include_set(), c._dispatch_tls_local_exclude_set()
        dispatch = torch.utils._python_dispatch
        return {
            "dispatch modes": c._len_torch_dispatch_stack(),
            "function modes": c._len_torch_function_stack(),
            "torch function": c._is_torch_function_enabled(),
            "keys": (str(include), str(exclude)),
            "transforms": c._functorch.peek_interpreter_stack() is None,
            "grad mode": torch.is_grad_enabled(),
            "inference mode": torch.is_inference_mode_enabled(),
            "autocast": (torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()),
            "autocast depth": torch.autocast_increment_nesting() - 1 - 0 * torch.autocast_decrement_nesting(),
            "default dtype": torch.get_default_dtype(),
            "default device": torch.get_default_device(),
            "anomaly mode": torch.is_anomaly_enabled(),
            "multithreading": c._is_multithreading_enabled(),
            "saved tensors' hooks": c._autograd._top_saved_tensors_default_hooks(True),
            "forward mode": torch.autograd.forward_ad._current_level,
            "lifting": c._only_lift_cpu_tensors() if hasattr(c, "_only_lift_cpu_tensors") else None,
            "flags of modes": (
                dispatch.is_in_torch_dispatch_mode(),
                dispatch.is_in_any_mode_without_ignore_compile_internals(),
            ),
            "compiling": torch.compiler.is_compiling(),
            "graph task": c._current_graph_task_id(),
            "garbage": gc.isenabled(),
            "warnings": [*warnings.filters],
            "loggers": logging.getLogger("torch._subclasses.fake_tensor").disabled,
            "trace": (sys.gettrace(), sys.getprofile()),
            "Python's stream": random.getstate(),
            "signals": signal.getsignal(signal.SIGINT),
            "recursion": sys.getrecursionlimit(),
        }

    def left(self, thorough: bool) -> Iterator[str]:
        """What is otherwise by now."""
        for holder, kind, before in self.names if thorough else self.often:
            if type(holder) is not kind:
                yield f"{holder} is a {type(holder)}"
            now = vars(holder)
            for name in before.keys() | now.keys():
                missing = object()
                one, other = before.get(name, missing), now.get(name, missing)
                if one is missing and holder is torch.ops:
                    continue  # a namespace, which PyTorch makes when it is first asked for
                if one is not other and _is_patch(one, other):
                    yield f"{getattr(holder, '__name__', holder)}.{name}: {one!r:.80} became {other!r:.80}"
        now = self._state()
        yield from (
            f"{name}: {value!r:.200} became {now[name]!r:.200}"
            for name, value in self.state.items()
            if now[name] != value
        )
        result = self.plain(self.x)
        if type(result) is not torch.Tensor or result.is_meta or not torch.equal(result.detach(), self.expected):
            yield "eager computes otherwise"
        if thorough:
            yield from self._other_thread()

    @staticmethod
    def _other_thread() -> Iterator[str]:
        results: list[Any] = []
        jitted = sg.jit(lambda x: x * 2 + 1, executors=["torch"], fallback="error")

        def run() -> None:
            results.append(jitted(torch.ones(3)))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(30)
        if not results or not torch.equal(results[0], torch.full((3,), 3.0)):
            yield f"another thread gets {results}"


def _is_patch(one: object, other: object) -> bool:
    """Whether a changed name is a function, class or module in the place of another, no counter and no cache."""
    kinds = (type(len), type(lambda: 0), type, classmethod, staticmethod, property, type(sys), torch.Generator)
    return isinstance(one, kinds) or isinstance(other, kinds)


def child(number: int, seed: int, first: int, programs: list[str]) -> None:
    """Interrupt calls `first` to `number`; print two lines for each; end with one that leaves something."""
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name in ("torch._dynamo", "sympy"):  # else a first call imports them, and they replace functions
        importlib.import_module(name)
    expected = {}
    for name in programs:
        PROGRAMS[name]()()
        expected[name] = PROGRAMS[name]()()
    lengths = {name: measured(PROGRAMS[name]) for name in programs}
    before = Before()
    for index in range(first, number):
        rng = random.Random(f"{seed} {index}")
        slow = [name for name in programs if name in _SLOW and rng.random() < 0.8]
        name = rng.choice([name for name in programs if name not in slow] or programs)
        kind = rng.choice(["trace", "trace", "profile", "signal", "async"])
        _tell(begin=index, name=name, kind=kind)
        call = PROGRAMS[name]()
        error, where = interrupted(call, kind, rng, lengths[name])
        is_thorough = index % 20 == 19
        left = list(before.left(is_thorough))
        del error
        if not left and (is_thorough or rng.random() < 0.2):
            found = call()
            if not all(map(torch.equal, found, expected[name])):
                left.append("a later call gives something else")
            left += before.left(is_thorough)
        _tell(end=index, where=where, left=left)
        if left:
            break
    _tell(done=True)
    os._exit(0)  # threads may be left in the middle of a capture


def _tell(**event: object) -> None:
    print(json.dumps(event), flush=True)


def run(number: int, seed: int, programs: list[str], first: int = 0) -> list[str]:
    """Interrupt so many calls in child processes; what each of them left, and where."""
    failures, counts = list[str](), collections.Counter[str]()
    while first < number:
        command = [sys.executable, "-m", "tests.interrupts", "--child", "--number", str(number)]
        command += ["--seed", str(seed), "--first", str(first), "--programs", *programs]
        begun, errors, is_done = dict[str, Any](), "", False
        with tempfile.TemporaryFile("w+") as file:
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True) as process:
                for event in _events(process):
                    is_done |= "done" in event
                    if "begin" in event:
                        begun = event
                    elif "end" in event:
                        counts[begun["kind"] if event["where"] else "not met"] += 1
                        first = event["end"] + 1
                        if event["left"]:
                            failures.append(f"{begun} at {event['where']}: " + "; ".join(event["left"]))
                            print(failures[-1], flush=True)
                        begun = {}
            file.seek(0)
            errors = file.read()
            errors = errors if len(errors) < 6000 else f"{errors[:3000]}\n...\n{errors[-3000:]}"
        if begun:
            first = begun["begin"] + 1
            failures.append(f"{begun}: the process ended with {process.returncode}\n{errors}")
            print(failures[-1], flush=True)
        elif not is_done:
            raise SystemExit(f"no interrupts: {errors}")
    print(
        f"{sum(counts.values())} first calls interrupted ({dict(counts)}), {len(failures)} left something", flush=True
    )
    return failures


def _events(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """What a child tells; it is ended where it tells nothing for long."""
    assert process.stdout is not None
    while True:
        watchdog = threading.Timer(PATIENCE, process.kill)
        watchdog.start()
        line = process.stdout.readline()
        watchdog.cancel()
        if not line:
            return
        if line.startswith("{"):
            yield json.loads(line)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--number", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--programs", nargs="*", default=[*PROGRAMS])
    parser.add_argument("--child", action="store_true")
    options = parser.parse_args()
    if options.child:
        child(options.number, options.seed, options.first, options.programs)
    sys.exit(bool(run(options.number, options.seed, options.programs, options.first)))


if __name__ == "__main__":
    main()
