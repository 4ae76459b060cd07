"""Sparse latent attention on packed rows, decode and prefill, beside FlashMLA's SM90 kernels on its own rows.

    python bench/gpu_sparse_mla.py [--library FILE] [--check]

64 heads of 512; a token sees 128 window rows and 512 selected rows. Ours reads 528 and 288 bytes of them; the peer
reads 584 of each in decode (FP8, bf16 for the rotated channels) and bf16 rows of 1024 bytes in prefill, and does not
rotate its result back. The peer is the shared library of its PyTorch ops that the environment variable
GPU_BENCH_FLASHMLA names; its result is held against fp64 on the spot. Its decode plans a schedule from the
counts, which change with every step of a model, so the time with the plan is the one that goals are for.
Before the table, on the device: a token's result has to be the same bits in any batch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_timing import Bench, Row, main

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if TYPE_CHECKING:
    import torch

    Tensors = dict[str, torch.Tensor]

HEADS, CHANNELS, WINDOW, CHOSEN = 64, 512, 128, 512
RANGE = 16384  # rows of a sequence that the selection draws from
FORM = "fp8/fp4 rows"
PAGE, PEER_BYTES, PEER_STRIDE = 64, 584, 65 * 576


@dataclass
class Size:
    """One line of the table: ``gain`` is the goal, peer over ours; ``sets`` of inputs to rotate among; ``floor`` is
    the share of the bound that the gate asks for.
    """

    name: str
    tokens: int
    sets: int
    gain: float
    floor: float | None = None
    decode: bool = True


SIZES = (
    Size("decode 64 tokens", 64, 12, 1.2, 0.09),
    Size("decode 256 tokens", 256, 4, 1.2, 0.38),
    Size("decode 1024 tokens", 1024, 2, 1.2, 0.41),
    Size("prefill 4096 tokens", 4096, 1, 1.0, 0.43, decode=False),
)


def traffic(tokens: int) -> float:
    """Bytes: every listed row, query and result once, the lists."""
    return float(tokens * (WINDOW * 528 + CHOSEN * 288 + 2 * HEADS * CHANNELS * 2 + (WINDOW + CHOSEN) * 4))


def work(tokens: int) -> float:
    """FLOP of both products."""
    return 4.0 * tokens * HEADS * CHANNELS * (WINDOW + CHOSEN)


def lists(torch: Any, size: Size, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """int32 (window rows [T, 128], chosen rows [T, 512]) of pools of ``rows`` rows.

    Decode: each token has its own stretch of the window pool and of the other. Prefill: one sequence.
    """
    tokens, device = size.tokens, "cuda"
    slot = torch.arange(WINDOW, device=device)
    if size.decode:
        start = torch.randint(0, rows - RANGE, (2, tokens, 1), device=device)
        window = start[0] // 2 + slot
        spread = torch.rand(tokens, RANGE, device=device)
        chosen = start[1] + spread.topk(CHOSEN, dim=1).indices.sort(dim=1).values
    else:
        window = torch.arange(tokens, device=device)[:, None] + slot
        chosen = torch.cat(
            [
                torch.rand(min(512, tokens - at), RANGE, device=device).topk(CHOSEN, dim=1).indices.sort(dim=1).values
                for at in range(0, tokens, 512)
            ]
        )
    return window.to(torch.int32).contiguous(), chosen.to(torch.int32).contiguous()


def inputs_of(bench: Bench, size: Size, pools: Tensors) -> Tensors:
    """One set of our inputs over the given pools."""
    torch = bench.torch
    window, chosen = lists(torch, size, pools["entries"].shape[0] if size.decode else RANGE)
    angle = torch.rand(size.tokens, 32, device="cuda") * 6.28
    return {
        **pools,
        "query": torch.randn(size.tokens, HEADS, CHANNELS, device="cuda").bfloat16(),
        "window_rows": window,
        "entry_rows": chosen,
        "counts": torch.tensor([[WINDOW, CHOSEN]], dtype=torch.int32, device="cuda").repeat(size.tokens, 1),
        "sink": torch.randn(HEADS, device="cuda"),
        "rotation": torch.stack([angle.cos(), angle.sin()], -1).flatten(1).contiguous(),
        "out": torch.empty(size.tokens, HEADS, CHANNELS, dtype=torch.bfloat16, device="cuda"),
    }


def make_pools(torch: Any, rows: int) -> Tensors:
    """Packed rows of normal numbers: 4,096 quantized rows, repeated in another order."""
    from deepinfer.engine.ops.sparse_mla import draw_rows

    drawn = draw_rows(4096, torch.Generator().manual_seed(torch.seed() % 2**31))
    order = torch.randint(0, 4096, (rows,), device="cuda")
    return {"window": drawn[0].cuda()[order[: rows // 2]], "entries": drawn[1].cuda()[order]}


class Peer:
    """FlashMLA's ops on rows of its own."""

    def __init__(self, torch: Any, library: str) -> None:
        torch.ops.load_library(library)
        self.torch = torch
        self.ops = torch.ops.sgl_kernel

    def pool(self, rows: int) -> torch.Tensor:
        """Random rows in pages of 64: 448 E4M3 and 64 bf16 a row, then 8 bytes of E8M0 scales a row."""
        import torch

        pages = rows // PAGE
        store = torch.zeros(pages, PEER_STRIDE, dtype=torch.uint8, device="cuda")
        some = torch.randint(0, 1024, (pages, PAGE), device="cuda")
        plain = torch.randn(1024, 512, device="cuda")
        codes = (plain[:, :448] * 16).to(torch.float8_e4m3fn).view(torch.uint8)
        record = torch.cat([codes, plain[:, 448:].bfloat16().view(torch.uint8)], dim=1)
        store[:, : PAGE * 576] = record[some].flatten(1)
        store[:, PAGE * 576 : PAGE * PEER_BYTES] = 123  # 2^-4
        return store

    def values(self, store: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """fp64 [S, 512] of the listed rows."""
        import torch

        page, slot = rows.long() // PAGE, rows.long() % PAGE
        record = store[:, : PAGE * 576].view(-1, PAGE, 576)[page, slot]
        codes = record[:, :448].contiguous().view(torch.float8_e4m3fn).double() * 2.0**-4
        return torch.cat([codes, record[:, 448:].contiguous().view(torch.bfloat16).double()], dim=1)

    def decode(self, case: Tensors, plan: tuple[Any, Any]) -> tuple[Any, ...]:
        """One call; returns (out, lse, plan...)."""
        view = [self._view(case[name]) for name in ("peer_window", "peer_entries")]
        return tuple(
            self.ops.sparse_decode_fwd.default(
                case["query"][:, None],
                view[0],
                case["window_rows"][:, None],
                None,
                case["sink"],
                *plan,
                view[1],
                case["entry_rows"][:, None],
                None,
                CHANNELS,
                CHANNELS**-0.5,
            )
        )

    def _view(self, store: torch.Tensor) -> torch.Tensor:
        shape = (store.shape[0], PAGE, 1, PEER_BYTES)
        strides = (PEER_STRIDE, PEER_BYTES, PEER_BYTES, 1)
        return store.view(self.torch.float8_e4m3fn).as_strided(shape, strides)

    def prefill(self, case: Tensors) -> Any:
        """One call over bf16 rows; returns out."""
        rows = (case["query"], case["peer_rows"], case["peer_lists"], CHANNELS**-0.5, CHANNELS, case["sink"], None)
        return self.ops.sparse_prefill_fwd.default(*rows)[0]

    def error(self, case: Tensors, keys: torch.Tensor, got: torch.Tensor) -> float:
        """Relative error of the first token's result against fp64."""
        torch = self.torch
        scores = case["query"][0].double() @ keys.T * CHANNELS**-0.5
        weight = torch.softmax(torch.cat([scores, case["sink"].double()[:, None]], 1), 1)[:, :-1]
        wanted = weight @ keys
        return float((got.reshape(HEADS, CHANNELS).double() - wanted).norm() / wanted.norm())


def peer_times(bench: Bench, peer: Peer, size: Size, cases: list[Tensors]) -> list[tuple[str, float]]:
    """(what, microseconds) of the peer on the same lists; checked first."""
    torch = bench.torch
    if size.decode:
        stores = [peer.pool(cases[0][name].shape[0]) for name in ("window", "entries")]
        cases = [{**case, "peer_window": stores[0], "peer_entries": stores[1]} for case in cases]
        out, _, *plan = peer.decode(cases[0], (None, None))
        keys = [peer.values(store, cases[0][name][0]) for store, name in zip(stores, ("window_rows", "entry_rows"))]
        error = peer.error(cases[0], torch.cat(keys), out[0])
        plain = bench.time_us(lambda i: peer.decode(cases[i], (plan[0], plan[1])), len(cases))
        planned = bench.time_us(lambda i: peer.decode(cases[i], (None, None)), len(cases))
        words = "FlashMLA decode, error %.1e" % error
        return [(words + ", with its plan", planned), (words + ", plan given", plain)]
    rows = torch.randn(RANGE + size.tokens + WINDOW, 1, CHANNELS, device="cuda").bfloat16()
    case = dict(cases[0])
    both = torch.cat([case["window_rows"] + RANGE, case["entry_rows"]], dim=1)
    case.update({"peer_rows": rows, "peer_lists": both[:, None].contiguous()})
    error = peer.error(case, rows[both[0].long(), 0].double(), peer.prefill(case)[0])
    return [("FlashMLA prefill bf16, error %.1e" % error, bench.time_us(lambda i: peer.prefill(case)))]


def invariant(bench: Bench) -> None:
    """Each token alone and in other company, bit for bit; raises where it is not."""
    from deepinfer.engine.ops import sparse_mla

    torch = bench.torch
    generator = torch.Generator().manual_seed(torch.seed() % 2**31)
    whole = sparse_mla.draw_inputs(500, (128, 512), generator, "cuda", holes=0.2)
    own = ("query", "window_rows", "entry_rows", "counts", "rotation")
    for name in ("sparse_mla", "sparse_mla_portable"):
        out = torch.full_like(whole["query"], float("nan"))
        sparse_mla.call(bench.module, name, whole, out)
        for chosen in (torch.randperm(500)[:37], torch.randperm(500)[:150], torch.tensor([499])):
            part = {**whole, **{key: whole[key][chosen.cuda()].contiguous() for key in own}}
            again = torch.full_like(part["query"], float("nan"))
            sparse_mla.call(bench.module, name, part, again)
            if not torch.equal(again.view(torch.int16), out[chosen.cuda()].view(torch.int16)):
                raise SystemExit("%s: a token's result depends on the batch" % name)
    print("both kernels: a token's bits are the same among 500 tokens, 150, 37 and alone")


def launch(bench: Bench, cases: list[Tensors], i: int) -> None:
    """Ours on set ``i``."""
    from deepinfer.engine.ops import sparse_mla

    sparse_mla.call(bench.module, "sparse_mla", cases[i], cases[i]["out"])


def measure(bench: Bench) -> Iterator[Row]:
    """The table."""
    torch = bench.torch
    invariant(bench)
    library = os.environ.get("GPU_BENCH_FLASHMLA")
    peer = Peer(torch, library) if library and Path(library).is_file() else None
    pools = make_pools(torch, 2_599_936)
    for size in SIZES:
        cases = [inputs_of(bench, size, pools) for _ in range(size.sets)]
        ours = bench.time_us(partial(launch, bench, cases), size.sets)
        bound = bench.bound_us(read=traffic(size.tokens), flop=work(size.tokens))
        found = peer_times(bench, peer, size, cases) if peer else [("", None)]
        goal = ">= %.1fx the peer" % size.gain
        for number, (words, spent) in enumerate(found):
            met = None if spent is None or number else spent / ours >= size.gain
            floor = None if number else size.floor
            yield Row(size.name, ours, bound, words, spent, "" if number else goal, met, FORM, floor)


if __name__ == "__main__":
    sys.exit(main(__doc__, measure, ("attention.sparse", "attention.sparse_portable")))
