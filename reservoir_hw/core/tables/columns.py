"""Columns of an array of a file, chosen by name, pattern or number, and read piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.tables.configuration import ColumnsConfig
from reservoir_hw.core.tables.sources import TABLE, Source, all_of
from reservoir_hw.core.tables.table import Table, reading


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
        """Rows start..stop: (sequences, time, columns) in float64; empty cells are NaN.

        Raises `ConfigurationError` for a cell of a table that is no number.
        """
        with reading(self.where):
            if isinstance(self.array, Table):
                return self.array.read(self.numbers, start, stop)[None]
            if self.array.ndim == 1:
                return np.asarray(self.array[start:stop], dtype=np.float64)[None, :, None]
            if self.nodes_first:
                part = np.swapaxes(np.asarray(self.array[..., start:stop]), -1, -2)
            else:
                part = np.asarray(self.array[..., start:stop, :])
        part = part[..., list(self.numbers)].astype(np.float64)
        return part if part.ndim == 3 else part[None]

    def place(self, row: int, column: int) -> str:
        """Where a number stands, for messages: file, line or row, and the name of the column."""
        at = self.array.row(row) if isinstance(self.array, Table) else f"row {row} (0 is the first)"
        return f"{self.where}, {at}, column {self.names[column]!r}"

    def only(self, kept: Sequence[int]) -> Columns:
        """Some of these columns."""
        return replace(self, numbers=[self.numbers[i] for i in kept], names=[self.names[i] for i in kept])


def choose(source: Source, config: ColumnsConfig, what: str) -> Columns:
    """The columns that a configuration file means by its section `what`.

    Raises `ConfigurationError` for an unknown array or column, with near matches.
    """
    array = source.array(config.array)
    if isinstance(array, Table) and config.layout == "nodes_first":
        array = array.read(range(array.shape[1]), 0, array.shape[0])
    where = f"{source.path}" + (f", {config.array}" if config.array else "")
    if source.reversed_axes and array.ndim > 1 and "layout" not in config.model_fields_set:
        raise ConfigurationError(
            f"{what}: {where} is of MATLAB 7.3, whose axes are stored in reverse order, here {array.shape}: say "
            "`layout: nodes_first` if MATLAB shows (time, columns), `layout: time_first` if it shows (columns, time)"
        )
    if array.ndim not in (1, 2, 3) or array.dtype.kind not in "fiub":
        raise ConfigurationError(
            f"{what}: {where} is {array.dtype} {array.shape}; real numbers (time, columns) or (sequences, time, "
            "columns) are needed (complex ones: store real and imaginary parts as columns)"
        )
    width = 1 if array.ndim == 1 else array.shape[-2 if config.layout == "nodes_first" else -1]
    known = _known_names(source, config, width, what)
    at = f"{what}.columns: {where}"
    chosen = range(width) if config.columns is None else all_of(config.columns, known, width, at)
    without = set(all_of(config.without, known, width, f"{what}.without: {where}"))
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
        return source.header if (config.array or TABLE) == TABLE and config.layout == "time_first" else ()
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
