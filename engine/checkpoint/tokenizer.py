"""tokenizer.json against the weights, and the compressed token map that the Engram tables are hashed with.

The map: every token id is decoded alone, special tokens kept. A text with U+FFFD (bytes that are no character) has the
raw vocabulary string as its key; any other has its normal form, or itself where that is empty. Ids with one key are
one; new ids count in order of first appearance. Normal form: NFKC, NFD, accents off, lower case, runs of space, tab,
CR, LF to one space, ends stripped, but for a text that is one space.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deepinfer.engine.checkpoint.config import Config
from deepinfer.engine.checkpoint.errors import Problem, Refused, TokenizerMismatch
from deepinfer.engine.checkpoint.shards import COPY, missing

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.normalizers import Normalizer

FILE = "tokenizer.json"
LIMIT = 128 << 20  # bytes
BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"  # noqa: RUF001
PLACEHOLDERS = tuple("<|place_holder_mm_span_%04d|>" % number for number in range(21))
_LONE_SPACE = "\ue000"  # stands for a text that is one space while ends are stripped


def read(folder: Path) -> Tokenizer:
    """The tokenizer of ``folder``. Raises :class:`TokenizerMismatch` or :class:`Refused` with the file."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise missing("tokenizers") from error
    path = folder / FILE
    try:
        if path.stat().st_size > LIMIT:
            raise TokenizerMismatch((_problem("", "more than %d bytes" % LIMIT),))
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Refused((Problem(Refused, FILE, "", "cannot be read: %s" % error, COPY % FILE),)) from error
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing narrower
        raise TokenizerMismatch((_problem("", "the tokenizers library refuses it: %s" % error),)) from error


def compressed_map(tokenizer: Tokenizer, vocabulary: int) -> list[int]:
    """Compressed id of every token id below ``vocabulary`` that the tokenizer has (ids from 0 without a gap)."""
    normal = _normaliser()
    known: dict[str, int] = {}
    ids = []
    for token in range(min(vocabulary, tokenizer.get_vocab_size(with_added_tokens=True))):
        text = tokenizer.decode([token], skip_special_tokens=False)
        raw = tokenizer.id_to_token(token) or ""
        key = raw if "\ufffd" in text else normal.normalize_str(text) or text
        ids.append(known.setdefault(key, len(known)))
    return ids


def problems(tokenizer: Tokenizer, config: Config) -> list[Problem]:
    """Everything in which the tokenizer differs from the configuration."""
    found = []
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    gaps = [token for token in range(size) if tokenizer.id_to_token(token) is None]
    if gaps:
        found.append(_problem("", "no token has id %d, though there are %d tokens" % (gaps[0], size)))
    if config.tokenizer_compatibility == "release":
        found += _release(tokenizer, config.text.vocab_size)
    elif size > config.text.vocab_size:
        found.append(_problem("", "%d tokens for a vocabulary of %d" % (size, config.text.vocab_size)))
    if tokenizer.id_to_token(config.pad_token_id) is None or tokenizer.token_to_id(PAD) not in (None, 2):
        found.append(_problem("", "the pad token needs id 2"))
    if not gaps:
        count = max(compressed_map(tokenizer, config.text.vocab_size), default=-1) + 1
        needed = config.text.engram_compressed_vocab_size
        if count != needed:
            what = "its compressed vocabulary has %d ids, config.json says %d: every Engram row would be another"
            found.append(_problem("engram_compressed_vocab_size", what % (count, needed)))
    return found


def _release(tokenizer: Tokenizer, vocabulary: int) -> list[Problem]:
    """What the release's tokenizer has: three special tokens, no EOS by itself, placeholders after the vocabulary."""
    found = []
    for token, text in enumerate((BOS, EOS, PAD)):
        if tokenizer.id_to_token(token) != text:
            found.append(_problem(text, "id %d is %r" % (token, tokenizer.id_to_token(token))))
    if tokenizer.encode("a").ids[-1:] == [1]:
        found.append(_problem(EOS, "the tokenizer appends it by itself"))
    for number in range(tokenizer.get_vocab_size(with_added_tokens=True) - vocabulary):
        needed = PLACEHOLDERS[number] if number < len(PLACEHOLDERS) else None
        there = tokenizer.id_to_token(vocabulary + number)
        if there != needed:
            what = "id %d is %r, %s needed" % (vocabulary + number, there, repr(needed) if needed else "no such id")
            found.append(_problem("", what))
            break
    return found


def _problem(subject: str, what: str) -> Problem:
    return Problem(TokenizerMismatch, FILE, subject, what, COPY % FILE)


def _normaliser() -> Normalizer:
    from tokenizers import Regex, normalizers

    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), _LONE_SPACE),
            normalizers.Strip(),
            normalizers.Replace(_LONE_SPACE, " "),
        ]
    )
