"""Run the tests and the benchmark that need a GPU, on a machine that reaches no package index.

    python -m scripts.gpu_check pack FOLDER             # with a network: pack the missing files, below 64 MiB
    python3 -m scripts.gpu_check run FOLDER REPORT      # on the machine: unpack, run all, write a report

The machine needs Linux on x86_64, this checkout, and a Python 3.12 with these packages: PyTorch 2.11.0 for CUDA 13.0,
NumPy, SciPy, Transformers, pytest and Hypothesis. nvFuser's wheel is packed without headers, and without copies of
CUDA libraries that PyTorch brings in the same versions; links to PyTorch's libraries replace the copies.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import io
import json
import lzma
import os
import re
import shlex
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any
from xml.etree import ElementTree

from scripts.make_nvfuser_env import NVFUSER, PROBE, PYTHON, ROOT, TORCH

#: The most bytes in the folder.
LIMIT = 64 * 2**20
#: The platforms whose wheels run on the machine; pip takes each literally.
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
#: Wheels: cuBLASLt's epilogues that torch lacks; requirements of the tests; build tools for this checkout.
WHEELS = (
    *("nvmath-python==1.0.0", "cuda-core==1.2.2", "cuda-pathfinder==1.9.0"),
    *("expecttest==0.3.0", "highspy==1.15.1", "pluggy==1.7.0"),
    *("hatchling==1.33.0", "pathspec==1.1.1", "trove-classifiers==2026.9.21.13"),
)
#: Parts of nvFuser's wheel that only programs in C++ need, or that were packed by mistake.
UNUSED = ("nvfuser_common/include/", "nvfuser_common/share/", "tools/")
#: A copy of a CUDA library, under its name in a wheel; the name of PyTorch's own ends in CUDA's major version.
COPY = re.compile(r"[^/]+\.libs/(?P<stem>libnvrtc|libcudart|libcupti)-\w+\.so\.[.\d]+")
CUDA_MAJOR = "13"
BUNDLE, MANIFEST, LINKS = "nvfuser.tar.xz", "manifest.json", "nvfuser_links.json"
#: Bytes between two lines of progress.
STRIDE = 16 * 2**20

#: Packages that the machine must have, next to the packed ones.
NEEDED = ("torch", "numpy", "scipy", "transformers", "pytest", "hypothesis")


class Failed(Exception):
    """Error that ends a command; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a run; a failed step ends the run if the step is `needed`."""

    name: str
    command: list[str]
    needed: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a step: `passed`, `failed` or `not run`."""

    name: str
    command: str
    status: str = "not run"
    seconds: float = 0.0
    said: tuple[str, ...] = ()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if a command cannot be run, or a step of a run failed."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="download and trim what the machine lacks")
    unpacking = commands.add_parser("unpack", help="nvFuser into a folder that is, or will be, on PYTHONPATH")
    commands.add_parser("machine", help="describe the GPU and what is installed, or say what is missing")
    running = commands.add_parser("run", help="unpack and install, then the gpu tests and the gpu benchmark")
    for command in (packing, unpacking, running):
        command.add_argument("pack", type=Path, metavar="FOLDER", help="what `pack` writes")
    unpacking.add_argument("site", type=Path, metavar="SITE")
    running.add_argument("report", type=Path, metavar="REPORT", help="folder for the report, the logs and the figures")
    running.add_argument("--site", type=Path, default=ROOT / "build" / "gpu-site", help="where packages are installed")
    running.add_argument("--steps", nargs="+", metavar="STEP", help=f"of {', '.join(STEPS)}; all by default")
    running.add_argument("--benchmark-args", default="", help="options of `python -m benchmarks gpu`, in one string")
    running.add_argument("--dry-run", action="store_true", help="list the commands, and run none")
    options = parser.parse_args(arguments)
    for name in {"pack", "site", "report"} & set(vars(options)):  # the steps run in the checkout
        setattr(options, name, getattr(options, name).resolve())
    try:
        if options.command == "pack":
            pack(options.pack)
        elif options.command == "unpack":
            unpack(options.pack, options.site)
        elif options.command == "machine":
            describe()
        else:
            return run(options)
    except Failed as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 1
    return 0


