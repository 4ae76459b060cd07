"""The words of a command line with subcommands, and the one way in which a command ends."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any, Callable

from deepinfer.command_line import Arguments
from deepinfer.errors import DeepInferError, UsageError, nearest


class Parser(Arguments):
    """A command line with subcommands; a wrong one is answered with the nearest right one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.known: dict[str, Parser] = {}

    def command(self, commands: Any, name: str, text: str) -> Parser:
        """Add a subcommand to ``commands``, with the ``--json`` that every one takes."""
        added: Parser = commands.add_parser(name, help=text, description=text)
        added.add_argument("--json", action="store_true", help="print one JSON document")
        self.known[name] = added
        return added

    def read(self, words: list[str]) -> argparse.Namespace:
        """Options of ``words``. Raises :class:`UsageError` with the nearest right word."""
        names = list(self.known)
        first = next((word for word in words if not word.startswith("-")), None)
        if first is not None and first not in names and not set(words) & set(names):
            raise UsageError(
                "no command is called %r%s" % (first, nearest(first, names)), fix="use one of: %s" % ", ".join(names)
            )
        options, rest = self.parse_known_args(words)
        if options.command is None:
            raise UsageError("a command is missing", fix="use one of: %s" % ", ".join(names))
        if rest:
            own = self.known[options.command]
            flags = [flag for action in own._actions for flag in action.option_strings]
            raise UsageError("%r is not understood%s" % (rest[0], nearest(rest[0], flags)), fix="%s --help" % own.prog)
        return options


def ends(run: Callable[[list[str]], int], words: list[str] | None) -> int:
    """Exit code of ``run``. Errors of ours are printed in their form; a reader that went away is no error."""
    try:
        code = run(sys.argv[1:] if words is None else words)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except DeepInferError as error:
        for finding in getattr(error, "findings", ()):
            sys.stderr.write("%s\n" % finding)
        sys.stderr.write("%s\n" % error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return code


def dump(value: object) -> None:
    """One JSON document to stdout."""
    sys.stdout.write(json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, default=str) + "\n")
