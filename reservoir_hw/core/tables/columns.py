"""Columns of an array of a file, chosen by name, pattern or number, and read piece by piece."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.tables.configuration import ColumnsConfig
from reservoir_hw.core.tables.sources import TABLE, Source

_RANGE = re.compile(r"(-?\d*):(-?\d*)")


@dataclass(frozen=True)
class Columns:
    """Chosen columns of an array, as (sequences, time, columns).

    `numbers` are their positions in the file, `names` what they are called.
    """

    where: str
    array: Any
    nodes_first: bool
    numbers: Sequence[int]
    names: Sequence[str]

    @property
    def sequences(self) -> int:
        """How many sequences; 1 for arrays without an axis for them."""
        return self.array.shape[0] if self.array.ndim == 3 else 1

    @property
    def steps(self) -> int:
        """Length in time."""
        return self.array.shape[-1 if self.nodes_first or self.array.ndim == 1 else -2]

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows start..stop: (sequences, time, columns) in float64."""
        if self.array.ndim == 1:
            return np.asarray(self.array[start:stop], dtype=np.float64)[None, :, None]
        if self.nodes_first:
            part = np.swapaxes(np.asarray(self.array[..., start:stop]), -1, -2)
        else:
            part = np.asarray(self.array[..., start:stop, :])
        part = part[..., list(self.numbers)].astype(np.float64)
        return part if part.ndim == 3 else part[None]

    def only(self, kept: Sequence[int]) -> Columns:
        """Some of these columns."""
        return replace(self, numbers=[self.numbers[i] for i in kept], names=[self.names[i] for i in kept])


def choose(source: Source, config: ColumnsConfig, what: str) -> Columns:
    """The columns that a mapping file means by its section `what`.

    Raises `ConfigurationError` for an unknown array or column, with near matches.
    """
    array = source.array(config.array)
    where = f"{source.path}" + (f", {config.array}" if config.array else "")
    if array.ndim not in (1, 2, 3) or array.dtype.kind not in "fiub":
        raise ConfigurationError(
            f"{what}: {where} is {array.dtype} {array.shape}; real numbers (time, columns) or (sequences, time, "
            "columns) are needed (complex ones: store real and imaginary parts as columns)"
        )
    width = 1 if array.ndim == 1 else array.shape[-2 if config.layout == "nodes_first" else -1]
    known = _known_names(source, config, width, what)
    at = f"{what}.columns: {where}"
    chosen = range(width) if config.columns is None else _all_of(config.columns, known, width, at)
    without = set(_all_of(config.without, known, width, f"{what}.without: {where}"))
    numbers = [number for number in chosen if number not in without]
    if not numbers:
        raise ConfigurationError(f"{at}: nothing remains of the {width} columns")
    names = [known[number] if known else str(number) for number in numbers]
    if isinstance(config.names, list):
        if len(config.names) != len(numbers):
            raise ConfigurationError(f"{what}.names has {len(config.names)} names for {len(numbers)} columns")
        names = config.names
    return Columns(where, array, config.layout == "nodes_first", numbers, names)


def _known_names(source: Source, config: ColumnsConfig, width: int, what: str) -> Sequence[str]:
    """Names of all columns of the array; empty if the file has no names."""
    if not isinstance(config.names, str):
        return source.header if (config.array or TABLE) == TABLE else ()
    labels = np.asarray(source.array(config.names))
    if labels.shape != (width,):
        raise ConfigurationError(
            f"{what}.names: {config.names} {labels.shape} has not one entry for each of {width} columns"
        )
    return [_label(entry) for entry in labels.tolist()]


def _label(entry: Any) -> str:
    if isinstance(entry, bytes):
        return entry.decode(errors="replace")
    return f"{entry:g}" if isinstance(entry, float) else str(entry)


def _all_of(items: Sequence[str | int], known: Sequence[str], width: int, where: str) -> list[int]:
    """Column numbers in the order of the items, each once."""
    return list(dict.fromkeys(number for item in items for number in _one(item, known, width, where)))


def _one(item: str | int, known: Sequence[str], width: int, where: str) -> Sequence[int]:
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
    found = [number for number, name in enumerate(known) if re.fullmatch(pattern, name)]
    if found:
        return found
    close = get_close_matches(item, known, n=3)
    shown = close or list(known[:8])
    hint = f"near it: {', '.join(shown)}" if close else f"it has {', '.join(shown)}{', ...' if len(known) > 8 else ''}"
    if not known:
        hint = f"its {width} columns have no names: take them by number"
    raise ConfigurationError(f"{where} has no column {item!r}; {hint}")
