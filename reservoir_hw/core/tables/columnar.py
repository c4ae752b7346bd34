"""Tables that are stored column by column: parquet files, data frames, and arrays side by side."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, MissingExtra
from reservoir_hw.core.tables.table import Table, texts_of

_READ_ROWS = 1 << 16


class ParquetTable(Table):
    """A parquet file, of which a column is read when it is asked for."""

    def __init__(self, file: Any, where: str) -> None:
        self._file = file
        super().__init__(where, file.schema_arrow.names, file.metadata.num_rows, len(file.schema_arrow.names))

    def load(self, columns: Sequence[int]) -> Mapping[int, np.ndarray]:
        """As in `Table`."""
        import pyarrow as pa

        found = {column: np.empty(self.shape[0]) for column in columns}
        for column, values in found.items():
            stored = self._file.schema_arrow.field(column).type
            kind = stored.value_type if pa.types.is_dictionary(stored) else stored
            of = pa.types
            if not (of.is_integer(kind) or of.is_floating(kind) or of.is_decimal(kind) or of.is_boolean(kind)):
                raise ConfigurationError(f"{self.where}, column {self.name(column)!r}: it holds {stored}, no numbers")
            start = 0
            for part in self._parts(column):
                plain = part.dictionary_decode() if pa.types.is_dictionary(stored) else part
                values[start : start + len(part)] = plain.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
                start += len(part)
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


class FrameTable(Table):
    """A `pandas.DataFrame`, or what has its columns."""

    def __init__(self, frame: Any, where: str) -> None:
        self._frame = frame
        super().__init__(where, [str(name) for name in frame.columns], *frame.shape)

    def load(self, columns: Sequence[int]) -> Mapping[int, np.ndarray]:
        """As in `Table`."""
        found = {}
        for column in columns:
            series = self._frame.iloc[:, column]
            if getattr(series.dtype, "kind", "O") not in "fiub":
                raise ConfigurationError(
                    f"{self.where}, column {self.name(column)!r}: it holds {series.dtype}, no numbers"
                )
            found[column] = series.to_numpy(dtype=np.float64, na_value=np.nan)
        return found

    def cells(self, column: int) -> Any:
        """As in `Table`."""
        series = self._frame.iloc[:, column]
        values = series.to_numpy()
        # Time stamps with a zone, and numbers where some are missing, are objects.
        return series.astype(object).where(series.notna(), None).tolist() if values.dtype == object else values

    def digest(self) -> str:
        """A sha256 of names and cells."""
        found = hashlib.sha256(repr(list(self.header)).encode())
        for column in range(self.shape[1]):
            cells = self.cells(column)
            found.update(cells.tobytes() if isinstance(cells, np.ndarray) else repr(texts_of(cells)).encode())
        return found.hexdigest()


class ArraysTable(Table):
    """Arrays with one axis, all as long, as the columns of a table."""

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
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise MissingExtra(f"{where} is parquet, which needs pyarrow: pip install 'reservoir-hw[tables]'") from error
    return ParquetTable(ParquetFile(content), where)
