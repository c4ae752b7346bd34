"""Files of measured data: recognised by their content, unpacked, and seen as named arrays."""

from __future__ import annotations

import bz2
import csv
import gzip
import hashlib
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, MissingExtra
from reservoir_hw.core.tables.configuration import ReadConfig

TABLE = "table"
"""The name of the one array of a text or npy file."""

_HDF5 = b"\x89HDF\r\n\x1a\n"
_UNPACK: dict[bytes, Callable[[bytes], bytes]] = {
    b"\x1f\x8b": gzip.decompress,
    b"\xfd7zXZ\x00": lzma.decompress,
    b"BZh": bz2.decompress,
}


@dataclass(frozen=True)
class Source:
    """A file as named arrays.

    `arrays` read when they are sliced where the format allows it. `header` are the names of the columns of a text
    table, empty where it has none. `notes` are remarks for the user.
    """

    path: Path
    sha256: str
    size: int
    arrays: Mapping[str, Any]
    header: Sequence[str] = ()
    notes: list[str] = field(default_factory=list)

    def array(self, name: str | None) -> Any:
        """The array of that name; None stands for the only one. Raises `ConfigurationError` with near matches."""
        known = list(self.arrays)
        if name is None:
            if len(known) != 1:
                raise ConfigurationError(f"{self.path} holds several arrays, say which with `array:`: {_shapes(self)}")
            name = known[0]
        if name not in self.arrays:
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise ConfigurationError(f"{self.path} has no array {name!r}; {hint}(there are: {_shapes(self)})")
        try:
            return self.arrays[name]
        except ValueError as error:
            raise ConfigurationError(f"{self.path}: the array {name!r} cannot be read: {error}") from error


@contextmanager
def opened(path: Path, text: ReadConfig) -> Iterator[Source]:
    """The file as a `Source`, as long as the `with` block lasts.

    npy, npz, HDF5 and text are told apart by their content, as is what they are packed with: gz, xz, bz2, or a zip
    archive of one file. Raises `ConfigurationError` for anything else, `MissingExtra` for HDF5 without h5py.
    """
    try:
        with path.open("rb") as file:
            digest, size = hashlib.file_digest(file, "sha256").hexdigest(), file.tell()
            file.seek(0)
            start = file.read(1024)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}") from error
    content: Any = path
    while (unpacked := _unpacked(content, start, path)) is not None:
        content, start = io.BytesIO(unpacked), unpacked[:1024]
    notes: list[str] = []
    if start.startswith(_HDF5) or start[512:].startswith(_HDF5):
        with _hdf5(path).File(content, "r") as file:
            yield Source(path, digest, size, _numeric_datasets(file), notes=notes)
    elif start.startswith(b"PK\x03\x04"):
        with _numpy(content, path) as archive:
            yield Source(path, digest, size, archive, notes=notes)
    elif start.startswith(b"\x93NUMPY"):
        yield Source(path, digest, size, {TABLE: _numpy(content, path)}, notes=notes)
    elif start.startswith(b"MATLAB 5.0"):
        raise ConfigurationError(f"{path} is a MATLAB 5 file: save it with `save -v7.3` (HDF5), or as csv")
    elif b"\x00" in start and (start.startswith((b"\xff\xfe", b"\xfe\xff")) or _every_other_zero(start)):
        raise ConfigurationError(f"{path} looks like text in UTF-16: save it as UTF-8")
    elif b"\x00" in start:
        raise ConfigurationError(f"{path} is neither npy, npz, HDF5 nor text")
    else:
        raw = content.getvalue() if isinstance(content, io.BytesIO) else path.read_bytes()
        table, header = _table(raw, text, path, notes)
        yield Source(path, digest, size, {TABLE: table}, header, notes)


def _every_other_zero(start: bytes) -> bool:
    """Numbers and Latin letters in UTF-16 without a mark at the beginning: one byte of each is 0, the other never."""
    halves = start[: len(start) & ~1][::2], start[1::2]
    return any(half and not any(half) and 0 not in other for half, other in (halves, halves[::-1]))


def _unpacked(content: Any, start: bytes, path: Path) -> bytes | None:
    """What is packed in there, or None if nothing is."""
    try:
        for magic, unpack in _UNPACK.items():
            if start.startswith(magic):
                return unpack(path.read_bytes() if content is path else content.getvalue())
        if start.startswith(b"PK\x03\x04"):
            with zipfile.ZipFile(content) as archive:
                members = [name for name in archive.namelist() if not name.endswith("/")]
                if all(name.endswith(".npy") for name in members):
                    return None
                if len(members) > 1:
                    raise ConfigurationError(f"{path} holds {len(members)} files; unpack it: {', '.join(members[:8])}")
                return archive.read(members[0])
    except (OSError, EOFError, lzma.LZMAError, zlib.error, zipfile.BadZipFile) as error:
        raise ConfigurationError(f"{path} cannot be unpacked: {error}. Is the file damaged?") from error
    return None


