"""Text from files, cut into what is for training, validation and test."""

from __future__ import annotations

import io
import lzma
import re
import tarfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.tasks.datasets import found_file, unpacked

SPACE = re.compile(r"\s")
LINE = re.compile(r"\n")


def read_text(paths: Sequence[str], offset: int = 0, limit: int | None = None, members: str = "*.txt") -> str:
    """The `limit` characters behind the first `offset` of these files, one after the other.

    A path is looked for as it stands, then in the folder of `RESERVOIR_HW_DATA`; with .gz or .xz at its end it is
    unpacked. Of an archive (.tar, also packed) the files count whose names fit the pattern `members`, in the order of
    their names, each from a new line on. Line ends become newlines.

    Raises `ConfigurationError` for files that are not there, damaged, empty, or not text in UTF-8, and where `offset`
    leaves nothing of them.
    """
    end = None if limit is None else offset + limit
    pieces: list[str] = []
    length = 0
    for piece in (piece for path in paths for piece in _texts_of(found_file(path, "corpus"), members)):
        pieces.append(piece)
        length += len(piece)
        if end is not None and length >= end:
            break
    text = "".join(pieces)
    if offset >= len(text):
        raise ConfigurationError(
            f"offset: {offset:,} characters are to be skipped, but there are only {len(text):,} in {', '.join(paths)}"
        )
    return text[offset:end]


def cut(text: str, parts: Sequence[float], at: re.Pattern[str] | None = None) -> list[str]:
    """`text` in contiguous parts with these shares of the characters; the rest of the text comes first.

    `at` moves each cut to the next place that fits, so that no word (`SPACE`) or line (`LINE`) is divided.
    """
    pieces: list[str] = []
    end = len(text)
    for share in reversed(parts):
        begin = end - round(share * len(text))
        if at is not None and begin < end and (found := at.search(text, begin)) is not None:
            begin = min(found.start(), end)
        pieces.append(text[begin:end])
        end = begin
    return [text[:end], *reversed(pieces)]


def _texts_of(path: Path, members: str) -> Iterator[str]:
    """The text of a file, or those of an archive."""
    if ".tar" not in path.suffixes:
        text = _decoded(unpacked(path), str(path))
        if not text.strip():
            raise ConfigurationError(f"corpus: {path} is empty: there is nothing to learn from")
        yield text
        return
    try:
        with tarfile.open(path) as archive:
            files = sorted((one for one in archive if one.isfile()), key=lambda one: one.name)
            chosen = [one for one in files if fnmatch(one.name, members)]
            if not chosen:
                known = ", ".join(one.name for one in files[:3]) or "nothing"
                raise ConfigurationError(f"corpus: no file in {path} fits members: {members!r}; it has {known}, ...")
            for one in chosen:
                file = archive.extractfile(one) or io.BytesIO()
                text = _decoded(file.read(), f"{path}/{one.name}")
                yield text if text.endswith("\n") else f"{text}\n"
    except (tarfile.TarError, EOFError, OSError, lzma.LZMAError) as error:
        why = str(error).splitlines()[0]
        raise ConfigurationError(f"corpus: {path} cannot be unpacked ({why}): it is damaged, copy it again") from error


def _decoded(content: bytes, name: str) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"corpus: {name} is not text in UTF-8: byte {content[error.start]:#04x} at position {error.start} of it; "
            "save it as UTF-8"
        ) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")
