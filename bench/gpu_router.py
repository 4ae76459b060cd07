"""The router on the device that is here, against a chain of torch ops and the bytes and products that it cannot avoid.

    python bench/gpu_router.py [--library FILE] [--check]

384 experts, width 5120, six per token, all experts' rows sorted. The peer is the same function in torch: bf16 product
with fp32 results (rounded to bf16 where this torch has no other), softplus, sqrt, bias, top-k, weights, a stable sort
of the rows and their offsets. The bound reads gate and x once, or does the products. Method: see gpu_timing.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from gpu_timing import Bench, Row, main

WIDTH, EXPERTS, CHOSEN = 5120, 384, 6
SETS = 48  # gates of 3.9 MB: several times the L2


def results(tokens: int, held: int, torch: Any) -> dict[str, Any]:
    shapes = {
        "work": ((held, tokens, EXPERTS), torch.float32),
        "ids": ((tokens, CHOSEN), torch.int32),
        "weights": ((tokens, CHOSEN), torch.float32),
        "offsets": ((EXPERTS + 1,), torch.int32),
        "order": ((tokens * CHOSEN,), torch.int32),
    }
    return {name: torch.empty(shape, dtype=dtype, device="cuda") for name, (shape, dtype) in shapes.items()}


SCALARS = {"k": CHOSEN, "first": 0, "count": EXPERTS, "scaling": 1.5}


def ours(bench: Bench, x: Any, gates: list[Any], bias: Any, held: int) -> float:
    """Microseconds of one call."""
    from deepinfer.engine.ops.registry import load_all

    native = load_all()["router.route"].native["cuda"]
    into = results(x.shape[0], held, bench.torch)

    def work(i: int) -> None:
        native(bench.module, {"x": x, "gate": gates[i], "bias": bias}, into, SCALARS)

    return bench.time_us(work, len(gates))


def chain(bench: Bench, x: Any, gates: list[Any], bias: Any) -> float:
    torch = bench.torch
    every = torch.arange(EXPERTS + 1, device="cuda", dtype=torch.int64)

    def logits(gate: Any) -> Any:
        try:
            return torch.mm(x, gate.t(), out_dtype=torch.float32)
        except (TypeError, RuntimeError):
            return torch.mm(x, gate.t()).float()

    def work(i: int) -> Any:
        score = torch.nn.functional.softplus(logits(gates[i])).sqrt()
        ids = torch.topk(score + bias, CHOSEN, dim=1).indices
        chosen = score.gather(1, ids)
        weights = chosen / (chosen.sum(1, keepdim=True) + 1e-20) * 1.5
        by_expert = ids.flatten().sort(stable=True)
        return weights, by_expert.indices, torch.searchsorted(by_expert.values, every)

    return bench.time_us(work, len(gates))


def invariance(bench: Bench) -> None:
    """Tokens alone and in batches, the width split and not: the same bits."""
    from deepinfer.engine.ops.registry import load_all
    from deepinfer.engine.ops.router import parts

    torch = bench.torch
    native = load_all()["router.route"].native["cuda"]
    x, gate = (torch.randn(rows, WIDTH, device="cuda").bfloat16() for rows in (700, EXPERTS))
    bias = torch.randn(EXPERTS, device="cuda") * 0.1
    found = []
    for tokens in (700, 256, 64, 17, 16, 1):
        for held in (1, parts(1, WIDTH)):
            into = results(tokens, held, torch)
            native(bench.module, {"x": x[:tokens], "gate": gate * 0.03, "bias": bias}, into, SCALARS)
            found.append((into["ids"], into["weights"]))
    same = all(torch.equal(found[0][which][: len(other[which])], other[which]) for other in found for which in range(2))
    print("tokens alone and in batches, width split and not: %s" % ("the same bits" if same else "DIFFERENT"))
    if not same:
        raise SystemExit(1)


def measure(bench: Bench) -> Iterator[Row]:
    from deepinfer.engine.ops.router import parts

    invariance(bench)
    torch = bench.torch
    gates = [(torch.randn(EXPERTS, WIDTH, device="cuda") * 0.03).bfloat16() for _ in range(SETS)]
    bias = torch.randn(EXPERTS, device="cuda") * 0.1
    for tokens in (1, 16, 64, 256, 1024, 2048, 4096, 8192):
        x = torch.randn(tokens, WIDTH, device="cuda").bfloat16()
        spent = ours(bench, x, gates, bias, parts(tokens, WIDTH))
        bound = bench.bound_us(read=(EXPERTS + tokens) * WIDTH * 2, flop=2.0 * tokens * EXPERTS * WIDTH)
        peer = chain(bench, x, gates, bias)
        floor = 0.18 if tokens == 8192 else None
        yield Row("%d tokens" % tokens, spent, bound, "torch chain", peer, "", None, "bf16", floor)


if __name__ == "__main__":
    sys.exit(main(__doc__, measure, ("router.route",)))
