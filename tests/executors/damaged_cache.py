"""Damages each kind of entry of a cache at random places: `python -m tests.executors.damaged_cache --places 100`.

Each damaged cache is used by a process of its own, which has to come to eager's results and to delete the entry.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

KINDS = ("answers", "record", "names", "note", "library")
PROGRAM = """
import sys, torch, switchgear as sg
torch.set_num_threads(1)
def f(x, w):
    return (torch.tanh(x @ w) * 2 + torch.sin(x)).sum(-1)
def run(compile):
    torch.manual_seed(0)
    x, w = torch.randn(16, 16), torch.randn(16, 16)
    g = sg.jit(f, executors=["inductor", "torch"], compile=compile)
    first = g(x, w)
    if compile == "background":
        assert "1 regions compiled in the background" in sg.wait(g)
    for result in (first, g(x, w)):
        torch.testing.assert_close(result, f(x, w), atol=1e-5, rtol=1e-5)
    return {choice.owner for choice in sg.last_choices(g)}
owners = run(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1] in ("now", "background", "never") else ()
"""


def kind_of(file: Path) -> str:
    """What an entry is; the empty string for what this program does not read."""
    if file.suffix == ".file":
        return "library" if file.read_bytes()[:4] == b"\x7fELF" else ""
    content = json.loads(file.read_bytes().partition(b"\n")[2])
    value = content["value"]
    if isinstance(value, dict):
        return "answers"
    if value is True:
        return "note"
    if "header" in content["key"][:20]:
        return ""
    return "names" if isinstance(value[0], str) else "record"


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--places", type=int, default=100, help="of each kind, truncated and altered")
    places = parser.parse_args().places
    with tempfile.TemporaryDirectory() as place:
        whole, used = Path(place, "whole"), Path(place, "used")
        os.environ |= {"SWITCHGEAR_CACHE_DIR": str(whole), "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
        subprocess.run([sys.executable, "-c", PROGRAM, "background"], check=True)
        files = {one.name: kind_of(one) for one in sorted((whole / "entries").glob("*.[ef]*"))}
        scope: dict[str, object] = {}
        exec(PROGRAM, scope)
        os.environ["SWITCHGEAR_CACHE_DIR"] = str(used)
        faults, done = Counter[str](), Counter[str]()
        for name in sorted(files, key=files.__getitem__):
            kind = files[name]
            for number in range(2 * places if kind and done[kind] < 2 * places else 0):
                shutil.rmtree(used, ignore_errors=True)
                shutil.copytree(whole, used)
                damage(used / "entries" / name, number)
                done[kind] += 1
                faults[kind] += not is_right(scope, used / "entries" / name, kind)
    for kind in sorted(done):
        print(f"{kind}: {done[kind]} damaged, {faults[kind]} wrong")
    missing = {*KINDS} - {*done}
    print(f"no entry of these kinds: {', '.join(missing)}" if missing else "all kinds")
    return int(bool(missing or faults.total()))


def damage(file: Path, number: int) -> None:
    """Truncate or alter a file at a place that the number decides."""
    draw, content = random.Random(number), bytearray(file.read_bytes())
    place = draw.randrange(len(content))
    if number % 2:
        content[place] ^= 1 << draw.randrange(8)
    else:
        del content[place:]
    file.write_bytes(content)


def is_right(scope: dict[str, object], file: Path, kind: str) -> bool:
    """Whether a process that meets the damaged file ends well, and has deleted it or made it anew."""
    before = file.read_bytes()
    child = os.fork()
    if child == 0:
        try:
            scope["run"]("never")  # type: ignore[operator]
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    # which operators it takes is asked when something is compiled, and of the compiler nothing is noted twice
    is_read = kind in ("answers", "record", "library")
    return status == 0 and not (is_read and file.exists() and file.read_bytes() == before)


if __name__ == "__main__":
    sys.exit(main())
