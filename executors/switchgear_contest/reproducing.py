"""Reproducing: a file that shows a difference between an executor's results and PyTorch's operators."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from pathlib import Path

import switchgear as sg

from .measuring import made_up

_SCRIPT = '''\
"""Run it: it raises ExecutorFailed while executor {name} computes something else than PyTorch's operators."""

from collections.abc import Sequence

import switchgear as sg
{region}

{made_up}

# an object in place of the name, if the executor is not installed
EXECUTORS = [{name}, "torch"]
generator = torch.Generator({device}).manual_seed(0)
arguments = [
{arguments}
]
jitted = sg.jit({function}, executors=EXECUTORS, check=True, compile="now", fallback="error")
print(jitted(*arguments))
print(sg.explain(jitted))
'''


def reproduce(region: sg.executors.Region, executor: sg.Executor, fault: str) -> Path | str:
    """Write the file; return its path, or why there is none."""
    trace = region.trace
    device = next((str(proxy.device) for proxy in region.layouts), "cpu")
    tensors = [
        f"    made_up({tuple(item.shape)}, {tuple(item.stride)}, {item.dtype}, generator)," for item in region.layouts
    ]
    script = _SCRIPT.format(
        name=json.dumps(executor.name),
        region=trace.python(),
        made_up=inspect.getsource(made_up),
        device=json.dumps(device),
        arguments="\n".join([*(f"    {size}," for size in region.sizes), *tensors]),
        function=trace.name,
    )
    digest = hashlib.sha256(f"{script}{fault}".encode()).hexdigest()[:8]
    try:
        name = re.sub(r"\W", "_", executor.name)
        file = sg.disk_cache.folder() / "faults" / f"{name}_{digest}.py"
        sg.disk_cache.write(file, script.encode())
    except (OSError, RuntimeError) as error:
        return f"no file reproduces it: {error}"
    return file
