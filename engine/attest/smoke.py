"""Gate ``smoke``: a tiny checkpoint gives the same greedy tokens on the device as on the CPU target.

What computes on the device is torch with the engine's own model; kernels are the business of ``conformance``. Key
rounding is off: with it on, a value within rounding noise of a code's edge may lawfully fall on either side.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepinfer.errors import DeepInferError

if TYPE_CHECKING:
    from deepinfer.engine.attest.document import Run

SEED, TOKENS = 1, 24
LENGTHS = (1, 3, 40, 129, 200)  # shorter and longer than the window; the last needs several index blocks
MODES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("plain", {"kv_quant": False}),
    ("drafts", {"kv_quant": False, "drafts": True}),
    ("compact", {"kv_quant": False, "replay": "compact"}),
)


class SmokeFailed(DeepInferError):
    """A request of the gate was refused or cut short, so that there is nothing to compare."""

    code = "DI432"


def prompts(seed: int, vocabulary: int, placeholder: int) -> list[list[int]]:
    """Random token ids of each length, without the placeholder of an image: there is none to put there."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randint(3, vocabulary - 1, (length,), generator=generator) for length in LENGTHS]
    return [(ids + (ids >= placeholder)).tolist() for ids in drawn]


def smoke(run: Run, device: str) -> None:
    """One check per mode and prompt, and whether two runs on the device are the same."""
    from deepinfer.engine.checkpoint.tiny import make

    seed = time.time_ns() % 2**31
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "checkpoint"
        make(checkpoint, seed=SEED)
        for name, options in MODES:
            here = _tokens(checkpoint, "cpu", seed, options)
            there = _tokens(checkpoint, device, seed, options)
            again = _tokens(checkpoint, device, seed, options)
            for length, wanted, found in zip(LENGTHS, here, there, strict=True):
                same = sum(1 for a, b in zip(wanted, found, strict=False) if a == b)
                bound = "%d of the CPU target" % len(wanted)
                note = "prompt of %d tokens, seed %d" % (length, seed)
                run.check("tokens.%s.%d" % (name, length), wanted == found, same, "tokens", bound, note)
            run.check("repeat.%s" % name, there == again, note="two runs on the device")


def _tokens(folder: Path, device: str, seed: int, options: dict[str, Any]) -> list[list[int]]:
    from deepinfer.engine.llm import LLM
    from deepinfer.engine.sampling import SamplingParams

    llm = LLM(folder, device=device, vision=False, progress=False, **options)
    greedy = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    drawn = prompts(seed, llm.config.text.vocab_size, llm.config.image_token_id)
    outputs = llm.generate(drawn, greedy, use_tqdm=False)
    for output in outputs:
        if output.error is not None or len(output.token_ids) != TOKENS:
            what = "a request on %s ended with %d tokens: %s" % (
                device,
                len(output.token_ids),
                output.error or "no error",
            )
            raise SmokeFailed(what, fix="run python -m deepinfer.generate with it")
    return [output.token_ids for output in outputs]
