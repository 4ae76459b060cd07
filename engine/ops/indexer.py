"""Index scores on packed keys: all visible entries (dense), or the entries of chosen blocks (candidates).

Queries and keys are FP4 with one E8M0 scale per 32 channels, 68 bytes per head or entry. Queries come packed like the
keys: a row is 2,176 bytes where exact bf16 values would be 8,192, and nothing else can reach the kernel. The
arithmetic is fixed to the bit (csrc/kernels/indexer/cuda/indexer.h), so a score does not depend on what is scored
beside it, nor on which of the two ops gave it.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from deepinfer.engine.ops.contract import Argument, Case, Contract, Op
from deepinfer.engine.ops.dequant import e2m1_values
from deepinfer.engine.ops.draw import integers, normal
from deepinfer.engine.ops.launch import launch
from deepinfer.engine.ops.registry import register

if TYPE_CHECKING:
    from deepinfer.engine.ops.contract import Scalars, Tensors

HEADS, WIDTH, GROUP = 32, 128, 32
GROUPS = WIDTH // GROUP
BLOCK = 8  # entries of a candidate block
LARGEST_STEP = 26  # a query group whose scale byte is further below its head's largest counts as zeros
_SCALE = (HEADS * WIDTH) ** -0.5


def pack(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes uint8 [..., 64] and E8M0 bytes uint8 [..., 4] of ``x`` [..., 128]; the values of ``qdq_fp4_32``.

    The even channel is in the low nibble.
    """
    groups = x.float().reshape(*x.shape[:-1], GROUPS, GROUP)
    largest = groups.abs().amax(-1, keepdim=True).clamp_min(6.0 * 2.0**-126)
    bits = (largest * torch.tensor(1.0 / 6.0, dtype=torch.float32, device=x.device)).view(torch.int32)
    scale = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)
    size = (groups / torch.ldexp(torch.ones_like(largest), scale - 127)).clamp(-6.0, 6.0)
    code = torch.zeros_like(size, dtype=torch.uint8)
    for number, edge in enumerate((0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)):  # ties go to the even code
        code += size.abs() > edge if number % 2 == 0 else size.abs() >= edge
    code += 8 * (size < 0.0).to(torch.uint8)
    pairs = code.reshape(*x.shape[:-1], WIDTH // 2, 2)
    return pairs[..., 0] | pairs[..., 1] << 4, scale.squeeze(-1).to(torch.uint8)


def to_pages(codes: torch.Tensor, scales: torch.Tensor, page_entries: int, page_bytes: int) -> torch.Tensor:
    """uint8 [P, page_bytes]: all codes of a page, then all its scales. ``codes`` [P * page_entries, 64]."""
    pages = codes.new_full((codes.shape[0] // page_entries, page_bytes), 0xA5)
    middle, end = page_entries * WIDTH // 2, page_entries * (WIDTH // 2 + GROUPS)
    pages[:, :middle] = codes.reshape(pages.shape[0], -1)
    pages[:, middle:end] = scales.reshape(pages.shape[0], -1)
    return pages


def unpack(codes: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """fp64 [..., 4, 32] code values and fp64 [..., 4] scales, 2^(byte - 127)."""
    whole = codes.long()
    values = e2m1_values().to(codes.device)[torch.stack([whole & 15, whole >> 4], -1).flatten(-2)]
    return values.reshape(*codes.shape[:-1], GROUPS, GROUP), torch.pow(2.0, scales.double() - 127.0)


def fused_multiply_add(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """fp32 ``a * b + c`` rounded once: the fp64 sum is rounded to odd first, so that its rounding cannot be felt."""
    product, addend = a.double() * b.double(), c.double()
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    bits = total.view(torch.int64)
    step = torch.where((error > 0.0) == (total > 0.0), 1, -1)
    return torch.where((error != 0.0) & (bits & 1 == 0), bits + step, bits).view(torch.float64).float()


def _row_scores(keys: tuple[torch.Tensor, torch.Tensor], inputs: Tensors, row: int) -> torch.Tensor:
    """fp32 [n]: one query row against ``keys`` (values [n, 4, 32], scales [n, 4]), in the order of the contract."""
    values, scales = unpack(inputs["query"][row], inputs["query_scale"][row])
    top = inputs["query_scale"][row].int().amax(-1, keepdim=True)
    values = values * (top - inputs["query_scale"][row].int() <= LARGEST_STEP)[..., None]
    sums = torch.einsum("ngc,hgc->nhg", keys[0], values) * keys[1][:, None] * scales[None]
    exact = sums.float()
    x = ((exact[..., 0] + exact[..., 1]) + exact[..., 2]) + exact[..., 3]
    kept = x.relu().view(-1, 4, 4, 2)  # head 8 i + 2 t + k
    weights = inputs["weights"][row].float().view(4, 4, 2)
    parts = torch.zeros_like(kept[:, 0, :, 0])
    for i in range(4):
        for k in range(2):
            parts = fused_multiply_add(weights[i, :, k], kept[:, i, :, k], parts)
    total: torch.Tensor = ((parts[:, 0] + parts[:, 1]) + (parts[:, 2] + parts[:, 3])) * _SCALE
    return total


def _gather(inputs: Tensors, row: int, entries: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and scales of the keys ``entries`` of the row's sequence, unpacked."""
    table = inputs["block_table"][inputs["sequence"][row].long()].long()
    page, within = table[entries // size], entries % size
    codes = inputs["pages"][:, : size * 64].reshape(-1, size, 64)
    scales = inputs["pages"][:, size * 64 : size * 68].reshape(-1, size, 4)
    return unpack(codes[page, within], scales[page, within])


def _reference(inputs: Tensors, scalars: Scalars, entries: torch.Tensor) -> torch.Tensor:
    """fp32 [T, n]: scores of ``entries`` int64 [T, n] (negative: none); -infinity where nothing is visible."""
    rows, places = entries.shape
    out = torch.full((rows, places), float("-inf"), device=entries.device)
    for row in range(rows):
        if int(inputs["sequence"][row]) < 0:
            continue
        seen = (entries[row] >= 0) & (entries[row] < inputs["visible"][row])
        keys = _gather(inputs, row, entries[row][seen], int(scalars["page_entries"]))
        out[row, seen] = _row_scores(keys, inputs, row)
    return out


def dense_reference(inputs: Tensors, scalars: Scalars) -> Tensors:
    """``out`` fp32 [T, N]; see the contract."""
    rows, places = inputs["query"].shape[0], int(scalars["positions"])
    entries = torch.arange(places, device=inputs["query"].device).expand(rows, places)
    return {"out": _reference(inputs, scalars, entries)}


def candidates_reference(inputs: Tensors, scalars: Scalars) -> Tensors:
    """``out`` fp32 [T, 8 C]; see the contract."""
    blocks = inputs["candidates"].long()
    entries = blocks[..., None] * BLOCK + torch.arange(BLOCK, device=blocks.device)
    return {"out": _reference(inputs, scalars, entries.masked_fill(blocks[..., None] < 0, -1).flatten(1))}


def draw(
    contexts: list[int],
    rows: list[int],
    size: int,
    generator: torch.Generator,
    device: str,
    *,
    scales: str = "like",
) -> Tensors:
    """Random inputs: sequence b has ``contexts[b]`` entries and ``rows[b]`` query rows that see one more each.

    Pages lie in random order with bytes of no meaning behind them. The four groups of a key or head have ``like``
    sizes, within a factor of two; ``mixed``: in one of a hundred they are up to 256 times apart; ``far``: every code
    and far-apart scale bytes.
    """
    counts = [-(-context // size) for context in contexts]
    total, width = sum(counts) + 1, max(1, *counts)
    order = torch.randperm(total, generator=generator)
    table = torch.full((len(contexts), width), -1, dtype=torch.int32)
    start = 0
    for b, count in enumerate(counts):
        table[b, :count] = order[start : start + count].int()
        start += count
    owners = [b for b, count in enumerate(rows) for _ in range(count)]
    visible = [max(0, contexts[b] - rows[b] + 1 + i) for b in range(len(rows)) for i in range(rows[b])]
    drawn = []
    for shape in ((total * size,), (len(owners), HEADS)):
        if scales == "far":
            codes = integers((*shape, WIDTH // 2), 0, 256, generator, "cpu", torch.uint8)
            drawn.append((codes, integers((*shape, GROUPS), 100, 140, generator, "cpu", torch.uint8)))
            continue
        size_of = integers((*shape, GROUPS, 1), -1, 1, generator, "cpu")
        rare = (torch.rand(*shape, 1, 1, generator=generator) < 0.01) & (scales == "mixed")
        size_of = torch.where(rare, integers((*shape, GROUPS, 1), -4, 5, generator, "cpu"), size_of)
        x = (normal((*shape, GROUPS, GROUP), generator, "cpu") * torch.exp2(size_of.float())).flatten(-2)
        drawn.append(pack(x.bfloat16()))
    page_bytes = size * 68 + 16 * int(torch.randint(0, 3, (1,), generator=generator))
    inputs = {
        "query": drawn[1][0],
        "query_scale": drawn[1][1],
        "weights": normal((len(owners), HEADS), generator, "cpu"),
        "pages": to_pages(*drawn[0], size, page_bytes),
        "block_table": table,
        "sequence": torch.tensor(owners, dtype=torch.int32),
        "visible": torch.tensor(visible, dtype=torch.int32),
    }
    return {name: tensor.to(device) for name, tensor in inputs.items()}


def _dense_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    for label, contexts, rows, size, together, scales in (
        ("one row each, short contexts", [1, 7, 8, 9, 15, 16, 17, 64, 65, 0], [1] * 10, 16, 1, "like"),
        ("one row each, ratio 1", [300, 1030, 128, 700], [1] * 4, 128, 1, "mixed"),
        ("one row each, ratio 2", [257, 64, 1200], [1] * 3, 64, 1, "far"),
        ("two rows each", [300, 70], [2] * 2, 128, 2, "like"),
        ("six rows each", [700, 90, 5], [6] * 3, 128, 6, "mixed"),
        ("six rows each, blocks of four", [300, 90], [6] * 2, 64, 4, "far"),
        ("a prefill chunk among single rows", [40, 600, 1, 130], [1, 21, 1, 3], 128, 8, "like"),
        ("a prefill chunk, some scales far apart", [500], [23], 64, 7, "mixed"),
    ):
        inputs = draw(contexts, rows, size, generator, device, scales=scales)
        if scales == "far":
            inputs["weights"] = inputs["weights"].bfloat16()
        inputs["sequence"][-1] = -1  # a row of padding
        positions = max(contexts) + 5
        scalars: Scalars = {"page_entries": size, "positions": positions, "rows_together": together}
        yield Case(label, inputs, scalars, {"out": ((sum(rows), positions), torch.float32)})


def _candidate_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    for label, contexts, rows, size, count, scales in (
        ("short contexts", [1, 8, 13, 129, 0], [1] * 5, 16, 9, "like"),
        ("two rows a sequence, ratio 2", [900, 400], [2, 2], 64, 50, "far"),
        ("2048 blocks, ratio 1", [19000], [2], 128, 2048, "mixed"),
    ):
        inputs = draw(contexts, rows, size, generator, device, scales=scales)
        if scales == "far":
            inputs["weights"] = inputs["weights"].bfloat16()
        beyond = max(contexts) // BLOCK + 3  # some blocks lie past the visible entries, or are none
        blocks = integers((sum(rows), count), -1, beyond, generator, device, torch.int32)
        inputs["candidates"] = blocks
        yield Case(label, inputs, {"page_entries": size}, {"out": ((sum(rows), count * BLOCK), torch.float32)})


_NAMES = ("query", "query_scale", "weights", "pages", "block_table", "sequence", "visible")


def _sizes(inputs: Tensors, scalars: Scalars) -> tuple[int, ...]:
    sequences, width = inputs["block_table"].shape
    return (
        inputs["query"].shape[0],
        sequences,
        width,
        inputs["pages"].shape[1],
        int(scalars["page_entries"]),
    )


def _dense_native(module: ModuleType, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
    tensors = [inputs[name] for name in _NAMES]
    narrow = int(inputs["weights"].dtype == torch.bfloat16)
    sizes = (*_sizes(inputs, scalars), outputs["out"].shape[1], narrow, int(scalars["rows_together"]))
    launch(module, "indexer_dense", *tensors, outputs["out"], *sizes)


def _candidates_native(module: ModuleType, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
    tensors = [inputs[name] for name in (*_NAMES, "candidates")]
    narrow = int(inputs["weights"].dtype == torch.bfloat16)
    sizes = (*_sizes(inputs, scalars), inputs["candidates"].shape[1], narrow)
    launch(module, "indexer_candidates", *tensors, outputs["out"], *sizes)


_INPUTS = (
    Argument("query", "[T, 32, 64], E2M1, the even channel in the low nibble", ("uint8",)),
    Argument("query_scale", "[T, 32, 4], E8M0 1 to 254", ("uint8",)),
    Argument("weights", "[T, 32]", ("float32", "bfloat16")),
    Argument("pages", "[P, S], the 64-byte codes of all entries, then their 4-byte scales; S % 16 = 0", ("uint8",)),
    Argument("block_table", "[B, M], pages; where nothing is visible anything", ("int32",)),
    Argument("sequence", "[T], row of block_table; negative sees nothing", ("int32",)),
    Argument("visible", "[T], entries seen", ("int32",)),
)
_SUM = (
    "sum over h of w_h * relu(query_h . key_j), times (32 * 128)^-0.5: exact sums of 32 channels, ((0 + 1) + 2) + 3 in"
    " fp32, relu, heads 8 i + 2 t + k by fused multiply-adds over i, k from 0, then (t 0 + 1) + (2 + 3)"
)
_PAGE = "entries of a page: a power of two from 16 to 256"
_SOURCE = "The lightning indexer of DeepSeek sparse attention; OCP microscaling formats 1.0"

register(
    Op(
        Contract(
            "indexer.dense",
            "out[t, j] for j < visible[t]: %s; elsewhere -infinity; never -0" % _SUM,
            (*_INPUTS, Argument("out", "[T, positions]", ("float32",), "out")),
            {
                "page_entries": _PAGE,
                "positions": "width of the output, at least every visible",
                "rows_together": "1 to 8, neighbouring rows that share their keys' loads; for speed alone",
            },
            _SOURCE,
            batch="T",
        ),
        dense_reference,
        _dense_cases,
        {"cuda": _dense_native},
    )
)
register(
    Op(
        Contract(
            "indexer.candidates",
            "out[t, 8 c + i] is the score of entry j = 8 candidates[t, c] + i, -infinity unless j < visible[t]: %s"
            % _SUM,
            (
                *_INPUTS,
                Argument("candidates", "[T, C], blocks of 8 entries in any order; negative: none", ("int32",)),
                Argument("out", "[T, 8 * C]", ("float32",), "out"),
            ),
            {"page_entries": _PAGE},
            _SOURCE,
            batch="T",
        ),
        candidates_reference,
        _candidate_cases,
        {"cuda": _candidates_native},
    )
)
