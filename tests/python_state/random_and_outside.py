"""What comes from outside of the program or goes there: random numbers, time, printing, files, the environment."""

from __future__ import annotations

import datetime
import logging
import os
import random
import secrets
import tempfile
import time
import uuid
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.python_state.scenario import Call, Scenario, Steps, case, changed, points, repeated, step


@case(falls_back="Python's random stream")
def python_random() -> Scenario:
    return repeated(lambda x: x * random.uniform(0.5, 1.5), lambda: random.getstate()[1][:3])


@case(falls_back="Python's random stream")
def random_choice_of_a_branch() -> Scenario:
    return repeated(lambda x: x * 2 if random.random() < 0.5 else x.tanh(), lambda: None, times=6)


@case(falls_back="a stream of the user's own")
def generator_of_python() -> Scenario:
    numbers = random.Random(7)
    return repeated(lambda x: x * numbers.gauss(0.0, 1.0), lambda: numbers.getstate()[1][:3])


@case(falls_back="NumPy's random stream")
def numpy_random() -> Scenario:
    return repeated(lambda x: x * float(np.random.beta(0.4, 0.4)), lambda: None)


@case()
def torch_random() -> Scenario:
    return repeated(lambda x: x + torch.rand_like(x), torch.get_rng_state)


@case(falls_back="a generator that is no argument")
def generator_of_torch() -> Scenario:
    generator = torch.Generator().manual_seed(3)
    return repeated(lambda x: x + torch.rand(4, generator=generator), generator.get_state)


@case(falls_back="what is printed")
def printed_text() -> Scenario:
    def forward(x: Tensor) -> Tensor:
        print("rows", x.shape[0])
        return x * 2

    return repeated(forward, lambda: None)


@case(falls_back="what is printed")
def printed_tensor() -> Scenario:
    def forward(x: Tensor) -> Tensor:
        y = x * 2
        print(y.detach())
        return y

    return repeated(forward, lambda: None)


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the text."""
        self.lines.append(record.getMessage())


def _logged(level: int) -> Scenario:
    logger = logging.getLogger("tests.python_state.case")
    handler = _Lines()
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False

    def forward(x: Tensor) -> Tensor:
        logger.log(level, "rows %d", x.shape[0])
        return x * 2

    return repeated(forward, lambda: handler.lines)


@case(falls_back="what is logged")
def logged_text() -> Scenario:
    return _logged(logging.INFO)


@case()
def logging_below_the_level() -> Scenario:
    return _logged(logging.DEBUG)


@case(falls_back="a file is written")
def line_in_a_file() -> Scenario:
    folder: list[Path] = []

    def forward(x: Tensor) -> Tensor:
        with (folder[0] / "log.txt").open("a") as file:
            file.write(f"{x.shape[0]}\n")
        return x * 2

    def drive(call: Call) -> Steps:
        with tempfile.TemporaryDirectory() as name:
            folder.append(Path(name))
            for _ in range(4):
                yield step(call, points())
                yield (folder[0] / "log.txt").read_text()

    return Scenario(forward, drive, settled=False)


@case(falls_back="random bytes are asked for")
def bytes_of_the_system() -> Scenario:
    def drive(call: Call) -> Steps:
        yield len({call(points())[1] for _ in range(3)})

    return Scenario(lambda x: (x * 2, uuid.uuid4().hex, secrets.token_hex(4)), drive, settled=False)


@case(falls_back="the clock is read by a class of C's")
def clock_by_datetime() -> Scenario:
    def drive(call: Call) -> Steps:
        yield len({call(points())[1] for _ in range(3)})

    return Scenario(lambda x: (x * 2, str(datetime.datetime.now())), drive, settled=False)


@case(falls_back="the clock is read")
def clock() -> Scenario:
    def drive(call: Call) -> Steps:
        x = torch.zeros((), dtype=torch.float64)
        first, second, third = call(x), call(x), call(x)
        yield bool(first < second < third)

    return Scenario(lambda x: x + time.perf_counter(), drive, settled=False)


@case()
def environment_variable() -> Scenario:
    os.environ.pop("PYTHON_STATE_CASE", None)

    def forward(x: Tensor) -> Tensor:
        return x * 2 if os.environ.get("PYTHON_STATE_CASE") == "1" else x + 1

    return changed(
        forward,
        lambda: os.environ.update(PYTHON_STATE_CASE="1"),
        lambda: os.environ.pop("PYTHON_STATE_CASE"),
    )


@case()
def environment_that_grows() -> Scenario:
    os.environ.pop("PYTHON_STATE_CASE", None)

    def drive(call: Call) -> Steps:
        for value in (None, "1", "2", None):
            if value is not None:
                os.environ["PYTHON_STATE_CASE"] = value
            else:
                os.environ.pop("PYTHON_STATE_CASE", None)
            yield step(call, points(3))

    return Scenario(lambda x: x * sum(name.startswith("PYTHON_STATE") for name in os.environ), drive)


@case(falls_back="a variable is set")
def environment_variable_set() -> Scenario:
    def forward(x: Tensor) -> Tensor:
        os.environ["PYTHON_STATE_CASE"] = "3"
        return x * 2

    def drive(call: Call) -> Steps:
        for _ in range(3):
            os.environ.pop("PYTHON_STATE_CASE", None)
            yield step(call, points(3))
            yield os.environ.pop("PYTHON_STATE_CASE", None)

    return Scenario(forward, drive)


@case(falls_back="a warning is shown")
def warning_of_the_user() -> Scenario:
    def forward(x: Tensor) -> Tensor:
        if x.shape[0] > 4:
            warnings.warn("case: many rows", UserWarning, stacklevel=1)
        return x * 2

    def drive(call: Call) -> Steps:
        for rows in (3, 3, 5, 5):
            yield step(call, points(rows))

    return Scenario(forward, drive)


@case()
def default_dtype_and_grad_mode() -> Scenario:
    layer = nn.Linear(4, 4)

    def forward(x: Tensor) -> Any:
        scale = torch.tensor(2.0)
        return layer(x) * scale.to(x.dtype), torch.is_grad_enabled(), str(scale.dtype)

    def drive(call: Call) -> Steps:
        x = points()
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            try:
                yield step(call, x)
            finally:
                torch.set_default_dtype(torch.float32)
        with torch.no_grad():
            yield call(points())

    return Scenario(forward, drive)
