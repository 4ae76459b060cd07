"""One backbone layer at the release's size by our kernels on the GPU that is here: microseconds in a CUDA graph.

    python bench/gpu_layer.py [--library FILE] [--check] [--check-only] [--json FILE]

Decode: T tokens, each the newest of its own sequence of 8,192 to 32,768 tokens; window, entries and index keys packed
as the caches hold them (528, 288 and 68 bytes). One rank of eight: 48 of 384 routed experts, the router of all 384 and
the shared expert. Biases keep every choice among the rank's own experts, so that it has as many rows as a rank has in
a balanced step (6 T); what other ranks would send or add is not there. Weights are MXFP4 (routed experts) and FP8,
activations FP8 with a scale per 32 channels, compressor and index weights bf16 by torch. Kinds of layers: ``window``
(no entries), ``full`` (ratio 1, publishes entries and index keys, scores all of them, keeps candidate blocks, selects
512), ``reindex`` (scores the candidates alone, selects), ``reuse`` (takes the selection as it is).

A row's figure is for two streams in one graph (what does not hang on one another side by side); beside it, as peer, the
same on one stream. The bound is bytes over the read ceiling: weights (of routed experts those chosen), rows of the
caches, index keys. Rows of steps are what each step of a layer adds to a graph of the steps before it, on one stream;
every such graph begins with reading 256 MiB, so that weights do not come from the L2 cache.

Every kind is first compared with the torch model of the same layer: outputs of both halves, written cache rows,
choices. A token alone must have the bits that it has among others, a replayed graph those of a plain call. The rows of
T = 64 say whether all of it held. ``--check`` does the same again with most choices on other ranks.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import gpu_timing

if TYPE_CHECKING:
    from deepinfer.engine.checkpoint.config import Config
    from deepinfer.engine.native_layer.buffers import Caches, Carry, Scratch, Step
    from deepinfer.engine.native_layer.launches import Launches
    from deepinfer.engine.native_layer.layer import NativeLayer
    from deepinfer.engine.native_layer.oracle import Oracle

    Given = tuple[Carry, Carry, Step, Caches, Scratch]

KINDS = ("window", "full", "reindex", "reuse")  # in the order in which one may follow another
TOKENS = (1, 16, 64, 256)
EXPERTS = range(96, 144)
SHORTEST, LONGEST = 8192, 32768
SHOWN = 64  # tokens whose rows say whether the comparisons held, and whose steps are measured
STEPS_UNTIL_S = 14.0  # after the start; a gate has other benches to run
CHECKED = [20000, 8191, 32767, 130, 700, 12345, 3, 9000]
ONLY_THERE = ("indexer.candidates", "topk.select")
FORM = "W4A8, W8A8"
# Relative L2 errors. Sums in another order move a bf16 value by one place, and now and then an FP8 code of the next
# linear by one step, 6 to 12 % of the value; so the bounds are those of FP8 codes, not of sums (docs/kernels/layer.md).
HALVES = {"attended": 4e-2, "x": 3e-2, "streams": 3e-2, "pre": 1e-3, "window": 1e-2, "entries": 5e-2, "keys": 5e-2}
FREE = {"x": 8e-2, "streams": 8e-2, "pre": 1e-2}
AGREE = {"experts agree": 0.98, "entries agree": 0.98, "candidates agree": 0.98}
OUTPUTS = ("x", "streams", "pre", "post", "comb")


class Model:
    """Weights of a released source layer, which hold what every kind of layer needs, and the layers over them.

    ``config``: the release's, or one with the sizes that the kernels fix. ``launches`` runs the steps.
    """

    def __init__(
        self, config: Config, experts: range, launches: Launches, device: str, *, local: bool, seed: int
    ) -> None:
        import torch

        from deepinfer.engine.native_layer import draw
        from deepinfer.engine.native_layer.oracle import SliceParameters
        from deepinfer.engine.native_layer.weights import LayerWeights

        self.text, self.experts, self.launches, self.device = config.text, experts, launches, device
        self.generator = torch.Generator(device).manual_seed(seed)
        number = draw.KINDS["full"]
        self.tensors = draw.release_tensors(config, number, experts, self.generator, device)
        if local:
            draw.stay_local(self.tensors, number, experts)
        self.weights = LayerWeights.of(self.tensors, self.text, draw.layer_of("full", self.text), experts, device)
        self.params = SliceParameters.of(self.tensors, self.text)
        self.freqs = draw.rotations(self.text, device)

    def layer(self, kind: str, side: Any = None, launches: Launches | None = None) -> NativeLayer:
        """The layer that stands for ``kind``, without the weights that it does not have."""
        from deepinfer.engine.native_layer import draw
        from deepinfer.engine.native_layer.layer import NativeLayer

        layer, weights = draw.layer_of(kind, self.text), self.weights
        if not layer.owns_kv:
            weights = replace(weights, compressor=None, indexer=weights.indexer if layer.owns_index else None)
        return NativeLayer(self.text, layer, weights, self.freqs, launches or self.launches, side)

    def oracle(self, kind: str) -> Oracle:
        """The torch model of that layer."""
        from deepinfer.engine.native_layer import draw
        from deepinfer.engine.native_layer.oracle import Oracle, SliceParameters

        layer = draw.layer_of(kind, self.text)
        before, after = "layers.%d." % draw.KINDS["full"], "layers.%d." % layer.number
        renamed = {name.replace(before, after): tensor for name, tensor in self.params.tensors.items()}
        params = SliceParameters(renamed, self.params.dtype, self.params.act_quant)
        params.widths = self.params.widths
        return Oracle(self.text, layer, params)

    def batch(self, contexts: list[int]) -> Given:
        """Everything that a layer is called with; the step holds what a source has selected."""
        from deepinfer.engine.native_layer import draw
        from deepinfer.engine.native_layer.buffers import Scratch
        from deepinfer.engine.native_layer.launches import Checked

        step = draw.step(contexts, self.text, self.generator, self.device)
        caches = draw.caches(contexts, self.text, self.generator, self.device)
        scratch = Scratch(len(contexts), step.longest, len(self.experts), self.text, self.device)
        carry = draw.carry(len(contexts), self.text, self.generator, self.device)
        self.layer("full", launches=Checked(self.launches))(carry, carry.clone(), step, caches, scratch)
        wait(self.device)  # streams of their own follow
        return carry, carry.clone(), step, caches, scratch


def wait(device: str) -> None:
    """Until the device has done all that was launched."""
    import torch

    if device != "cpu":
        torch.cuda.synchronize()


def _cuda() -> Any:
    """``torch.cuda``, whose streams and events have no types."""
    import torch

    return torch.cuda


def contexts_of(tokens: int) -> list[int]:
    """Tokens before the newest one, evenly from the shortest to the longest, in mixed order."""
    places = [(i * 7919) % tokens for i in range(tokens)]
    return [SHORTEST + (LONGEST - 1 - SHORTEST) * place // max(1, tokens - 1) for place in places]


def check(model: Model, contexts: list[int]) -> tuple[int, dict[str, str]]:
    """(how many comparisons failed, words about each kind) against the torch model."""
    from deepinfer.engine.native_layer.compare import against

    carry, _, step, caches, scratch = model.batch(contexts)
    bad, words = 0, {}
    for kind in KINDS:
        found = against(model.layer(kind), model.oracle(kind), carry, step, caches, scratch)
        wrong = beyond(found.halves, {**HALVES, **AGREE}) + beyond(found.free, FREE)
        errors = ["%s %.1e" % (name, found.halves[name]) for name in HALVES if name in found.halves]
        errors += ["%s %.4f" % (name, found.halves[name]) for name in AGREE if name in found.halves]
        errors += ["whole layer: %s %.1e" % (name, found.free[name]) for name in FREE]
        words[kind] = ", ".join(errors) + ("; DIFFERS: " + ", ".join(wrong) if wrong else "")
        bad += len(wrong)
    for kind in KINDS:
        same = alone(model, kind, (carry, step, caches))
        if not same:
            words[kind] += "; a token alone has other bits"
            bad += kind in ("window", "reuse")  # the others go through products of torch
    return bad, words


def beyond(errors: dict[str, float], bounds: dict[str, float]) -> list[str]:
    """Names of errors that are larger, or shares that are smaller, than they may be. NaN is neither."""
    wrong = []
    for name, bound in bounds.items():
        fine = name not in errors or (errors[name] >= bound if name in AGREE else errors[name] <= bound)
        if not fine:
            wrong.append(name)
    return wrong


def alone(model: Model, kind: str, given: tuple[Carry, Step, Caches]) -> bool:
    """Whether a token by itself has the bits that it has among others."""
    import torch

    from deepinfer.engine.native_layer.buffers import Carry, Scratch

    carry, step, caches = given
    token = carry.x.shape[0] // 2
    found = []
    for tokens in (slice(None), slice(token, token + 1)):
        part = Carry(*(getattr(carry, name)[tokens].clone() for name in OUTPUTS))
        scratch = Scratch(part.x.shape[0], step.longest, len(model.experts), model.text, model.device)
        written = caches.clone()
        model.layer(kind)(part, part, replace(step, **_rows(step, tokens)), written, scratch)
        found.append((part, written.window))
    (whole, whole_window), (single, single_window) = found
    slot = step.window_slots[token]
    return torch.equal(whole_window[slot], single_window[slot]) and all(
        torch.equal(getattr(whole, name)[token : token + 1], getattr(single, name)) for name in OUTPUTS
    )


def _rows(step: Step, tokens: slice) -> dict[str, Any]:
    """Copies of the tensors of ``step`` that have one row per token, for some of them."""
    import torch

    names = [name for name, one in vars(step).items() if torch.is_tensor(one) and name != "block_table"]
    found: dict[str, Any] = {name: getattr(step, name)[tokens].clone() for name in names}
    return {**found, "rotation": {name: one[tokens].clone() for name, one in step.rotation.items()}}


def replayed(model: Model, kind: str, given: Given) -> bool:
    """Whether a graph of two streams, captured with other contents, gives the bits of a plain call on one."""
    import torch

    carry, plain, step, caches, scratch = given
    before, after = carry.clone(), carry.clone()
    model.layer(kind)(carry, plain, step, caches, scratch)
    for name in OUTPUTS:
        getattr(before, name).copy_(getattr(carry, name).flip(0))
    stream = _cuda().Stream()
    native = model.layer(kind, _cuda().Stream())
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        native(before, after, step, caches, scratch)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            native(before, after, step, caches, scratch)
    torch.cuda.synchronize()
    for name in OUTPUTS:
        getattr(before, name).copy_(getattr(carry, name))
        getattr(after, name).fill_(float("nan"))
    torch.cuda.synchronize()
    graph.replay()
    torch.cuda.synchronize()
    return all(torch.equal(getattr(plain, name), getattr(after, name)) for name in OUTPUTS)


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


def measure(bench: gpu_timing.Bench, *, also_remote: bool, only_check: bool) -> Iterator[gpu_timing.Row]:
    """Comparisons, then every kind at every number of tokens, then steps. What fails says so in its row."""
    import torch

    from deepinfer.engine.checkpoint.released import released_config
    from deepinfer.engine.native_layer.launches import Device

    # Split sums of the reference's products stay fp32.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    started, words = time.monotonic(), dict.fromkeys(KINDS, "")
    config, launches = released_config(), Device(bench.module)
    model = Model(config, EXPERTS, launches, "cuda", local=True, seed=time.time_ns() % 2**31)
    for wanted in (True, False) if also_remote else (True,):
        one = model if wanted else Model(config, EXPERTS, launches, "cuda", local=False, seed=time.time_ns() % 2**31)
        try:
            bad, said = check(one, CHECKED)
        except Exception as failure:
            bad, said = 1, dict.fromkeys(KINDS, "not compared: %s" % str(failure)[:200])
        for kind, text in said.items():
            words[kind] += ("" if wanted else "; most choices elsewhere: ") + text
            print("%-8s %s" % (kind, text), flush=True)
        print("%d comparisons failed, choices %s" % (bad, "local" if wanted else "mostly elsewhere"), flush=True)
    torch.cuda.empty_cache()
    for tokens in () if only_check else TOKENS:
        yield from measure_tokens(bench, model, tokens, words if tokens == SHOWN else {}, started)
        torch.cuda.empty_cache()


def measured(bench: gpu_timing.Bench, *, also_remote: bool, only_check: bool) -> Iterator[gpu_timing.Row]:
    """Rows until one fails, and then one that says so: rows that are there are worth keeping."""
    try:
        yield from measure(bench, also_remote=also_remote, only_check=only_check)
    except Exception as failure:
        said = "%s: %s" % (type(failure).__name__, str(failure)[:300])
        yield gpu_timing.Row("not measured: " + said, float("nan"), goal="every kind is measured", met=False)


def measure_tokens(
    bench: gpu_timing.Bench, model: Model, tokens: int, words: dict[str, str], started: float
) -> Iterator[gpu_timing.Row]:
    """Every kind at one number of tokens; with ``words`` also whether they hold, and the steps."""

    given = model.batch(contexts_of(tokens))
    for kind in KINDS:
        case = "%s, %d tokens" % (kind, tokens)
        single = bench.time_us(partial(_run, model.layer(kind), given))
        bound = bench.bound_us(read=bytes_of(model, kind, given[2], given[4]))
        goal, met = "", None
        try:
            if words:
                same = replayed(model, kind, given)
                said = words[kind] + ("" if same else "; a replayed graph DIFFERS")
                goal, met = "as the torch model (%s)" % said, same and "DIFFERS" not in said and "not comp" not in said
            both = bench.time_us(partial(_run, model.layer(kind, _cuda().Stream()), given))
            yield gpu_timing.Row(case, both, bound, "one stream", single, goal, met, FORM)
        except Exception as failure:
            said = goal + "two streams: %s" % str(failure)[:200]
            yield gpu_timing.Row(case + ", one stream", single, bound, goal=said, met=False, form=FORM)
    if words:
        for kind, wanted in (("full", None), ("reindex", ONLY_THERE)):
            yield from steps_of(bench, model, kind, given, wanted, started)


def _run(native: NativeLayer, given: Given, _: int) -> None:
    native(*given)


def steps_of(
    bench: gpu_timing.Bench, model: Model, kind: str, given: Given, wanted: tuple[str, ...] | None, started: float
) -> Iterator[gpu_timing.Row]:
    """What every step (or those ``wanted``) adds to the time of those before it, on one stream."""
    import torch

    from deepinfer.engine.native_layer.launches import Recorder

    recorder = Recorder(model.launches)
    model.layer(kind, launches=recorder)(*given)
    swept = torch.ones(1 << 26, dtype=torch.float32, device="cuda")
    total = torch.empty((), dtype=torch.float32, device="cuda")
    torch.cuda.synchronize()
    known: dict[int, float] = {}

    def upto(count: int) -> float:
        def work() -> None:
            torch.sum(swept, dim=0, out=total)
            for _, one in recorder.steps[:count]:
                one()

        if count not in known:
            known[count] = quick_us(work)
        return known[count]

    for number, (label, _) in enumerate(recorder.steps):
        if wanted is not None and label not in wanted:
            continue
        if time.monotonic() - started > STEPS_UNTIL_S:
            print("no time left for the steps from %d of %d on" % (number, len(recorder.steps)))
            return
        case = "%s, %d tokens, step %d: %s" % (kind, given[0].x.shape[0], number + 1, label)
        yield gpu_timing.Row(case, upto(number + 1) - upto(number), form="added")


def quick_us(work: Callable[[], None]) -> float:
    """Microseconds of one call in a graph of eight, the median of nine replays."""
    import torch

    stream, graph = _cuda().Stream(), torch.cuda.CUDAGraph()
    times = []
    with torch.cuda.stream(stream):
        work()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(8):
                work()
        for _ in range(12):
            begin, end = (_cuda().Event(enable_timing=True) for _ in range(2))
            begin.record(stream)
            graph.replay()
            end.record(stream)
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1000.0 / 8)
    return float(statistics.median(times[3:]))


def entry() -> int:
    """Flags of this bench, then those of every bench."""
    also_remote = {"--check", "--check-only"} & set(sys.argv)
    only_check = "--check-only" in sys.argv
    sys.argv[1:] = [word for word in sys.argv[1:] if word not in ("--check", "--check-only")]
    rows = partial(measured, also_remote=bool(also_remote), only_check=only_check)
    return gpu_timing.main(__doc__, rows, ())


if __name__ == "__main__":
    sys.exit(entry())
