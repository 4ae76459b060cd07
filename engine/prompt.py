"""What a prompt may be, and what the model is fed for it: token ids with a span of ids for each image.

A prompt is text, token ids, or a dict with ``prompt`` or ``prompt_token_ids`` and ``images``: paths, bytes of files, or
images of Pillow. Each placeholder (``image_token_id`` of config.json) is replaced by the next image. A prompt without
any gets its images in front, behind a leading BOS token; any other difference between the two counts is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from deepinfer.engine.checkpoint.config import Config
from deepinfer.engine.images import Picture, Source, measure, read
from deepinfer.engine.sampling import RequestRefused

if TYPE_CHECKING:
    from deepinfer.engine.model.load import Loaded

Prompt = str | Sequence[int] | Mapping[str, Any]
_KEYS = ("prompt", "prompt_token_ids", "images")


@dataclass
class Prepared:
    """``ids``: what the text model reads; every place of a span has ``vocab_size``, an id that no token has."""

    ids: list[int]
    sources: list[Source] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)

    def shown(self, config: Config) -> list[int]:
        """The ids with the placeholder at every place of a span."""
        return [config.image_token_id if token == config.text.vocab_size else token for token in self.ids]

    def decode(self, config: Config) -> None:
        """Read the pixels of every image: the last thing before a request runs. Raises what reading one raises."""
        self.pictures = [read(source, config.vision) for source in self.sources]


def prepare(prompt: Prompt, loaded: Loaded) -> Prepared:
    """Tokens checked, spans laid out by the headers of the images; :meth:`Prepared.decode` reads their pixels.

    Raises :class:`RequestRefused` or what reading an image raises.
    """
    words, sources = _parts(prompt)
    ids = _ids(words, loaded)
    places = [place for place, token in enumerate(ids) if token == loaded.config.image_token_id]
    if sources and not places:
        places = [int(ids[:1] == [loaded.config.bos_token_id])]
        ids[places[0] : places[0]] = [loaded.config.image_token_id] * len(sources)
        places = list(range(places[0], places[0] + len(sources)))
    if len(places) != len(sources):
        what = "the prompt has %d image placeholders (token %d) and %d images"
        values = (len(places), loaded.config.image_token_id, len(sources))
        raise RequestRefused(what % values, fix="give one image for each placeholder")
    if sources and loaded.vision is None:
        raise RequestRefused("the model was loaded without its image encoder", fix="LLM(..., vision=True)")
    spans = iter([measure(source, loaded.config.vision).tokens for source in sources])
    prepared = Prepared([], sources)
    for token in ids:
        image = token == loaded.config.image_token_id
        prepared.ids += [loaded.config.text.vocab_size] * next(spans) if image else [token]
    if not prepared.ids:
        raise RequestRefused("the prompt is empty", fix="give at least one token")
    return prepared


def _parts(prompt: Prompt) -> tuple[str | Sequence[int], list[Source]]:
    """Text or ids, and the images."""
    if not isinstance(prompt, Mapping):
        return prompt, []
    unknown = sorted(str(key) for key in prompt if key not in _KEYS)
    if unknown:
        raise RequestRefused("the prompt has the key %r" % unknown[0], fix="the keys are %s" % ", ".join(_KEYS))
    given = [prompt[key] for key in ("prompt", "prompt_token_ids") if key in prompt]
    if len(given) != 1:
        what = "the prompt has %s of prompt and prompt_token_ids" % ("both" if given else "neither")
        raise RequestRefused(what, fix="give one of the two")
    images = prompt.get("images") or []
    if isinstance(images, (str, bytes, Path)) or not isinstance(images, Sequence):
        raise RequestRefused("images is %s" % type(images).__name__, fix="a list, also for one image")
    return cast("str | Sequence[int]", given[0]), list(images)


def _ids(words: str | Sequence[int], loaded: Loaded) -> list[int]:
    if isinstance(words, str):
        ids = list(loaded.tokenizer.encode(words, add_special_tokens=True).ids)
    else:
        ids = _numbers(words)
    size = loaded.config.text.vocab_size
    for place, token in enumerate(ids):
        if not 0 <= token < size:
            raise RequestRefused("prompt token %d is %d" % (place, token), fix="token ids are 0 to %d" % (size - 1))
    return ids


def _numbers(words: Sequence[int]) -> list[int]:
    """Token ids of a sequence of whole numbers, of any integer type; nothing else is taken for one."""
    if isinstance(words, (bytes, bytearray)) or not isinstance(words, Iterable):
        raise RequestRefused("the prompt is %s" % type(words).__name__, fix="text, or a list of token ids")
    ids = []
    for place, token in enumerate(words):
        try:
            number = None if isinstance(token, bool) else operator.index(token)
        except TypeError:
            number = None
        if number is None:
            raise RequestRefused("prompt token %d is %r" % (place, token), fix="whole numbers: a list of token ids")
        ids.append(number)
    return ids
