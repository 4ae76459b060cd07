"""What a checkpoint needs of N equal devices: weights per device, what is left for requests, the longest context.

All numbers are bytes and integers. Rule of sharding: routed experts, also those of the draft layers, are divided over
all devices by whole experts; Engram tables lie in host memory, one copy per host, or are divided over all devices by
rows; everything else is on every device. A request lives on one device. Nothing is measured here: the reserve stands
for activations, communication buffers and the driver, and is a stated number.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from deepinfer.engine.checkpoint.config import Config, TextConfig
from deepinfer.engine.checkpoint.errors import DoesNotFit
from deepinfer.engine.checkpoint.inventory import TABLES, Tensor, tensors
from deepinfer.errors import UsageError

RESERVE = 8 << 30  # bytes per device
BLOCK = 128  # tokens of a page of the KV cache
BACKTRACK = 6  # tokens that a request can take back: 5 drafts and 1
ENGRAM = ("host", "device")
LARGEST = 1 << 50  # bytes of memory that a device is believed to have


@dataclass(frozen=True)
class RequestBytes:
    """Memory of requests: ``per_token`` compressed entries and index keys of all layers, ``state`` what is fixed."""

    per_token: int  # rounded up; exact in a block
    block: int
    state: int


@dataclass(frozen=True)
class Plan:
    """The answer. ``experts``, ``tables``, ``replicated`` are on the fullest device; ``host`` in host memory."""

    devices: int
    memory: int
    reserve: int
    engram: str
    experts: int
    tables: int
    replicated: int
    host: int
    request: RequestBytes
    max_positions: int

    @property
    def weights(self) -> int:
        """Bytes of weights on the fullest device."""
        return self.experts + self.tables + self.replicated

    @property
    def budget(self) -> int:
        """Bytes per device for requests; negative if the weights and the reserve do not fit."""
        return self.memory - self.reserve - self.weights

    @property
    def tokens(self) -> int:
        """Tokens of the one longest request that the memory of a device holds, in whole blocks."""
        return max(0, self.budget - self.request.state) // self.request.block * BLOCK

    @property
    def longest(self) -> int:
        """Longest context: what fits, and not more than the model's positions."""
        return min(self.tokens, self.max_positions)

    @property
    def full_requests(self) -> int:
        """Requests of the longest context that a device holds at once."""
        if not self.longest:
            return 0
        return self.budget // (self.request.state + -(-self.longest // BLOCK) * self.request.block)


def plan(config: Config, devices: int, memory: int, engram: str = "host", reserve: int = RESERVE) -> Plan:
    """Divide the weights. Raises :class:`UsageError` for nonsense, :class:`DoesNotFit` where nothing is left."""
    text = config.text
    _require_sense(text, devices, memory, engram, reserve)
    experts, tables, replicated, host = 0, 0, 0, 0
    for name, group in groupby(tensors(config), key=_kind):
        found = list(group)
        if name == "expert":
            experts += _expert_share(text, found, devices)
        elif name == "replicated":
            replicated += sum(tensor.bytes for tensor in found)
        elif engram == "host":
            host += sum(tensor.bytes for tensor in found)
        else:
            tables += sum(-(-tensor.shape[0] // devices) * (tensor.bytes // tensor.shape[0]) for tensor in found)
    answer = Plan(
        *(devices, memory, reserve, engram, experts, tables, replicated, host),
        request_bytes(text),
        text.max_position_embeddings,
    )
    if not answer.tokens:
        raise _does_not_fit(answer)
    return answer


def request_bytes(text: TextConfig) -> RequestBytes:
    """Memory of a request by the layouts of the caches.

    Compressed entry: E2M1 with an E4M3 scale per 16 (or E4M3 with E8M0 per 32); index key: E2M1 with E8M0 per 32;
    window ring: window + backtrack entries of E4M3 with E8M0 per 32 in every layer; open group of a ratio-2 source:
    fp32 gate and value, ratio + backtrack - 1 rows. Release: 890 bytes a token, 3128352 bytes a request.
    """
    width, index = text.head_dim, text.index_head_dim
    window_entry = width + width // 32
    entry = width // 2 + width // 16 if text.use_fp4_sparse_kv else window_entry
    key = index // 2 + index // 32
    ratios = [text.compress_ratios[layer] for layer in text.kv_source_layer_ids]
    block = sum((entry + key) * BLOCK // ratio for ratio in ratios)
    layers = text.num_hidden_layers + text.num_nextn_predict_layers
    state = layers * (text.sliding_window + BACKTRACK) * window_entry
    state += ratios.count(2) * (2 + BACKTRACK - 1) * 2 * width * 4
    return RequestBytes(-(-block // BLOCK), block, state)


def _kind(tensor: Tensor) -> str:
    if tensor.part == TABLES:
        return "table"
    return "expert" if ".ffn.experts." in tensor.name else "replicated"


def _expert_share(text: TextConfig, found: list[Tensor], devices: int) -> int:
    """Bytes of one matrix kind of one layer's experts on the fullest device. All experts of a layer are equal."""
    count = text.dspark_n_routed_experts if found[0].name.startswith("mtp.") else text.n_routed_experts
    return sum(tensor.bytes for tensor in found) // count * -(-count // devices)


def _require_sense(text: TextConfig, devices: int, memory: int, engram: str, reserve: int) -> None:
    most = max(text.n_routed_experts, text.dspark_n_routed_experts)
    if not 1 <= devices <= most:
        fix = "a number from 1 to %d, the experts of a layer" % most
        raise UsageError("--devices is %d" % devices, fix=fix)
    if not 1 <= memory <= LARGEST:
        fix = "bytes of one device, such as 150754820096; the probe prints them: python -m deepinfer.probe"
        raise UsageError("--memory-bytes is %d" % memory, fix=fix)
    if not 0 <= reserve < memory:
        raise UsageError("--reserve-bytes is %d" % reserve, fix="a number from 0 to less than --memory-bytes")
    if engram not in ENGRAM:
        raise UsageError("--engram is %r" % engram, fix="one of %s" % ", ".join(ENGRAM))


def _does_not_fit(answer: Plan) -> DoesNotFit:
    needed = answer.weights + answer.reserve + answer.request.state + answer.request.block
    fix = "more devices (--devices), or devices with at least %d bytes" % needed
    if answer.tables:
        fix += ", or the tables in host memory (--engram host)"
    what = "%d devices of %d bytes hold no request: %d bytes of weights each, %d in reserve, %d for %d tokens"
    numbers = (answer.devices, answer.memory, answer.weights, answer.reserve)
    return DoesNotFit(what % (*numbers, answer.request.state + answer.request.block, BLOCK), fix=fix)
