"""The command line of the probe. Parsed by hand: argparse costs more than reading the host does."""

from __future__ import annotations

import os
import sys

from deepinfer.errors import DeepInferError, InternalError, UsageError, nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from deepinfer.probes.live import LiveView
    from deepinfer.probes.verdict import Verdict
    from deepinfer.probes.view import HostView

USAGE = """usage: python3 -m deepinfer.probe [options]

Can this machine run DeepInfer? The first line answers; the exit code does too.

  --json             print one JSON document instead of the report
  --all              list every check and every device, those that pass included
  --for build|run    judge only that aspect, and take its exit code
  --explain CHECK    what a check promises, and what it found here
  --record FILE      also write what was read of this host, without identifiers
  --no-redact        with --record: keep identifiers (UUIDs, names, addresses)
  --replay FILE      judge the host recorded in FILE instead of this one
  --quiet            print nothing but errors; the exit code answers
  --version, --help

exit codes: 0 eligible, 2 usage, 3 draft RFC, 4 unsupported, 5 no accelerator, 6 fixable, 7 undetermined,
            70 internal error
"""
_FLAGS = ("--json", "--all", "--no-redact", "--quiet", "--help", "-h", "--version")
_VALUES = ("--record", "--replay", "--explain", "--for")


class Options:
    def __init__(self) -> None:
        self.flags: set[str] = set()
        self.values: dict[str, str] = {}

    def has(self, flag: str) -> bool:
        return flag in self.flags


def parse(words: list[str]) -> Options:
    """Options of the command line. Raises :class:`UsageError`."""
    options = Options()
    todo = list(words)
    while todo:
        word = todo.pop(0)
        name, mark, value = word.partition("=")
        if name in _FLAGS and not mark:
            options.flags.add(name)
        elif name in _VALUES:
            if not mark:
                if not todo or todo[0].startswith("--"):
                    raise UsageError("%s needs a value" % name, fix="python3 -m deepinfer.probe --help")
                value = todo.pop(0)
            if not value:
                raise UsageError("%s needs a value" % name, fix="python3 -m deepinfer.probe --help")
            if name in options.values:
                raise UsageError("%s is given twice" % name, fix="give it once")
            options.values[name] = value
        else:
            close = nearest(name, [*_FLAGS, *_VALUES])
            raise UsageError("unknown argument %r%s" % (word, close), fix="python3 -m deepinfer.probe --help")
    if options.values.get("--for", "build") not in ("build", "run"):
        raise UsageError("--for is %r" % options.values["--for"], fix="--for build, or --for run")
    if options.has("--no-redact") and "--record" not in options.values:
        raise UsageError("--no-redact changes only what --record writes", fix="add --record FILE, or leave it out")
    return options


def main(words: list[str] | None = None) -> int:
    """Run the probe; returns the exit code. Never ends in a traceback."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: only the exit code is wanted
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    try:
        return _run(parse(sys.argv[1:] if words is None else words))
    except DeepInferError as error:
        sys.stderr.write("%s\n" % error)
        return error.exit_code
    except BrokenPipeError:  # the reader had enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (or the interpreter complains again at exit)
        return 141
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if os.environ.get("PYTHONDEVMODE"):
            raise
        place = _place(error)
        what = "%s: %s%s" % (type(error).__name__, error, place)
        problem = InternalError(what, fix="report it with the file that `--record FILE` writes")
        sys.stderr.write("%s\n" % problem)
        return problem.exit_code


def _place(error: Exception) -> str:
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    return " (%s:%d)" % (os.path.basename(step.tb_frame.f_code.co_filename), step.tb_lineno) if step else ""


def _run(options: Options) -> int:
    if options.has("--help") or options.has("-h"):
        _say(USAGE)
        return 0
    if options.has("--version"):
        from deepinfer import __version__

        _say("deepinfer %s\n" % __version__)
        return 0
    view, raw = _open(options)  # first: a driver that must wake up does so while the rest is loaded
    try:
        return _answer(options, view, raw)
    finally:
        view.close()


def _answer(options: Options, view: HostView, raw: dict[str, Any] | None) -> int:
    from deepinfer.matrix.index import load_index
    from deepinfer.probes.judge import judge

    index = load_index()
    verdict = judge(view, index, _wish(options, view, index), aspect=options.values.get("--for", "both"))
    if "--record" in options.values:
        _record(options, view, raw, index)
    if "--explain" in options.values:
        _explain(options.values["--explain"], verdict)
    elif not options.has("--quiet"):
        _print(options, verdict, index)
    return verdict.exit_code


def _wish(options: Options, view: HostView, index: dict[str, Any]) -> Any:
    """The target that a variable names counts only where the build alone is judged: it does not change the host."""
    from deepinfer.probes.wish import Wish, read_wish

    if options.values.get("--for") != "build" or not view.env_text("DEEPINFER_ACCELERATOR"):
        return Wish()
    return read_wish(view, index, {})


def _open(options: Options) -> tuple[HostView, dict[str, Any] | None]:
    """The view to judge and, for a replayed host, its record."""
    if "--replay" in options.values:
        from deepinfer.probes.recorded import load_record

        recorded = load_record(options.values["--replay"])
        return recorded, recorded.record
    if "--record" in options.values:
        from deepinfer.probes.recording import RecordingView

        return RecordingView(_awake()), None
    return _awake(), None


def _awake() -> LiveView:
    from deepinfer.probes.live import LiveView

    view = LiveView()
    view.warm()
    return view


def _record(options: Options, view: HostView, raw: dict[str, Any] | None, index: dict[str, Any]) -> None:
    from deepinfer.probes.recording import RecordingView, complete, write_record

    names: list[str] = []
    if isinstance(view, RecordingView):
        complete(view, index)
        raw = view.record()
        names = [os.uname().nodename.partition(".")[0], os.environ.get("USER", "")]
    if raw is None:
        raise InternalError("there is nothing to record", fix="report it")
    if not options.has("--no-redact"):
        from deepinfer.probes.redact import redact

        raw = redact(raw, [name for name in names if name not in ("", "root", "localhost")])
    write_record(raw, options.values["--record"])


def _explain(name: str, verdict: Verdict) -> None:
    from deepinfer.probes.check import REGISTERED, load_all
    from deepinfer.probes.report import finding_lines

    load_all()
    known = REGISTERED.get(name)
    if known is None:
        names = sorted(REGISTERED)
        raise UsageError(
            "no check is called %r%s" % (name, nearest(name, names)), fix="the checks: %s" % ", ".join(names)
        )
    lines = [
        "%s (%s)" % (known.id, " and ".join(known.aspects)),
        "",
        *("  " + line.strip() for line in known.text.splitlines()),
    ]
    own = [finding for finding in verdict.findings if finding.id == name]
    lines += ["", "On this host:"] + ([line for f in own for line in finding_lines(f)] or ["  not applicable"])
    _say("\n".join(lines) + "\n")


def _print(options: Options, verdict: Verdict, index: dict[str, Any]) -> None:
    if options.has("--json"):
        import json

        _say(json.dumps(verdict.document(), indent=1) + "\n")
    else:
        from deepinfer.probes.report import text

        color = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        _say(text(verdict, index, everything=options.has("--all"), color=color) + "\n")


def _say(text: str) -> None:
    """Write to stdout. What a host says may hold characters that this terminal has none for: they are escaped."""
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding or "ascii"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()  # here, where a reader that went away is expected
