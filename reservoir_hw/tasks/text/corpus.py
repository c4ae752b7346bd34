"""Text from files, cut into what is for training, validation and test."""

from __future__ import annotations

import hashlib
import io
import logging
import lzma
import os
import re
import tarfile
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, InputRangeError, MissingExtra
from reservoir_hw.core.tokenizer import BpeTokenizer, Documents, Tokenizer, parse_tokenizer
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
    text = ""
    for piece in (piece for path in paths for piece in _texts_of(found_file(path, "corpus"), members)):
        text += piece
        if end is not None and len(text) >= end:
            break
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


# ---- What is made of a long text is kept in a folder, for all runs.


log = logging.getLogger(__name__)

CACHE_VARIABLE = "RESERVOIR_HW_CACHE"
"""Environment variable that names the folder."""

LONG = 1 << 20
"""Characters from which on a text counts as long."""

_SLOW = 1 << 22


def kept_text(folder: str, of: str, text: str, make: Callable[[], str]) -> str:
    """As `kept_array`."""
    return bytes(kept_array(folder, of, text, lambda: np.frombuffer(make().encode(), np.uint8))).decode()


def cache_folder() -> Path:
    """Where things are kept: `RESERVOIR_HW_CACHE`, or else a folder of the user."""
    given = os.environ.get(CACHE_VARIABLE)
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "reservoir_hw"


def kept_array(folder: str, of: str, text: str, make: Callable[[], np.ndarray]) -> np.ndarray:
    """What `make` gives of this text. Of a long one it lies in a file that all processes share, mapped into memory.

    `folder` says what it is, and `of` is all that decides about it beside the text.
    """
    if len(text) < LONG:
        return make()
    path = cache_folder() / folder / f"{_digest(of, text)}.npy"
    found = _mapped(path)
    if found is not None and len(found):
        return found
    what = folder.replace("_", " ")
    if len(text) >= _SLOW:
        log.warning("making the %s of %s characters, once for all runs, into %s", what, f"{len(text):,}", path)
    made = make()
    making = path.with_suffix(f".{os.getpid()}.npy")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(making, made)
        making.rename(path)
    except OSError as error:
        log.warning("%s cannot be kept in %s: %s; every run will make them anew", what, path.parent, error)
        return made
    again = _mapped(path)
    return made if again is None else again


def _digest(of: str, text: str) -> str:
    # The length of the first part keeps the two apart.
    digest = hashlib.sha256(f"{len(of)} {of}".encode("utf-8", "surrogatepass"))
    for begin in range(0, len(text), LONG):
        digest.update(text[begin : begin + LONG].encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:32]


def _mapped(path: Path) -> np.ndarray | None:
    try:
        return np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError):
        # Not there yet, or cut by a full disk: it is made again.
        return None


# ---- A text cut into sentences.


_GAP = re.compile(r"\n\s*\n")
_PIECE = 1 << 20


def one_a_line(text: str) -> str:
    """The sentences of an English text, each on a line of its own, with single blanks for white space.

    An empty line ends a sentence; for the rest the package nupunkt decides (Punkt of Kiss & Strunk 2006, with a model
    that it brings). Sentences of a long text are found once for all runs. Raises `MissingExtra` without nupunkt.
    """
    try:
        splitter = f"nupunkt {version('nupunkt')}"
    except PackageNotFoundError as error:
        raise MissingExtra("unit: sentence needs nupunkt: pip install 'reservoir-hw[train]'") from error
    return kept_text("sentences", splitter, text, lambda: _split(text))


def _split(text: str) -> str:
    from nupunkt import load_default_model

    tokenizer = load_default_model()
    pieces, begin = [], 0
    while begin < len(text):
        end = gap.end() if (gap := _GAP.search(text, begin + _PIECE)) else len(text)
        paragraphs = (" ".join(paragraph.split()) for paragraph in _GAP.split(text[begin:end]))
        found = [sentence for paragraph in paragraphs if paragraph for sentence in tokenizer.tokenize(paragraph)]
        pieces += ["\n".join(found)] if found else []
        begin = end
    return "\n".join(pieces)


# ---- Texts as tokens, encoded in pieces; those of long texts are kept for the next run.


_ENCODED_AT_ONCE = 1 << 18
# No token of any tokenizer goes from a letter over into the white space behind it, nor depends on what is before it.
_CUT = re.compile(r"(?<=\S)(?=\s)")
_LINE = re.compile(r".+")


def pieces(text: str, size: int = _ENCODED_AT_ONCE) -> Iterator[str]:
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
