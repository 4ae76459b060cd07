"""Compares the modules that V4.1 shares with V4 with transformers' ``deepseek_v4``; prints one JSON object.

Same inputs, fp32 unless said, key rounding off. Exits with 1 where a difference exceeds its tolerance. Run in an
environment of its own, see tests/oracles/README.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import verdict

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/engine")]

from tiny_text import model
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as theirs
from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config

from deepinfer.engine.model.feed_forward import feed_forward
from deepinfer.engine.model.state import State
from deepinfer.engine.model.text_attention import Forward
from deepinfer.engine.ops import mhc, moe, selection
from deepinfer.engine.ops.norm import rms_norm
from deepinfer.engine.ops.rope import rotate

OURS = model(3)
SHAPE = OURS.config
ROWS, SHORT = 150, 32  # with 32 tokens every entry of ratio 2 is selected, as their ratio-2 attention does
TOLERANCE = {
    "norm, relative": 1e-6,
    "frequencies, plain, relative": 1e-6,
    "frequencies, YaRN, relative": 1e-6,
    "rotary on their frequencies, plain": 1e-6,
    "rotary on their frequencies, YaRN": 1e-6,
    "rotary, plain": 1e-6,
    "rotary, YaRN": 1e-6,
    "mHC post": 2e-6,
    "mHC comb": 2e-6,
    "mHC collapse by pre": 2e-6,
    "compressed entries, ratio 2": 1e-6,
    "index scores": 1e-5,
    "router weights": 1e-6,
    "router, rows with other experts": 0.0,
    "experts and shared expert, fp64": 1e-5,
    "experts and shared expert, fp32": 1e-5,
    "attention, window": 1e-5,
    "attention, window and entries": 1e-5,
}


def their_config() -> DeepseekV4Config:
    scaling, kinds = SHAPE.rope_scaling, ["sliding_attention", "heavily_compressed_attention"]
    same = (
        *("vocab_size", "hidden_size", "moe_intermediate_size", "num_attention_heads", "head_dim", "q_lora_rank"),
        *("num_experts_per_tok", "n_routed_experts", "routed_scaling_factor", "max_position_embeddings"),
        *("rope_theta", "compress_rope_theta", "hc_mult", "hc_sinkhorn_iters", "hc_eps", "swiglu_limit"),
        *("sliding_window", "o_groups", "o_lora_rank", "index_n_heads", "index_head_dim", "index_topk", "rms_norm_eps"),
    )
    made = DeepseekV4Config(
        num_hidden_layers=2,
        layer_types=kinds,
        mlp_layer_types=["moe", "moe"],
        compress_rates={"heavily_compressed_attention": 2, "compressed_sparse_attention": 4},
        partial_rotary_factor=SHAPE.qk_rope_head_dim / SHAPE.head_dim,
        rope_parameters={
            "rope_type": "yarn",
            **{name: getattr(scaling, name) for name in type(scaling).__annotations__},
        },
        **{name: getattr(SHAPE, name) for name in same},
    )
    made._attn_implementation = "eager"
    return made


CONFIG = their_config()


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def fill(module: torch.nn.Module, **values: torch.Tensor) -> torch.nn.Module:
    """``module`` with every parameter and saved buffer replaced; dots in names are written as two underscores."""
    module.load_state_dict({name.replace("__", "."): value for name, value in values.items()})
    return module.eval()


def largest(ours: torch.Tensor, other: torch.Tensor) -> float:
    return float((ours - other).abs().max())


def norm() -> dict[str, float]:
    x, weight = drawn(1, ROWS, SHAPE.hidden_size) * 3.0, OURS.params["norm.weight"]
    other = fill(theirs.DeepseekV4RMSNorm(SHAPE.hidden_size, SHAPE.rms_norm_eps), weight=weight)(x)
    return {"norm, relative": float(((rms_norm(x, weight, SHAPE.rms_norm_eps) - other) / other).abs().max())}


def rotary() -> dict[str, float]:
    x, positions, made = drawn(2, ROWS, 4, SHAPE.head_dim), torch.arange(ROWS), theirs.DeepseekV4RotaryEmbedding(CONFIG)
    found = {}
    for name, kind, freqs in (
        ("plain", "main", OURS.attention.plain),
        ("YaRN", "compress", OURS.attention.long),
    ):
        cos, sin = made(x, positions[None], layer_type=kind)
        other = theirs.apply_rotary_pos_emb(x.transpose(0, 1)[None], cos, sin)[0].transpose(0, 1)
        known = getattr(made, kind + "_inv_freq")
        found["frequencies, %s, relative" % name] = float(((freqs - known) / known).abs().max())
        found["rotary on their frequencies, " + name] = largest(rotate(x, positions, known), other)
        found["rotary, " + name] = largest(rotate(x, positions, freqs), other)
    return found


def hyper_connections() -> dict[str, float]:
    streams = drawn(3, ROWS, SHAPE.hc_mult, SHAPE.hidden_size)
    fn, base, scale = (OURS.params["layers.3.hc_attn_" + name] for name in ("fn", "base", "scale"))
    other = fill(theirs.DeepseekV4HyperConnection(CONFIG), fn=fn, base=base, scale=scale)
    post, comb, collapsed = (value[0] for value in other(streams[None]))
    mine = mhc.mix(
        streams, fn, base, scale, iterations=SHAPE.hc_sinkhorn_iters, eps=SHAPE.hc_eps, norm_eps=SHAPE.rms_norm_eps
    )
    return {
        "mHC post": largest(mine[1], post),
        "mHC comb": largest(mine[2], comb),
        "mHC collapse by pre": largest(mhc.collapse(streams, mine[0]), collapsed),
    }


def index_scores() -> dict[str, float]:
    x, weight = drawn(4, ROWS, SHAPE.hidden_size), OURS.params["layers.2.attn.indexer.weights_proj.weight"]
    query, keys = drawn(5, ROWS, SHAPE.index_n_heads, SHAPE.index_head_dim), drawn(6, 75, SHAPE.index_head_dim)
    other = fill(theirs.DeepseekV4IndexerScorer(CONFIG), weights_proj__weight=weight)(query[None], keys[None], x[None])
    return {"index scores": largest(selection.scores(query, keys, x @ weight.T), other[0])}


def mixture(dtype: torch.dtype) -> tuple[dict[str, float], torch.Tensor, torch.Tensor]:
    """(router, our output, their output) of a feed-forward half, one expert large enough for its clamps to act."""
    prefix, params = "layers.3.ffn.", model(3, dtype=dtype).params
    for name in list(params.tensors):
        if name.startswith(prefix) and name.endswith("w2.weight"):
            params.tensors[name] = params.tensors[name] / 8.0  # clamps act, and outputs stay of ordinary size
    x = drawn(7, ROWS, SHAPE.hidden_size).to(dtype)
    gate, bias = params[prefix + "gate.weight"], params[prefix + "gate.bias"]
    names = ["%sexperts.%d." % (prefix, number) for number in range(SHAPE.n_routed_experts)]
    other = fill(
        theirs.DeepseekV4SparseMoeBlock(CONFIG, 0).to(dtype),
        gate__weight=gate,
        gate__e_score_correction_bias=bias,
        experts__gate_up_proj=torch.stack(
            [torch.cat([params[name + "w1.weight"], params[name + "w3.weight"]]) for name in names]
        ),
        experts__down_proj=torch.stack([params[name + "w2.weight"] for name in names]),
        shared_experts__gate_proj__weight=params[prefix + "shared_experts.w1.weight"],
        shared_experts__up_proj__weight=params[prefix + "shared_experts.w3.weight"],
        shared_experts__down_proj__weight=params[prefix + "shared_experts.w2.weight"],
    )
    _, weights, ids = other.gate(x)
    chosen, mine = moe.route(x, gate, bias, SHAPE.num_experts_per_tok, SHAPE.routed_scaling_factor)
    nothing = torch.zeros(ROWS, SHAPE.n_routed_experts, dtype=dtype)
    router = {
        "router weights": largest(nothing.scatter(1, chosen, mine), nothing.scatter(1, ids, weights)),
        "router, rows with other experts": float((chosen.sort().values != ids.sort().values).any(-1).sum()),
    }
    text = torch.zeros(ROWS, dtype=torch.bool)
    out = feed_forward(params, SHAPE, "layers.3.", x, text, SHAPE.num_experts_per_tok)
    return router, out, other(x[None])[0]


def experts() -> dict[str, float]:
    """In fp64 too: the routing weight multiplies before our last product and after theirs, equal but for rounding."""
    router, out, other = mixture(torch.float32)
    _, exact, other_exact = mixture(torch.float64)
    return {
        **router,
        "experts and shared expert, fp64": largest(exact, other_exact),
        "experts and shared expert, fp32": largest(out, other),
        "experts and shared expert, largest value": float(other.abs().max()),
    }


def attention(number: int, count: int) -> tuple[float, float]:
    """(attention of layer ``number``, its compressed entries) on ``count`` tokens."""
    layer, params, prefix = OURS.layers[number], OURS.params, "layers.%d.attn." % number
    values = {
        "q_a_proj": "wq_a",
        "q_a_norm": "q_norm",
        "q_b_proj": "wq_b",
        "kv_proj": "wkv",
        "kv_norm": "kv_norm",
        "o_a_proj": "wo_a",
        "o_b_proj": "wo_b",
    }
    if layer.ratio:
        for name, own in (("kv_proj", "wkv"), ("gate_proj", "wgate"), ("kv_norm", "norm")):
            values["compressor__" + name] = "compressor." + own
    given = {name + "__weight": params[prefix + own + ".weight"] for name, own in values.items()}
    if layer.ratio:
        given["compressor__position_bias"] = torch.zeros(2, SHAPE.head_dim)
    module = theirs.DeepseekV4Attention(CONFIG, int(bool(layer.ratio)))
    module.q_b_norm = torch.nn.Identity()  # V4 norms the queries of each head, V4.1 does not
    fill(module, sinks=params[prefix + "attn_sink"], **given)
    x, positions, state = drawn(8, count, SHAPE.hidden_size), torch.arange(count), State(SHAPE, count)
    tables = theirs.DeepseekV4RotaryEmbedding(CONFIG)
    both = {kind: tables(x, positions[None], layer_type=kind) for kind in ("main", "compress")}
    distance = positions[:, None] - positions[None, :]
    hidden = (distance < 0) | (distance >= SHAPE.sliding_window)
    mask = torch.zeros(1, 1, count, count).masked_fill(hidden, float("-inf"))
    seen: list[torch.Tensor] = []
    if layer.ratio:
        module.compressor.register_forward_hook(lambda _, given, out: seen.append(out[0][0, 0]))
    other = module(x[None], both, positions[None], mask)[0][0]
    mine = OURS.attention(layer, x, state, Forward(positions, count))
    return largest(mine, other), largest(state.entries[number], seen[0]) if layer.ratio else 0.0


@torch.no_grad()
def main() -> int:
    window, _ = attention(0, ROWS)
    both, entries = attention(2, SHORT)
    found = {**norm(), **rotary(), **hyper_connections(), **index_scores(), **experts()}
    found["compressed entries, ratio 2"] = entries
    found["attention, window"], found["attention, window and entries"] = window, both
    return verdict.say(found, TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
