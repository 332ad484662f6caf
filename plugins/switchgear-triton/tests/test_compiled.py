"""Compilation of the kernels to machine code for absent devices, which the interpreter cannot test."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)

SOURCE = Path(__file__).parents[1] / "src"
#: A separate process, because with TRITON_INTERPRET=1 nothing is compiled.
COMPILE = """
import sys
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from switchgear_triton import kernels

arch, dtype = sys.argv[1:]
target = GPUTarget("hip", arch, 64) if arch.startswith("gfx") else GPUTarget("cuda", int(arch), 32)
wide = {"fp64": tl.float64}.get(dtype, tl.float32)
NUMBERS = ("size", "rows", "classes", "ignored", "count", "heads", "length", "half")
CONSTANTS = {"EPS": 1e-5, "HAS_WEIGHT": True, "SMOOTHING": 0.1, "BACKWARD": True, "WIDE": wide, "BLOCK": 1024}

def kind(name):
    if name in CONSTANTS:
        return "constexpr"
    if name in NUMBERS or name[-1].isdigit():
        return "i32"
    if name == "target":
        return "*i64"
    return {tl.float64: "*fp64", tl.float32: "*fp32"}[wide] if name in ("losses", "sums", "by_weight") else "*" + dtype

for name, kernel in vars(kernels).items():
    if isinstance(kernel, triton.JITFunction):
        signature = {argument: kind(argument) for argument in kernel.arg_names}
        constants = {(place,): CONSTANTS[one] for place, one in enumerate(kernel.arg_names) if one in CONSTANTS}
        compiled = triton.compile(ASTSource(kernel, signature, constants), target=target)
        print(name, len(compiled.asm["hsaco" if arch.startswith("gfx") else "cubin"]))
"""


@pytest.mark.parametrize("dtype", ["bf16", "fp64"])
@pytest.mark.parametrize("arch", ["80", "90", "gfx942"])
def test_kernels_compile(arch: str, dtype: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    path = os.pathsep.join([str(SOURCE), *sys.path])
    environment |= {"PYTHONPATH": path, "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-c", COMPILE, arch, dtype]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-2000:]
    sizes = dict(line.split() for line in process.stdout.splitlines())
    assert len(sizes) == 7
    assert all(int(size) > 0 for size in sizes.values())