# --- where there is a network ---


def pack(folder: Path) -> None:
    """Fill the folder, and print all sizes."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*.whl"), *(folder / name for name in (BUNDLE, MANIFEST))):
        old.unlink(missing_ok=True)
    say(f"download {len(WHEELS) + 1} wheels")
    download(folder)
    (wheel,) = folder.glob("nvfuser*.whl")
    trim(wheel, folder / BUNDLE)
    wheel.unlink()
    files = sorted(path for path in folder.iterdir() if path.suffix in (".whl", ".xz"))
    sizes = {path.name: path.stat().st_size for path in files}
    for name, size in sizes.items():
        print(f"{size:11,}  {name}")
    print(f"{sum(sizes.values()):11,}  in all, {sum(sizes.values()) / 2**20:.1f} of {LIMIT / 2**20:g} MiB")
    if sum(sizes.values()) > LIMIT:
        raise Failed(f"that is more than may travel: {sum(sizes.values()):,} of {LIMIT:,} bytes")
    manifest = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def download(folder: Path) -> None:
    """Download the wheels for the machine's Python and platform, whatever runs here."""
    target = ["--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp"]
    target += [part for platform in PLATFORMS for part in ("--platform", platform)]
    command = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--pre", *target, "--dest", str(folder)]
    process = subprocess.run([*command, NVFUSER, *WHEELS], stderr=subprocess.PIPE, text=True, check=False)
    if process.returncode:
        raise Failed(f"the wheels cannot be had: {(process.stderr.strip().splitlines() or ['pip says nothing'])[-1]}")


def trim(wheel: Path, bundle: Path) -> None:
    """Compress the used parts of nvFuser's wheel, with links that replace the rest."""
    links: dict[str, str] = {}
    with (
        zipfile.ZipFile(wheel) as archive,
        lzma.open(bundle, "wb") as compressed,
        tarfile.open(fileobj=compressed, mode="w|") as bundled,
    ):
        members = []
        for member in archive.infolist():
            if match := COPY.fullmatch(member.filename):
                links[member.filename] = f"{match['stem']}.so.{CUDA_MAJOR}"
            elif not member.is_dir() and not member.filename.startswith(UNUSED):
                members.append(member)
        progress = Progress(sum(member.file_size for member in members))
        for member in members:
            with archive.open(member) as contents:
                add(bundled, member.filename, member.file_size, progress.through(contents))
        described = json.dumps(links, indent=2).encode()
        add(bundled, LINKS, len(described), io.BytesIO(described))


def add(bundled: tarfile.TarFile, name: str, size: int, contents: IO[bytes]) -> None:
    """Add one file to the archive, without any detail of this machine."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o755 if ".so" in name else 0o644
    bundled.addfile(entry, contents)


class Progress:
    """Reader that reports compression progress; compression takes a minute or two."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.position = 0
        self.contents: IO[bytes]

    def through(self, contents: IO[bytes]) -> Any:
        """Return a reader of the same file that counts bytes."""
        self.contents = contents
        return self

    def read(self, size: int = -1) -> bytes:
        """Read on, and report progress."""
        data = self.contents.read(size)
        before, self.position = self.position, self.position + len(data)
        if self.position // STRIDE > before // STRIDE:
            say(f"compressed {self.position / 2**20:.0f} of {self.total / 2**20:.0f} MiB")
        return data


# --- on the machine ---


