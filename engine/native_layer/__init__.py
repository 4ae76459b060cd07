"""One backbone layer as a chain of kernels: weights as the kernels read them, buffers of the caller, no allocation."""

from __future__ import annotations
