"""``python -m deepinfer.matrix``: render, list, show, diff. Data to stdout, messages to stderr.

Exit codes: 0 done, 1 findings or files out of date, 2 wrong words on the command line.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from deepinfer.errors import DeepInferError, UsageError, nearest

if TYPE_CHECKING:
    from deepinfer.matrix.load import Tree

COMMANDS = ("render", "list", "show", "diff")


class _Parser(argparse.ArgumentParser):
    """argparse with errors of our form instead of its own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, fix="python -m deepinfer.matrix --help")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = _Parser(prog="python -m deepinfer.matrix", description="The hardware-support matrix.")
    top.add_argument("--root", help="work on the checkout in this folder (default: the one that holds this file)")
    commands = top.add_subparsers(dest="command", metavar="{%s}" % ",".join(COMMANDS))
    render = commands.add_parser("render", help="validate, then write everything that is generated")
    render.add_argument("--check", action="store_true", help="write nothing; exit 1 if something is out of date")
    listing = commands.add_parser("list", help="one line per entry")
    show = commands.add_parser("show", help="everything about one entry")
    show.add_argument("id")
    diff = commands.add_parser("diff", help="what changed in the matrix since a git revision")
    diff.add_argument("revision")
    for command in (listing, show, diff):
        command.add_argument("--json", action="store_true", help="the same as JSON")
    return top


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        # The pipe can close at the last flush too, so it belongs inside.
        code = _run(words)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone (`list | head -1`); python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except DeepInferError as error:
        for finding in getattr(error, "findings", ()):
            print(finding, file=sys.stderr)
        print(error, file=sys.stderr)
        return error.exit_code
    return code


def _run(words: list[str]) -> int:
    options = _parse(words)
    if options.command == "render":
        return _render(options.root, check=options.check)
    # Imported late: `--help` and usage errors need none of it.
    from deepinfer.matrix.compiled import index_of
    from deepinfer.matrix.render import checked

    tree = checked(options.root)
    if options.command == "list":
        return _list(index_of(tree), as_json=options.json)
    if options.command == "diff":
        return _diff(tree, options.revision, as_json=options.json)
    return _show(tree, options.id, as_json=options.json)


def _list(index: dict[str, Any], *, as_json: bool) -> int:
    from deepinfer.matrix.terminal import write_list

    if as_json:
        sys.stdout.write(_json(index["entries"]))
    else:
        write_list(index, sys.stdout)
    return 0


def _diff(tree: Tree, revision: str, *, as_json: bool) -> int:
    from deepinfer.matrix.diff import difference, difference_data, difference_text

    found = difference(tree, revision)
    sys.stdout.write(_json(difference_data(found)) if as_json else difference_text(found))
    return 0


def _show(tree: Tree, name: str, *, as_json: bool) -> int:
    from deepinfer.matrix.show import entry_data, entry_text

    names = [document.data["id"] for document in tree.of("entry")]
    if name not in names:
        raise UsageError(
            "no entry is called %r%s" % (name, nearest(name, names)), fix="python -m deepinfer.matrix list"
        )
    data = entry_data(tree, name)
    sys.stdout.write(_json(data) if as_json else entry_text(data))
    return 0


def _parse(words: list[str]) -> argparse.Namespace:
    # argparse's own message for a wrong word offers no right one.
    first = next(
        (
            word
            for number, word in enumerate(words)
            if not word.startswith("-") and (number == 0 or words[number - 1] != "--root")
        ),
        None,
    )
    if first is not None and first not in COMMANDS:
        raise UsageError(
            "no command is called %r%s" % (first, nearest(first, list(COMMANDS))),
            fix="use one of: %s" % ", ".join(COMMANDS),
        )
    known, rest = parser().parse_known_args(words)
    if rest:
        options = {"render": ["--check"], "list": ["--json"], "show": ["--json"], "diff": ["--json"]}.get(
            known.command, ["--root"]
        )
        raise UsageError(
            "%r is not understood%s" % (rest[0], nearest(rest[0], options)),
            fix="python -m deepinfer.matrix %s --help" % (known.command or ""),
        )
    if known.command is None:
        raise UsageError("a command is missing", fix="use one of: %s" % ", ".join(COMMANDS))
    return known


def _render(root: str | None, *, check: bool) -> int:
    from deepinfer.matrix.render import render

    changed = render(root, write=not check)
    for name in changed:
        print("out of date: %s" % name if check else "wrote %s" % name, file=sys.stderr)
    if check and changed:
        print("  fix: python -m deepinfer.matrix render", file=sys.stderr)
        return 1
    return 0


def _json(value: object) -> str:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    if sys.version_info < (3, 10):
        sys.exit("the matrix tools need Python 3.10 or newer\n  fix: python3.12 -m deepinfer.matrix")
    sys.exit(main())
