"""Numbers in words, for messages and tables: a count with its noun, a duration."""

from __future__ import annotations


def counted(number: int, what: str) -> str:
    """ "1 input", "2 inputs", "1,000 inputs"."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def duration(seconds: float) -> str:
    """With three digits, in the unit that suits it."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"
