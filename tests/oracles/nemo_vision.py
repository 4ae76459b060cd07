"""Compares our images, vision tower, aligner and prompts with an image with nemo-automodel's; prints one JSON object.

Run in an environment of its own, see tests/oracles/README.md.
"""

from __future__ import annotations

import random
import sys
from dataclasses import asdict, replace
from typing import Any

import torch
import verdict
from nemo_automodel.components.models.common import BackendConfig
from nemo_automodel.components.models.deepseek_v41 import attention as theirs
from nemo_automodel.components.models.deepseek_v41 import processing
from nemo_automodel.components.models.deepseek_v41.config import DeepseekV41Config, DeepseekV41VisionConfig
from nemo_automodel.components.models.deepseek_v41.model import DeepseekV41ForCausalLM
from nemo_text import their_config, tokenizer  # puts the repository on the path, for the imports below
from PIL import Image
from tiny_text import config, model, parameters

from deepinfer.engine.checkpoint import config as configuration
from deepinfer.engine.checkpoint.config import VisionConfig
from deepinfer.engine.checkpoint.inventory import VISION, tensors
from deepinfer.engine.checkpoint.tiny import tiny_values
from deepinfer.engine.checkpoint.tiny_values import draw
from deepinfer.engine.images import Picture, plan, read
from deepinfer.engine.model.parameters import Parameters
from deepinfer.engine.model.state import State
from deepinfer.engine.model.vision import VisionModel

IMAGE = 505
AT_MOST = {
    "grids_that_differ_of_30000": 0,
    "pixel_values_that_differ": 0,
    "max_abs_tower": 1e-5,
    "max_abs_aligner": 1e-5,
    "max_abs_logits_kv_quant_off": 1e-4,
}
AT_LEAST = {"argmax_agreement_off": 1.0, "argmax_agreement_on": 0.99}
RELEASED = VisionConfig(32, 1024, 16, 2816, 14, 10000.0, 3, 1024, 295936, None)
MODES = ("RGB", "RGB", "L", "RGBA", "P")
SIZES = ((150, 100), (60, 200), (300, 90), (7, 7))


