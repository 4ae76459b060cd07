"""``LLM``: offline generation from a checkpoint folder, one static batch at a time.

Results do not depend on the batch: each request has its own state and its own random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import torch

from deepinfer.engine import speculate
from deepinfer.engine.checkpoint.config import read as read_config
from deepinfer.engine.model.load import load as load_model
from deepinfer.engine.model.replay import bounded
from deepinfer.engine.model.state import State
from deepinfer.engine.native import load as load_native
from deepinfer.engine.progress import Progress, bar
from deepinfer.engine.prompt import Prepared, Prompt, prepare
from deepinfer.engine.request import Ahead, Request, RequestOutput, best
from deepinfer.engine.sampling import DRAFT_SAMPLE, SAMPLE, RequestRefused, SamplingParams, pick, processed
from deepinfer.errors import DeepInferError, UsageError

OnToken = Callable[[int, int, str], None]  # request index, token id, text so far
CHUNK = 512  # prompt tokens per forward: bounds the memory of scores


class LLM:
    """A loaded model. ``model`` is a checkpoint folder; ``drafts`` proposes tokens with the draft layers and verifies.

    ``device``: the torch device that holds weights and states and computes (Engram tables and sampling stay on the
    host). ``dtype`` of the arithmetic, ``act_quant`` ``none`` or ``fp8``, ``kv_quant`` False to leave keys unrounded,
    ``vision`` False to leave the image encoder out of memory: prompts with images are refused then. ``replay`` ``off``,
    ``compact`` or ``mask``: :mod:`deepinfer.engine.model.replay`. ``progress``: draw a bar while loading where stderr
    is a terminal, or call this with (done, all, name) bytes.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        act_quant: str = "none",
        kv_quant: bool = True,
        drafts: bool = False,
        replay: str = "off",
        vision: bool = True,
        max_model_len: int | None = None,
        progress: bool | Progress = True,
    ) -> None:
        limit = read_config(Path(model)).text.max_position_embeddings
        self.max_model_len = limit if max_model_len is None else max_model_len
        if not 1 <= self.max_model_len <= limit:
            raise UsageError("max_model_len is %d" % self.max_model_len, fix="from 1 to %d" % limit)
        self.native = load_native()
        self.device = usable(device)
        self.loaded = load_model(
            Path(model),
            dtype=dtype,
            device=self.device,
            act_quant=act_quant,
            kv_quant=kv_quant,
            vision=vision,
            progress=_shown(progress, "loading"),
        )
        self.config = self.loaded.config
        self.loaded.text.replay = bounded(self.config.text, replay)
        self.dtype = dtype
        self.drafts = drafts

    @torch.no_grad()
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        on_token: OnToken | None = None,
        *,
        use_tqdm: bool | Progress = True,
    ) -> list[RequestOutput]:
        """One :class:`RequestOutput` per prompt, in order; a refused request has its error there, the others go on.

        A prompt is text, token ids, or a dict that may have images: :mod:`deepinfer.engine.prompt`. ``use_tqdm``: draw
        a bar where stderr is a terminal (the name is that of other engines), or call this with (done, all, what).
        """
        batch = _batch(prompts)
        params = sampling_params if sampling_params is not None else SamplingParams()
        each = [params] * len(batch) if isinstance(params, SamplingParams) else list(params)
        if len(each) != len(batch):
            what = "%d prompts and %d sampling parameters" % (len(batch), len(each))
            raise UsageError(what, fix="give one for all, or one for each prompt")
        requests = [
            self._admit(number, prompt, own) for number, (prompt, own) in enumerate(zip(batch, each, strict=True))
        ]
        running = [request for request in requests if isinstance(request, Request)]
        ahead = Ahead(running, _shown(use_tqdm, "generating"))
        for request in running:
            self._prefill(request, on_token)
            ahead.tell()
        while running:
            running = [request for request in running if not request.done]
            for request in running:
                self._step(request, on_token)
            ahead.tell()
        return [request.output if isinstance(request, Request) else request for request in requests]

    # -- admission ----------------------------------------------------------------------------------------------------

    def _admit(self, index: int, prompt: Prompt, params: SamplingParams) -> Request | RequestOutput:
        shown: list[int] = []
        try:
            prepared = prepare(prompt, self.loaded)
            shown = prepared.shown(self.config)
            params.check(replay=self.loaded.text.replay.mode != "off")
            room = self.max_model_len - len(shown)
            if room < 1:
                what = "the prompt has %d tokens; the model takes %d with at least one new" % (
                    len(shown),
                    self.max_model_len,
                )
                raise RequestRefused(what, fix="shorten the prompt or raise max_model_len")
            prepared.decode(self.config)
        except DeepInferError as error:
            return RequestOutput(index, shown, error=str(error))
        output = RequestOutput(index, shown, finish_reason="", logprobs=None if params.logprobs is None else [])
        capacity = len(shown) + min(params.max_tokens, room) + self.config.text.dspark_block_size + 1
        return Request(
            output, params, State(self.config.text, capacity, dtype=self.dtype, device=self.device), prepared
        )

    # -- steps --------------------------------------------------------------------------------------------------------

    def _prefill(self, request: Request, on_token: OnToken | None) -> None:
        output, params, text = request.output, request.params, self.loaded.text
        text.replay.prepare(request.state, len(output.prompt_token_ids))
        ids = torch.tensor(request.prompt.ids, device=self.device)
        rows = self._image_rows(request.prompt)
        if params.prompt_logprobs is not None:
            output.prompt_logprobs = [None]
        last = torch.empty(0)
        for start in range(0, len(ids), CHUNK):
            part = ids[start : start + CHUNK]
            count = int((part >= self.config.text.vocab_size).sum())
            hidden = self._forward(part, request.state, rows[:count] if count else None)
            rows = rows[count:]
            if output.prompt_logprobs is not None and params.prompt_logprobs is not None:
                predicted = torch.log_softmax(text.logits(hidden).cpu().double(), dim=-1)
                following_ids = output.prompt_token_ids[start + 1 : start + 1 + len(part)]
                for row, following in zip(predicted, following_ids, strict=False):
                    output.prompt_logprobs.append(best(row, params.prompt_logprobs, following))
            last = hidden[-1:]
        logits = text.logits(last)[0].cpu()
        chosen = pick(self.native, processed(logits, params), params, request.state.length, SAMPLE)
        self._emit(request, [chosen], [logits], on_token)

    def _image_rows(self, prompt: Prepared) -> torch.Tensor:
        """[M, D]: the embedding rows of all spans of ``prompt``, in order."""
        vision = self.loaded.vision
        spans = [vision.span(one.patches, one.grid.rows, one.grid.columns) for one in prompt.pictures] if vision else []
        return torch.cat(spans) if spans else torch.empty(0, self.config.text.hidden_size)

    def _forward(self, ids: torch.Tensor, state: State, rows: torch.Tensor | None = None) -> torch.Tensor:
        out = self.loaded.text.forward(ids, state, rows)
        if self.drafts:
            self.loaded.draft.absorb(out.taps, state.length - len(out.taps), state)
        return out.hidden

    def _step(self, request: Request, on_token: OnToken | None) -> None:
        """Run the last token and its drafts; keep what stands, rewind the rest."""
        state, params = request.state, request.params
        if self.drafts:
            self._propose(request)
        position = state.length + 1  # of the first token that this step decides
        rows = [request.output.token_ids[-1], *request.drafts]
        hidden = self._forward(torch.tensor(rows, device=self.device), state)
        logits = list(self.loaded.text.logits(hidden).cpu())
        targets = [processed(row, params) for row in logits]
        tokens = speculate.verify(self.native, request.drafts, request.draft_logprobs, targets, params, position)
        state.rewind(position + len(tokens) - 1)
        self._emit(request, tokens, logits, on_token)

    def _propose(self, request: Request) -> None:
        """Fill ``drafts``: no more than may still be emitted beside the target's own token."""
        params, state = request.params, request.state
        found: list[torch.Tensor] = []

        def choose(logits: torch.Tensor) -> int:
            found.append(processed(logits.cpu(), params))
            return pick(self.native, found[-1], params, state.length + len(found), DRAFT_SAMPLE)

        left = params.max_tokens - len(request.output.token_ids) - 1
        count = max(0, min(self.config.text.dspark_block_size, left, state.backtrack))
        anchor = request.output.token_ids[-1]
        proposal = self.loaded.draft.propose(anchor, state, choose) if count else None
        request.drafts = proposal.tokens.tolist()[:count] if proposal else []
        request.draft_logprobs = found[:count]

    # -- output -------------------------------------------------------------------------------------------------------

    def _emit(self, request: Request, tokens: list[int], logits: list[torch.Tensor], on_token: OnToken | None) -> None:
        """Append tokens one by one until the request ends."""
        output, params = request.output, request.params
        stops = set(params.stop_token_ids or ()) | (set() if params.ignore_eos else {self.config.eos_token_id})
        for token, row in zip(tokens, logits, strict=False):
            output.token_ids.append(token)
            if output.logprobs is not None:
                output.logprobs.append(best(torch.log_softmax(row.double(), dim=-1), params.logprobs or 0, token))
            output.text = self.loaded.tokenizer.decode(output.token_ids, skip_special_tokens=True)
            cut = min((at for at in (output.text.find(stop) for stop in params.stops) if at >= 0), default=-1)
            if cut >= 0:
                output.text = output.text[:cut]
            if on_token is not None:
                on_token(output.index, token, output.text)
            if token in stops or cut >= 0:
                output.finish_reason = "stop"
            elif len(output.token_ids) >= min(params.max_tokens, self.max_model_len - len(output.prompt_token_ids)):
                output.finish_reason = "length"
            if request.done:
                return


def _batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt, whatever its form, is a batch of one."""
    if isinstance(prompts, (str, Mapping)) or (len(prompts) > 0 and isinstance(prompts[0], int)):
        return [cast("Prompt", prompts)]
    return list(cast("Sequence[Prompt]", prompts))


def _shown(progress: bool | Progress, label: str) -> Progress | None:
    """What to call with progress: True is a bar, if stderr is a terminal."""
    return (bar(label) if progress else None) if isinstance(progress, bool) else progress


def usable(device: str | torch.device) -> torch.device:
    """``device`` if this torch can compute on it. Raises :class:`UsageError`."""
    try:
        found = torch.device(device)
    except RuntimeError:
        raise UsageError("device is %r" % device, fix="cpu, cuda, or cuda and a number: cuda:1") from None
    if found.type not in ("cpu", "cuda") or str(found) != str(device):  # torch wraps an index that is too large
        raise UsageError("device is %r" % str(device), fix="cpu, cuda, or cuda and a number: cuda:1")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        what = "device is %s, and torch sees %d CUDA devices" % (found, torch.cuda.device_count())
        raise UsageError(what, fix="cpu, or install a torch that is built for CUDA and this driver")
    return found
