"""The tower and the aligner against loops in fp64, and prompts with images through ``LLM`` and the command."""

from __future__ import annotations

import io
import json
import math
import random
import subprocess
import sys
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="not run: torch is not installed")
for package in ("safetensors", "tokenizers"):
    pytest.importorskip(package, reason=f"not run: {package} is not installed")
Image = pytest.importorskip("PIL.Image", reason="not run: pillow is not installed")

from tiny_text import model

from deepinfer import LLM, SamplingParams
from deepinfer.engine import llm as llm_module
from deepinfer.engine.checkpoint.tiny import make
from deepinfer.engine.checkpoint.tiny_tokenizer import IMAGE, IMAGE_TEXT
from deepinfer.engine.images import plan
from deepinfer.engine.model.load import load
from deepinfer.engine.model.parameters import Parameters
from deepinfer.engine.model.state import State
from deepinfer.engine.model.vision import VisionModel, gather
from deepinfer.engine.ops import moe

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
ABSOLUTE = 1e-4


def picture(width=150, height=100, seed=1):
    return Image.frombytes("RGB", (width, height), random.Random(seed).randbytes(3 * width * height))


def file_bytes(image):
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tiny") / "checkpoint"
    make(made, seed=2)
    return made


@pytest.fixture(scope="module")
def llm(folder):
    return LLM(folder)


@pytest.fixture(scope="module")
def vision(llm):
    return llm.loaded.vision


# -- a plain reference: one patch, one head, one pair of channels at a time, fp64 -------------------------------------


def norm(row, weight):
    return weight.double() * row / torch.sqrt((row * row).mean() + 1e-6)


