"""Writes parsed TOML of our forms back as text, so that a test may change one key of it."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any


def value_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, list):
        return "[%s]" % ", ".join(value_text(item) for item in value)
    if isinstance(value, dict):
        return "{ %s }" % ", ".join("%s = %s" % (json.dumps(k), value_text(v)) for k, v in value.items())
    return json.dumps(value, ensure_ascii=False)


def toml_text(data: dict[str, Any]) -> str:
    lines: list[str] = []
    later: list[str] = []
    for key, value in data.items():
        if isinstance(value, dict):
            later += _table(key, value)
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            for item in value:
                later += ["[[%s]]" % key, *("%s = %s" % (name, value_text(inner)) for name, inner in item.items()), ""]
        else:
            lines.append("%s = %s" % (key, value_text(value)))
    return "\n".join([*lines, "", *later]) + "\n"


def _table(key: str, value: dict[str, Any]) -> list[str]:
    rows = ["[%s]" % key]
    inner = []
    for name, item in value.items():
        if name == "pci" and isinstance(item, dict):
            inner = ["[%s.%s]" % (key, name), *("%s = %s" % (json.dumps(k), value_text(v)) for k, v in item.items())]
        else:
            rows.append("%s = %s" % (name, value_text(item)))
    return [*rows, "", *inner, ""]
