"""The two modules that the tools need beyond the standard library, with an error that says how to get them."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from deepinfer.errors import DeepInferError

_FIX = "pip install packaging tomli"


class ToolMissing(DeepInferError):
    """A module that the matrix tools need is not installed."""

    code = "DI112"


def toml() -> ModuleType:
    """``tomllib``, or ``tomli`` before Python 3.11."""
    for name in ("tomllib", "tomli"):
        try:
            return import_module(name)
        except ImportError:
            continue
    raise ToolMissing("the matrix tools need tomli before Python 3.11", fix=_FIX)


def specifiers() -> ModuleType:
    """``packaging.specifiers``."""
    try:
        return import_module("packaging.specifiers")
    except ImportError:
        raise ToolMissing("the matrix tools need packaging to read version bounds", fix=_FIX) from None
