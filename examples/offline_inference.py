"""Generate from a checkpoint folder, as an application would.

python -m deepinfer.checkpoint make-tiny /path/to/tiny --seed 1
python examples/offline_inference.py /path/to/tiny
"""

from __future__ import annotations

import sys

from deepinfer import LLM, SamplingParams


def main() -> None:
    llm = LLM(sys.argv[1])
    prompts = [[5, 7, 11], [40, 41, 42, 43]]
    for output in llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=12)):
        print(output.prompt_token_ids, "->", output.token_ids, output.finish_reason)


if __name__ == "__main__":
    main()
