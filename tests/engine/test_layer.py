"""The chain of one layer: every call against its op's contract, and the result against the torch model.

The kernels' references stand for the kernels, so that what is tested is what the chain adds: which tensor goes where,
the repacked weights, and the conversions between two kernels.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

from deepinfer.engine.checkpoint.config import Config
from deepinfer.engine.checkpoint.released import released_config
from deepinfer.engine.model.layout import layers
from deepinfer.engine.native_layer import draw, glue
from deepinfer.engine.native_layer.buffers import PAGE, Caches, Carry, Scratch, Step
from deepinfer.engine.native_layer.compare import against
from deepinfer.engine.native_layer.launches import Checked, Launches, Recorder
from deepinfer.engine.native_layer.layer import NativeLayer
from deepinfer.engine.native_layer.oracle import Oracle, SliceParameters, expanded
from deepinfer.engine.native_layer.weights import LayerWeights, supported
from deepinfer.engine.ops import mhc_fused, moe_packing, router
from deepinfer.engine.ops.dequant import fp4_reference
from deepinfer.engine.ops.registry import load_all

if TYPE_CHECKING:
    from deepinfer.engine.ops.contract import Scalars, Tensors

EXPERTS = range(2, 6)
CONTEXTS = [700, 130, 5]


def small() -> Config:
    """Everything that the kernels fix as released; the rest small."""
    config = released_config()
    changes = {"q_lora_rank": 64, "o_lora_rank": 32, "n_routed_experts": 8, "num_experts_per_tok": 2}
    changes |= {"moe_intermediate_size": 64, "index_topk": 64, "candidate_topk_blocks": 16, "num_hidden_layers": 40}
    return replace(config, text=replace(config.text, **changes))


class References(Launches):
    """Ops by their references, into the given outputs."""

    def op(self, name: str, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
        outputs = dict(outputs)
        if name == "rows.queries":
            outputs["out"] = inputs["x"]
        if "cache" in outputs:
            inputs = {**inputs, "before": outputs["cache"].clone()}
        for key, value in load_all()[name].reference(inputs, scalars).items():
            if key in outputs:
                outputs[key].copy_(value.reshape(outputs[key].shape))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(time.time_ns() % 2**31)


@pytest.fixture(scope="module")
def config() -> Config:
    return small()


@pytest.fixture(scope="module")
def tensors(config: Config) -> dict[str, torch.Tensor]:
    """A source layer's tensors: they hold what any other kind needs."""
    return draw.release_tensors(config, draw.KINDS["full"], EXPERTS, generator(), "cpu")


def of_layer(tensors: dict[str, torch.Tensor], number: int) -> dict[str, torch.Tensor]:
    return {name.replace("layers.20.", "layers.%d." % number): tensor for name, tensor in tensors.items()}


def chain(
    kind: str, config: Config, tensors: dict[str, torch.Tensor], step: Step, caches: Caches, scratch: Scratch
) -> NativeLayer:
    """The layer, after what a source before it left in ``step`` and ``caches``."""
    text = config.text
    freqs, launches = draw.rotations(text, "cpu"), Checked(References())
    if kind in ("reuse", "reindex"):
        source = draw.layer_of("full", text)
        weights = LayerWeights.of(tensors, text, source, EXPERTS, "cpu")
        carry = draw.carry(len(CONTEXTS), text, generator(), "cpu")
        NativeLayer(text, source, weights, freqs, launches)(carry, carry, step, caches, scratch)
    layer = draw.layer_of(kind, text)
    weights = LayerWeights.of(of_layer(tensors, layer.number), text, layer, EXPERTS, "cpu")
    return NativeLayer(text, layer, weights, freqs, launches)


@pytest.mark.parametrize("kind", sorted(draw.KINDS))
def test_a_chain_is_the_model_s_layer(kind: str, config: Config, tensors: dict[str, torch.Tensor]) -> None:
    text, source = config.text, generator()
    step = draw.step(CONTEXTS, text, source, "cpu")
    caches = draw.caches(CONTEXTS, text, source, "cpu")
    scratch = Scratch(len(CONTEXTS), step.longest, len(EXPERTS), text, "cpu")
    native = chain(kind, config, tensors, step, caches, scratch)
    oracle = Oracle(text, native.layer, SliceParameters.of(of_layer(tensors, native.layer.number), text))
    found = against(native, oracle, draw.carry(len(CONTEXTS), text, source, "cpu"), step, caches, scratch)
    # Codes of caches and choices hang on sums in another order alone; both halves on FP8 codes of their inputs.
    for name in ("window", "entries", "keys"):
        assert found.halves.get(name, 0.0) < 5e-2, found.halves
    for name, bound in (("attended", 3e-2), ("x", 3e-2), ("streams", 3e-2), ("pre", 1e-3)):
        assert found.halves[name] < bound, found.halves
        assert found.free[name] < 4 * bound, found.free
    for name in ("experts agree", "entries agree", "candidates agree"):
        assert found.halves.get(name, 1.0) > 0.95, found.halves


