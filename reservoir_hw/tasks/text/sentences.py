"""A text cut into sentences."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from reservoir_hw.core.errors import MissingExtra
from reservoir_hw.tasks.text.cache import kept_text

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
