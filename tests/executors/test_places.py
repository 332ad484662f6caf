"""Where Inductor's files of ours lie: in the cache, not where somebody else may have put some before."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from switchgear import disk_cache
from switchgear_inductor import InductorExecutor
from tests.executors import damaged_cache

compiles = pytest.mark.skipif(
    InductorExecutor().unavailable() is not None, reason="Inductor is unavailable here, with which this compares"
)


@compiles
def test_a_precompiled_header_is_taken_if_it_is_the_one_that_was_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from switchgear_inductor import places

    monkeypatch.setenv(disk_cache.CACHE_VARIABLE, str(tmp_path))
    folder = disk_cache.shared("headers")
    assert folder is not None
    files = {folder / "c2.h": b"#include <x.h>\n", folder / "c2.h.gch": random.Random(0).randbytes(10_000)}
    built: list[Path] = []

    def build(header: str, **command: Any) -> str:
        for file in files:
            if not file.exists():
                file.write_bytes(files[file])
                built.append(file)
        return str(folder / "c2.h")

    def taken() -> bool:
        """Whether what is there is taken, in another process; it is right in any case."""
        built.clear()
        places._precompiled.cache_clear()
        assert places._precompiled(folder, "x.h", vec_isa=1) == str(folder / "c2.h")
        assert all(file.read_bytes() == content for file, content in files.items())
        return not built

    monkeypatch.setattr(places, "_build", build)
    assert not taken()
    assert taken()
    draw = random.Random(1)
    for file, content in files.items():
        for number in range(100):
            place = draw.randrange(len(content))
            file.write_bytes(content[:place] + (bytes([content[place] ^ 1]) + content[place + 1 :]) * (number % 2))
            assert not taken()
            assert taken()
    for file in files:  # as left by a process that ended before it noted them
        file.write_bytes(b"half")
    disk_cache.drop("inductor header c2.h")
    assert not taken()


@compiles
def test_inductor_writes_where_it_is_told_and_everything_is_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import codecache, config
    from torch._inductor.runtime.cache_dir_utils import cache_dir, triton_cache_dir

    from switchgear_inductor import places

    def state() -> object:
        headers = codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR, codecache._precompile_header
        variables = os.environ.get("TORCHINDUCTOR_CACHE_DIR"), os.environ.get("TRITON_CACHE_DIR")
        return headers, variables, config.cpp_cache_precompile_headers

    monkeypatch.setenv(disk_cache.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", "/tmp/triton")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    before = state()

    def interrupted() -> None:
        with places.files_in_place():
            assert Path(cache_dir()) == disk_cache.workplace()
            assert Path(triton_cache_dir(0)).is_relative_to(disk_cache.workplace())
            assert Path(codecache._HEADER_DIR) == tmp_path.resolve() / "entries" / "shared-headers"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert state() == before


@pytest.mark.slow
@compiles
@pytest.mark.parametrize("places", [100])
def test_no_damage_of_a_cache_changes_a_result_or_ends_a_process(places: int) -> None:
    command = [sys.executable, "-m", "tests.executors.damaged_cache", "--places", str(places)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(kind in done.stdout for kind in damaged_cache.KINDS)


@pytest.mark.slow
@compiles
def test_what_somebody_else_left_in_the_temporary_folder_is_not_used(tmp_path: Path) -> None:
    # once: the code in a folder there, which another user had made, was run
    variables = {**os.environ, "TMPDIR": str(tmp_path), "SWITCHGEAR_CACHE_DIR": str(tmp_path / "cache")}
    variables.pop("TORCHINDUCTOR_CACHE_DIR", None)
    program = "import getpass, tempfile; print(tempfile.gettempdir() + '/torchinductor_' + getpass.getuser())"
    command = [sys.executable, "-c", program]
    planted = Path(subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout.strip())
    planted.mkdir(mode=0o777)
    command = [sys.executable, "-c", damaged_cache.PROGRAM, "now"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not [one for one in planted.rglob("*") if one.is_file()]
