"""The feed-forward half of a block: router, routed experts, shared expert."""

from __future__ import annotations

import torch

from deepinfer.engine.checkpoint.config import TextConfig
from deepinfer.engine.model.parameters import Parameters
from deepinfer.engine.ops import moe
from deepinfer.engine.ops.precision import wide


def feed_forward(
    params: Parameters, config: TextConfig, prefix: str, x: torch.Tensor, image: torch.Tensor, top_k: int
) -> torch.Tensor:
    """``x`` [T, D] (normed) -> [T, D]. Tokens of image spans (``image`` bool [T]) are routed by ``bias_vl``."""
    own, vision = params[prefix + "ffn.gate.bias"], params[prefix + "ffn.gate.bias_vl"]
    bias = torch.where(image[:, None], vision, own)
    gate = params[prefix + "ffn.gate.weight"]
    ids, weights = moe.route(x, gate, bias, top_k, config.routed_scaling_factor)
    quantized = params.quantized_input(x)

    def apply(name: str, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        hidden = moe.swiglu(
            params.linear(name + "w1", rows), params.linear(name + "w3", rows), weight, config.swiglu_limit
        )
        return params.linear(name + "w2", params.quantized_input(hidden))

    def expert(number: int, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return apply("%sffn.experts.%d." % (prefix, number), rows, weight)

    total = moe.experts(quantized, ids, weights, expert)
    one = torch.ones(x.shape[0], dtype=torch.float32, device=x.device)
    return (total + wide(apply(prefix + "ffn.shared_experts.", quantized, one))).to(x.dtype)
