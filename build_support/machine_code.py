"""``python -m build_support.machine_code``: compile every kernel for every architecture and read its machine code.

Each folder of ``csrc/kernels`` with CUDA sources says in ``sass.toml`` what its code must and must not contain::

    [sm_90a]
    require = ["HGMMA"]      # mnemonics, by prefix: some kernel of the folder has it
    forbid = ["LDL", "STL"]  # no kernel of the folder has it: here, no spills to local memory
    [sm_100a]
    require = ["HMMA"]

What is shown is that it compiles, and to what; nothing is said of a device that ran none of it. Exit codes: 0 all as
said, 1 something differs, 3 not run, as nvcc or cuobjdump is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import tomllib

ROOT = Path(__file__).resolve().parents[1]
ARCHITECTURES = ("90a", "100a")
FLAGS = ["-std=c++20", "-O3", "-I", "csrc", "-cubin"]
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.x]*)")


class Finding(NamedTuple):
    """One folder for one architecture: mnemonics found, and what is wrong."""

    folder: str
    arch: str
    found: dict[str, int]
    problems: list[str]


def folders(root: Path) -> list[Path]:
    """Folders that hold CUDA kernels."""
    return sorted({path.parents[1] for path in root.glob("csrc/kernels/*/cuda/*.cu")})


def disassembler() -> str | None:
    """``cuobjdump`` of a toolkit, or the one that Triton's package carries."""
    for folder in (os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"):
        path = Path(folder) / "bin/cuobjdump"
        if folder and path.is_file():
            return str(path)
    found = shutil.which("cuobjdump")
    if found:
        return found
    spec = importlib.util.find_spec("triton")
    bundled = Path(str(spec.origin)).parent / "backends/nvidia/bin/cuobjdump" if spec and spec.origin else None
    return str(bundled) if bundled and bundled.is_file() else None


def mnemonics(sass: str) -> dict[str, int]:
    """How often each instruction occurs in a disassembly, modifiers included."""
    counts: dict[str, int] = {}
    for name in _INSTRUCTION.findall(sass):
        counts[name] = counts.get(name, 0) + 1
    return counts


def judge(folder: Path, arch: str, found: dict[str, int]) -> list[str]:
    """What ``sass.toml`` asks for and the code does not have, or has and must not."""
    rules = folder / "sass.toml"
    if not rules.is_file():
        return ["there is no sass.toml"]
    asked = tomllib.loads(rules.read_text(encoding="utf-8"))
    section = asked.get("sm_" + arch)
    if section is None:
        return ["sass.toml has no [sm_%s]" % arch]
    odd = sorted(set(section) - {"require", "forbid"})
    if odd:
        return ["sass.toml asks for %r, which is neither require nor forbid" % odd[0]]
    if not found:
        return ["no instruction was read"]
    problems = ["no %s" % name for name in section.get("require", []) if not _count(found, name)]
    problems += ["%d x %s" % (_count(found, name), name) for name in section.get("forbid", []) if _count(found, name)]
    return problems


def _count(found: dict[str, int], prefix: str) -> int:
    return sum(count for name, count in found.items() if name.startswith(prefix))


def examine(folder: Path, arch: str, nvcc: str, dump: str) -> Finding:
    """Compile every source of ``folder`` for ``arch`` and read it back."""
    total: dict[str, int] = {}
    words = [nvcc, *FLAGS, "-gencode", "arch=compute_%s,code=sm_%s" % (arch, arch)]
    if os.environ.get("CUDAHOSTCXX"):
        words += ["-ccbin", os.environ["CUDAHOSTCXX"]]
    with tempfile.TemporaryDirectory() as work:
        for source in sorted(folder.glob("cuda/*.cu")):
            cubin = str(Path(work) / (source.stem + ".cubin"))
            done = subprocess.run(
                [*words, str(source), "-o", cubin], cwd=ROOT, capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                return Finding(folder.name, arch, total, ["%s: %s" % (source.name, done.stderr.strip()[-600:])])
            listing = subprocess.run([dump, "-sass", cubin], capture_output=True, text=True, check=True).stdout
            for name, count in mnemonics(listing).items():
                total[name] = total.get(name, 0) + count
    return Finding(folder.name, arch, total, judge(folder, arch, total))


def main(words: list[str] | None = None) -> int:
    """Print one line per folder and architecture; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="*", help="folders of csrc/kernels (default: all)")
    options = parser.parse_args(words)
    nvcc, dump = shutil.which("nvcc"), disassembler()
    if nvcc is None or dump is None:
        sys.stderr.write("not run: %s is not installed\n" % ("nvcc" if nvcc is None else "cuobjdump"))
        return 3
    unknown = sorted(set(options.kernels) - {folder.name for folder in folders(ROOT)})
    if unknown:
        parser.error("no kernel is called %s" % ", ".join(unknown))
    chosen = [folder for folder in folders(ROOT) if not options.kernels or folder.name in options.kernels]
    pairs = [(folder, arch) for folder in chosen for arch in ARCHITECTURES]
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as workers:
        findings = list(workers.map(lambda pair: examine(pair[0], pair[1], nvcc, dump), pairs))
    for finding in findings:
        matrix = ", ".join(
            "%d %s" % (_count(finding.found, name), name) for name in MATRIX if _count(finding.found, name)
        )
        size = sum(finding.found.values())
        said = "; ".join(finding.problems) or "as said"
        print("%-16s sm_%-5s %7d instructions, %-40s %s" % (finding.folder, finding.arch, size, matrix or "-", said))
    return int(any(finding.problems for finding in findings))


MATRIX = ("HGMMA", "QGMMA", "HMMA", "QMMA", "IMMA", "OMMA", "UTMALDG", "UBLKCP", "LDGSTS", "LDL", "STL")

if __name__ == "__main__":
    sys.exit(main())