def describe() -> None:
    """Print GPU and versions as JSON; raise `Failed` if a package or the GPU is missing."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise Failed(f"missing here, and not in the pack: {', '.join(missing)}")
    import torch  # noqa: PLC0415 - by this step alone: packing needs none

    if not torch.cuda.is_available():
        raise Failed(f"PyTorch {torch.__version__} finds no CUDA device here")
    gpu = torch.cuda.get_device_properties(0)
    facts = {"python": sys.version.split()[0], "torch": torch.__version__, "cuda": torch.version.cuda}
    facts |= {"device": gpu.name, "capability": f"{gpu.major}.{gpu.minor}", "bytes": str(gpu.total_memory)}
    print(json.dumps(facts))


def unpack(folder: Path, site: Path) -> None:
    """Unpack nvFuser into `site`, with links to the libraries of this Python's PyTorch."""
    check(folder)
    site.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / BUNDLE) as bundled:
        # before Python 3.11.4, tarfile has no filter
        bundled.extraction_filter = getattr(tarfile, "data_filter", None)
        bundled.extractall(site)
    libraries = torch_libraries()
    for link, name in json.loads((site / LINKS).read_text()).items():
        if not (libraries / name).exists():
            raise Failed(f"{libraries / name} is missing: nvFuser needs {TORCH} in its build for CUDA 13.0")
        (site / link).parent.mkdir(exist_ok=True)
        (site / link).unlink(missing_ok=True)
        (site / link).symlink_to(libraries / name)
        print(f"{link} -> {libraries / name}")


def torch_libraries() -> Path:
    """Return the folder of PyTorch's CUDA libraries."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        raise Failed(f"PyTorch is missing: nvFuser needs {TORCH}")
    return Path(torch.origin).parent.parent / "nvidia" / f"cu{CUDA_MAJOR}" / "lib"


def check(folder: Path) -> None:
    """Raise `Failed` unless every packed file is present and unchanged."""
    if not (folder / MANIFEST).is_file():
        raise Failed(f"{folder} holds no {MANIFEST}: fill it where there is a network, by `pack`")
    for name, digest in json.loads((folder / MANIFEST).read_text()).items():
        path = folder / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise Failed(f"{path} is missing or damaged: pack it again")


def steps(options: argparse.Namespace) -> list[Step]:
    """Return the commands of a run, in their order."""
    python = [sys.executable]
    install = [*python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--upgrade", "--no-compile"]
    install += ["--no-cache-dir", "--disable-pip-version-check", "--target", str(options.site)]
    # pytest-benchmark, if installed, warns in parallel runs because nothing is measured; warnings are errors here
    parallel = ["-p", "no:benchmark"]
    if importlib.util.find_spec("xdist"):
        parallel += ["-n", str(min(14, os.cpu_count() or 1))]
    pytest = ["pytest", "-m", "gpu", "-p", "no:cacheprovider", "--junitxml", str(options.report / "tests.xml")]
    figures = ["--json", str(options.report / "benchmark.json"), *shlex.split(options.benchmark_args)]
    commands = {
        "machine": [*python, "-m", "scripts.gpu_check", "machine"],
        "unpack": [*python, "-m", "scripts.gpu_check", "unpack", str(options.pack), str(options.site)],
        "wheels": [*install, *map(str, sorted(options.pack.glob("*.whl")))],
        "switchgear": [*install, "--no-build-isolation", str(ROOT / "core"), str(ROOT)],
        "nvfuser": [*python, str(PROBE)],
        "plugins": [*python, "-m", "switchgear", "plugins"],
        "tests": [*python, "-m", *pytest, *parallel],
        "benchmark": [*python, "-m", "benchmarks", "gpu", *figures],
    }
    chosen = options.steps or STEPS
    if unknown := set(chosen) - set(STEPS):
        raise Failed(f"no step {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    return [Step(name, commands[name], STEPS[name]) for name in STEPS if name in chosen]


#: The steps of a run, and whether a failure makes the later steps meaningless.
STEPS = {
    "machine": True,
    "unpack": False,
    "wheels": True,
    "switchgear": True,
    "nvfuser": False,
    "plugins": False,
    "tests": False,
    "benchmark": False,
}


def run(options: argparse.Namespace) -> int:
    """Run the steps; rewrite the report after each, because the machine may be lent for too short a time."""
    todo = steps(options)
    if options.dry_run:
        for step in todo:
            print(f"{step.name}{' (needed)' if step.needed else ''}: {shlex.join(step.command)}")
        return 0
    if not {"unpack", "wheels"}.isdisjoint(step.name for step in todo):
        check(options.pack)
    options.report.mkdir(parents=True, exist_ok=True)
    outcomes = {step.name: Outcome(step.name, shlex.join(step.command)) for step in todo}
    with (options.report / "log.txt").open("w") as log:
        for step in todo:
            outcomes[step.name] = outcome(step, options, log)
            write(options.report, list(outcomes.values()))
            if step.needed and outcomes[step.name].status == "failed":
                break
    print((options.report / "report.txt").read_text())
    return int(any(item.status != "passed" for item in outcomes.values()))


def outcome(step: Step, options: argparse.Namespace, log: IO[str]) -> Outcome:
    """Run one step; write its output to the log, and to the screen at once."""
    say(step.name)
    log.write(f"=== {step.name}: {shlex.join(step.command)}\n")
    # the code is always the checkout's; the entry points are the installed ones
    paths = [*(str(ROOT / name) for name in ("core", "executors", "plugins")), str(options.site)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    environment.pop("LD_BIND_NOW", None)  # nvFuser has to be bound lazily
    start, said = time.monotonic(), []
    with subprocess.Popen(
        step.command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None  # stdout is a pipe
        for line in process.stdout:
            said.append(line.rstrip("\n"))
            print(line, end="", flush=True)
            log.write(line)
            log.flush()
    failed = process.returncode != 0
    if step.name == "tests" and not failed and not counted(options.report / "tests.xml")["passed"]:
        failed = True
        said.append("no test ran: all were skipped, or there are none")
    seconds = time.monotonic() - start
    return Outcome(step.name, shlex.join(step.command), "failed" if failed else "passed", seconds, tuple(said))


def counted(path: Path) -> dict[str, int]:
    """Return the number of tests by outcome, from pytest's own report."""
    suites = list(ElementTree.parse(path).getroot().iter("testsuite"))
    kinds = ("tests", "failures", "errors", "skipped")
    counts = {kind: sum(int(suite.get(kind, 0)) for suite in suites) for kind in kinds}
    bad = counts["failures"] + counts["errors"]
    return {"passed": counts["tests"] - bad - counts["skipped"], "failed": bad, "skipped": counts["skipped"]}


