"""The PEP 517 and PEP 660 hooks. Wheels pass the gate; metadata and source distributions never refuse.

``requires = []`` in pyproject.toml, so a refusal comes before anything is downloaded; what the build itself needs is
answered to ``get_requires_for_build_*`` after the gate.
"""

from __future__ import annotations

import os

from build_support import gate, metadata, sdist
from deepinfer.errors import DeepInferError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Settings = dict[str, Any] | None


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """What the build needs; asked for first, so refused first."""
    gate.before_requirements(config_settings)
    from build_support.compile import REQUIREMENTS

    return list(REQUIREMENTS)


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    return get_requires_for_build_wheel(config_settings)


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    return []


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    """Write the ``.dist-info`` folder; it is the same for every target."""
    name = metadata.dist_info_name()
    folder = os.path.join(metadata_directory, name)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "METADATA"), "w", encoding="utf-8") as file:
        file.write(metadata.core_metadata())
    return name


def prepare_metadata_for_build_editable(metadata_directory: str, config_settings: Settings = None) -> str:
    return prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """Build for the target that the gate lets pass."""
    return _build("build_wheel", wheel_directory, config_settings)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    return _build("build_editable", wheel_directory, config_settings)


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """Pack the tree; possible on every machine."""
    return sdist.build(sdist_directory)


def _build(hook: str, wheel_directory: str, settings: Settings) -> str:
    target = gate.before_build(settings)
    from build_support.compile import build

    try:
        return build(target, gate.machine(), wheel_directory, hook, settings or {})
    except DeepInferError as error:
        raise SystemExit(str(error)) from None
