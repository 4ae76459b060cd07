"""MXFP4 expert weights in the order in which the threads of the grouped product read them, at the same 4.25 bits.

csrc/kernels/moe_gemm/cuda/moe_gemm.h describes that order. The release's tensors stay the source of truth.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepinfer.engine.ops.dequant import GROUP, e2m1_values
from deepinfer.engine.ops.launch import ContractBroken

TILE, CHUNK = 64, 128  # rows and columns of a packed block
CODE_BYTES, BLOCK_BYTES = TILE * CHUNK // 2, TILE * CHUNK // 2 + TILE * CHUNK // GROUP
TOP = 240  # the byte of a row's largest scale
BIAS = 127 + 126 - TOP  # weights are multiplied by 2^-BIAS: codes stand for values times 2^-126
SPAN = 112  # binades below the largest scale at which a weight is still a normal bf16
HIGHEST = 254 - BIAS - 1  # scale byte above which a row's factor is no fp32
# Bits of a code (sign, two of exponent, mantissa) in its word, by pair and place in the pair. The first pair is where
# bf16 has them, the next two 3 and 6 bits further left, the last where one multiplication puts them into place.
_BITS = [[[(16 * h + bit + 3 * p) % 32 for bit in (15, 8, 7, 6)] for h in range(2)] for p in range(3)]
_BITS.append([[16 * h + bit for bit in (3, 1, 0, 4)] for h in range(2)])


@dataclass(frozen=True)
class Packed:
    """``weight`` uint8 [E, P, Q, 2, 4352] and ``row_factor`` fp32 [E, 2 P, 64]."""

    weight: torch.Tensor
    row_factor: torch.Tensor


def pack(weight: torch.Tensor, scale: torch.Tensor, *, gated: bool) -> Packed:
    """``weight`` uint8 [E, N, K / 2], ``scale`` uint8 [E, N, K / 32] of the release, all experts of a rank.

    ``gated``: rows are the gate projection, then the up projection; their channels are brought together. Nothing is
    rounded. Raises :class:`ContractBroken` for shapes, NaN scales, and scales that the kernel could not hold exactly.
    """
    experts, rows, half = weight.shape
    if half * 2 % GROUP or scale.shape != (experts, rows, half * 2 // GROUP) or rows % (2 * GROUP if gated else GROUP):
        shapes = "weight %s, scale %s" % (list(weight.shape), list(scale.shape))
        raise ContractBroken(
            "pack: " + shapes, fix="give [E, N, K / 2] and [E, N, K / 32], N and K multiples of 32 per projection"
        )
    if bool((scale == 255).any()):
        raise ContractBroken("pack: a scale is 255, which is NaN", fix="check the checkpoint's files")
    top = torch.stack([_top(weight[e], scale[e]) for e in range(experts)])
    blocks = [_pack_expert(weight[e], scale[e], top[e], gated) for e in range(experts)]
    factors = [_tiles(torch.exp2((one - 127 + BIAS).double()).float(), gated).flatten(1) for one in top]
    return Packed(torch.stack(blocks), torch.stack(factors))


def _top(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """int32 [N], each row's largest scale of a group that holds anything but zeros."""
    used = ((weight & 0x77) != 0).unflatten(1, (-1, GROUP // 2)).any(2)
    wide = scale.int()
    top = torch.where(used, wide, torch.full_like(wide, -1)).amax(1)
    low = torch.where(used, wide, torch.full_like(wide, 256)).amin(1)
    top = torch.where(top < 0, torch.full_like(top, 127), top)
    if bool((top > HIGHEST).any()) or bool((top - low > SPAN).any()):
        raise ContractBroken(
            "pack: scales of a row up to 2^%d and from 2^%d" % (int(top.max()) - 127, int(low.min()) - 127),
            fix="check the checkpoint's files: scales of weights are at most 2^%d, those of a row within %d binades"
            % (HIGHEST - 127, SPAN),
        )
    return top


def _tiles(x: torch.Tensor, gated: bool) -> torch.Tensor:
    """[N, ...] -> [tiles, 4 w, 2 r, 8 g, ...] in the order of the kernel's rows, zeros up to an even number."""
    if gated:
        x = x.unflatten(0, (2, -1, 4, 8)).movedim(0, 2)
    else:
        missing = -x.shape[0] % TILE
        x = torch.cat([x, x.new_zeros(missing, *x.shape[1:])]).unflatten(0, (-1, 4, 2, 8))
    return torch.cat([x, x.new_zeros(x.shape[0] % 2, *x.shape[1:])])


def _rotate(scales: torch.Tensor, bits: int) -> torch.Tensor:
    """uint8 [..., K] -> [..., K / 4, 4]: every four bytes as a word, rotated left by ``bits``."""
    words = scales.contiguous().view(torch.int32).long() & 0xFFFFFFFF
    turned = (words << bits | words >> (32 - bits)) & 0xFFFFFFFF
    found: torch.Tensor = turned.to(torch.uint32).contiguous().view(torch.uint8).unflatten(-1, (-1, 4))
    return found


def _pack_expert(weight: torch.Tensor, scale: torch.Tensor, top: torch.Tensor, gated: bool) -> torch.Tensor:
    """uint8 [P, Q, 2, 4352]."""
    codes = torch.stack([weight & 15, weight >> 4], dim=-1).flatten(1)
    bytes_of = (scale.int() - top[:, None] + TOP).clamp(1, 254).to(torch.uint8)  # of groups of zeros: any
    missing = -codes.shape[1] % (2 * CHUNK)
    codes = torch.nn.functional.pad(codes, (0, missing))
    bytes_of = torch.nn.functional.pad(bytes_of, (0, missing // GROUP))
    # [tile, w, r, g, chunk, half, s, i, b, q, h]: column 32 (2 half + s) + 16 i + 8 b + 2 q + h of a chunk
    split = _tiles(codes, gated).unflatten(4, (-1, 2, 2, 2, 2, 4, 2)).to(torch.int64)
    words = torch.zeros_like(split[..., 0, 0, :, 0])
    for p, pair in enumerate(_BITS):
        for h, places in enumerate(pair):
            code = split[..., p // 2, p % 2, :, h]
            for i, place in enumerate(places):
                words |= (code >> (3 - i) & 1) << place
    # [tile, chunk, half, w, g, q, s, r]
    words = words.to(torch.uint32).permute(0, 4, 5, 1, 3, 7, 6, 2).contiguous()
    tiles, chunks = words.shape[:2]
    scales = _rotate(_tiles(bytes_of, gated), 7).permute(0, 4, 1, 3, 2, 5)  # [tile, chunk, w, g, r, byte]
    block = torch.cat([words.view(torch.uint8).reshape(tiles, chunks, -1), scales.reshape(tiles, chunks, -1)], dim=2)
    halves: torch.Tensor = block.unflatten(0, (-1, 2)).transpose(1, 2).contiguous()
    return halves


def unpack(weight: torch.Tensor, row_factor: torch.Tensor, *, gated: bool) -> torch.Tensor:
    """fp64 [64 tiles, 128 chunks]: the matrix of one expert, [P, Q, 2, 4352] with padding; gate rows, then up rows."""
    block = weight.transpose(1, 2).flatten(0, 1)  # [tile, chunk, 4352]
    tiles, chunks = block.shape[:2]
    words = block[..., :CODE_BYTES].contiguous().view(torch.int32).view(tiles, chunks, 2, 4, 8, 4, 2, 2).long()
    value = torch.zeros(*words.shape, 2, 2, 2, dtype=torch.float64, device=weight.device)
    table = e2m1_values().to(weight.device)
    for p, pair in enumerate(_BITS):
        for h, places in enumerate(pair):
            code = torch.zeros_like(words)
            for i, place in enumerate(places):
                code |= (words >> place & 1) << (3 - i)
            value[..., p // 2, p % 2, h] = table[code]
    # From [tile, chunk, half, w, g, q, s, r, i, b, h] to [tile, w, r, g, chunk, half, s, i, b, q, h].
    value = value.permute(0, 3, 7, 4, 1, 2, 6, 8, 9, 5, 10).reshape(tiles, 4, 2, 8, -1)
    scales = block[..., CODE_BYTES:].view(tiles, chunks, 4, 8, 2, 4).permute(0, 2, 4, 3, 1, 5).flatten(4)
    stored = _rotate(scales, 25).flatten(4).double()
    factor = row_factor.view(tiles, 4, 2, 8, 1).double()
    value = value * torch.exp2(stored - (TOP + BIAS)).repeat_interleave(GROUP, 4) * factor
    return value.movedim(2, 0).flatten(0, 3) if gated else value.flatten(0, 3)
