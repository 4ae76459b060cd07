"""Fused hyper-connections on the device, against chains of torch and DeepGEMM kernels for the same site.

    python bench/gpu_mhc.py --library libkernels.so [--check] [--peers all|best|none] [--tokens 1,64,8192]

A site is expand, mix, collapse and RMSNorm; ours also writes the FP8 codes of the result, the chains do not. Bytes of
the bound: streams and x read, streams, y and codes written, 107,680 a token, over the read ceiling. Before anything is
timed, codes are compared with those of the returned y, tokens with themselves in other company, bit for bit, and the
coefficients with fp64 sums over the unsplit fp32 weights. The DeepGEMM chain needs the package sgl_deep_gemm; unless
all peers are asked for, the best runs at the sizes that have a goal, as long as it can start within 20 seconds.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import gpu_timing

if TYPE_CHECKING:
    import torch

Tensors = dict[str, "torch.Tensor"]
BYTES = 2 * (2 * 4 * 5120 + 2 * 5120) + 5120 + 160  # per token
SET_BYTES = 300e6  # rotating sets sum to at least this
SPLITS = {64: 32, 512: 16, 8192: 1}  # of K in the DeepGEMM product: the best of earlier runs
GOALS = {64: 4.0, 8192: 2.0}  # times the best chain
FLOORS = {64: 0.09, 512: 0.35, 8192: 0.52}  # 0.85 of the share of the bound that was measured
PEER_SECONDS = 20.0  # compiling a peer takes several; later ones are left out
STARTED = time.monotonic()
SCALARS: dict[str, int | float] = {"iterations": 20, "eps": 1e-6, "norm_eps": 1e-20}


def draw(rows: int, seed: int) -> Tensors:
    """Random inputs on the device, and the fp32 weights that were packed."""
    import torch

    from deepinfer.engine.ops import mhc_fused

    generator = torch.Generator(device="cuda").manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device="cuda")

    comb = torch.softmax(normal(rows, 4, 4), -1)
    fn = normal(24, 20480) * 20480**-0.5
    return {
        "x": normal(rows, 5120).bfloat16(),
        "streams": normal(rows, 4, 5120).bfloat16(),
        "post": 2.0 * torch.sigmoid(normal(rows, 4)),
        "comb": comb / comb.sum(-2, keepdim=True),
        "pre": torch.sigmoid(normal(rows, 4)),
        "fn": mhc_fused.pack_fn(fn),
        "base": normal(24),
        "scale": normal(3),
        "weight": normal(5120).bfloat16(),
        "fn_fp32": fn,
    }


def ours(bench: gpu_timing.Bench, inputs: Tensors, out: Tensors) -> None:
    """One launch of ``mhc.boundary``."""
    from deepinfer.engine.ops.registry import load_all

    given = {name: value for name, value in inputs.items() if name != "fn_fp32"}
    load_all()["mhc.boundary"].native["cuda"](bench.module, given, out, SCALARS)


def outputs(rows: int) -> Tensors:
    """Poisoned outputs."""
    from deepinfer.engine.ops import conformance, mhc_fused

    shapes = mhc_fused.outputs_of(rows, expand=True)
    return {name: conformance.poisoned(shape, dtype, "cuda") for name, (shape, dtype) in shapes.items()}


def verify(bench: gpu_timing.Bench) -> None:
    """What the conformance cases cannot say; raises SystemExit at the first difference."""
    import torch

    from deepinfer.engine.ops import mhc_fused

    rows = 1200
    inputs, out = draw(rows, 11), outputs(rows)
    ours(bench, inputs, out)
    codes, scales = mhc_fused.fp8_codes(out["y"])
    if not (torch.equal(codes, out["codes"]) and torch.equal(scales, out["code_scales"])):
        raise SystemExit("gpu_mhc: codes are not those of y")
    per_token = [name for name, value in inputs.items() if value.shape[0] == rows]
    kept = [name for name in out if name != "partial"]
    for count in (1, 2, 7, 8, 9, 64, 500, 1199):
        chosen = torch.randperm(rows, device="cuda")[:count]
        some = {name: value[chosen].contiguous() if name in per_token else value for name, value in inputs.items()}
        few = outputs(count)
        ours(bench, some, few)
        for name in kept:
            if not torch.equal(few[name].view(torch.uint8), out[name][chosen].contiguous().view(torch.uint8)):
                raise SystemExit("gpu_mhc: %s of a token depends on its company of %d" % (name, count))
    in_place = {**out, "new_streams": inputs["streams"].clone()}
    ours_in_place(bench, inputs, in_place)
    if not torch.equal(in_place["new_streams"], out["new_streams"]):
        raise SystemExit("gpu_mhc: streams differ when written in place")
    flat = out["new_streams"].flatten(1).double()
    m = (flat @ inputs["fn_fp32"].double().T) * torch.rsqrt(flat.square().mean(-1, keepdim=True))
    pre = torch.sigmoid(m[:, :4] * inputs["scale"][0].double() + inputs["base"][:4].double()) + 1e-6
    error = float((out["next_pre"].double() - pre).norm() / pre.norm())
    print("codes exact, tokens independent, in place equal; pre against unsplit fp32 weights: error %.2g" % error)
    if not error < 1e-5:
        raise SystemExit("gpu_mhc: the split weights lose too much")


def ours_in_place(bench: gpu_timing.Bench, inputs: Tensors, out: Tensors) -> None:
    """The same with the new streams over the old."""
    ours(bench, {**inputs, "streams": out["new_streams"]}, out)


def expand_chain(x: Any, streams: Any, post: Any, comb: Any) -> Any:
    """Unrolled, which the compiler turns into one kernel."""
    import torch

    wide = [streams[:, j].float() for j in range(4)]
    new = [post[:, k, None] * x.float() + sum(comb[:, j, k, None] * wide[j] for j in range(4)) for k in range(4)]
    return torch.stack(new, 1).bfloat16()


def mix_chain(m: Any, squares: Any, base: Any, scale: Any) -> tuple[Any, Any, Any]:
    """From the raw projection and the sum of squares to the coefficients."""
    import torch

    m = m * torch.rsqrt(squares / 20480.0 + 1e-20)[:, None]
    pre = torch.sigmoid(m[:, :4] * scale[0] + base[:4]) + 1e-6
    post = 2.0 * torch.sigmoid(m[:, 4:8] * scale[1] + base[4:8])
    comb = torch.softmax((m[:, 8:] * scale[2] + base[8:]).view(-1, 4, 4), -1) + 1e-6
    comb = comb / (comb.sum(-2, keepdim=True) + 1e-6)
    for _ in range(19):
        comb = comb / (comb.sum(-1, keepdim=True) + 1e-6)
        comb = comb / (comb.sum(-2, keepdim=True) + 1e-6)
    return pre, post, comb


def norm_chain(streams: Any, pre: Any, weight: Any) -> Any:
    """Collapse and RMSNorm."""
    import torch

    collapsed = sum(pre[:, k, None] * streams[:, k].float() for k in range(4)).bfloat16().float()
    norm = torch.rsqrt(collapsed.square().mean(-1, keepdim=True) + 1e-20)
    return (weight.float() * collapsed * norm).bfloat16()


def torch_chain(
    x: Any, streams: Any, post: Any, comb: Any, pre: Any, fn: Any, base: Any, scale: Any, weight: Any
) -> Any:
    """A whole site in torch; the product in TF32."""
    new = expand_chain(x, streams, post, comb)
    flat = new.flatten(1).float()
    return new, mix_chain(flat @ fn.T, flat.square().sum(-1), base, scale), norm_chain(new, pre, weight)


NAMES = ("x", "streams", "post", "comb", "pre", "fn_fp32", "base", "scale", "weight")


def peers(rows: int, which: str) -> Iterator[tuple[str, Callable[[Tensors], object]]]:
    """(name, one call on a set) of every chain that can run here; ``which``: ``all``, ``best`` or ``none``."""
    import torch

    warnings.filterwarnings("ignore", module="torch._inductor")
    torch.set_float32_matmul_precision("high")
    torch._dynamo.reset()
    late = time.monotonic() - STARTED > PEER_SECONDS
    if which == "none" or (which == "best" and (rows not in GOALS or late)):
        return
    if which == "all":
        yield "torch eager chain", lambda inputs: torch_chain(*(inputs[name] for name in NAMES))
        whole = torch.compile(torch_chain, dynamic=False)
        yield "torch.compile chain", lambda inputs: whole(*(inputs[name] for name in NAMES))
    try:
        import deep_gemm
    except Exception as error:  # a broken installation is a missing one
        print("DeepGEMM chain at %d tokens: not measured: %s" % (rows, error))
        return
    splits = SPLITS.get(rows, 16)
    product = torch.empty(splits, rows, 24, device="cuda")
    squares = torch.empty(splits, rows, device="cuda")
    expand = torch.compile(expand_chain, dynamic=False)

    def after(new: Any, pre: Any, base: Any, scale: Any, weight: Any) -> Any:
        return mix_chain(product.sum(0), squares.sum(0), base, scale), norm_chain(new, pre, weight)

    rest = torch.compile(after, dynamic=False)

    def work(inputs: Tensors) -> object:
        new = expand(inputs["x"], inputs["streams"], inputs["post"], inputs["comb"])
        deep_gemm.tf32_hc_prenorm_gemm(new.flatten(1), inputs["fn_fp32"], product, squares, splits)
        return rest(new, inputs["pre"], inputs["base"], inputs["scale"], inputs["weight"])

    yield "compile + DeepGEMM prenorm chain", work


def measure(bench: gpu_timing.Bench, tokens: list[int], which: str) -> Iterator[gpu_timing.Row]:
    """One row per number of tokens."""
    import torch

    verify(bench)
    for rows in tokens:
        count = max(2, min(64, int(SET_BYTES / (rows * BYTES))))
        sets = [draw(rows, seed) for seed in range(count)]
        outs = [outputs(rows) for _ in range(count)]

        def work(i: int, sets: list[Tensors] = sets, outs: list[Tensors] = outs) -> None:
            ours(bench, sets[i], outs[i])

        us = bench.time_us(work, count)
        row = gpu_timing.Row(
            "boundary, %d tokens" % rows,
            us,
            bench.bound_us(read=float(rows * BYTES)),
            form="bf16+FP8",
            floor=FLOORS.get(rows),
        )
        best: tuple[str, float] | None = None
        for name, call in peers(rows, which):
            try:
                spent = bench.time_us(lambda i, call=call, sets=sets: call(sets[i]), count)  # type: ignore[misc]
            except Exception as error:  # a peer that breaks must not take our own row along
                print("%s at %d tokens: not measured: %s" % (name, rows, str(error).splitlines()[0][:160]))
                continue
            print("%-34s %6d tokens %9.1f us" % (name, rows, spent), flush=True)
            best = (name, spent) if best is None or spent < best[1] else best
        if best is not None:
            row.baseline, row.baseline_us = best
            if rows in GOALS:
                row.goal = "%gx the best chain" % GOALS[rows]
                row.met = best[1] / us >= GOALS[rows]
        yield row
        del sets, outs
        torch.cuda.empty_cache()


def main() -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--peers", choices=("all", "best", "none"), default="best")
    parser.add_argument("--tokens", default="64,512,8192")
    own, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    tokens = [int(word) for word in own.tokens.split(",")]
    return gpu_timing.main(__doc__, lambda bench: measure(bench, tokens, own.peers), ["mhc.boundary", "mhc.site"])


if __name__ == "__main__":
    sys.exit(main())
