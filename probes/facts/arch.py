"""Architecture names, parsed once: NVIDIA's to a canonical ``100a``, Ascend's to a lower-case ``ascend...`` name.

There is no order among them and no "same major" rule; code that compares them uses set membership.
"""

from __future__ import annotations

import re

ACCEPTED = "10.0a, 100a, sm_100a, compute_100a, 100a-real, 10.0a+PTX"
_CUDA = r"(?:sm_|compute_)?(?:(\d{1,2})\.(\d)|(\d{2,3}))([af]?)(?:-real|-virtual|\+PTX)?"


def cuda_arch(text: str) -> str | None:
    """``10.0a``, ``sm_100a``, ``compute_100a``, ``100a-real`` and ``10.0a+PTX`` -> ``100a``; None for anything else."""
    match = re.fullmatch(_CUDA, text.strip(), re.ASCII)
    if not match:
        return None
    major, minor, joined, suffix = match.groups()
    return (joined or major + minor) + suffix


def soc_name(text: str) -> str:
    """``Ascend950PR_9579``, ``ASCEND950PR_9579`` and ``950PR_9579`` -> ``ascend950pr_9579``."""
    word = text.strip().lower().replace(" ", "")
    while word.startswith("ascendascend"):  # a doubled prefix that real build logs show
        word = word[len("ascend") :]
    return "ascend" + word if word[:1].isdigit() else word
