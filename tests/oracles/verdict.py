"""The end of every oracle: what was measured, which limit it exceeds, and the exit code that says so."""

from __future__ import annotations

import json
from collections.abc import Mapping


def say(
    measured: Mapping[str, float], at_most: Mapping[str, float], at_least: Mapping[str, float] | None = None
) -> int:
    """Print one JSON object; 1 if a figure is beyond its limit or is no number, else 0."""
    beyond = [name for name, limit in at_most.items() if not measured[name] <= limit]
    beyond += [name for name, limit in (at_least or {}).items() if not measured[name] >= limit]
    print(json.dumps({"measured": dict(measured), "beyond_limit": beyond}, indent=1))
    return 1 if beyond else 0
