"""Which columns are meant: by name, by pattern, by number or by a range of numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

from reservoir_hw.core.errors import ConfigurationError

_RANGE = re.compile(r"(-?\d*):(-?\d*)")


def all_of(items: Sequence[str | int], known: Sequence[str], width: int, where: str) -> list[int]:
    """Column numbers in the order of the items, each once; `known` are the names of all columns, or nothing.

    Raises `ConfigurationError` for what is not there, with near matches, and for a name that several columns have.
    """
    return list(dict.fromkeys(number for item in items for number in _meant(item, known, width, where)))


def one_of(item: str | int, known: Sequence[str], width: int, where: str) -> int:
    """The number of the one column that is meant. Raises as `all_of`, and where several are meant."""
    numbers = _meant(item, known, width, where)
    if len(numbers) != 1:
        raise ConfigurationError(f"{where}: {item!r} means {len(numbers)} columns, one is needed")
    return numbers[0]


def _meant(item: str | int, known: Sequence[str], width: int, where: str) -> Sequence[int]:
    if isinstance(item, int):
        if not -width <= item < width:
            raise ConfigurationError(f"{where} has no column {item}, it has {width} (0 to {width - 1})")
        return [item % width]
    found = [number for number, name in enumerate(known) if name == item]
    if len(found) > 1:
        numbers = ", ".join(map(str, found))
        raise ConfigurationError(f"{where} has several columns {item!r}: take them by number ({numbers})")
    if found:
        return found
    if bounds := _RANGE.fullmatch(item):
        first, last = (int(bound) if bound else None for bound in bounds.groups())
        return range(width)[first:last]
    # Brackets stand in many units: only * and ? are wild.
    pattern = re.escape(item).replace(r"\*", ".*").replace(r"\?", ".")
    found = [number for number, name in enumerate(known) if re.fullmatch(pattern, name, re.DOTALL)]
    if found:
        return found
    close = get_close_matches(item, known, n=3)
    shown = close or list(known[:8])
    hint = f"near it: {', '.join(shown)}" if close else f"it has {', '.join(shown)}{', ...' if len(known) > 8 else ''}"
    if not known:
        hint = f"its {width} columns have no names: take them by number"
    raise ConfigurationError(f"{where} has no column {item!r}; {hint}")
