"""Tables in text files: csv, and its relatives with other delimiters. Needs numpy and the standard library alone."""

from __future__ import annotations

import codecs
import csv
import io
import re
import sys
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.tables.configuration import ReadConfig
from reservoir_hw.core.tables.table import Table, as_number

_PIECE = 1 << 20
_SAMPLE = 100
"""So many rows tell what stands between columns, which sign is decimal, and where the names are."""
_THOUSANDS = r"[+-]?[1-9]\d{0,2}(,\d{3})+"


class _Row(NamedTuple):
    line: int
    cells: list[str]
    blank_above: bool = False


def read_text(raw: bytes, config: ReadConfig, where: str) -> TextTable:
    """The table in a text file or in some lines of one; `where` is what messages call it.

    A row has as many cells as the line of names above the table, or as the first row. Lines above the table are
    skipped where they cannot be rows: empty ones, titles of a single cell, and comments with # or %. Raises
    `ConfigurationError`, with the line, for any other row, for an empty line between rows, and if nothing is there.
    """
    try:
        decoder = codecs.getincrementaldecoder("utf-8-sig")()
        for start in range(0, len(raw), _PIECE):
            decoder.decode(raw[start : start + _PIECE], final=start + _PIECE >= len(raw))
        encoding = "utf-8-sig"
    except UnicodeDecodeError:
        # Units such as µV, written by instruments of another age.
        encoding = "latin-1"
    text = _Text(raw, encoding, where, config.skip_lines)
    comment = text.skip_comments()
    delimiter = config.delimiter or text.delimiter(config.decimal)
    sample = list(islice(text.rows(delimiter), _SAMPLE))
    if not sample:
        raise ConfigurationError(f"{where}: there is no table in it")
    begin, header = _beginning(sample, _cells(comment, delimiter), config.header, delimiter, where)
    text.first = sample[begin].line if begin < len(sample) else sys.maxsize
    return TextTable(text, delimiter, config.decimal or _decimal(sample[begin:], where), header)


class TextTable(Table):
    """The rows of a text file. Holds its bytes, the line of each row, and the numbers of columns that were read."""

    def __init__(self, text: _Text, delimiter: str, decimal: str, header: Sequence[str]) -> None:
        self._text, self._delimiter, self.decimal = text, delimiter, decimal
        self._lines = array("q")
        width = len(header)
        for line, cells, blank in text.cut(delimiter):
            width = width or len(cells)
            if blank:
                raise _empty_line(line, text.where)
            if len(cells) != width:
                raise ConfigurationError(
                    f"{text.where}, line {line}: {len(cells)} cells, "
                    f"{'there are names for' if header else 'the first row has'} {width} (if lines above the table "
                    "were taken for it, say `read: {skip_lines: …}`)"
                )
            self._lines.append(line)
        super().__init__(text.where, header, len(self._lines), width)

    def load(self, columns: Sequence[int]) -> Mapping[int, np.ndarray]:
        """As in `Table`."""
        if not columns or not self._lines:
            return dict.fromkeys(columns, np.empty(0))
        if (plain := self._plain(columns)) is not None:
            return dict(zip(columns, plain.T, strict=True))
        found = [(column, array("d")) for column in columns]
        for index, (_, cells, _) in enumerate(self._text.cut(self._delimiter)):
            for column, values in found:
                number = as_number(_bare(cells[column]), self.decimal)
                if number is None:
                    raise ConfigurationError(f"{self.place(index, column)}: {cells[column]!r} is not a number")
                values.append(number)
        return {column: np.frombuffer(values) for column, values in found}

    def _plain(self, columns: Sequence[int]) -> np.ndarray | None:
        """The same numbers in a fifth of the time, where no cell is empty, quoted or has a decimal comma; else None."""
        # Quotes behind a blank, and tabs, mean something else to loadtxt.
        tabs = self._delimiter == "\t"

        def lines() -> Iterator[str]:
            for line in self._text.lines():
                if '"' in line or ("\t" in line and not tabs):
                    raise ValueError
                yield line

        if self.decimal == ",":
            return None
        delimiter = None if self._delimiter == " " else self._delimiter
        try:
            found = np.loadtxt(lines(), delimiter=delimiter, comments=None, usecols=columns, ndmin=2)
        except ValueError:
            return None
        return found if len(found) == len(self._lines) else None

    def cells(self, column: int) -> list[str]:
        """As in `Table`."""
        return [_bare(cells[column]) for _, cells, _ in self._text.cut(self._delimiter)]

    def row(self, row: int) -> str:
        """As in `Table`: its line in the file."""
        return f"line {self._lines[row]}"