def _numpy(content: Any, path: Path) -> Any:
    try:
        return np.load(content, mmap_mode="r" if content is path else None, allow_pickle=False)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error


def _hdf5(path: Path) -> Any:
    try:
        import h5py
    except ImportError as error:
        raise MissingExtra(f"{path} is HDF5, which needs h5py: pip install 'reservoir-hw[data]'") from error
    return h5py


def _numeric_datasets(file: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def keep(name: str, node: Any) -> None:
        if hasattr(node, "shape") and node.dtype.kind in "fiubcSO":
            found[name] = node

    file.visititems(keep)
    return found


def _shapes(source: Source) -> str:
    shapes = []
    for name in source.arrays:
        try:
            shapes.append(f"{name} {source.arrays[name].shape}")
        except ValueError:
            # Python objects in an npz file: there, but not for us.
            shapes.append(name)
    return ", ".join(shapes)


def _table(raw: bytes, options: ReadConfig, path: Path, notes: list[str]) -> tuple[np.ndarray, list[str]]:
    """The numbers of a text file (rows, columns), and the names above them."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        # Units such as µV, written by instruments of another age.
        text = raw.decode("latin-1")
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    lines = [(number, line) for number, line in lines if number > options.skip_lines]
    at = next((i for i, (_, line) in enumerate(lines) if _numbers(line, *_style(line, options)) is not None), None)
    if at is None:
        raise ConfigurationError(
            f"{path}: there is no line of numbers in it (a column of text, dates say, must be taken out)"
        )
    delimiter, decimal = _style(lines[at][1], options)
    width = len(_split(lines[at][1], delimiter))
    header: list[str] = []
    if at > 0:
        names = _split(lines[at - 1][1].lstrip("#% "), delimiter)
        if len(names) == width:
            header = names
        else:
            notes.append(f"{path}: the line above the numbers has {len(names)} names for {width} columns, ignored")
    rows = [(number, line) for number, line in lines[at:] if line.lstrip()[0] not in "#%"]
    return _parsed(rows, delimiter, decimal, width, path), header


def _parsed(rows: Sequence[tuple[int, str]], delimiter: str | None, decimal: str, width: int, path: Path) -> np.ndarray:
    plain = (line.replace(",", ".") if decimal == "," else line for _, line in rows)
    try:
        return np.loadtxt(plain, delimiter=delimiter, comments=None, quotechar='"', ndmin=2)
    except ValueError:
        # Empty fields, which are NaN here, or something that is no number: found line by line.
        values = np.empty((len(rows), width))
    for index, (number, line) in enumerate(rows):
        fields = _split(line, delimiter)
        found = _numbers(line, delimiter, decimal)
        if found is None:
            wrong = next(f for f in fields if _number(f, decimal) is None)
            raise ConfigurationError(f"{path}, line {number}: {wrong!r} is not a number")
        if len(found) != width:
            raise ConfigurationError(f"{path}, line {number}: {len(found)} columns, the lines before have {width}")
        values[index] = found
    return values


def _style(line: str, options: ReadConfig) -> tuple[str | None, str]:
    """Delimiter (None: blanks) and decimal sign, as given or as the line looks."""
    delimiter = options.delimiter or next((d for d in (";", "\t") if d in line), None)
    if delimiter is None and "," in line and options.decimal != ",":
        delimiter = ","
    decimal = options.decimal or ("," if delimiter != "," and "," in line and "." not in line else ".")
    return delimiter, decimal


def _split(line: str, delimiter: str | None) -> list[str]:
    if '"' in line and (delimiter is None or len(delimiter) == 1):
        # A quoted name may hold what stands between columns.
        quoted = next(
            csv.reader([line if delimiter else line.strip()], delimiter=delimiter or " ", skipinitialspace=True)
        )
        return [part.strip() for part in quoted if part or delimiter]
    if delimiter is None:
        return line.split()
    return [part.strip().strip('"') for part in line.split(delimiter)]


def _numbers(line: str, delimiter: str | None, decimal: str) -> list[float] | None:
    """The numbers of a line; None if the line is empty or has something that is not a number."""
    fields = _split(line, delimiter)
    values = [value for value in (_number(f, decimal) for f in fields) if value is not None]
    return values if len(values) == len(fields) and any(fields) else None


def _number(text: str, decimal: str) -> float | None:
    if not text:
        return float("nan")
    try:
        return float(text.replace(",", ".") if decimal == "," else text)
    except ValueError:
        return None
