"""Random contents for one layer of any size that the kernels have: release tensors, caches, streams, one forward.

For tests and benches. Numbers have the size that they have in a model: matrices keep the size of their input, normed
rows and caches are of order 1.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from deepinfer.engine.checkpoint.config import Config, TextConfig
from deepinfer.engine.checkpoint.inventory import scale_name, tensors
from deepinfer.engine.model.layout import Layer, layers
from deepinfer.engine.native_layer.buffers import PAGE, Caches, Carry, Step, entry_pool, index_pool, window_pool
from deepinfer.engine.ops.quantize_rows import fp4_32
from deepinfer.engine.ops.rope import frequencies

KINDS = {"window": 0, "full": 20, "reuse": 21, "reindex": 24}  # a released layer of each kind
_BLOCK = 32
_ROWS_AT_ONCE = 1 << 20


def layer_of(kind: str, config: TextConfig) -> Layer:
    """The layer of the released plan that stands for ``kind``."""
    return layers(config)[KINDS[kind]]


def release_tensors(
    config: Config, number: int, experts: Iterable[int], generator: torch.Generator, device: str
) -> dict[str, torch.Tensor]:
    """Layer ``number`` as a checkpoint holds it, bytes as uint8, with the routed ``experts`` alone."""
    prefix, wanted = "layers.%d." % number, set(experts)
    found: dict[str, torch.Tensor] = {}
    for one in tensors(config):
        if not one.name.startswith(prefix) or one.dtype == "F8_E8M0":
            continue
        words = one.name.split(".")
        if "experts" in words and int(words[words.index("experts") + 1]) not in wanted:
            continue
        shape = tuple(one.shape)
        if one.dtype == "F8_E4M3":
            found[one.name], found[scale_name(one.name)] = _fp8(shape, generator, device)
        elif one.dtype == "I8":
            found[one.name], found[scale_name(one.name)] = _fp4(shape, generator, device)
        else:
            found[one.name] = _plain(one.name, shape, generator, device)
            if one.dtype == "BF16":
                found[one.name] = found[one.name].bfloat16()
    return found


def _normal(shape: tuple[int, ...], generator: torch.Generator, device: str) -> torch.Tensor:
    return torch.randn(shape, generator=generator, device=device)


def _fp8(shape: tuple[int, ...], generator: torch.Generator, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Normal weights whose blocks of 32 x 32 differ in size."""
    rows, columns = shape
    blocks = _normal((rows // _BLOCK, _BLOCK, columns // _BLOCK, _BLOCK), generator, device)
    size = torch.randint(-1, 2, (rows // _BLOCK, 1, columns // _BLOCK, 1), generator=generator, device=device)
    blocks = blocks * torch.exp2(size.float()) * columns**-0.5
    exponent = torch.ceil(torch.log2(blocks.abs().amax((1, 3), keepdim=True) / 448.0))
    codes = (blocks * torch.exp2(-exponent)).to(torch.float8_e4m3fn).view(torch.uint8).reshape(shape)
    return codes.contiguous(), (exponent + 127.0).to(torch.uint8)[:, 0, :, 0].contiguous()


def _fp4(shape: tuple[int, ...], generator: torch.Generator, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    rows, half = shape
    return fp4_32((_normal((rows, 2 * half), generator, device) * (2 * half) ** -0.5).bfloat16())


def _plain(name: str, shape: tuple[int, ...], generator: torch.Generator, device: str) -> torch.Tensor:
    x = _normal(shape, generator, device)
    if name.endswith("norm.weight"):
        return 1.0 + 0.1 * x
    for ending, size in (("_fn", 0.5 * shape[-1] ** -0.5), ("_base", 0.5), ("attn_sink", 1.0)):
        if name.endswith(ending):
            return size * x
    if name.endswith("_scale"):
        return 1.0 + 0.2 * x
    return 0.1 * x if "bias" in name else x * shape[-1] ** -0.5


def stay_local(tensors_: dict[str, torch.Tensor], number: int, experts: range) -> None:
    """Let every token choose among ``experts`` alone, the load of a rank to which the others send as much as it sends.

    The bias counts in the choice only, so weights stay what they are.
    """
    tensors_["layers.%d.ffn.gate.bias" % number][experts.start : experts.stop] += 100.0


def rotations(config: TextConfig, device: str) -> dict[str, torch.Tensor]:
    """fp32 [32] frequencies of layers without and with entries."""
    yarn = config.rope_scaling.numbers() if config.rope_scaling else None
    width = config.qk_rope_head_dim
    found = {
        "plain": frequencies(width, config.rope_theta),
        "long": frequencies(width, config.compress_rope_theta, yarn),
    }
    return {name: table.to(device) for name, table in found.items()}


def carry(tokens: int, config: TextConfig, generator: torch.Generator, device: str) -> Carry:
    """Streams and the last sub-layer's output of order 1, and a mix of the size that mixes have."""
    n, width = config.hc_mult, config.hidden_size
    comb = torch.softmax(_normal((tokens, n, n), generator, device), -1)
    return Carry(
        x=_normal((tokens, width), generator, device).bfloat16(),
        streams=_normal((tokens, n, width), generator, device).bfloat16(),
        pre=torch.rand((tokens, n), generator=generator, device=device),
        post=2.0 * torch.rand((tokens, n), generator=generator, device=device),
        comb=comb / comb.sum(-2, keepdim=True),
    )


def step(contexts: list[int], config: TextConfig, generator: torch.Generator, device: str) -> Step:
    """One token of a sequence of each of ``contexts`` tokens before it; pages in random order."""
    counts = [context // PAGE + 1 for context in contexts]
    order = torch.randperm(sum(counts), generator=generator, device=device).int()
    table = torch.zeros(len(contexts), max(counts), dtype=torch.int32, device=device)
    start = 0
    for row, count in enumerate(counts):
        table[row, :count] = order[start : start + count]
        start += count
    positions = torch.tensor(contexts, dtype=torch.int64, device=device)
    sequence = torch.arange(len(contexts), dtype=torch.int32, device=device)
    return Step.of(positions, sequence, table, config, rotations(config, device))


def caches(contexts: list[int], config: TextConfig, generator: torch.Generator, device: str) -> Caches:
    """Rings, entries and index keys of random codes, rows of order 1."""
    pages = sum(context // PAGE + 1 for context in contexts)
    window = window_pool(Caches.window_rows(len(contexts), config), device)
    entries, keys = entry_pool(pages, device), index_pool(pages, device)
    _random(window[:, :512], 0, 0x60, generator, signs=True)
    _random(window[:, 512:], 122, 125, generator)
    _random(entries[:, :256], 0, 256, generator)
    _random(entries[:, 256:], 0x20, 0x30, generator)
    _random(keys[:, : 64 * PAGE], 0, 256, generator)
    _random(keys[:, 64 * PAGE :], 124, 127, generator)
    return Caches(window, entries, keys)


def _random(out: torch.Tensor, low: int, high: int, generator: torch.Generator, *, signs: bool = False) -> None:
    """Bytes from ``low`` to ``high - 1``, with a random sign bit on top where ``signs``; rows of a pool at a time."""
    for start in range(0, out.shape[0], _ROWS_AT_ONCE):
        part = out[start : start + _ROWS_AT_ONCE]
        shape, device = part.shape, out.device
        drawn = torch.randint(low, high, shape, generator=generator, dtype=torch.uint8, device=device)
        if signs:
            drawn |= torch.randint(0, 2, shape, generator=generator, dtype=torch.uint8, device=device) << 7
        part.copy_(drawn)
