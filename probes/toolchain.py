"""The one place that chooses a compiler and a toolkit. What is judged here is what the build gets.

An explicit choice wins and is never second-guessed: if it does not qualify, that is a failing check. Without one, what
PATH offers is taken if it qualifies, else the best that does.
"""

from __future__ import annotations

from deepinfer.matrix.index import allows
from deepinfer.probes.facts import cann, compiler, cuda
from deepinfer.probes.facts.compiler import Compiler
from deepinfer.probes.facts.host import HostFacts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Toolchain:
    """``compiler`` builds host code, ``cuda_host`` is what nvcc calls; ``others`` are toolkits that lost."""

    def __init__(self) -> None:
        self.compiler: Compiler | None = None
        self.cuda_host: Compiler | None = None
        self.cuda: cuda.Toolkit | None = None
        self.cann: cann.Toolkit | None = None
        self.cann_sourced = False  # named by a variable or a key, as opposed to merely lying on disk
        self.cann_instead = ""  # root of an installed toolkit that would do, where the sourced one does not
        self.others: list[str] = []


def choose(facts: HostFacts, entry: dict[str, Any]) -> Toolchain:
    """Compiler and toolkit for building ``entry`` on this host."""
    chosen = Toolchain()
    toolkit = entry["require"]["toolkit"]
    if toolkit and toolkit["name"] == "cuda":
        _choose_cuda(facts, entry, chosen)
    elif toolkit:
        _choose_cann(facts, entry, chosen)
    chosen.compiler = _choose_compiler(facts, entry, chosen)
    if chosen.cuda is not None:
        chosen.cuda_host = compiler.cuda_host_explicit(facts.view, facts.wish) or chosen.compiler
    return chosen


def qualifies(kit: cuda.Toolkit, entry: dict[str, Any]) -> bool:
    """Complete, of an allowed version, and able to compile for every architecture of ``entry``."""
    fine = bool(kit.version) and not kit.missing and allows(entry["require"]["toolkit"]["spec"], kit.version)
    return fine and (kit.architectures is None or not missing_architectures(kit, entry))


def missing_architectures(kit: cuda.Toolkit, entry: dict[str, Any]) -> list[str]:
    """Architectures of ``entry`` that nvcc does not list; it lists ``100`` and takes ``100a`` where it does."""
    known = kit.architectures or set()
    return [arch for arch in entry["architectures"] if arch not in known and arch.rstrip("af") not in known]


def _choose_cuda(facts: HostFacts, entry: dict[str, Any], chosen: Toolchain) -> None:
    named = cuda.explicit(facts.view, facts.wish)
    if named is not None:
        chosen.cuda = named
        return
    first = cuda.on_path(facts.view)
    if first is not None and qualifies(first, entry):
        chosen.cuda = first
        return
    rest = cuda.elsewhere(facts.view, [first.root] if first else [])
    for kit in rest:
        if not qualifies(kit, entry):
            continue
        full = cuda.inspect(facts.view, kit.root, kit.origin)
        if qualifies(full, entry):
            chosen.cuda = full
            break
    if chosen.cuda is None:
        chosen.cuda = first or (cuda.inspect(facts.view, rest[0].root, rest[0].origin) if rest else None)
    kept = chosen.cuda.root if chosen.cuda else ""
    chosen.others = [kit.label for kit in ([first] if first else []) + rest if kit.root != kept]


def _choose_cann(facts: HostFacts, entry: dict[str, Any], chosen: Toolchain) -> None:
    named = cann.explicit(facts.view, facts.wish)
    chosen.cann_sourced = named is not None
    if named is not None and _cann_fits(named, entry):
        chosen.cann = named
        return
    kits = cann.installed(facts.view)
    fitting = [kit for kit in kits if _cann_fits(kit, entry)]
    best = fitting or kits
    chosen.cann = named or (best[0] if best else None)
    chosen.cann_instead = fitting[0].root if named and fitting else ""
    kept = chosen.cann.root if chosen.cann else ""
    chosen.others = [kit.label for kit in kits if kit.root != kept]


def _cann_fits(kit: cann.Toolkit, entry: dict[str, Any]) -> bool:
    version = kit.version
    return bool(version and not version.pre and allows(entry["require"]["toolkit"]["spec"], version.head))


def fits(candidate: Compiler, entry: dict[str, Any], kit: cuda.Toolkit | None) -> bool:
    """Allowed by the entry and, where there is one, by nvcc."""
    spec = entry["require"]["compilers"].get(candidate.family)
    if not spec or candidate.problem or not allows(spec, candidate.version):
        return False
    return kit is None or not above_bound(candidate, kit)


def above_bound(candidate: Compiler, kit: cuda.Toolkit) -> int | None:
    """The newest major version that nvcc takes, if ``candidate`` is newer; else None."""
    bound = kit.max_gcc if candidate.family == "gcc" else kit.max_clang if candidate.family == "clang" else None
    return bound if bound is not None and candidate.version and candidate.version[0] > bound else None


def _choose_compiler(facts: HostFacts, entry: dict[str, Any], chosen: Toolchain) -> Compiler:
    named = compiler.explicit(facts.view, facts.wish)
    if named is not None:
        return named
    default = compiler.on_path(facts.view)
    if fits(default, entry, chosen.cuda):
        return default
    for candidate in compiler.numbered(facts.view):
        if fits(candidate, entry, chosen.cuda):
            return candidate
    if "clang" in entry["require"]["compilers"]:
        clang = compiler.ask(facts.view, ["clang++"], "PATH")
        if fits(clang, entry, chosen.cuda):
            return clang
    return default
