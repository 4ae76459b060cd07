"""``LLM`` and the command on a tiny checkpoint: neither batch nor drafts change a result; refusals stay alone."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="not run: torch is not installed")
for package in ("safetensors", "tokenizers"):
    pytest.importorskip(package, reason=f"not run: {package} is not installed")

from deepinfer import LLM, SamplingParams
from deepinfer.engine.checkpoint.tiny import make
from deepinfer.errors import UsageError

PROMPTS = [[5, 7, 11], list(range(3, 90)), [40], [9] * 40]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tiny") / "checkpoint"
    make(made, seed=1)
    return made


@pytest.fixture(scope="module")
def llm(folder):
    return LLM(folder)


@pytest.fixture(scope="module")
def drafting(folder):
    return LLM(folder, drafts=True)


def tokens(outputs):
    return [output.token_ids for output in outputs]


def test_results_do_not_depend_on_the_batch(llm):
    together = tokens(llm.generate(PROMPTS, GREEDY))
    assert together == [tokens(llm.generate([prompt], GREEDY))[0] for prompt in PROMPTS]
    assert together == tokens(llm.generate(PROMPTS[::-1], GREEDY))[::-1]
    assert len({tuple(one) for one in together}) == len(PROMPTS)


def test_drafts_do_not_change_greedy_results(llm, drafting):
    assert tokens(drafting.generate(PROMPTS, GREEDY)) == tokens(llm.generate(PROMPTS, GREEDY))


@pytest.mark.parametrize("which", ["llm", "drafting"])
def test_a_seed_repeats_and_another_differs(which, request):
    one = request.getfixturevalue(which)
    first, again, other = (
        tokens(one.generate(PROMPTS, SamplingParams(seed=seed, max_tokens=12))) for seed in (3, 3, 4)
    )
    assert first == again
    assert first != other


def test_logprobs_are_those_of_a_prompt_that_ends_the_same(llm):
    asked = SamplingParams(temperature=0.0, max_tokens=6, logprobs=3, ignore_eos=True)
    output = llm.generate([PROMPTS[0]], asked)[0]
    replay = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=3)
    prompt = llm.generate([PROMPTS[0] + output.token_ids], replay)[0].prompt_logprobs
    assert prompt[0] is None
    assert len(prompt) == len(PROMPTS[0]) + 6
    for token, one, other in zip(output.token_ids, output.logprobs, prompt[len(PROMPTS[0]) :], strict=True):
        assert next(iter(one)) == token
        assert one == pytest.approx(other, abs=1e-3)


def test_stop_tokens_stop_strings_and_length_end_a_request(llm):
    ids = llm.generate([PROMPTS[0]], GREEDY)[0].token_ids
    by_id = llm.generate([PROMPTS[0]], SamplingParams(temperature=0.0, max_tokens=24, stop_token_ids=[ids[5]]))[0]
    assert (by_id.token_ids, by_id.finish_reason) == (ids[: ids.index(ids[5]) + 1], "stop")
    text = llm.generate([PROMPTS[0]], GREEDY)[0].text
    needle = text[len(text) // 2 :][:2]
    cut = llm.generate([PROMPTS[0]], SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, stop=needle))[0]
    assert cut.finish_reason == "stop"
    assert cut.text == text[: text.find(needle)]
    assert llm.generate([PROMPTS[0]], SamplingParams(temperature=0.0, max_tokens=1))[0].finish_reason == "length"


def test_tokens_are_streamed_in_order(llm):
    seen = {}
    outputs = llm.generate(PROMPTS, GREEDY, lambda index, token, text: seen.setdefault(index, []).append(token))
    assert [seen[number] for number in range(len(PROMPTS))] == tokens(outputs)


def test_a_refused_request_leaves_the_others_alone(llm):
    bad = [[], [10**6], [5, 7, 11], [-1]]
    outputs = llm.generate(bad, GREEDY)
    assert [output.finish_reason for output in outputs] == ["error", "error", "length", "error"]
    assert tokens(outputs)[2] == llm.generate([[5, 7, 11]], GREEDY)[0].token_ids
    assert "DI601" in outputs[1].error
    assert "prompt token 0 is 1000000" in outputs[1].error


def test_the_longest_prompt_leaves_room_for_one_token(folder):
    short = LLM(folder, max_model_len=8)
    full, over = short.generate([[5] * 7, [5] * 8], GREEDY)
    assert (len(full.token_ids), full.finish_reason) == (1, "length")
    assert "8 tokens" in over.error


@pytest.mark.parametrize("length", [0, -1, 10**9])
def test_a_length_that_the_model_does_not_have_is_refused(folder, length):
    with pytest.raises(UsageError, match="max_model_len is %d" % length):
        LLM(folder, max_model_len=length)


def test_prompts_and_parameters_must_pair_up(llm):
    with pytest.raises(UsageError, match="2 prompts and 1"):
        llm.generate([[5], [6]], [GREEDY])


def run(*words):
    command = [sys.executable, "-m", "deepinfer.generate", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_the_command_prints_what_the_library_returns(folder, llm):
    done = run("--model", str(folder), "--prompt-ids", "5,7,11", "--temperature", "0", "--max-tokens", "8", "--json")
    assert done.returncode == 0, done.stderr
    expected = llm.generate([[5, 7, 11]], SamplingParams(temperature=0.0, max_tokens=8))[0]
    assert json.loads(done.stdout)["outputs"][0]["token_ids"] == expected.token_ids


def test_the_command_refuses_by_code(folder, tmp_path):
    for words, code, text in (
        (["--model", str(folder)], 2, "there is no prompt"),
        (["--model", str(folder), "--prompt-ids", "5,x"], 2, "--prompt-ids is '5,x'"),
        (["--model", str(tmp_path), "--prompt-ids", "5"], 1, "DI501"),
        (["--model", str(folder), "--prompt-ids", "5", "--temperature", "-1"], 1, "DI601"),
    ):
        done = run(*words)
        assert done.returncode == code, (words, done.stderr)
        assert text in done.stderr + done.stdout
        assert "Traceback" not in done.stderr


def test_the_command_names_a_package_that_is_not_installed(folder):
    code = "import sys; sys.modules['torch'] = None; from deepinfer.generate import main; sys.exit(main(%r))"
    words = ["--model", str(folder), "--prompt-ids", "5"]
    done = subprocess.run([sys.executable, "-c", code % words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("DI510: torch is not installed")


def test_progress_counts_every_token_once_and_ends_whole(llm):
    seen = []
    mixed = [SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True) for count in (3, 9)]
    outputs = llm.generate(PROMPTS[:2], mixed, use_tqdm=lambda *step: seen.append(step))
    whole = sum(len(prompt) for prompt in PROMPTS[:2]) + 3 + 9
    assert seen[-1] == (whole, whole, "12 tokens chosen")
    assert [len(output.token_ids) for output in outputs] == [3, 9]
    done = [step[0] for step in seen]
    assert done == sorted(done) and done[0] < whole


def test_a_bar_is_drawn_on_a_terminal_alone(folder, llm, monkeypatch, capsys):
    params = SamplingParams(temperature=0.0, max_tokens=2)
    llm.generate(PROMPTS[:1], params)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    llm.generate(PROMPTS[:1], params, use_tqdm=False)
    assert capsys.readouterr().err == ""
    llm.generate(PROMPTS[:1], params)
    shown = capsys.readouterr().err
    assert "generating [" in shown and "100 %" in shown and shown.endswith("\n")
    LLM(folder)
    assert "loading [" in capsys.readouterr().err


@pytest.mark.parametrize("device", ["nowhere", "cuda:99", ""])
def test_a_device_that_is_not_here_is_refused_before_anything_is_loaded(folder, device):
    steps = []
    with pytest.raises(UsageError, match="device is") as refused:
        LLM(folder, device=device, progress=lambda *step: steps.append(step))
    assert refused.value.fix.startswith("cpu")
    assert steps == []


def test_the_command_takes_device_and_replay(folder, capsys):
    from deepinfer.generate import main

    ids = ",".join(str(token) for token in range(3, 160))
    words = ["--model", str(folder), "--prompt-ids", ids, "--temperature", "0", "--max-tokens", "3", "--json"]
    found = {}
    for replay in ("off", "compact", "mask"):
        assert main([*words, "--device", "cpu", "--replay", replay]) == 0
        found[replay] = json.loads(capsys.readouterr().out)["outputs"][0]["token_ids"]
    assert found["compact"] == found["mask"]
    assert len(found["off"]) == 3
    assert main([*words, "--device", "cuda:99"]) == 2
    assert "device is cuda:99" in capsys.readouterr().err


@pytest.mark.parametrize("bad", [[5, None], ["a"], [5.7], [True], b"xy", {"prompt": None}, None], ids=repr)
def test_a_malformed_prompt_is_refused_alone(llm, bad):
    refused, fine = llm.generate([bad, PROMPTS[0]], SamplingParams(temperature=0.0, max_tokens=2))
    assert refused.finish_reason == "error" and refused.error.startswith("DI601")
    assert len(fine.token_ids) == 2


@pytest.mark.parametrize("device", ["mps", "meta", "cuda:256"])
def test_only_named_devices_are_taken(folder, device):
    with pytest.raises(UsageError, match="device is"):
        LLM(folder, device=device)
