"""Engram on the device: hashing, table rows from page-locked host and device memory, their overlap, and the gate.

    python bench/gpu_engram.py [--library FILE] [--check] [--json FILE] [--compile]

Exposed time: a captured graph forks to a second stream, gathers there (with or without hashing first), runs other work
of about 100 us on the first stream, and joins; its time less that of the other work alone. The other work is one matrix
product, one copy, or twelve small products in a row, as a layer has them; it is launched before or after the gather.
The table holds a GiB: 4.2 million rows of 256 bytes with their scales, as two tables or as records of 272 bytes.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import gpu_timing

OPS = ("engram_gather.rows", "engram_gather.gather", "engram_gather.inject")
ROWS, WIDTH, EACH, RECORD = 1 << 22, 256, 24, 272
CHANNELS, EPS = 5120, 1e-20
EXPOSED_GOAL_US = 20.0
LIMITS = (0, 32)  # thread blocks of the gather beside other work


class Tables:
    """A table of random rows in device memory, and in page-locked host memory as two tables and as records."""

    def __init__(self, torch: Any) -> None:
        codes = torch.randint(0, 127, (ROWS, WIDTH), dtype=torch.uint8, device="cuda")
        scale = torch.randint(100, 130, (ROWS, WIDTH // 32), dtype=torch.uint8, device="cuda")
        self.device = (codes, scale)
        self.host = tuple(torch.empty(part.shape, dtype=torch.uint8, pin_memory=True) for part in self.device)
        for host, part in zip(self.host, self.device, strict=True):
            host.copy_(part)
        records = torch.empty(ROWS, RECORD, dtype=torch.uint8, pin_memory=True)
        packed = torch.zeros(ROWS, RECORD, dtype=torch.uint8, device="cuda")
        packed[:, :WIDTH], packed[:, WIDTH : WIDTH + WIDTH // 32] = codes, scale
        records.copy_(packed)
        self.records = (records[:, :WIDTH], records[:, WIDTH : WIDTH + WIDTH // 32])
        torch.cuda.synchronize()


class Gather:
    """Gathers of ``tokens`` tokens over rotating random rows."""

    def __init__(self, bench: gpu_timing.Bench, tokens: int, sets: int) -> None:
        torch = bench.torch
        self.bench = bench
        self.rows = [torch.randint(0, ROWS, (tokens, EACH), device="cuda") for _ in range(sets)]
        self.codes = torch.empty(tokens, EACH, WIDTH, dtype=torch.uint8, device="cuda")
        self.scales = torch.empty(tokens, EACH, WIDTH // 32, dtype=torch.uint8, device="cuda")

    def __call__(self, tables: tuple[Any, Any], blocks: int, i: int) -> None:
        from deepinfer.engine.ops.engram_gather import gather

        gather(self.bench.module, self.rows[i % len(self.rows)], *tables, self.codes, self.scales, blocks=blocks)

    def right(self, tables: Tables) -> bool:
        """Whether all three forms of the table give the same rows."""
        codes, scale = tables.device
        for form in (tables.device, tables.host, tables.records):
            self.codes.fill_(0xA5)
            self.scales.fill_(0xA5)
            self(form, 0, 0)
            rows = self.rows[0]
            if not bool((self.codes == codes[rows]).all()) or not bool((self.scales == scale[rows]).all()):
                return False
        return True


class Hash:
    """Rows of ``tokens`` tokens of a line of ids, with the multipliers of layer 1 and primes near the release's."""

    def __init__(self, bench: gpu_timing.Bench, tokens: int) -> None:
        from deepinfer.engine.ops import engram

        torch = bench.torch
        self.bench = bench
        self.inputs = {
            "ids": torch.randint(0, 99092, (tokens + 3,), device="cuda"),
            "dead": torch.zeros(tokens + 3, dtype=torch.bool, device="cuda"),
            "places": torch.arange(3, tokens + 3, device="cuda"),
            "factors": torch.tensor(engram.multipliers(1, 99092, 4), device="cuda"),
            "primes": torch.tensor([[ROWS // EACH - 1 - 2 * (8 * i + j) for j in range(8)] for i in range(3)]).cuda(),
        }
        self.rows = torch.empty(tokens, EACH, dtype=torch.int64, device="cuda")

    def __call__(self) -> None:
        from deepinfer.engine.ops.registry import load_all

        native = load_all()["engram_gather.rows"].native["cuda"]
        native(self.bench.module, self.inputs, {"rows": self.rows}, {"pad": 2})


def gathers(bench: gpu_timing.Bench, tables: Tables) -> Iterator[gpu_timing.Row]:
    """The gather alone. The bound of a host table is a plain copy of as many bytes from page-locked memory."""
    torch = bench.torch
    for tokens in (64, 1024, 8192):
        work = Gather(bench, tokens, 16 if tokens < 8192 else 4)
        right = work.right(tables)
        moved = tokens * EACH * (WIDTH + WIDTH // 32)
        plain = torch.empty(moved, dtype=torch.uint8, pin_memory=True)
        target = torch.empty(moved, dtype=torch.uint8, device="cuda")
        copied = functools.partial(_copy, target, plain)
        link = bench.time_us(_ignoring(copied))
        for name, form in (("host, two tables", tables.host), ("host, records", tables.records)):
            us = bench.time_us(functools.partial(work, form, 0), 16)
            label = "gather %d tokens, %s" % (tokens, name)
            yield gpu_timing.Row(label, us, link, "plain copy of the bytes", link, "right rows", right, "E4M3 rows")
        us = bench.time_us(functools.partial(work, tables.device, 0), 16)
        bound = bench.bound_us(read=2.0 * moved)
        yield gpu_timing.Row(
            "gather %d tokens, device" % tokens, us, bound, goal="right rows", met=right, form="E4M3 rows"
        )
        hashing = Hash(bench, tokens)
        us = bench.time_us(_ignoring(hashing))
        yield gpu_timing.Row("hash %d tokens" % tokens, us, bench.bound_us(read=tokens * (EACH * 8.0 + 8 + 9)))


def _ignoring(work: Callable[[], object]) -> Callable[[int], object]:
    return lambda i: work()


def _copy(target: Any, source: Any) -> None:
    target.copy_(source, non_blocking=True)


def beside(
    bench: gpu_timing.Bench, aside: Callable[[int], None], main: Callable[[], object], aside_first: bool
) -> Callable[[int], None]:
    """``aside`` on a stream of its own while ``main`` runs on the current one; both are joined."""
    torch = bench.torch
    other = torch.cuda.Stream()

    def work(i: int) -> None:
        here = torch.cuda.current_stream()
        other.wait_stream(here)
        if not aside_first:
            main()
        with torch.cuda.stream(other):
            aside(i)
        if aside_first:
            main()
        here.wait_stream(other)

    return work


def overlapped(bench: gpu_timing.Bench, tables: Tables) -> Iterator[gpu_timing.Row]:
    """Exposed time at 64 tokens beside a product and a copy, for several limits of thread blocks."""
    torch = bench.torch
    a, b = (torch.randn(4096, size, device="cuda").bfloat16() for size in (2048, 4096))
    c = torch.empty(2048, 4096, dtype=torch.bfloat16, device="cuda")
    source = torch.randn(50 << 20, device="cuda")
    target = torch.empty_like(source)
    x = torch.randn(64, CHANNELS, device="cuda").bfloat16()
    weights = [torch.randn(CHANNELS, 2048, device="cuda").bfloat16() for _ in range(12)]

    def layer() -> None:
        for weight in weights:
            torch.mm(x, weight)

    mains = {
        "product": lambda: torch.mm(a.t(), b, out=c),
        "copy": lambda: torch.add(source, 1.0, out=target),
        "layer": layer,
    }
    hashing = Hash(bench, 64)
    gather = Gather(bench, 64, 16)
    chained = Gather(bench, 64, 1)
    chained.rows = [hashing.rows]

    def both(blocks: int, i: int) -> None:
        hashing()
        chained(tables.host, blocks, i)

    for name, main in mains.items():
        alone = bench.time_us(_ignoring(main))
        for blocks in LIMITS:
            for label, aside in (
                ("gather", functools.partial(gather, tables.host, blocks)),
                ("hash + gather", functools.partial(both, blocks)),
            ):
                for first in (True, False):
                    exposed = bench.time_us(beside(bench, aside, main, first), 16) - alone
                    words = (label, blocks, "before" if first else "behind", name)
                    case = "%s, 64 tokens, %d blocks, %s a %s" % words
                    goal = "exposed at most %.0f us" % EXPOSED_GOAL_US
                    other = "the %s alone" % name
                    yield gpu_timing.Row(case, exposed, None, other, alone, goal, exposed <= EXPOSED_GOAL_US, "exposed")


def inject_inputs(torch: Any, tokens: int) -> dict[str, Any]:
    """Random streams, keys and value of ``tokens`` tokens; a few tokens are dead."""
    return {
        "streams": torch.randn(tokens, 4, CHANNELS, device="cuda").bfloat16(),
        "kv": torch.randn(tokens, 5, CHANNELS, device="cuda").bfloat16(),
        "weight": torch.randn(4, CHANNELS, device="cuda"),
        "dead": torch.rand(tokens, device="cuda") < 0.02,
    }


def parts_agree(bench: gpu_timing.Bench) -> bool:
    """Whether rows of calls with few tokens are those of a call with many, which is another kernel, bit for bit."""
    from deepinfer.engine.ops.registry import load_all

    torch = bench.torch
    native = load_all()["engram_gather.inject"].native["cuda"]
    inputs = inject_inputs(torch, 1000)
    whole = torch.full_like(inputs["streams"], float("nan"))
    native(bench.module, inputs, {"out": whole}, {"eps": EPS})
    same = True
    for begin, end in ((0, 1), (7, 8), (64, 128), (333, 933)):
        part = {name: tensor if name == "weight" else tensor[begin:end].clone() for name, tensor in inputs.items()}
        native(bench.module, part, {}, {"eps": EPS})  # in place
        same = same and bool((part["streams"].view(torch.int16) == whole[begin:end].view(torch.int16)).all())
    return same


def _each(work: Callable[[dict[str, Any]], object], sets: list[dict[str, Any]]) -> Callable[[int], object]:
    return lambda i: work(sets[i])


def injections(bench: gpu_timing.Bench, with_compile: bool) -> Iterator[gpu_timing.Row]:
    from deepinfer.engine.ops import engram
    from deepinfer.engine.ops.registry import load_all

    torch = bench.torch
    same = parts_agree(bench)
    print("rows of parts of a call: %s" % ("the same, bit for bit" if same else "differ"))
    native = load_all()["engram_gather.inject"].native["cuda"]

    def chain(inputs: dict[str, Any]) -> Any:
        kv = inputs["kv"]
        words = inputs["streams"], kv[:, :-1], kv[:, -1], inputs["weight"], inputs["dead"], EPS
        inputs["streams"].copy_(engram.inject(*words))

    compiled = torch.compile(chain, dynamic=True) if with_compile else None
    for tokens in (8192, 64):
        sets = [inject_inputs(torch, tokens) for _ in range(2 if tokens > 64 else 16)]
        us = bench.time_us(_each(lambda inputs: native(bench.module, inputs, {}, {"eps": EPS}), sets), len(sets))
        bound = bench.bound_us(read=13.0 * 2 * CHANNELS * tokens)
        found = [("torch eager", bench.time_us(_each(chain, sets), len(sets)))]
        if compiled is not None:
            found.append(("torch.compile", bench.time_us(_each(compiled, sets), len(sets))))
        best = min((pair[1] for pair in found), default=None)
        if tokens > 64:
            goal, met = "80 %% of the read ceiling (%.0f %%)" % (100 * bound / us), same and bound >= 0.8 * us
        else:
            goal, met = "faster than every peer", same and (best is None or us < best)
        words = "; ".join("%s %.1f" % pair for pair in found)
        floor = 0.72 if tokens > 64 else None
        yield gpu_timing.Row("inject %dx4x%d" % (tokens, CHANNELS), us, bound, words, best, goal, met, "bf16", floor)


def measure(bench: gpu_timing.Bench, with_compile: bool) -> Iterator[gpu_timing.Row]:
    tables = Tables(bench.torch)
    yield from gathers(bench, tables)
    yield from overlapped(bench, tables)
    yield from injections(bench, with_compile)


def main() -> int:
    with_compile = "--compile" in sys.argv
    sys.argv[1:] = [word for word in sys.argv[1:] if word != "--compile"]
    return gpu_timing.main(__doc__, functools.partial(measure, with_compile=with_compile), OPS)


if __name__ == "__main__":
    sys.exit(main())