def write(report: Path, outcomes: Sequence[Outcome]) -> None:
    """Write the report so far: as text, and as JSON."""
    by_name = {item.name: item for item in outcomes}
    machine = by_name.get("machine")
    described = [json.loads(line) for line in (machine.said if machine else ()) if line.startswith("{")]
    contents: dict[str, Any] = {"machine": described[-1] if described else {}, "steps": [asdict(o) for o in outcomes]}
    lines = [", ".join(f"{name} {value}" for name, value in contents["machine"].items())]
    lines += [f"  {item.name:10}  {item.status:7}  {item.seconds:6.0f} s" for item in outcomes]
    if (report / "tests.xml").is_file():
        contents["tests"] = counted(report / "tests.xml")
        lines.append("gpu tests: " + ", ".join(f"{count} {name}" for name, count in contents["tests"].items()))
    if (report / "benchmark.json").is_file():
        contents["benchmark"] = json.loads((report / "benchmark.json").read_text())
    for item in outcomes:
        if item.status == "failed":
            lines += [f"\n{item.name} failed; the end of what it said:", *(f"  {line}" for line in item.said[-20:])]
    if "benchmark" in by_name:
        lines += ["", *by_name["benchmark"].said]
    (report / "report.txt").write_text("\n".join(lines) + "\n")
    (report / "report.json").write_text(json.dumps(contents, indent=2) + "\n")


def say(what: str) -> None:
    """Print progress."""
    print(f"gpu_check: {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
