"""``python -m deepinfer.generate --model DIR --prompt TEXT``: generate from a checkpoint folder."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

from deepinfer.command_line import Arguments
from deepinfer.engine.checkpoint.shards import missing
from deepinfer.errors import DeepInferError, UsageError


def arguments() -> Arguments:
    """The command line."""
    parser = Arguments(prog="python -m deepinfer.generate", description="Generate from a checkpoint folder.")
    parser.add_argument("--model", required=True, metavar="DIR", help="checkpoint folder")
    parser.add_argument(
        "--prompt", action="append", default=[], metavar="TEXT", help="text; may be given several times"
    )
    parser.add_argument("--prompt-ids", action="append", default=[], metavar="IDS", help="token ids, such as 5,7,11")
    parser.add_argument(
        "--image", action="append", default=[], metavar="FILE", help="goes with the first prompt; may be repeated"
    )
    parser.add_argument("--max-tokens", type=int, default=16, help="new tokens at most (default: 16)")
    parser.add_argument("--temperature", type=float, default=1.0, help="0: the most likely token")
    parser.add_argument("--top-k", type=int, default=0, help="0: no cut")
    parser.add_argument("--top-p", type=float, default=1.0, help="1: no cut")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same tokens")
    parser.add_argument(
        "--stop", action="append", default=None, help="end before this text; may be given several times"
    )
    parser.add_argument("--logprobs", type=int, default=None, metavar="K", help="the K best of each new token")
    parser.add_argument("--prompt-logprobs", type=int, default=None, metavar="K", help="likewise of the prompt")
    parser.add_argument("--drafts", choices=("on", "off"), default="off", help="propose tokens and verify them")
    parser.add_argument("--kv-quant", choices=("on", "off"), default="on", help="off: for comparisons only")
    parser.add_argument(
        "--replay", choices=("off", "compact", "mask"), default="off", help="last prompt rows only in the later layers"
    )
    parser.add_argument("--device", default="cpu", help="torch device that computes: cpu or cuda (default: cpu)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def main(words: list[str] | None = None) -> int:
    """Exit code 0: every request was served; 1: one was refused or the model cannot be loaded; 2: usage."""
    try:
        options = arguments().parse_args(words)
        return _run(options)
    except UsageError as error:
        sys.stderr.write("%s\n" % error)
        return 2
    except ModuleNotFoundError as error:
        sys.stderr.write("%s\n" % missing(error.name or "torch"))
        return 1
    except DeepInferError as error:
        sys.stderr.write("%s\n" % error)
        return 1


def _run(options: Any) -> int:
    prompts = _prompts(options)
    from deepinfer.engine.llm import LLM
    from deepinfer.engine.sampling import SamplingParams

    params = SamplingParams(
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        max_tokens=options.max_tokens,
        seed=options.seed,
        stop=options.stop,
        logprobs=options.logprobs,
        prompt_logprobs=options.prompt_logprobs,
    )
    llm = LLM(
        options.model,
        drafts=options.drafts == "on",
        kv_quant=options.kv_quant == "on",
        vision=bool(options.image),
        device=options.device,
        replay=options.replay,
    )
    outputs = llm.generate(prompts, params)
    if options.json:
        fields = (
            "index",
            "prompt_token_ids",
            "token_ids",
            "text",
            "finish_reason",
            "logprobs",
            "prompt_logprobs",
            "error",
        )
        rows = [{name: asdict(output)[name] for name in fields} for output in outputs]
        print(json.dumps({"schema": 1, "outputs": rows}, indent=1))
    else:
        for output in outputs:
            print(output.text if output.error is None else output.error)
    return int(any(output.error is not None for output in outputs))


def _prompts(options: Any) -> list[Any]:
    """Texts, then token ids; the images go with the first."""
    prompts: list[Any] = list(options.prompt)
    for text in options.prompt_ids:
        try:
            prompts.append([int(word) for word in text.split(",")])
        except ValueError:
            raise UsageError("--prompt-ids is %r" % text, fix="numbers and commas, such as 5,7,11") from None
    if not prompts:
        raise UsageError("there is no prompt", fix="--prompt TEXT or --prompt-ids 5,7,11")
    if options.image:
        key = "prompt" if isinstance(prompts[0], str) else "prompt_token_ids"
        prompts[0] = {key: prompts[0], "images": options.image}
    return prompts


if __name__ == "__main__":
    sys.exit(main())