def test_a_wrong_choice_is_seen(config: Config, tensors: dict[str, torch.Tensor]) -> None:
    """The comparison is no formality: rows of another token's sequence, or one expert for another, are far off."""
    text, source = config.text, generator()
    step = draw.step(CONTEXTS, text, source, "cpu")
    caches = draw.caches(CONTEXTS, text, source, "cpu")
    scratch = Scratch(len(CONTEXTS), step.longest, len(EXPERTS), text, "cpu")
    native = chain("reuse", config, tensors, step, caches, scratch)
    oracle = Oracle(text, native.layer, SliceParameters.of(of_layer(tensors, native.layer.number), text))
    carry = draw.carry(len(CONTEXTS), text, source, "cpu")
    step.entry_rows.copy_(step.entry_rows.flip(0))
    assert against(native, oracle, carry, step, caches, scratch).halves["attended"] > 0.1


def test_a_layer_writes_only_its_tokens_rows(config: Config, tensors: dict[str, torch.Tensor]) -> None:
    text, source = config.text, generator()
    step = draw.step(CONTEXTS, text, source, "cpu")
    caches = draw.caches(CONTEXTS, text, source, "cpu")
    before = caches.clone()
    scratch = Scratch(len(CONTEXTS), step.longest, len(EXPERTS), text, "cpu")
    chain("reuse", config, tensors, step, caches, scratch)  # runs the source
    assert caches.entries is not None and caches.pages is not None
    assert before.entries is not None and before.pages is not None
    changed = (caches.window != before.window).any(1).nonzero()[:, 0]
    assert changed.tolist() == sorted(step.window_slots.tolist())
    changed = (caches.entries != before.entries).any(1).nonzero()[:, 0]
    assert changed.tolist() == sorted(step.entry_slots.tolist())
    assert int((caches.pages != before.pages).any(1).sum()) == len({int(slot) // PAGE for slot in step.entry_slots})


def test_weights_keep_their_values(config: Config, tensors: dict[str, torch.Tensor]) -> None:
    """Experts and hyper-connections unpack to what was released; the shared expert's matrices lie one on the other."""
    weights = LayerWeights.of(tensors, config.text, draw.layer_of("full", config.text), EXPERTS, "cpu")
    prefix = "layers.20."
    fn = tensors[prefix + "hc_ffn_fn"].double()
    assert bool(((mhc_fused.unpack_fn(weights.experts_site.fn) - fn).abs() <= fn.abs() * 2.0**-17).all())
    for place, expert in enumerate(EXPERTS):
        name = prefix + "ffn.experts.%d." % expert
        matrices = [
            fp4_reference({"weight": tensors[name + one + ".weight"], "scale": tensors[name + one + ".scale"]}, {})[
                "out"
            ]
            for one in ("w1", "w3", "w2")
        ]
        packed = weights.experts.w13
        both = moe_packing.unpack(packed.weight[place], packed.row_factor[place], gated=True)
        width = matrices[0].shape[0]
        for half, matrix in zip(both.chunk(2), matrices[:2], strict=True):
            assert torch.equal(half[:width, : matrix.shape[1]], matrix)
        packed = weights.experts.w2
        down = moe_packing.unpack(packed.weight[place], packed.row_factor[place], gated=False)
        assert torch.equal(down[: matrices[2].shape[0], : matrices[2].shape[1]], matrices[2])
    shared = prefix + "ffn.shared_experts."
    for what in ("weight", "scale"):
        stacked = torch.cat([tensors[shared + one + "." + what] for one in ("w1", "w3")])
        assert torch.equal(getattr(weights.experts.shared_w13, "code" if what == "weight" else what), stacked)
    assert weights.compressor is not None and weights.indexer is not None


def test_weights_of_other_types_are_taken_as_bytes(config: Config, tensors: dict[str, torch.Tensor]) -> None:
    """A checkpoint hands out FP8 and int8 tensors."""
    typed = {}
    for name, tensor in tensors.items():
        routed = ".experts." in name
        kind = torch.float8_e8m0fnu if name.endswith(".scale") else torch.int8 if routed else torch.float8_e4m3fn
        typed[name] = tensor.view(kind) if tensor.dtype == torch.uint8 else tensor
    layer = draw.layer_of("full", config.text)
    one, other = (LayerWeights.of(source, config.text, layer, EXPERTS, "cpu") for source in (tensors, typed))
    assert torch.equal(one.attention.wq_b.code, other.attention.wq_b.code)
    assert torch.equal(one.experts.w2.weight, other.experts.w2.weight)


def test_layers_without_a_form_are_refused(config: Config, tensors: dict[str, torch.Tensor]) -> None:
    text = config.text
    plan = layers(text)
    for layer, said in ((plan[2], "compresses two tokens"), (plan[1], "n-grams")):
        with pytest.raises(ValueError, match=said):
            supported(text, layer)
    for name, value in (("hidden_size", 4096), ("num_attention_heads", 32), ("hc_mult", 2)):
        with pytest.raises(ValueError, match=name):
            supported(replace(text, **{name: value}), plan[20])
    with pytest.raises(ValueError, match="consecutive"):
        LayerWeights.of(tensors, text, plan[20], range(4, 9), "cpu")
    with pytest.raises(KeyError, match=r"ffn\.experts\.0\.w1"):
        LayerWeights.of(tensors, text, plan[20], range(4), "cpu")


def test_rows_go_to_their_experts_and_back(config: Config) -> None:
    """Every choice of this rank finds its row, and no other choice has one."""
    text, tokens, k = config.text, 7, 2
    scratch = Scratch(tokens, 8, len(EXPERTS), text, "cpu")
    source = generator()
    ids = torch.stack([torch.randperm(8, generator=source)[:k] for _ in range(tokens)])
    scratch.y_rounded[:-1].normal_(generator=source)
    scratch.routing_slots.uniform_(generator=source)
    offsets, order = router.sorted_rows(ids, EXPERTS.start, len(EXPERTS))
    scratch.order.copy_(order)
    glue.rows_by_expert(scratch, k)
    positions = scratch.positions[:-1].view(tokens, k)
    for token in range(tokens):
        for slot in range(k):
            row, expert = int(positions[token, slot]), int(ids[token, slot])
            assert (row >= 0) == (expert in EXPERTS)
            if row >= 0:
                assert offsets[expert - EXPERTS.start] <= row < offsets[expert - EXPERTS.start + 1]
                assert torch.equal(scratch.rows[row], scratch.y_rounded[token])
                assert scratch.routing[row] == scratch.routing_slots[token * k + slot]


def test_places_become_rows_of_the_pool(config: Config) -> None:
    text, source = config.text, generator()
    step = draw.step(CONTEXTS, text, source, "cpu")
    scratch = Scratch(len(CONTEXTS), step.longest, len(EXPERTS), text, "cpu")
    step.chosen.fill_(-1)
    for token, context in enumerate(CONTEXTS):
        count = min(context + 1, text.index_topk)
        step.chosen[token, :count] = torch.randperm(context + 1, generator=source)[:count].sort().values.int()
        step.chosen_count[token] = count
    glue.pool_rows(step, scratch)
    assert torch.equal(step.counts[:, 1], step.chosen_count)
    assert step.counts[:, 0].tolist() == [text.sliding_window] * len(CONTEXTS)
    for token in range(len(CONTEXTS)):
        for slot in range(int(step.chosen_count[token])):
            place = int(step.chosen[token, slot])
            page = int(step.block_table[int(step.sequence[token]), place // PAGE])
            assert int(step.entry_rows[token, slot]) == page * PAGE + place % PAGE


def test_a_first_site_adds_nothing(config: Config) -> None:
    streams = torch.randn(3, 4, 5120).bfloat16()
    carry = Carry.first(streams, torch.rand(3, 4))
    assert torch.equal(expanded(carry), streams)


def test_steps_are_written_down_in_order(config: Config, tensors: dict[str, torch.Tensor]) -> None:
    """A recorder runs nothing, and its steps run later are the layer."""
    text, source = config.text, generator()
    step = draw.step(CONTEXTS, text, source, "cpu")
    caches = draw.caches(CONTEXTS, text, source, "cpu")
    scratch = Scratch(len(CONTEXTS), step.longest, len(EXPERTS), text, "cpu")
    native = chain("window", config, tensors, step, caches, scratch)
    carry = draw.carry(len(CONTEXTS), text, source, "cpu")
    plain, later = carry.clone(), carry.clone()
    native(plain, plain, step, caches.clone(), scratch)
    native.launches = recorder = Recorder(native.launches)
    native(later, later, step, caches, scratch)
    assert torch.equal(later.x, carry.x)
    for _, run in recorder.steps:
        run()
    assert torch.equal(later.x, plain.x) and torch.equal(later.streams, plain.streams)
    labels = [label for label, _ in recorder.steps]
    assert labels[0] == "mhc.boundary" and labels[-1] == "moe_gemm.combine" and "linear.fp8 64 x 5120" in labels
