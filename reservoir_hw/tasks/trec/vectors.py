"""Vectors of words: random ones, or those of a file."""

from __future__ import annotations

import gzip
import io
import logging
import lzma
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator
from reservoir_hw.tasks.datasets import found_file

log = logging.getLogger(__name__)

_OPENERS = {".gz": gzip.open, ".xz": lzma.open}
_DAMAGE = (EOFError, lzma.LZMAError, gzip.BadGzipFile)


def random_vectors(words: Iterable[str], width: int, seed: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    """A vector (width,), float32, for each word: normal numbers that depend on the word and the seed alone."""
    return {word: (scale * generator(seed, f"word {word}").standard_normal(width)).astype(np.float32) for word in words}


def word_vectors(words: Iterable[str], file: str, seed: int) -> dict[str, np.ndarray]:
    """Those of a text file for the words that it has, random ones of the same spread for the others.

    A line is a word and its numbers, as GloVe and fastText write them; with .gz or .xz at its end the file is unpacked.
    fastText's first line, which counts words and numbers, is passed over, and so is a last line that is cut off. A word
    that the file has only in lower case gets that vector.

    Raises `ConfigurationError` where the file is not there, damaged, has other lines, or none of the words.
    """
    wanted = set(words)
    found = _found(wanted | {word.lower() for word in wanted}, found_file(file, "vectors"))
    names = {word: word if word in found else word.lower() for word in wanted}
    known = {word: found[name] for word, name in names.items() if name in found}
    if not known:
        raise ConfigurationError(f"vectors: {file} has none of the {len(wanted):,} words of the questions")
    if len(known) < len(wanted):
        log.warning(
            "vectors: %s has %s of the %s words of the questions; the others are random",
            file,
            f"{len(known):,}",
            f"{len(wanted):,}",
        )
    spread = float(np.std(list(known.values())))
    width = len(next(iter(known.values())))
    return {**random_vectors(sorted(wanted - set(known)), width, seed, spread), **known}


def _found(wanted: set[str], path: Path) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    width, cut = None, None
    with _lines(path) as lines:
        for number, line in enumerate(lines, 1):
            if cut is not None:
                raise ConfigurationError(f"vectors: line {cut} of {path} does not hold a word and {width} numbers")
            fields = line.rstrip().split(" ")
            if number == 1 and len(fields) == 2:
                continue
            if width is None:
                width = len(fields) - 1
            if not 1 <= width < len(fields):
                cut = number
                continue
            # GloVe has words of several parts.
            word = " ".join(fields[:-width])
            if word in wanted:
                try:
                    found[word] = np.array(fields[-width:], np.float32)
                except ValueError:
                    cut = number
    return found


@contextmanager
def _lines(path: Path) -> Iterator[IO[str]]:
    try:
        with _OPENERS.get(path.suffix, open)(path, "rb") as file:
            # Some files have a few words in other encodings.
            yield io.TextIOWrapper(file, encoding="utf-8", errors="replace")
    except _DAMAGE as error:
        raise ConfigurationError(f"{path} cannot be unpacked ({error}): it is damaged, copy it again.") from error