class _Text:
    """Lines of a file from `first` on (counted from 1), cut into rows."""

    def __init__(self, raw: bytes, encoding: str, where: str, skip_lines: int) -> None:
        self._raw, self._encoding, self.where = raw, encoding, where
        self.first = skip_lines + 1

    def lines(self) -> Iterator[str]:
        lines = io.TextIOWrapper(io.BytesIO(self._raw), self._encoding, newline="")
        return islice(lines, self.first - 1, None)

    def skip_comments(self) -> str:
        """Go on behind comments at the top; the last of them, without its sign."""
        last = ""
        for number, line in enumerate(self.lines(), self.first):
            bare = line.strip(" \r\n")
            if bare and bare[0] not in "#%":
                break
            last = bare or last
            self.first = number + 1
        return last.lstrip("#% ")

    def rows(self, delimiter: str) -> Iterator[_Row]:
        """Rows that are not empty. Quotes may be amiss, as the delimiter may be a wrong one."""
        for line, cells, blank in self.cut(delimiter, strict=False):
            yield _Row(line, [_bare(cell) for cell in cells], blank)

    def cut(self, delimiter: str, *, strict: bool = True) -> Iterator[tuple[int, list[str], bool]]:
        """The line, the cells and whether an empty line is above, of each row that is not empty.

        Raises `ConfigurationError` where quotes do not fit.
        """
        blank, line, before, last = False, 0, self.first - 1, ""

        def lines() -> Iterator[str]:
            nonlocal last
            for last in self.lines():
                yield _trimmed(last, delimiter)

        reader = csv.reader(lines(), delimiter=delimiter, skipinitialspace=True, strict=strict)
        try:
            for cells in reader:
                empty = len(cells) < 2 and not last.strip(_BLANKS)
                if not empty:
                    yield before + line + 1, cells, blank
                blank, line = empty, reader.line_num
        except csv.Error as error:
            raise ConfigurationError(
                f"{self.where}, line {before + line + 1}: {error} (is a quote missing?)"
            ) from error

    def delimiter(self, decimal: str | None) -> str:
        """What cuts most of the first rows into equally many cells, and these best into numbers."""

        def fit(delimiter: str) -> tuple[int, float]:
            try:
                rows = list(islice(self.rows(delimiter), _SAMPLE))
            except ConfigurationError:
                # A long line without this delimiter is one cell, longer than the csv module takes.
                return (0, 0)
            width, count = Counter(len(row.cells) for row in rows).most_common(1)[0] if rows else (1, 0)
            cells = [cell for row in rows for cell in row.cells]
            return (count, sum(map(_is_number, cells)) / len(cells)) if width > 1 else (0, 0)

        return max((d for d in ";\t, " if d != decimal), key=fit)


_BLANKS = " \t\r\n"


def _bare(cell: str) -> str:
    return cell.strip(" \r\n")


def _trimmed(line: str, delimiter: str) -> str:
    # Blanks at the ends of a line delimit nothing.
    return line.strip() + "\n" if delimiter == " " else line


def _cells(line: str, delimiter: str) -> list[str]:
    reader = csv.reader([_trimmed(line, delimiter)], delimiter=delimiter, skipinitialspace=True)
    return [_bare(cell) for cell in next(reader, [])]


def _is_number(cell: str) -> bool:
    return bool(cell) and (as_number(cell, ".") is not None or as_number(cell, ",") is not None)


def _decimal(rows: Sequence[_Row], where: str) -> str:
    numbers = [cell for row in rows for cell in row.cells if _is_number(cell)]
    commas = [cell for cell in numbers if "," in cell]
    if not commas or any("." in cell for cell in numbers):
        return "."
    if all(re.fullmatch(_THOUSANDS, cell.strip().strip('"')) for cell in commas):
        raise ConfigurationError(
            f"{where}: {commas[0]} may be a whole number of thousands: say `read: {{decimal: ','}}`, or take the "
            "commas out"
        )
    return ","


def _beginning(
    rows: Sequence[_Row], comment: list[str], named: bool | None, delimiter: str, where: str
) -> tuple[int, list[str]]:
    """Which of the first rows is the first row of the table, and the names above it; [] if there are none."""
    # Above the first number there may be rows of text alone, names, and titles: rows have as many cells as that one.
    first = next((i for i, row in enumerate(rows) if any(map(_is_number, row.cells))), 0)
    width, top = len(rows[first].cells), first
    while top > 0 and len(rows[top - 1].cells) == width and not rows[top].blank_above:
        top -= 1
    line, cells = rows[top].line, rows[top].cells
    below = [[row.cells[i] for row in rows[top + 1 :] if i < len(row.cells)] for i in range(width)]
    above_numbers = any(
        not _is_number(cell) and any(column) and all(_is_number(c) for c in column if c)
        for cell, column in zip(cells, below, strict=True)
    )
    numbers = any(map(_is_number, cells))
    begin, header = top, comment if len(comment) == width else []
    # A frame whose columns have no names is written with their numbers.
    counted = width > 4 and cells == [str(number) for number in range(width)]
    if named is None and not header and ((numbers and above_numbers) or counted):
        raise ConfigurationError(
            f"{where}, line {line}: these cells may be names, or numbers: say whether they are names with "
            "`read: {header: true}` or false"
        )
    if (named and not (header and numbers)) or (
        named is None and any(cells) and not numbers and (above_numbers or not header)
    ):
        begin, header = top + 1, cells
    elif named is False:
        header = []
    _check_titles(rows[: top + 1], width, begin > top and not numbers, delimiter, where)
    if begin > top and begin < len(rows) and rows[begin].blank_above:
        raise _empty_line(rows[begin].line, where)
    return begin, header


def _check_titles(rows: Sequence[_Row], width: int, named: bool, delimiter: str, where: str) -> None:
    """What stands above the last of these rows, where the table begins, must be no rows of it."""
    apart = True
    for row, below in zip(reversed(rows[:-1]), reversed(rows), strict=False):
        apart = apart and not below.blank_above
        if len(row.cells) == width and below.blank_above:
            raise _empty_line(below.line, where)
        if len(row.cells) == width or (apart and not (named and len(row.cells) == 1)):
            hint = "; if its commas are decimal signs, `read: {decimal: ','}`" if delimiter == "," else ""
            raise ConfigurationError(
                f"{where}, line {row.line} has {len(row.cells)} cells, the table in line {rows[-1].line} has {width}: "
                f"if it is a title, say `read: {{skip_lines: {row.line}}}`{hint}"
            )


def _empty_line(below: int, where: str) -> ConfigurationError:
    return ConfigurationError(f"{where}, line {below - 1} is empty: no row can be read there; take the line out")
