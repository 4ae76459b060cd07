"""The list of ops. A module of this folder registers its ops when it is imported; :func:`load_all` imports them all."""

from __future__ import annotations

from importlib import import_module

from deepinfer.engine.ops.contract import Op

# One line per file of ops, sorted.
MODULES = (
    "attention",
    "compress_rows",
    "compressor",
    "dequant",
    "engram",
    "engram_gather",
    "indexer",
    "linear_fp8",
    "mhc",
    "mhc_fused",
    "moe",
    "moe_gemm",
    "norm",
    "quantize_rows",
    "quantizers",
    "rope",
    "router",
    "selection",
    "sparse_mla",
    "topk",
)
_OPS: dict[str, Op] = {}


def register(op: Op) -> Op:
    """Add ``op``; its name must be new."""
    if op.contract.name in _OPS:
        raise ValueError("op %r is registered twice" % op.contract.name)
    _OPS[op.contract.name] = op
    return op


def load_all() -> dict[str, Op]:
    """Every op by name. Needs torch, for the references."""
    for name in MODULES:
        import_module("deepinfer.engine.ops.%s" % name)
    return dict(_OPS)
