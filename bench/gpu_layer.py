"""One backbone layer at the release's size by our kernels on the GPU that is here: microseconds in a CUDA graph.

    python bench/gpu_layer.py [--library FILE] [--check] [--breakdown] [--json FILE]

Decode: T tokens, each the newest of its own sequence of 8,192 to 32,768 tokens; window, entries and index keys packed
as the caches hold them (528, 288 and 68 bytes). One rank of eight: 48 of 384 routed experts, the router of all 384 and
the shared expert. Biases keep every choice among the rank's own experts, so that it has as many rows as a rank has in
a balanced step (6 T); what other ranks would send or add is not there. Weights are MXFP4 (routed experts) and FP8,
activations FP8 with a scale per 32 channels, compressor and index weights bf16 by torch. Kinds of layers: ``window``
(no entries), ``full`` (ratio 1, publishes entries and index keys, scores all of them, keeps candidate blocks, selects
512), ``reindex`` (scores the candidates alone, selects), ``reuse`` (takes the selection as it is).

The figure is for two streams in one graph (what does not hang on one another side by side); beside it, as peer, the
same on one stream. The bound is bytes over the read ceiling: weights (of routed experts those chosen), rows of the
caches, index keys. ``--check`` compares outputs, written rows and choices with the torch model of the same layer first,
a token alone with the same token among others bit for bit, and a replayed graph with a plain call. ``--breakdown``
prints what every step adds to a graph of those before it that begins with reading 256 MiB (a cold L2 cache).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gpu_timing import Bench, Row, main

if TYPE_CHECKING:
    from deepinfer.engine.native_layer.buffers import Caches, Carry, Scratch, Step
    from deepinfer.engine.native_layer.layer import NativeLayer

KINDS = ("window", "full", "reindex", "reuse")  # in the order in which one may follow another
TOKENS = (1, 16, 64, 256)
EXPERTS = range(96, 144)
SHORTEST, LONGEST = 8192, 32768
FORM = "W4A8, W8A8"
# Relative L2 errors. Sums in another order move a bf16 value by one place, and now and then an FP8 code of the next
# linear by one step, 6 to 12 % of the value; so the bounds are those of FP8 codes, not of sums (docs/kernels/layer.md).
HALVES = {"attended": 3e-2, "x": 3e-2, "streams": 3e-2, "pre": 1e-3, "window": 5e-3, "entries": 2e-2, "keys": 2e-2}
FREE = {"x": 8e-2, "streams": 8e-2, "pre": 1e-2}
AGREE = {"experts agree": 0.98, "entries agree": 0.98, "candidates agree": 0.98}
OUTPUTS = ("x", "streams", "pre", "post", "comb")


class Model:
    """Weights of a released source layer, which hold what every kind of layer needs, and the layers over them."""

    def __init__(self, bench: Bench, *, local: bool, seed: int) -> None:
        from deepinfer.engine.checkpoint.released import released_config
        from deepinfer.engine.native_layer import draw
        from deepinfer.engine.native_layer.launches import Device
        from deepinfer.engine.native_layer.weights import LayerWeights

        self.config, self.torch = released_config(), bench.torch
        self.text = self.config.text
        self.generator = bench.torch.Generator("cuda").manual_seed(seed)
        number = draw.KINDS["full"]
        self.tensors = draw.release_tensors(self.config, number, EXPERTS, self.generator, "cuda")
        if local:
            draw.stay_local(self.tensors, number, EXPERTS)
        self.weights = LayerWeights.of(self.tensors, self.text, draw.layer_of("full", self.text), EXPERTS, "cuda")
        self.freqs = draw.rotations(self.text, "cuda")
        self.launches: Any = Device(bench.module)

    def layer(self, kind: str, side: Any = None, launches: Any = None) -> NativeLayer:
        """The layer that stands for ``kind``, without the weights that it does not have."""
        from deepinfer.engine.native_layer import draw
        from deepinfer.engine.native_layer.layer import NativeLayer

        layer, weights = draw.layer_of(kind, self.text), self.weights
        if not layer.owns_kv:
            weights = replace(weights, compressor=None, indexer=weights.indexer if layer.owns_index else None)
        return NativeLayer(self.text, layer, weights, self.freqs, launches or self.launches, side)

    def renamed(self, kind: str) -> dict[str, Any]:
        """Release tensors under the names of the layer that stands for ``kind``."""
        from deepinfer.engine.native_layer import draw

        before, after = ("layers.%d." % draw.KINDS[name] for name in ("full", kind))
        return {name.replace(before, after): tensor for name, tensor in self.tensors.items()}

    def batch(self, contexts: list[int]) -> tuple[Carry, Step, Caches, Scratch]:
        """Everything that a layer is called with; ``step`` holds what a source has selected."""
        from deepinfer.engine.native_layer import draw
        from deepinfer.engine.native_layer.buffers import Scratch
        from deepinfer.engine.native_layer.launches import Checked

        step = draw.step(contexts, self.text, self.generator, "cuda")
        caches = draw.caches(contexts, self.text, self.generator, "cuda")
        scratch = Scratch(len(contexts), step.longest, len(EXPERTS), self.text, "cuda")
        carry = draw.carry(len(contexts), self.text, self.generator, "cuda")
        self.layer("full", launches=Checked(self.launches))(carry, carry.clone(), step, caches, scratch)
        return carry, step, caches, scratch


def contexts_of(tokens: int) -> list[int]:
    """Tokens before the newest one, evenly from the shortest to the longest, in mixed order."""
    places = [(i * 7919) % tokens for i in range(tokens)]
    return [SHORTEST + (LONGEST - 1 - SHORTEST) * place // max(1, tokens - 1) for place in places]


def check(bench: Bench) -> int:
    """Every kind against the torch model, with all choices local and with most of them on other ranks."""
    from deepinfer.engine.native_layer.compare import against
    from deepinfer.engine.native_layer.oracle import Oracle, SliceParameters

    bad = 0
    for local in (True, False):
        model = Model(bench, local=local, seed=11 + local)
        carry, step, caches, scratch = model.batch([20000, 8191, 32767, 130, 700, 12345, 3, 9000])
        for kind in KINDS:
            native = model.layer(kind)
            oracle = Oracle(model.text, native.layer, SliceParameters.of(model.renamed(kind), model.text))
            found = against(native, oracle, carry, step, caches, scratch)
            for name, errors, bounds in (("halves", found.halves, {**HALVES, **AGREE}), ("layer", found.free, FREE)):
                bad += _judge("%s, %s, %s" % (kind, "local" if local else "all ranks", name), errors, bounds)
        bad += alone(model, carry, step, caches) + replayed(model, carry, step, caches, scratch)
    return bad


def _judge(case: str, errors: dict[str, float], bounds: dict[str, float]) -> int:
    wrong = [
        name
        for name, bound in bounds.items()
        if name in errors and not (errors[name] >= bound if "agree" in name else errors[name] <= bound)
    ]
    words = ", ".join("%s %.2e" % (name, errors[name]) for name in bounds if name in errors)
    print("%-30s %s%s" % (case, words, "  DIFFERS: " + ", ".join(wrong) if wrong else ""), flush=True)
    return len(wrong)


def alone(model: Model, carry: Carry, step: Step, caches: Caches) -> int:
    """A token by itself has the bits that it has among others; products by torch may have others."""
    from deepinfer.engine.native_layer.buffers import Carry, Scratch

    torch, bad, token = model.torch, 0, 5
    for kind in KINDS:
        found = []
        for tokens in (slice(None), slice(token, token + 1)):
            part = Carry(*(getattr(carry, name)[tokens].clone() for name in OUTPUTS))
            own = replace(step, **_rows(torch, step, tokens))
            scratch = Scratch(part.x.shape[0], step.longest, len(EXPERTS), model.text, "cuda")
            written = caches.clone()
            model.layer(kind)(part, part, own, written, scratch)
            found.append((part, written))
        (whole, whole_caches), (single, single_caches) = found
        same = all(torch.equal(getattr(whole, name)[token : token + 1], getattr(single, name)) for name in OUTPUTS)
        slot = step.window_slots[token]
        same = same and torch.equal(whole_caches.window[slot], single_caches.window[slot])
        print("%s: a token alone %s among others" % (kind, "is as" if same else "has other bits than"))
        bad += not same and kind in ("window", "reuse")
    return bad


def _rows(torch: Any, step: Step, tokens: slice) -> dict[str, Any]:
    """Copies of the tensors of ``step`` that have one row per token, for some of them."""
    count = step.positions.shape[0]
    names = [name for name, one in vars(step).items() if torch.is_tensor(one) and name != "block_table"]
    found: dict[str, Any] = {name: getattr(step, name)[tokens].clone() for name in names}
    assert all(getattr(step, name).shape[0] == count for name in names), "one row per token"
    return {**found, "rotation": {name: one[tokens].clone() for name, one in step.rotation.items()}}


def replayed(model: Model, carry: Carry, step: Step, caches: Caches, scratch: Scratch) -> int:
    """A graph of two streams, captured with other contents, gives the bits of a plain call on one."""
    torch, bad = model.torch, 0
    for kind in KINDS:
        plain, before, after = carry.clone(), carry.clone(), carry.clone()
        model.layer(kind)(carry, plain, step, caches, scratch)
        for name in OUTPUTS:
            getattr(before, name).copy_(getattr(carry, name).flip(0))
        native = model.layer(kind, torch.cuda.Stream())
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            native(before, after, step, caches, scratch)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                native(before, after, step, caches, scratch)
        torch.cuda.synchronize()
        for name in OUTPUTS:
            getattr(before, name).copy_(getattr(carry, name))
            getattr(after, name).fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        same = all(torch.equal(getattr(plain, name), getattr(after, name)) for name in OUTPUTS)
        print("%s: a replayed graph %s a plain call" % (kind, "is as" if same else "DIFFERS from"))
        bad += not same
    return bad


def bytes_of(model: Model, kind: str, step: Step, scratch: Scratch) -> float:
    """Weights and rows that a layer must read at least; of routed experts those that have rows."""
    text, layer = model.text, model.layer(kind).layer
    tokens, heads = scratch.tokens, text.num_attention_heads * text.head_dim
    d, low, inner = text.hidden_size, text.q_lora_rank, text.moe_intermediate_size
    middle = text.o_groups * text.o_lora_rank
    fp8 = low * d + text.head_dim * d + heads * low + middle * heads // text.o_groups + d * middle + 3 * inner * d
    index = text.index_n_heads * text.index_head_dim * low
    used = int((scratch.offsets.diff() > 0).sum())
    total = fp8 * (1 + 1 / 1024) + used * 3 * inner * d * 4.25 / 8
    total += 2 * 24 * text.hc_mult * d * 4 + text.n_routed_experts * d * 2
    total += tokens * text.sliding_window * 528
    if layer.ratio:
        total += tokens * text.index_topk * 288
    if layer.owns_kv:
        total += 2 * (text.head_dim * d + text.index_head_dim * text.head_dim) + float(step.visible.sum()) * 68
    elif layer.owns_index:
        total += float(step.candidate_entries.sum()) * 68
    if layer.owns_index:
        total += index * (1 + 1 / 1024) + 2 * text.index_n_heads * d
    return total


def measure(bench: Bench, *, breakdown: bool) -> Iterator[Row]:
    """Every kind at every number of tokens."""
    model = Model(bench, local=True, seed=5)
    for tokens in TOKENS:
        yield from measure_tokens(bench, model, tokens, breakdown=breakdown)
        bench.torch.cuda.empty_cache()


def measure_tokens(bench: Bench, model: Model, tokens: int, *, breakdown: bool) -> Iterator[Row]:
    """Every kind at one number of tokens."""
    carry, step, caches, scratch = model.batch(contexts_of(tokens))
    given = (carry, carry.clone(), step, caches, scratch)
    for kind in KINDS:
        single = bench.time_us(partial(_run, model.layer(kind), given))
        both = bench.time_us(partial(_run, model.layer(kind, bench.torch.cuda.Stream()), given))
        bound = bench.bound_us(read=bytes_of(model, kind, step, scratch))
        yield Row("%s, %d tokens" % (kind, tokens), both, bound, "one stream", single, form=FORM)
    for kind in ("full", "reindex") if breakdown else ():
        steps_of(bench, model, kind, given)


def _run(native: NativeLayer, given: tuple[Any, ...], _: int) -> None:
    native(*given)


def steps_of(bench: Bench, model: Model, kind: str, given: tuple[Any, ...]) -> None:
    """Prints what every step adds to the time of those before it, on one stream."""
    from deepinfer.engine.native_layer.launches import Recorder

    torch = bench.torch
    recorder = Recorder(model.launches)
    model.layer(kind, launches=recorder)(*given)
    swept = torch.empty(1 << 26, dtype=torch.float32, device="cuda").normal_()
    total = torch.empty((), dtype=torch.float32, device="cuda")

    def run(steps: list[Callable[[], None]], _: int) -> None:
        torch.sum(swept, dim=0, out=total)
        for one in steps:
            one()

    tokens = given[0].x.shape[0]
    print("steps of %s, %d tokens" % (kind, tokens))
    before = bench.time_us(partial(run, []))
    start = before
    sums: dict[str, float] = {}
    for count, (label, _) in enumerate(recorder.steps, 1):
        now = bench.time_us(partial(run, [one for _, one in recorder.steps[:count]]))
        print("  %-44s %8.1f us" % (label, now - before), flush=True)
        group = "torch" if label.startswith("torch") else label.split(" ")[0]
        sums[group] = sums.get(group, 0.0) + now - before
        before = now
    words = ", ".join("%s %.1f" % (name, us) for name, us in sorted(sums.items(), key=lambda pair: -pair[1]))
    print("  sum %.1f us: %s" % (before - start, words))


def entry() -> int:
    """Flags of this bench, then those of every bench."""
    words = sys.argv[1:]
    wanted = {flag: flag in words for flag in ("--check", "--check-only", "--breakdown")}
    sys.argv[1:] = [word for word in words if word not in wanted]
    bad: list[int] = []

    def rows(bench: Bench) -> Iterator[Row]:
        if wanted["--check"] or wanted["--check-only"]:
            bad.append(check(bench))
            bench.torch.cuda.empty_cache()
        if not wanted["--check-only"]:
            yield from measure(bench, breakdown=wanted["--breakdown"])

    return main(__doc__, rows, ()) or int(sum(bad) > 0)


if __name__ == "__main__":
    sys.exit(entry())
