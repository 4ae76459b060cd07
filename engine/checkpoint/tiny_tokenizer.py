"""A tokenizer of 512 tokens that has what the release's has: byte tokens, merges, special tokens.

Its compressed map is no identity: ``A`` and ``a`` share a key, so do ``a`` and `` a``, and single bytes of longer
characters decode to no text at all.
"""

from __future__ import annotations

from deepinfer.engine.checkpoint.shards import missing
from deepinfer.engine.checkpoint.tokenizer import BOS, EOS, PAD

SIZE = 512
NOISE, IMAGE = 500, 505  # ids; from 500 on all tokens are special
IMAGE_TEXT = "<｜deepseek_image｜>"  # noqa: RUF001
_VOWELS, _CONSONANTS, _SPACE = "aeiou", "bcdfghjklmnpqrstvwxyz", "Ġ"


def tokenizer_json() -> str:
    """The text of tokenizer.json, the same for every call with one version of the tokenizers library."""
    try:
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    except ImportError as error:
        raise missing("tokenizers") from error
    merges = _merges()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [BOS, EOS, PAD, *alphabet, *(left + right for left, right in merges)]
    specials = [_special(number) for number in range(NOISE, SIZE)]
    vocabulary = {word: number for number, word in enumerate(words + specials)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(word, special=True, normalized=False) for word in [BOS, EOS, PAD, *specials]]
    )
    return tokenizer.to_str(pretty=True) + "\n"


def _merges() -> list[tuple[str, str]]:
    """241 pairs: space and a letter, consonant and vowel, vowel and consonant."""
    lower = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pairs = [(_SPACE, letter) for letter in lower + [letter.upper() for letter in lower]]
    pairs += [(first, second) for first in _CONSONANTS for second in _VOWELS]
    pairs += [(second, first) for first in _CONSONANTS for second in _VOWELS]
    return pairs[: NOISE - 3 - 256]


def _special(number: int) -> str:
    return IMAGE_TEXT if number == IMAGE else "<｜tiny_%d｜>" % number  # noqa: RUF001
