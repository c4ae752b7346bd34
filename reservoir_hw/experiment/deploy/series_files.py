"""Series in files and in lines: columns in by their names, answers out row for row. Needs no torch."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from reservoir_hw.core.configuration import Document, validate
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.files import replace_file
from reservoir_hw.core.series_format import SeriesFormat
from reservoir_hw.core.tables.columns import choose
from reservoir_hw.core.tables.configuration import ColumnsConfig, ReadConfig
from reservoir_hw.core.tables.sources import opened
from reservoir_hw.readout.edge.manifest import Manifest

_SEPARATORS = str.maketrans(",;\t", "   ")
# Python's own takes 1_0 for 10, and digits of other scripts.
_NUMBER = re.compile(
    r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|nan|inf(?:inity)?)", re.IGNORECASE | re.ASCII
)


def series_paths(given: Path) -> list[Path]:
    """A file, or those of a folder by their names, hidden ones left out. Raises `ConfigurationError` for none."""
    if not given.exists():
        raise ConfigurationError(f"there is no file {given}")
    if not given.is_dir():
        return [given]
    found = sorted(path for path in given.iterdir() if not path.name.startswith("."))
    if not found:
        raise ConfigurationError(f"{given} is a folder without files: each of its files is one series")
    return found


def read_options(delimiter: str | None, decimal: str | None, skip_lines: int = 0) -> ReadConfig:
    """How text files are written, where their look does not say it."""
    given = {"delimiter": delimiter, "decimal": decimal, "skip_lines": skip_lines}
    return validate(ReadConfig, Document.from_mapping(given, "the command line (--delimiter, --decimal)"))


def read_series(
    path: Path,
    manifest: Manifest,
    read: ReadConfig,
    array: str | None = None,
    tell: Callable[[str], None] = lambda said: None,
) -> np.ndarray:
    """Series (sequences, time, inputs) of a file, with the columns that the model takes, in float64.

    A table with a header gives columns by name to a model that has names for them, whatever else it holds. Where the
    names are numbers of columns, anything with more columns gives them by number. Anything else must have as many
    columns as the model. `array` names one of several in a file. `tell` gets a remark on a
    header that is passed over.

    Raises `ConfigurationError` for other columns than the model's, and for a cell that is empty or no number.
    """
    names = [] if manifest.series is None else list(manifest.series.input_names)
    (width,) = manifest.input.shape
    with opened(path, read) as source:
        if names and source.header:
            missing = [name for name in names if name not in source.header]
            if missing:
                raise ConfigurationError(
                    f"{path} has no column {', '.join(map(repr, missing))}, which {manifest.model} takes; it has "
                    f"{', '.join(source.header)}"
                )
            columns = choose(source, ColumnsConfig(array=array, columns=list(names)), "--input")
        else:
            columns = choose(source, ColumnsConfig(array=array), "--input")
            if not source.header and (chosen := by_number(names, len(columns.numbers))):
                columns = columns.only(chosen)
            if len(columns.numbers) != width:
                told = f" ({', '.join(names)})" if names else ""
                raise ConfigurationError(
                    f"{path} has {len(columns.numbers)} columns, and {manifest.model} takes {width}{told}"
                )
            columns = replace(columns, names=names or columns.names)
            if source.header:
                tell(
                    f"{path}: the first line is taken as names, which {manifest.model} does not know: columns in order"
                )
        values = columns.read(0, columns.steps)
        empty = np.isnan(values)
        if empty.any():
            sequence, row, column = (int(at) for at in np.unravel_index(int(empty.argmax()), empty.shape))
            of = f" of sequence {sequence}" if len(values) > 1 else ""
            raise ConfigurationError(f"{columns.place(row, column)}{of} is empty or nan: each row needs all its inputs")
    return values


def by_number(names: Sequence[str], width: int) -> list[int]:
    """Which of `width` columns without names the model takes, whose own had none; empty where it takes all."""
    found = [int(name) for name in names if name.isdecimal()]
    return found if found and len(found) == len(names) < width and max(found) < width else []


def numbers(
    lines: Iterable[str], name: str, names: Sequence[str] = (), *, live: bool = False
) -> Iterator[tuple[int, np.ndarray]]:
    """Number of a line, and the numbers (channels,) in it. Comments (#) are passed over, and empty lines at the ends.

    In a `live` stream each line has an answer, so there both are refused.

    Commas, semicolons and white space separate. A first line that is no row of numbers names the columns, where the
    model has `names` for its inputs: those are taken, in the model's order. Raises `ConfigurationError` for what is no
    number, for an empty line between others, and for a header without all names.
    """
    begun, order, width, empty = False, None, 0, 0
    try:
        for number, line in enumerate(lines, 1):
            # Windows programs begin a text with a byte order mark.
            text = (line.removeprefix("\ufeff") if number == 1 else line).partition("#")[0]
            words = text.translate(_SEPARATORS).split()
            if not words or (live and "#" in line):
                if live:
                    raise ConfigurationError(
                        f"{name}:{number}: {line.strip()[:60]!r}: in a pipe each line is a row of numbers"
                    )
                empty = empty or (number if begun and "#" not in line else 0)
                continue
            if empty:
                raise ConfigurationError(f"{name}:{empty}: the line is empty: each row needs all its inputs")
            found = [float(word) if _NUMBER.fullmatch(word) else None for word in words]
            row = [one for one in found if one is not None]
            first, begun = not begun, True
            if len(row) < len(found):
                if first and names:
                    order, width = _columns_of(text, names, f"{name}:{number}")
                    continue
                advice = "; a header is for models that name their inputs, and for files" if first else ""
                raise ConfigurationError(f"{name}:{number}: {line.strip()[:60]!r} is not a row of numbers{advice}")
            if order is not None and len(row) != width:
                raise ConfigurationError(f"{name}:{number}: {len(row)} numbers, and the first line names {width}")
            yield number, np.array(row)[order or by_number(names, len(row)) or slice(None)]
    except UnicodeDecodeError:
        raise ConfigurationError(f"{name} is no text in UTF-8: give lines of numbers, or a file as .npy") from None


def _columns_of(line: str, names: Sequence[str], where: str) -> tuple[list[int], int]:
    """Which of the columns of a header these are, and how many it has."""
    separator = next((one for one in ("\t", ";", ",") if one in line), " ")
    header = [word.strip() for word in next(csv.reader([line.strip()], delimiter=separator, skipinitialspace=True))]
    wrong = [name for name in names if header.count(name) != 1]
    if wrong:
        raise ConfigurationError(f"{where}: {', '.join(map(repr, wrong))} must stand there once; it has {header}")
    return [header.index(name) for name in names], len(header)


def line_of(values: np.ndarray) -> str:
    """The outputs of one step as a line of csv, with all digits that their precision has."""
    single = values.dtype == np.float32
    return ",".join(f"{value:.9g}" if single else repr(float(value)) for value in values) + "\n"


def header_of(series: SeriesFormat | None, *more: str) -> str:
    """The line above the outputs; none where the outputs have no names."""
    return "" if series is None else _joined([*more, *series.output_names])


def lines_of(answered: Mapping[str, np.ndarray], series: SeriesFormat | None, *, folder: bool) -> Iterator[str]:
    """Outputs (batch, steps, outputs) by the names of their files, as csv.

    There is a line for each step, or one with the class of each series; in a `folder` with its file.
    A header stands above outputs that have names, and above the classes of a folder.
    """
    if series is not None and series.classes:
        if folder:
            yield _joined(["file", "label"])
        for file, outputs in answered.items():
            for one in outputs:
                yield _joined([*([file] if folder else []), series.class_of(one)])
        return
    if header := header_of(series, *(["file"] if folder else [])):
        yield header
    for file, outputs in answered.items():
        before = _joined([file, ""]).rstrip("\n") if folder else ""
        yield from (before + line_of(row) for row in outputs[0])


def _joined(texts: Sequence[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(texts)
    return line.getvalue()


def facts_of(outputs: np.ndarray, series: SeriesFormat | None) -> dict[str, object]:
    """The same for machines; with the scores by which each series was decided."""
    if series is None or not series.classes:
        # JSON has no nan.
        unknown = np.isnan(outputs)
        shown = outputs.astype(object) if unknown.any() else outputs
        shown[unknown] = None
        return {**({} if series is None else {"names": series.output_names}), "outputs": shown.tolist()}
    scores = [series.scores_of(one).tolist() for one in outputs]
    return {"classes": series.classes, "labels": [series.class_of(one) for one in outputs], "scores": scores}


def write_npy(path: Path, outputs: np.ndarray) -> None:
    """Outputs (batch, time, outputs) as an npy file; one sequence as (time, outputs)."""
    content = io.BytesIO()
    np.save(content, outputs[0] if len(outputs) == 1 else outputs)
    replace_file(path, content.getvalue())