def noise(width: int, height: int, seed: int, mode: str = "RGB") -> Image.Image:
    """Blocks of random colour: the resize has edges to smooth."""
    small = (max(1, width // 5), max(1, height // 5))
    made = Image.frombytes("RGB", small, random.Random(seed).randbytes(3 * small[0] * small[1]))
    return made.resize((width, height), Image.Resampling.NEAREST).convert(mode)


def geometry(count: int) -> int:
    """Sizes, of ``count`` and three configurations, where the grids differ."""
    draws, differ = random.Random(1), 0
    for vision in (RELEASED, replace(RELEASED, max_wh_ratio=2.5), replace(RELEASED, max_image_tokens=64)):
        other = DeepseekV41VisionConfig(**asdict(vision))
        for _ in range(count):
            width, height = int(10 ** draws.uniform(0, 5)), int(10 ** draws.uniform(0, 5))
            mine, found = plan(width, height, vision), processing._plan_image_grid(width, height, other)
            same = (mine.width, mine.height) == (found.width, found.height)
            same = same and (mine.token_rows, mine.token_columns) == (found.llm_height, found.llm_width)
            differ += not same
    return differ


def pixels(count: int) -> tuple[int, int]:
    """(values compared, values that differ) over ``count`` images of random sizes and kinds."""
    draws, total, differ = random.Random(2), 0, 0
    for number in range(count):
        width, height = int(10 ** draws.uniform(0.5, 3)), int(10 ** draws.uniform(0.5, 3))
        vision = RELEASED if number % 3 else replace(RELEASED, max_wh_ratio=1.5)
        image = noise(width, height, number, MODES[number % len(MODES)])
        found, _ = processing._preprocess_image(image, DeepseekV41VisionConfig(**asdict(vision)))
        mine = read(image, vision).patches
        total += mine.numel()
        differ += int((mine != found.flatten(1)).sum())
    return total, differ


def their_model(vision: VisionConfig, values: dict[str, torch.Tensor]) -> Any:
    text = their_config().text_config.to_dict()
    whole = DeepseekV41Config(
        text_config=text, vision_config=asdict(vision), dtype="float32", image_token_id=IMAGE, bos_token_id=0
    )
    backend = BackendConfig(attn="sdpa", linear="torch", rms_norm="torch_fp32", experts="torch", dispatcher="torch")
    made = DeepseekV41ForCausalLM(whole, backend=backend, tokenizer=tokenizer(config().vocab_size)).eval()
    kinds = {"engram.embed.weight": torch.float8_e4m3fn, "engram.embed.scale": torch.float8_e8m0fnu}
    named = {}
    for name, value in values.items():
        kind = next((kinds[end] for end in kinds if name.endswith(end)), None)
        named[name] = (value if kind is None else value.view(kind)).clone()
    missing, unexpected = made.load_state_dict(made.state_dict_adapter.from_hf(named), strict=False)
    if missing or unexpected:
        raise SystemExit("the oracle misses %s and does not know %s" % (missing[:4], unexpected[:4]))
    return made


def prompt(pictures: list[Picture], between: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, kinds) int64 [T]: text, a span, text, and so on; kinds are those of the oracle, -1 for text."""
    generator = torch.Generator().manual_seed(len(pictures))
    ids, kinds = [], []
    for picture in [*pictures, None]:
        ids += torch.randint(3, 500, (between,), generator=generator).tolist()
        kinds += [-1] * between
        if picture is not None:
            lines = ([1] * picture.grid.token_columns + [2]) * picture.grid.token_rows
            kinds += [0, *lines, 3]
            ids += [IMAGE] * picture.grid.tokens
    return torch.tensor(ids), torch.tensor(kinds)


@torch.no_grad()
def main() -> int:
    result: dict[str, float] = {"grids_that_differ_of_30000": geometry(10000)}
    result["pixel_values"], result["pixel_values_that_differ"] = pixels(60)
    whole = configuration.parse(tiny_values())
    drawn: dict[str, torch.Tensor] = {}
    for one in tensors(whole):
        if one.part == VISION:
            drawn.update(draw(one, 4))
    drawn = {name: value.float() for name, value in drawn.items()}
    ours = VisionModel(whole.vision, Parameters(drawn, torch.float32))
    oracle = their_model(whole.vision, {**parameters(config(), 3), **drawn})
    pictures = [read(noise(*size, seed), whole.vision) for seed, size in enumerate(SIZES)]
    tower = aligner = 0.0
    for one in pictures:
        patches, shape = one.patches.float(), (one.grid.rows, one.grid.columns)
        mine = ours.encode(patches, *shape)
        tower = max(tower, float((mine - oracle.model.vision(patches, *shape)).abs().max()))
        aligner = max(aligner, float((ours.align(mine, *shape) - oracle.model.aligner(mine, *shape)).abs().max()))
    result["max_abs_tower"], result["max_abs_aligner"] = tower, aligner
    for kv_quant in (False, True):
        original = theirs.quantize_cache
        if not kv_quant:
            theirs.quantize_cache = lambda values, **_: values
        result.update(logits(ours, oracle, pictures, kv_quant))
        theirs.quantize_cache = original
    return verdict.say(result, AT_MOST, AT_LEAST)


def logits(ours: VisionModel, oracle: Any, pictures: list[Picture], kv_quant: bool) -> dict[str, float]:
    """Of prompts with one and more images, every position."""
    text, worst, rows, close, agree = model(3, kv_quant=kv_quant), 0.0, 0, 0, 0
    for chosen, between in ((pictures[:1], 20), (pictures[1:], 10), (pictures, 35)):
        ids, kinds = prompt(chosen, between)
        spans = torch.cat([ours.span(one.patches, one.grid.rows, one.grid.columns) for one in chosen])
        fed = torch.where(kinds >= 0, text.config.vocab_size, ids)
        mine = text.logits(text.forward(fed, State(text.config, len(ids)), spans).hidden)
        patch = chosen[0].grid.patch
        other = oracle(
            ids.unsqueeze(0),
            pixel_values=torch.cat([one.patches for one in chosen]).view(-1, 3, patch, patch),
            image_grid_hws=torch.tensor([[one.grid.rows, one.grid.columns] for one in chosen]),
            vision_token_types=kinds.unsqueeze(0),
        ).logits[0]
        difference = (mine - other.float()).abs().amax(-1)
        worst = max(worst, float(difference.max()))
        rows += len(ids)
        close += int((difference <= 1e-4).sum())
        agree += int((mine.argmax(-1) == other.argmax(-1)).sum())
    name = "on" if kv_quant else "off"
    return {
        "max_abs_logits_kv_quant_%s" % name: worst,
        "rows_within_1e-4_%s" % name: close / rows,
        "argmax_agreement_%s" % name: agree / rows,
        "positions": rows,
    }


if __name__ == "__main__":
    sys.exit(main())
