"""Texts as tokens, encoded in pieces; those of long texts are kept for the next run."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from reservoir_hw.core.errors import InputRangeError
from reservoir_hw.core.files import replace_file
from reservoir_hw.core.tokenizer import BpeTokenizer, Tokenizer, load_tokenizer

log = logging.getLogger(__name__)

CACHE_VARIABLE = "RESERVOIR_HW_CACHE"
"""Environment variable that names the folder in which tokens are kept."""

LONG = 1 << 20
"""Characters from which on a text is encoded once for all runs."""

_PIECE = 1 << 18
_SLOW = 1 << 22
# No token of any tokenizer goes from a letter over into the white space behind it, nor depends on what is before it.
_CUT = re.compile(r"(?<=\S)(?=\s)")


def pieces(text: str, size: int = _PIECE) -> Iterator[str]:
    """`text` in pieces of about `size` characters whose tokens, one after the other, are those of the whole."""
    begin = 0
    while begin < len(text):
        found = _CUT.search(text, begin + size)
        end = found.start() if found else len(text)
        yield text[begin:end]
        begin = end


def encoded(tokenizer: Tokenizer, text: str) -> np.ndarray:
    """Tokens (time,) of a text. Of a long one they lie in a file that all processes share, mapped into memory.

    Raises `InputRangeError` for what has no token.
    """
    if len(text) < LONG:
        return tokenizer.encode(text)
    path = cache_folder() / "tokens" / f"{_digest(tokenizer.dump(), text)}.npy"
    kept = _mapped(path)
    if kept is not None and len(kept):
        return kept
    if len(text) >= _SLOW:
        log.warning("encoding %s characters, once for all runs, into %s", f"{len(text):,}", path)
    try:
        tokens = tokenizer.encode_pieces(pieces(text))
    except InputRangeError:
        # Of the whole text it says where.
        return tokenizer.encode(text)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        making = path.with_suffix(f".{os.getpid()}.npy")
        np.save(making, tokens)
        making.rename(path)
    except OSError as error:
        log.warning("tokens cannot be kept in %s: %s; every run will encode them anew", path.parent, error)
        return tokens
    return np.load(path, mmap_mode="r")


def trained_byte_pairs(text: str, vocabulary: int) -> Tokenizer:
    """Byte pairs that are trained on a text, kept as tokens are."""
    path = cache_folder() / "byte_pairs" / f"{_digest(str(vocabulary), text)}.json"
    if len(text) >= LONG and path.is_file():
        return load_tokenizer(path)
    if len(text) >= _SLOW:
        log.warning("training %s byte pairs on %s characters, once for all runs", f"{vocabulary:,}", f"{len(text):,}")
    made = BpeTokenizer.trained(pieces(text), vocabulary)
    if len(text) >= LONG:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, made.dump())
        except OSError as error:
            log.warning("byte pairs cannot be kept in %s: %s; every run will train them anew", path.parent, error)
    return made


def cache_folder() -> Path:
    """Where tokens are kept: `RESERVOIR_HW_CACHE`, or else a folder of the user."""
    given = os.environ.get(CACHE_VARIABLE)
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "reservoir_hw"


def _digest(of: str, text: str) -> str:
    # The length of the first part keeps the two apart.
    return hashlib.sha256(f"{len(of)} {of}{text}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _mapped(path: Path) -> np.ndarray | None:
    try:
        return np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError):
        # Not there yet, or cut by a full disk: it is made again.
        return None
