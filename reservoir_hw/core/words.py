"""Numbers in words, for messages and tables: a count with its noun, a duration."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ "; did you mean 'nodes'?" for "node", or nothing where no known name is near."""
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def counted(number: int, what: str) -> str:
    """ "1 input", "2 inputs", "1,000 inputs"."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def duration(seconds: float) -> str:
    """With three digits, in the unit that suits it."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"
