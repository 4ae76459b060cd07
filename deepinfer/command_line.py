"""What every command line but the probe's shares: argparse whose errors have our form."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from deepinfer.errors import UsageError


class Arguments(argparse.ArgumentParser):
    """argparse without abbreviations; a wrong word raises :class:`UsageError` (code, sentence, fix; exit code 2)."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("allow_abbrev", False)
        super().__init__(**options)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, fix="%s --help" % self.prog)
