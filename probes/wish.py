"""What the user asked for by ``-C deepinfer.*`` keys and ``DEEPINFER_*`` variables: target, compilers, toolkit."""

from __future__ import annotations

from deepinfer.errors import DeepInferError, nearest
from deepinfer.probes.view import HostView

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PREFIX = "DEEPINFER_"
KEY_PREFIX = "deepinfer."


class UnknownSetting(DeepInferError):
    """A ``DEEPINFER_*`` variable or ``deepinfer.*`` key that does not exist, or a value that it does not take."""

    code = "DI002"


class ConflictingTarget(DeepInferError):
    """Two settings name different targets, or a host holds two and none is named."""

    code = "DI003"


class Wish:
    """An empty string means "not asked for". ``named_by`` says which setting named the target."""

    __slots__ = ("cuda_host_cxx", "cxx", "named_by", "target", "toolkit")

    def __init__(self) -> None:
        self.target = ""
        self.named_by = ""
        self.cxx = ""
        self.cuda_host_cxx = ""
        self.toolkit = ""


def unknown_variables(view: HostView, index: dict[str, Any]) -> list[str]:
    """Names of ``DEEPINFER_*`` variables that are set and do not exist, each with the nearest right one."""
    known = sorted(index["variables"])
    return [name + nearest(name, known) for name in view.env_names(PREFIX) if name not in known]


def read_wish(view: HostView, index: dict[str, Any], settings: dict[str, Any]) -> Wish:
    """The wish of a build. ``settings``: PEP 517 config settings. Raises for whatever does not exist."""
    odd = unknown_variables(view, index)
    if odd:
        raise UnknownSetting(
            "unknown environment variable %s" % odd[0], fix="unset it; the variables are listed in docs/matrix.md"
        )
    wish = Wish()
    for key, value in settings.items():
        if key.startswith(KEY_PREFIX):
            _take(wish, key, value, index)
    _take_accelerator(wish, view, index)
    return wish


def _take(wish: Wish, key: str, value: Any, index: dict[str, Any]) -> None:
    known = sorted(index["keys"])
    if key not in known:
        raise UnknownSetting(
            "unknown config setting %s%s" % (key, nearest(key, known)),
            fix="the keys are: %s" % ", ".join(known),
        )
    if not isinstance(value, str) or not value.strip():
        raise UnknownSetting("config setting %s is given %r" % (key, value), fix="give it once, with one value")
    name = key[len(KEY_PREFIX) :]
    if name == "target":
        entry_by_id(value, index)
        wish.named_by = "-C deepinfer.target"
    setattr(wish, name, value.strip())


def _take_accelerator(wish: Wish, view: HostView, index: dict[str, Any]) -> None:
    fact = view.env("DEEPINFER_ACCELERATOR")
    value = fact.value.strip() if fact.is_present else ""
    if not value:
        return
    values = index["variables"]["DEEPINFER_ACCELERATOR"]["values"]
    if value not in values:
        raise UnknownSetting(
            "DEEPINFER_ACCELERATOR is %r%s" % (value, nearest(value, values)),
            fix="export DEEPINFER_ACCELERATOR=VALUE with one of: %s" % ", ".join(values),
        )
    if value == "auto":
        return
    entry = next(entry for entry in index["entries"] if entry["accelerator"] == value)
    if wish.target and wish.target != entry["id"]:
        raise ConflictingTarget(
            "-C deepinfer.target=%s and DEEPINFER_ACCELERATOR=%s (%s) name different targets"
            % (wish.target, value, entry["id"]),
            fix="unset DEEPINFER_ACCELERATOR, or leave the key out",
        )
    wish.target, wish.named_by = entry["id"], wish.named_by or "DEEPINFER_ACCELERATOR"


def entry_by_id(name: str, index: dict[str, Any]) -> dict[str, Any]:
    """The entry called ``name``; raises with the nearest right name."""
    for entry in index["entries"]:
        if entry["id"] == name:
            return dict(entry)
    names = sorted(entry["id"] for entry in index["entries"])
    raise UnknownSetting(
        "no matrix entry is called %r%s" % (name, nearest(name, names)), fix="the entries are: %s" % ", ".join(names)
    )
