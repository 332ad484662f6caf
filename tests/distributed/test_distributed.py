"""Collectives and parallel wrappers, in two processes over gloo: results are eager's, none is dropped silently."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed

from tests.distributed import dtensors, ranks

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without torch.distributed")
ROOT = Path(__file__).parents[2]
COMMUNICATES = r"communicates with other processes, in .*ranks.py"
JIT_FIRST = r"\(make it a \w+\(sg.jit\(module\)\) instead\)"
#: By case, what is said where it falls back; None where it is compiled.
CASES = {
    **{function.__name__: COMMUNICATES for function in ranks.IN_PLACE},
    **{function.__name__: None for function in ranks.FUNCTIONAL},
    **{f"{function.__name__}_grad": "its gradient is a collective" for function in ranks.FUNCTIONAL[:2]},
    "all_reduce_grad": COMMUNICATES,
    "with_gradients_grad": COMMUNICATES,
    "ddp_of_jit": None,
    "jit_of_ddp": JIT_FIRST,
    "jit_around_ddp": JIT_FIRST,
    "fsdp_of_jit": None,
    "fsdp_of_jitted_layers": None,
    "fsdp_of_jit_and_layers": "the parameter 0.weight .* is sharded",
    "jit_of_fsdp": None,
    "jit_of_fsdp_of_layers": "the parameter 0.weight .* is sharded",
    "flat_fsdp_of_jit": None,
    "jit_of_flat_fsdp": JIT_FIRST,
    "parallel_of_jit": None,
    "jit_of_parallel": None,
    "parallel_of_jitted_layers": None,
    "sharded_argument": None,
    "sharded_closure": None,
    "sharded_embedding": None,
    **{name: reason for name, (_, reason) in dtensors.CASES.items()},
}


def made(folder: Path, fallback: str) -> list[dict[str, Any]]:
    """What every case gave, by rank."""
    paths = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "OMP_NUM_THREADS": "1"}
    module = [sys.executable, "-m", "tests.distributed.ranks"]
    processes = [
        subprocess.Popen(
            [*module, str(rank), fallback, str(folder)],
            cwd=ROOT,
            env=paths,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return made(tmp_path_factory.mktemp("ranks"), "eager")


def test_every_case_is_known(results: list[dict[str, Any]]) -> None:
    assert [*map(sorted, results)] == [sorted(CASES)] * 2


@pytest.mark.parametrize("rank", range(2))
@pytest.mark.parametrize("name", CASES)
def test_equals_eager(name: str, rank: int, results: list[dict[str, Any]]) -> None:
    result, reason = results[rank][name], CASES[name]
    assert "error" not in result, result["error"]
    assert result["equal"]
    if reason is None:
        assert result["entries"] > 0, result["reasons"]
        assert result["reasons"] == []
        return
    assert result["entries"] == 0
    assert len(result["reasons"]) > 0
    for said in result["reasons"]:
        assert re.search(reason, said), said


def test_split_equals_eager(tmp_path: Path) -> None:
    for results in made(tmp_path, "split"):
        assert not {name: result for name, result in results.items() if not result.get("equal")}
