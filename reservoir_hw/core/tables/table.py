"""Tables: columns of unequal types, each read as numbers, texts or times when it is asked for."""

from __future__ import annotations

import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from tokenize import TokenError
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, ReservoirError, extra

Place = Callable[[int], str]
"""Where a row of a column stands, for a message."""


UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    RuntimeError,
    ArithmeticError,
    TokenError,
    zlib.error,
    zipfile.BadZipFile,
)
"""What libraries raise for files that are damaged."""


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Turns what libraries say of files that they cannot read into a `ConfigurationError`."""
    try:
        yield
    except ReservoirError:
        raise
    except UNREADABLE as error:
        reason = str(error)
        if "allow_pickle" in reason or "Python objects" in reason:
            reason = "it holds Python objects (pickled); save plain numbers or texts"
        raise ConfigurationError(f"{where} cannot be read: {reason}") from error


class Table(ABC):
    """A table of `shape` (rows, columns), with a name in `header` for each column, or none at all."""

    ndim = 2
    dtype = np.dtype(np.float64)

    def __init__(self, where: str, header: Sequence[str], rows: int, width: int) -> None:
        self.where = where
        self.header = header
        self.shape = (rows, width)
        self._numbers: dict[int, np.ndarray] = {}

    @abstractmethod
    def load(self, columns: Sequence[int]) -> Mapping[int, np.ndarray]:
        """Each of these columns in float64; empty cells are NaN. Raises `ConfigurationError` for other cells."""

    @abstractmethod
    def cells(self, column: int) -> Any:
        """The cells as they stand: an array, or a list; an empty one is "" or None."""

    def read(self, columns: Sequence[int], start: int, stop: int) -> np.ndarray:
        """Rows start..stop of these columns: (rows, columns) in float64. A column is kept from its first reading on."""
        self._numbers.update(self.load([column for column in columns if column not in self._numbers]))
        return np.stack([self._numbers[column][start:stop] for column in columns], axis=-1)

    def name(self, column: int) -> str:
        """What the column is called: its name, or its number."""
        return self.header[column] if self.header else str(column)

    def row(self, row: int) -> str:
        """What the row is called in messages."""
        return f"row {row} (0 is the first)"

    def place(self, row: int, column: int) -> str:
        """Where a cell stands."""
        return f"{self.where}, {self.row(row)}, column {self.name(column)!r}"


def texts_of(cells: Any) -> list[str]:
    """Cells as texts. Whole numbers have no decimal point, a missing cell is ""."""
    return [_text(cell) for cell in (cells.tolist() if isinstance(cells, np.ndarray) else cells)]


def _text(cell: Any) -> str:
    if cell is None or cell != cell:
        return ""
    if isinstance(cell, bytes):
        return cell.decode(errors="replace")
    return repr(cell).removesuffix(".0") if isinstance(cell, float) else str(cell)


def times_of(cells: Any, place: Place, decimal: str = ".") -> np.ndarray:
    """Times of the rows, (rows,) in float64.

    Numbers stay as they are. Time stamps become seconds since 1970, UTC if they have no time zone. Durations become
    seconds.

    Raises `ConfigurationError` for a cell that is neither, is missing, or is of another kind than the first one.
    """
    kind = cells.dtype.kind if isinstance(cells, np.ndarray) else "O"
    if kind in "fiub":
        times = cells.astype(np.float64)
    elif kind in "mM":
        # A time stamp less the beginning of 1970, or a duration less none: numpy divides durations only.
        times = (cells - cells.dtype.type(0, "s")) / np.timedelta64(1, "s")
    else:
        times = _parsed(cells.tolist() if isinstance(cells, np.ndarray) else cells, place, decimal)
    missing = ~np.isfinite(times)
    if missing.any():
        raise ConfigurationError(f"{place(int(missing.argmax()))}: there is no time")
    return times


def _parsed(cells: Sequence[Any], place: Place, decimal: str) -> np.ndarray:
    times = np.empty(len(cells))
    first = ""
    for row, cell in enumerate(cells):
        try:
            times[row], kind = _time(cell, decimal)
        except (ValueError, OverflowError):
            text = repr(_text(cell))
            raise ConfigurationError(f"{place(row)}: {text} is no number and no time stamp of ISO 8601") from None
        first = first or kind
        if kind != first:
            raise ConfigurationError(f"{place(row)}: {_text(cell)!r} is {kind}, the first one is {first}")
    return times


def _time(cell: Any, decimal: str) -> tuple[float, str]:
    text = _text(cell)
    number = as_number(text, decimal) if text else None
    if number is not None:
        return number, "a number"
    moment = cell if isinstance(cell, datetime) else datetime.fromisoformat(text)
    if moment.tzinfo:
        return moment.timestamp(), "a time with a time zone"
    return moment.replace(tzinfo=UTC).timestamp(), "a time without a time zone"


def as_number(text: str, decimal: str) -> float | None:
    """The number that a text is; None for another text, also for Python's 1_000. An empty one is NaN.

    With a decimal comma, a text with a point is not a number, because the point may separate thousands. Nor is a text
    that begins or ends with the comma.
    """
    if not text:
        return float("nan")
    if "_" in text or "\t" in text:
        return None
    if decimal == ",":
        if "." in text or text[0] == "," or text[-1] == ",":
            return None
        text = text.replace(",", ".")
    try:
        return float(text)
    except ValueError:
        return None


# ---- Tables that are stored column by column: parquet files, and arrays side by side.


_READ_ROWS = 1 << 16


class ParquetTable(Table):
    """A parquet file, of which a column is read when it is asked for."""

    def __init__(self, file: Any, where: str) -> None:
        self._file = file
        super().__init__(where, file.schema_arrow.names, file.metadata.num_rows, len(file.schema_arrow.names))

    def load(self, columns: Sequence[int]) -> Mapping[int, np.ndarray]:
        """As in `Table`."""
        import pyarrow as pa

        found = {}
        for column in columns:
            stored = self._file.schema_arrow.field(column).type
            kind = stored.value_type if pa.types.is_dictionary(stored) else stored
            of = pa.types
            if not (of.is_integer(kind) or of.is_floating(kind) or of.is_decimal(kind) or of.is_boolean(kind)):
                raise ConfigurationError(f"{self.where}, column {self.name(column)!r}: it holds {stored}, no numbers")
            numbers = (part.cast(kind).cast(pa.float64(), safe=False) for part in self._parts(column))
            found[column] = np.concatenate([np.empty(0), *(part.to_numpy(zero_copy_only=False) for part in numbers)])
        return found

    def cells(self, column: int) -> Any:
        """As in `Table`."""
        import pyarrow as pa

        stored = self._file.schema_arrow.field(column).type
        parts = list(self._parts(column))
        if pa.types.is_temporal(stored):
            return np.concatenate([part.to_numpy(zero_copy_only=False) for part in parts]) if parts else np.empty(0)
        return [cell for part in parts for cell in part.to_pylist()]

    def _parts(self, column: int) -> Any:
        """Arrays of arrow, one after the other."""
        names = self._file.schema_arrow.names
        # A name stands for all columns that have it, and for nested ones below it.
        nth = names[:column].count(names[column])
        for batch in self._file.iter_batches(_READ_ROWS, columns=[names[column]]):
            yield batch.column([i for i, name in enumerate(batch.schema.names) if name == names[column]][nth])


class ArraysTable(Table):
    """Arrays with one axis, of the same length, as the columns of a table."""

    def __init__(self, arrays: Mapping[str, Any], rows: int, where: str) -> None:
        self._arrays = arrays
        super().__init__(where, list(arrays), rows, len(arrays))

    def load(self, columns: Sequence[int]) -> Mapping[int, np.ndarray]:
        """As in `Table`."""
        found = {column: self.cells(column) for column in columns}
        for column, cells in found.items():
            if cells.dtype.kind not in "fiub":
                raise ConfigurationError(f"{self.where}, {self.name(column)!r}: it holds {cells.dtype}, no numbers")
        return {column: cells.astype(np.float64) for column, cells in found.items()}

    def cells(self, column: int) -> np.ndarray:
        """As in `Table`."""
        return np.asarray(self._arrays[self.header[column]][:])


def parquet(content: Any, where: str) -> ParquetTable:
    """The table in a parquet file: a path or an open file. Raises `MissingExtra` without pyarrow."""
    with extra("tables", f"{where} is parquet, which needs pyarrow"):
        from pyarrow.parquet import ParquetFile
    return ParquetTable(ParquetFile(content), where)
