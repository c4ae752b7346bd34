"""Text from files, cut into what is for training, validation and test."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.tasks.datasets import FOLDER_VARIABLE, unpacked

_SPACE = re.compile(r"\s")


def read_text(paths: Sequence[str], offset: int = 0, limit: int | None = None) -> str:
    """The `limit` characters behind the first `offset` of these files, one after the other.

    A path is looked for as it stands, then in the folder of `RESERVOIR_HW_DATA`; with .gz or .xz at its end it is
    unpacked. Line ends become newlines.

    Raises `ConfigurationError` for files that are not there, damaged, empty, or not text in UTF-8, and where `offset`
    leaves nothing of them.
    """
    end = None if limit is None else offset + limit
    text = ""
    for path in paths:
        if end is None or len(text) < end:
            text += _text_of(_found(path))
    if offset >= len(text):
        raise ConfigurationError(
            f"offset: {offset:,} characters are to be skipped, but there are only {len(text):,} in {', '.join(paths)}"
        )
    return text[offset:end]


def cut(text: str, parts: Sequence[float], *, between_words: bool) -> list[str]:
    """`text` in contiguous parts with these shares of the characters; the rest of the text comes first.

    `between_words` moves each cut to the next white space, so that no word is divided.
    """
    pieces: list[str] = []
    end = len(text)
    for share in reversed(parts):
        begin = end - round(share * len(text))
        if between_words and begin < end and (space := _SPACE.search(text, begin)) is not None:
            begin = min(space.start(), end)
        pieces.append(text[begin:end])
        end = begin
    return [text[:end], *reversed(pieces)]


def _found(path: str) -> Path:
    if Path(path).is_file():
        return Path(path)
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder and (Path(folder) / path).is_file():
        return Path(folder) / path
    where = f"nor in {FOLDER_VARIABLE}={folder}" if folder else f"and {FOLDER_VARIABLE} names no folder to look in"
    raise ConfigurationError(f"corpus: there is no file {path} here ({Path.cwd()}), {where}")


def _text_of(path: Path) -> str:
    if ".tar" in path.suffixes:
        raise ConfigurationError(f"corpus: {path} is an archive: unpack it and name the files that are in it")
    content = unpacked(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"corpus: {path} is not text in UTF-8: byte {content[error.start]:#04x} at position {error.start} of it; "
            "save it as UTF-8"
        ) from None
    if not text.strip():
        raise ConfigurationError(f"corpus: {path} is empty: there is nothing to learn from")
    return text.replace("\r\n", "\n").replace("\r", "\n")