def turned(row, y, x, theta):
    """Channel c with channel c + half; the first half of the angles are the row's, the second the column's."""
    half = row.shape[0] // 2
    out = row.clone()
    for pair in range(half):
        place = y if pair < half // 2 else x
        angle = place * theta ** (-2.0 * (pair % (half // 2)) / half)
        low, high = float(row[pair]), float(row[pair + half])
        out[pair] = low * math.cos(angle) - high * math.sin(angle)
        out[pair + half] = high * math.cos(angle) + low * math.sin(angle)
    return out


def reference(one, patches, columns):
    tensors = {name: value.double() for name, value in one.params.tensors.items() if name.startswith("vision.")}
    config = one.config
    size = config.hidden_size // config.num_attention_heads

    def linear(name, row):
        out = tensors["vision." + name + ".weight"] @ row
        return out + tensors["vision." + name + ".bias"] if "vision." + name + ".bias" in tensors else out

    rows = [linear("patch_embed.proj", patch) for patch in patches.double()]
    for number in range(config.num_hidden_layers):
        block = "blocks.%d." % number
        qkv = [linear(block + "attn.wqkv", norm(row, tensors["vision." + block + "norm1.weight"])) for row in rows]
        seen = [[] for _ in rows]
        for head in range(config.num_attention_heads):
            part = slice(head * size, (head + 1) * size)
            query, key, value = (
                [row[kind * config.hidden_size : (kind + 1) * config.hidden_size][part] for row in qkv]
                for kind in range(3)
            )
            places = [divmod(place, columns) for place in range(len(rows))]
            query = [turned(row, *place, config.rope_theta) for row, place in zip(query, places, strict=True)]
            key = [turned(row, *place, config.rope_theta) for row, place in zip(key, places, strict=True)]
            for place, row in enumerate(query):
                scores = torch.stack([row @ other for other in key]) / math.sqrt(size)
                weights = scores.exp() / scores.exp().sum()
                seen[place].append(sum(weight * other for weight, other in zip(weights, value, strict=True)))
        rows = [row + linear(block + "attn.wo", torch.cat(heads)) for row, heads in zip(rows, seen, strict=True)]
        for place, row in enumerate(rows):
            both = linear(block + "mlp.w1", norm(row, tensors["vision." + block + "norm2.weight"]))
            gate, up = both[: config.intermediate_size], both[config.intermediate_size :]
            rows[place] = row + linear(block + "mlp.w2", gate / (1.0 + torch.exp(-gate)) * up)
    return torch.stack([norm(row, tensors["vision.norm.weight"]) for row in rows])


def patches_of(count, seed=5):
    return (2.0 * torch.rand(count, 588, generator=torch.Generator().manual_seed(seed)) - 1.0).to(torch.bfloat16)


@pytest.mark.parametrize(("rows", "columns"), [(3, 5), (5, 2), (1, 4)])
def test_the_tower_is_the_plain_loop(vision, rows, columns):
    patches = patches_of(rows * columns)
    expected = reference(vision, patches, columns)
    assert (vision.encode(patches, rows, columns) - expected).abs().max() < 2e-5
    wide = VisionModel(vision.config, Parameters(vision.params.tensors, torch.float64))
    # the angles are fp32 by definition, which is all that is left of the difference
    assert (wide.encode(patches, rows, columns) - expected).abs().max() < 2e-6


@pytest.mark.parametrize(("rows", "columns"), [(3, 6), (4, 7), (2, 2), (7, 3)])
def test_the_aligner_gathers_squares(rows, columns):
    features = torch.randn(rows * columns, 5, generator=torch.Generator().manual_seed(rows))
    got = gather(features, rows, columns, 3)
    down, right = math.ceil(rows / 3), math.ceil(columns / 3)
    assert got.shape == (down * right, 45)
    for y in range(down):
        for x in range(right):
            for channel in range(5):
                for dy in range(3):
                    for dx in range(3):
                        inside = 3 * y + dy < rows and 3 * x + dx < columns
                        value = features[(3 * y + dy) * columns + 3 * x + dx, channel] if inside else 0.0
                        assert got[y * right + x, channel * 9 + dy * 3 + dx] == value


def test_the_aligner_uses_the_exact_gelu(vision):
    features = torch.randn(6, vision.config.hidden_size, generator=torch.Generator().manual_seed(4))
    tensors = {name: value.double() for name, value in vision.params.tensors.items() if name.startswith("aligner.")}
    x = gather(features, 2, 3, 3).double()[0]
    hidden = tensors["aligner.w1.weight"] @ x + tensors["aligner.w1.bias"]
    hidden = torch.tensor([0.5 * v * (1.0 + math.erf(v / math.sqrt(2.0))) for v in hidden.tolist()]).double()
    expected = tensors["aligner.w2.weight"] @ hidden + tensors["aligner.w2.bias"]
    assert (vision.align(features, 2, 3)[0] - expected).abs().max() < 2e-6


def test_a_span_has_its_delimiters_where_they_belong(vision):
    rows, columns = 4, 7  # 2 x 3 tokens
    patches = patches_of(rows * columns)
    tokens = vision.align(vision.encode(patches, rows, columns), rows, columns)
    start, end, newline = (vision.params["image_" + name] for name in ("start", "end", "newline"))
    expected = [start, *tokens[:3], newline, *tokens[3:], newline, end]
    assert torch.equal(vision.span(patches, rows, columns), torch.stack(expected))


def test_bf16_is_near_fp32(folder, vision):
    narrow = load(folder, dtype=torch.bfloat16).vision
    patches = patches_of(12)
    got, exact = narrow.span(patches, 3, 4), vision.span(patches, 3, 4)
    assert got.dtype == torch.bfloat16
    assert 0.0 < float((got.float() - exact).norm() / exact.norm()) < 0.02


# -- in the text model ------------------------------------------------------------------------------------------------


def test_text_rows_are_routed_by_bias_and_image_rows_by_bias_vl(monkeypatch):
    tiny = model(3)
    seen = {}
    original = moe.route

    def spy(x, gate, bias, *more):
        seen.setdefault("bias", []).append(bias)
        return original(x, gate, bias, *more)

    monkeypatch.setattr(moe, "route", spy)
    ids = torch.tensor([5, 6, 512, 512, 7])
    tiny.forward(ids, State(tiny.config, 5), torch.zeros(2, tiny.config.hidden_size))
    assert len(seen["bias"]) == tiny.config.num_hidden_layers
    for number, bias in enumerate(seen["bias"]):
        gate = "layers.%d.ffn.gate." % number
        assert torch.equal(bias[[0, 1, 4]], tiny.params[gate + "bias"].expand(3, -1))
        assert torch.equal(bias[[2, 3]], tiny.params[gate + "bias_vl"].expand(2, -1))


def test_each_bias_moves_its_own_rows_first():
    base = model(3)
    ids = torch.tensor([5, 6, 7, 512, 512, 8])
    rows = torch.randn(2, base.config.hidden_size, generator=torch.Generator().manual_seed(1))
    before = base.forward(ids, State(base.config, 6), rows).hidden
    for name, first in (("bias", 0), ("bias_vl", 3)):
        changed = model(3)
        for key in list(changed.params.tensors):
            if key.endswith("ffn.gate." + name):
                changed.params.tensors[key] = changed.params[key].flip(0) * 50.0
        after = changed.forward(ids, State(base.config, 6), rows).hidden
        moved = (before - after).abs().amax(-1)
        assert (moved[:first] < ABSOLUTE).all()
        assert moved[first] > 100.0 * ABSOLUTE


def test_a_row_per_image_token_is_needed():
    tiny = model(3)
    with pytest.raises((ValueError, RuntimeError, IndexError)):
        tiny.forward(torch.tensor([5, 512, 512]), State(tiny.config, 3), torch.zeros(3, tiny.config.hidden_size))


# -- prompts ----------------------------------------------------------------------------------------------------------


def with_images(ids, *sources):
    return {"prompt_token_ids": ids, "images": list(sources)}


def test_a_span_stands_where_the_placeholder_was(llm):
    one, two = picture(150, 100), picture(60, 200, seed=2)
    first, second = (plan(*image.size, llm.config.vision).tokens for image in (one, two))
    output = llm.generate(with_images([5, IMAGE, 7, IMAGE], one, two), GREEDY)[0]
    assert output.prompt_token_ids == [5, *[IMAGE] * first, 7, *[IMAGE] * second]
    assert len(output.token_ids) == 8
    in_front = llm.generate(with_images([5, 7], one, two), GREEDY)[0]
    assert in_front.prompt_token_ids == [IMAGE] * (first + second) + [5, 7]
    behind_bos = llm.generate(with_images([0, 7], one), GREEDY)[0]
    assert behind_bos.prompt_token_ids == [0, *[IMAGE] * first, 7]
    text = llm.generate({"prompt": "ab" + IMAGE_TEXT + "cd", "images": [one]}, GREEDY)[0]
    same = llm.loaded.tokenizer.encode("ab" + IMAGE_TEXT + "cd").ids
    assert text.token_ids == llm.generate(with_images(same, one), GREEDY)[0].token_ids


def test_the_image_and_its_order_matter(llm):
    asked = replace(GREEDY, max_tokens=1, logprobs=5)
    one, two = picture(), picture(seed=2)

    def told(*sources):
        return llm.generate(with_images([5, IMAGE, 7, IMAGE, 9], *sources), asked)[0].logprobs

    assert told(one, two) == told(one, two)
    assert told(one, two) != told(two, one)


@pytest.mark.parametrize("drafts", [False, True])
def test_chunks_cut_through_a_span(folder, llm, drafts, monkeypatch):
    exact = LLM(folder, kv_quant=False, drafts=drafts)
    prompt = with_images([*range(5, 20), IMAGE, 7, 8, IMAGE, 9], picture(90, 80), picture(60, 120, seed=2))
    asked = replace(GREEDY, prompt_logprobs=20)
    whole = exact.generate(prompt, asked)[0]
    for chunk in (1, 7):
        monkeypatch.setattr(llm_module, "CHUNK", chunk)
        cut = exact.generate(prompt, asked)[0]
        assert cut.token_ids == whole.token_ids
        assert len(cut.prompt_logprobs) == len(whole.prompt_logprobs) == len(whole.prompt_token_ids)
        for one, other in zip(cut.prompt_logprobs[1:], whole.prompt_logprobs[1:], strict=True):
            assert one == pytest.approx(other, abs=ABSOLUTE)


def test_other_requests_are_not_affected_and_bad_images_stay_alone(llm):
    data = file_bytes(picture())
    text = [5, 7, 11]
    prompts = [
        text,
        with_images([5, IMAGE], data),
        with_images([5, IMAGE], data[: len(data) // 2]),
        with_images([5, IMAGE, IMAGE], data),
        with_images([5, IMAGE]),
        [5, IMAGE],
        with_images([5, IMAGE], b"none"),
        {"prompt": "a", "prompt_token_ids": [5]},
        {"images": [data]},
        {"prompt": "a", "image": data},
        {"prompt": "a", "images": data},
        text[::-1],
    ]
    outputs = llm.generate(prompts, GREEDY)
    fine = [output.error is None for output in outputs]
    assert fine == [True, True, *[False] * 9, True]
    for number in (0, 1, 11):
        assert outputs[number].token_ids == llm.generate([prompts[number]], GREEDY)[0].token_ids
    said = [output.error for output in outputs[2:11]]
    for error, part in zip(
        said, ["DI602", "2 image", "1 image", "1 image", "DI602", "both", "neither", "'image'", "a list"], strict=True
    ):
        assert part in error


def test_a_prompt_too_long_by_its_image_is_refused(folder):
    short = LLM(folder, max_model_len=18)
    long, fine = short.generate([with_images([5], picture()), [5]], GREEDY)
    assert "the prompt has %d tokens" % (1 + plan(150, 100, short.config.vision).tokens) in long.error
    assert fine.error is None


def test_without_its_encoder_a_model_takes_text_alone(folder, llm):
    blind = LLM(folder, vision=False)
    refused, text = blind.generate([with_images([5], picture()), [5, 7]], GREEDY)
    assert "without its image encoder" in refused.error
    assert text.token_ids == llm.generate([[5, 7]], GREEDY)[0].token_ids
    assert not any(name.startswith(("vision.", "aligner.", "image_")) for name in blind.loaded.text.params.tensors)


# -- the command ------------------------------------------------------------------------------------------------------


def run(*words):
    command = [sys.executable, "-m", "deepinfer.generate", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_the_command_takes_images_for_the_first_prompt(folder, llm, tmp_path):
    path, bad = tmp_path / "one.png", tmp_path / "bad.png"
    picture().save(path)
    bad.write_bytes(path.read_bytes()[:500])
    words = ["--model", str(folder), "--temperature", "0", "--max-tokens", "8", "--json", "--prompt-ids", "5,7"]
    done = run(*words, "--prompt-ids", "9", "--image", str(path), "--image", str(path))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["outputs"]
    asked = SamplingParams(temperature=0.0, max_tokens=8)
    expected = llm.generate([with_images([5, 7], path, path), [9]], asked)
    for one, other in zip(found, expected, strict=True):
        assert (one["prompt_token_ids"], one["token_ids"]) == (other.prompt_token_ids, other.token_ids)
    done = run(*words, "--prompt-ids", "9", "--image", str(bad))
    assert done.returncode == 1
    broken, fine = json.loads(done.stdout)["outputs"]
    assert "DI602" in broken["error"] and "Traceback" not in done.stderr
    assert fine["token_ids"] == expected[1].token_ids
