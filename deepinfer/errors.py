"""The one base of every error that a user can meet: a code, one sentence, and how to mend it."""

from __future__ import annotations


class DeepInferError(Exception):
    """An error with a stable code (listed in docs/errors.md) and a ``fix``.

    Subclasses set ``code`` (``DI`` and three digits) and ``exit_code`` (what a command line ends with). ``str()`` is
    the whole message as a user reads it.
    """

    code = "DI000"
    exit_code = 2

    def __init__(self, what: str, *, fix: str, why: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.fix = fix

    def __str__(self) -> str:
        lines = ["%s: %s" % (self.code, self.what)]
        if self.why:
            lines.append("  why: %s" % self.why)
        lines.append("  fix: %s" % self.fix)
        return "\n".join(lines)


class UsageError(DeepInferError):
    """The command line, a config key or an environment variable asks for something that does not exist."""

    code = "DI001"


class InternalError(DeepInferError):
    """Our own fault: an invariant broke. The host is not judged."""

    code = "DI070"
    exit_code = 70


def nearest(word: str, names: list[str]) -> str:
    """`` (did you mean 'x'?)`` for the closest of ``names``, or an empty string. Imported late: difflib is slow."""
    import difflib

    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return " (did you mean %r?)" % close[0] if close else ""
