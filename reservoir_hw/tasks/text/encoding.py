"""Texts as tokens, encoded in pieces; those of long texts are kept for the next run."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from reservoir_hw.core.documents import Documents
from reservoir_hw.core.errors import InputRangeError
from reservoir_hw.core.tokenizer import BpeTokenizer, Tokenizer, parse_tokenizer
from reservoir_hw.tasks.text.cache import kept_array, kept_text

_PIECE = 1 << 18
# No token of any tokenizer goes from a letter over into the white space behind it, nor depends on what is before it.
_CUT = re.compile(r"(?<=\S)(?=\s)")
_LINE = re.compile(r".+")


def pieces(text: str, size: int = _PIECE) -> Iterator[str]:
    """`text` in pieces of about `size` characters whose tokens, one after the other, are those of the whole."""
    begin = 0
    while begin < len(text):
        found = _CUT.search(text, begin + size)
        end = found.start() if found else len(text)
        yield text[begin:end]
        begin = end


def encoded(tokenizer: Tokenizer, text: str) -> np.ndarray:
    """Tokens (time,) of a text. Of a long one they are mapped into memory.

    Raises `InputRangeError` for what has no token.
    """

    def tokens() -> np.ndarray:
        try:
            return tokenizer.encode_pieces(pieces(text)) if text else tokenizer.encode(text)
        except InputRangeError:
            # Of the whole text it says where.
            return tokenizer.encode(text)

    return kept_array("tokens", tokenizer.dump(), text, tokens)


def encoded_lines(tokenizer: BpeTokenizer, text: str) -> Documents:
    """Each line of a text as a document, with `<|endoftext|>` before and behind it."""
    lines = (line[0] for line in _LINE.finditer(text))
    tokens = kept_array("tokens", f"lines {tokenizer.dump()}", text, lambda: tokenizer.encode_documents(lines))
    ends = np.flatnonzero(tokens == tokenizer.encode(BpeTokenizer.END)[0])
    return Documents(tokens, ends[::2], ends[1::2] + 1)


def trained_byte_pairs(text: str, vocabulary: int) -> Tokenizer:
    """Byte pairs that are trained on a text, kept as tokens are."""
    made = kept_text("byte_pairs", str(vocabulary), text, lambda: BpeTokenizer.trained(pieces(text), vocabulary).dump())
    return parse_tokenizer(made, "the byte pairs that were kept")
