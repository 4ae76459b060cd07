"""Compares our text model with nemo-automodel's DeepSeek-V4.1 on a tiny random model; prints one JSON object.

Run in an environment of its own, see tests/oracles/README.md.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import verdict

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/engine")]

from nemo_automodel.components.models.common import BackendConfig
from nemo_automodel.components.models.deepseek_v41 import attention as theirs
from nemo_automodel.components.models.deepseek_v41.config import DeepseekV41Config
from nemo_automodel.components.models.deepseek_v41.model import DeepseekV41ForCausalLM
from tiny_text import config, model, parameters
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from deepinfer.engine.model.state import State

AT_MOST = {"max_abs_kv_quant_off": 1e-4}
AT_LEAST = {"argmax_agreement_off": 1.0, "argmax_agreement_on": 0.99}
PROMPTS = ((8, 1), (33, 2), (64, 3), (100, 4), (150, 5), (200, 6))


def tokenizer(size: int) -> PreTrainedTokenizerFast:
    """``size`` words with distinct compressed keys."""
    names = ["<bos>", "<eos>", "<pad>"] + ["t%d" % number for number in range(size - 3)]
    made = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="t0"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>")


def their_config() -> DeepseekV41Config:
    shape = config()
    text = {name: getattr(shape, name) for name in shape.__dataclass_fields__ if name != "rope_scaling"}
    text = {name: list(value) if isinstance(value, tuple) else value for name, value in text.items()}
    scaling = shape.rope_scaling
    text["rope_scaling"] = {
        "rope_type": "yarn",
        **{name: getattr(scaling, name) for name in scaling.__dataclass_fields__},
    }
    text["dtype"] = "float32"
    return DeepseekV41Config(text_config=text, vision_config={"num_hidden_layers": 0}, dtype="float32")


def their_model(tensors: dict[str, torch.Tensor]) -> Any:
    backend = BackendConfig(attn="sdpa", linear="torch", rms_norm="torch_fp32", experts="torch", dispatcher="torch")
    made = DeepseekV41ForCausalLM(their_config(), backend=backend, tokenizer=tokenizer(config().vocab_size)).eval()
    named = {}
    for name, value in tensors.items():
        if name.endswith("engram.embed.weight"):
            value = value.view(torch.float8_e4m3fn)
        elif name.endswith("engram.embed.scale"):
            value = value.view(torch.float8_e8m0fnu)
        named[name] = value.clone()
    state = made.state_dict_adapter.from_hf(named)
    missing, unexpected = made.load_state_dict(state, strict=False)
    if missing or unexpected:
        raise SystemExit("the oracle misses %s and does not know %s" % (missing[:4], unexpected[:4]))
    return made


@torch.no_grad()
def main() -> int:
    worst: dict[str, float] = {}
    for kv_quant in (False, True):
        original = theirs.quantize_cache
        if not kv_quant:
            theirs.quantize_cache = lambda values, **_: values
        ours = model(3, kv_quant=kv_quant)
        oracle = their_model(parameters(config(), 3))
        rows, close, agree = 0, 0, 0
        for length, seed in PROMPTS:
            ids = torch.randint(3, 500, (length,), generator=torch.Generator().manual_seed(seed))
            state = State(ours.config, length)
            mine = ours.logits(ours.forward(ids, state).hidden)
            other = oracle(ids.unsqueeze(0)).logits[0].float()
            difference = (mine - other).abs().amax(-1)
            rows += length
            close += int((difference <= 1e-4).sum())
            agree += int((mine.argmax(-1) == other.argmax(-1)).sum())
            key = "max_abs_kv_quant_%s" % ("on" if kv_quant else "off")
            worst[key] = max(worst.get(key, 0.0), float(difference.max()))
        name = "on" if kv_quant else "off"
        worst["rows_within_1e-4_%s" % name] = close / rows
        worst["argmax_agreement_%s" % name] = agree / rows
        theirs.quantize_cache = original
    return verdict.say(worst, AT_MOST, AT_LEAST)


if __name__ == "__main__":
    sys.exit(main())
