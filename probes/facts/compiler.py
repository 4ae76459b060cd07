"""Host compilers: asked through the preprocessor, because names, links and ``--version`` texts lie.

A clang behind a link called g++, a ccache wrapper, a cross compiler first on PATH: the macros tell them apart.
"""

from __future__ import annotations

from deepinfer.probes.facts.versions import dotted, whole_number
from deepinfer.probes.redact import excerpt
from deepinfer.probes.view import HostView

TYPE_CHECKING = False
if TYPE_CHECKING:
    from deepinfer.probes.wish import Wish

_QUESTION = (
    "__GNUC__ __GNUC_MINOR__ __GNUC_PATCHLEVEL__ __clang_major__ __clang_minor__ __INTEL_LLVM_COMPILER __VERSION__"
    " __x86_64__ __aarch64__"
)
_OPTIONS = ["-E", "-P", "-x", "c++", "-"]
NUMBERED = range(29, 11, -1)  # g++-29 ... g++-12: newest first


class Compiler:
    """One C++ compiler. ``family`` is gcc, clang, intel or an empty string; ``problem`` says why it is not usable."""

    __slots__ = ("family", "machine", "origin", "path", "problem", "unknown", "version", "words")

    def __init__(self, words: list[str], origin: str) -> None:
        self.words = words
        self.origin = origin
        self.path = words[-1] if words else ""
        self.family = ""
        self.version: tuple[int, ...] = ()
        self.machine = ""
        self.problem = ""
        self.unknown = False

    @property
    def label(self) -> str:
        names = {"gcc": "GCC", "clang": "Clang", "intel": "Intel C++"}
        return (
            "%s %s" % (names.get(self.family, "compiler"), dotted(self.version)) if self.family else "no C++ compiler"
        )


def ask(view: HostView, words: list[str], origin: str) -> Compiler:
    """Identify the compiler that the command ``words`` starts (it may hold a launcher or options)."""
    compiler = Compiler(words, origin)
    if not words:
        compiler.problem = "%s is empty" % origin
        return compiler
    where = view.which(words[0])
    compiler.path = where.value if where.is_present and len(words) == 1 else " ".join(words)
    answer = view.run(words + _OPTIONS, stdin=_QUESTION + "\n")
    if answer.is_absent:
        compiler.problem = "%s is not there" % words[0]
    elif answer.is_unknown:
        compiler.problem = answer.reason
        compiler.unknown = True
    elif answer.value.rc != 0:
        said = excerpt(answer.value.err.strip().partition("\n")[0], 160)
        compiler.problem = "cannot compile C++: %s" % (said or "exit code %d" % answer.value.rc)
    else:
        _read_macros(answer.value.out, compiler)
    return compiler


def _read_macros(text: str, compiler: Compiler) -> None:
    """``13 3 0 __clang_major__ __clang_minor__ __INTEL_LLVM_COMPILER "13.3.0" 1 __aarch64__``."""
    before, quote, rest = text.strip().partition('"')
    words = before.split()
    after = rest.rpartition('"')[2].split()
    if len(words) < 6 or not quote:
        compiler.problem = "the preprocessor answered %r" % excerpt(text, 80)
        compiler.unknown = True
        return
    numbers = [whole_number(word) for word in words[:6]]
    gnu, minor, patch, clang, clang_minor, intel = numbers
    if intel is not None:
        compiler.family, compiler.version = "intel", (intel // 10000, intel // 100 % 100)
    elif clang is not None:
        compiler.family, compiler.version = "clang", (clang, clang_minor or 0)
    elif gnu is not None:
        compiler.family, compiler.version = "gcc", (gnu, minor or 0, patch or 0)
    else:
        compiler.problem = "the preprocessor answered %r" % excerpt(text, 80)
        compiler.unknown = True
        return
    if len(after) >= 2:
        compiler.machine = "x86_64" if after[0] == "1" else "aarch64" if after[1] == "1" else "other"


def explicit(view: HostView, wish: Wish) -> Compiler | None:
    """The compiler that the user named (``-C deepinfer.cxx``, then ``CXX``), or None."""
    if wish.cxx:
        return ask(view, wish.cxx.split(), "-C deepinfer.cxx")
    text = view.env("CXX")
    return ask(view, text.value.split(), "CXX") if text.is_present and text.value.strip() else None


def cuda_host_explicit(view: HostView, wish: Wish) -> Compiler | None:
    """The host compiler that the user named for nvcc (``-C``, ``CUDAHOSTCXX``, ``NVCC_CCBIN``), or None."""
    if wish.cuda_host_cxx:
        return ask(view, wish.cuda_host_cxx.split(), "-C deepinfer.cuda_host_cxx")
    for name in ("CUDAHOSTCXX", "NVCC_CCBIN"):
        text = view.env(name)
        if text.is_present and text.value.strip():
            return ask(view, text.value.split(), name)
    return None


def on_path(view: HostView) -> Compiler:
    """Plain ``g++``."""
    return ask(view, ["g++"], "PATH")


def numbered(view: HostView) -> list[Compiler]:
    """Every ``g++-N`` on PATH, newest first."""
    found = []
    for number in NUMBERED:
        name = "g++-%d" % number
        if view.which(name).is_present:
            found.append(ask(view, [name], "PATH"))
    return found
