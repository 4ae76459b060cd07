"""The door to the native module: nothing of it is used before its record was compared with this host."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

from deepinfer.matrix.index import load_index
from deepinfer.probes.artifact import fitness, installed
from deepinfer.probes.live import LiveView


@cache
def load() -> ModuleType:
    """The native module. Raises :class:`deepinfer.errors.DeepInferError` if it is missing, changed or does not fit.

    Compared once per process: files against RECORD, the record against the host's devices and driver.
    """
    artifact = installed.find()
    installed.check_module(artifact)
    fitness.require(artifact, LiveView(), load_index())
    return import_module(installed.MODULE)
