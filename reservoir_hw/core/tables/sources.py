"""Files of measured data: recognised by their content, unpacked, and seen as named arrays."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, extra
from reservoir_hw.core.tables.configuration import ReadConfig
from reservoir_hw.core.tables.table import ArraysTable, Place, Table, parquet, reading, texts_of, times_of
from reservoir_hw.core.tables.text import TextTable, read_text

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
    if found := [number for number, name in enumerate(known) if re.fullmatch(pattern, name, re.DOTALL)]:
        return found
    close = get_close_matches(item, known, n=3)
    shown = close or list(known[:8])
    hint = f"near it: {', '.join(shown)}" if close else f"it has {', '.join(shown)}{', ...' if len(known) > 8 else ''}"
    if not known:
        hint = f"its {width} columns have no names: take them by number"
    raise ConfigurationError(f"{where} has no column {item!r}; {hint}")


TABLE = "table"
"""The name of the one array of a text, parquet or npy file, and of arrays with one axis that are all as long."""

_HDF5 = b"\x89HDF\r\n\x1a\n"
_UNPACK: dict[bytes, Callable[[bytes], bytes]] = {
    b"\x1f\x8b": gzip.decompress,
    b"\xfd7zXZ\x00": lzma.decompress,
    b"BZh": bz2.decompress,
}


@dataclass(frozen=True)
class Source:
    """A file as named arrays and tables.

    `arrays` read when they are sliced where the format allows it; a `Table` reads column by column. `header` are the
    names of the columns of a table, empty where it has none. `notes` are remarks for the user. `reversed_axes` says
    that the order of axes is not the one in which its program shows them.
    """

    path: Path
    sha256: str
    size: int
    arrays: Mapping[str, Any]
    header: Sequence[str] = ()
    notes: list[str] = field(default_factory=list)
    reversed_axes: bool = False

    def array(self, name: str | None) -> Any:
        """The array of that name; None stands for the table, or the only one.

        Raises `ConfigurationError` with near matches.
        """
        known = list(self.arrays)
        if name is None:
            if TABLE not in known and len(known) != 1:
                raise ConfigurationError(f"{self.path} holds several arrays, say which with `array:`: {_shapes(self)}")
            name = TABLE if TABLE in known else known[0]
        if name not in self.arrays:
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise ConfigurationError(f"{self.path} has no array {name!r}; {hint}(there are: {_shapes(self)})")
        with reading(f"{self.path}: the array {name!r}"):
            return self.arrays[name]

    def texts(self, column: str | int, what: str, array: str | None = None) -> list[str]:
        """A column as texts, as they stand; a missing one is "".

        `column` is a name, or a number, in the only array or in `array`; in a file of several arrays it may name one
        with a single axis. Raises `ConfigurationError` that begins with `what` for a column that is not there.
        """
        return texts_of(self._cells(column, what, array)[0])

    def times(self, column: str | int, what: str, array: str | None = None) -> np.ndarray:
        """A column, named as for `texts`, as times: (rows,) in float64.

        Numbers are as they are. Time stamps of ISO 8601 are seconds, without a time zone as if in UTC. Raises
        `ConfigurationError` for cells that are neither, or missing, with file, line and column.
        """
        return times_of(*self._cells(column, what, array))

    def _cells(self, column: str | int, what: str, array: str | None) -> tuple[Any, Place, str]:
        if array is None and len(self.arrays) > 1 and isinstance(column, str):
            array = column
        found = self.array(array)
        where = f"{self.path}" + (f", {array}" if array else "")
        with reading(where):
            if isinstance(found, Table):
                number = one_of(column, found.header, found.shape[1], f"{what}: {where}")
                decimal = found.decimal if isinstance(found, TextTable) else "."
                return found.cells(number), lambda row: found.place(row, number), decimal
            if found.ndim == 2:
                number = one_of(column, (), found.shape[1], f"{what}: {where}")
                return np.asarray(found[:, number]), lambda row: f"{where}, row {row}, column {number}", "."
            if found.ndim != 1:
                raise ConfigurationError(f"{what}: {where} {found.shape} is no column")
            return np.asarray(found[:]), lambda row: f"{where}, row {row}", "."


@contextmanager
def opened(path: Path, read: ReadConfig) -> Iterator[Source]:
    """The file as a `Source`, as long as the `with` block lasts.

    npy, npz, HDF5, NetCDF, MATLAB, parquet and text are told apart by their content, as is what they are packed with:
    gz, xz, bz2, or a zip archive of one file. Raises `ConfigurationError` for anything else, and `MissingExtra` where
    the library for a format is not installed.
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
    with ExitStack() as stack:
        with reading(str(path)):
            arrays = _arrays(content, start, path, read, stack)
            shapes = [_shape(arrays, name) for name in arrays]
            if len(shapes) > 1 and len(shapes[0]) == 1 and len(set(shapes)) == 1:
                arrays = {TABLE: ArraysTable(arrays, shapes[0][0], str(path)), **arrays}
        table = arrays.get(TABLE)
        header = table.header if isinstance(table, Table) else ()
        yield Source(path, digest, size, arrays, header, reversed_axes=start.startswith(b"MATLAB 7.3"))


def _arrays(content: Any, start: bytes, path: Path, read: ReadConfig, stack: ExitStack) -> Mapping[str, Any]:
    if start.startswith(_HDF5) or start[512:].startswith(_HDF5):
        with extra("data", f"{path} is HDF5, which needs h5py"):
            import h5py
        file = stack.enter_context(h5py.File(content, "r"))
        return _netcdf(content, start, path, stack) if "_NCProperties" in file.attrs else _datasets(file)
    if start.startswith(b"PK\x03\x04"):
        return stack.enter_context(_numpy(content))
    if start.startswith(b"\x93NUMPY"):
        return {TABLE: _numpy(content)}
    if start.startswith(b"PAR1"):
        return {TABLE: parquet(content, str(path))}
    if start.startswith((b"CDF\x01", b"CDF\x02")):
        return _netcdf(content, start, path, stack)
    if start.startswith(b"MATLAB 5.0"):
        return _matlab(content, path)
    if b"\x00" in start and (start.startswith((b"\xff\xfe", b"\xfe\xff")) or _every_other_zero(start)):
        raise ConfigurationError(f"{path} looks like text in UTF-16: save it as UTF-8")
    if b"\x00" in start:
        raise ConfigurationError(f"{path} is neither npy, npz, HDF5, NetCDF, MATLAB, parquet nor text")
    raw = content.getvalue() if isinstance(content, io.BytesIO) else path.read_bytes()
    return {TABLE: read_text(raw, read, str(path))}


def _shape(arrays: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """That of an array, of which no number is read."""
    if not isinstance(arrays, np.lib.npyio.NpzFile):
        return tuple(arrays[name].shape)
    assert arrays.zip is not None
    with arrays.zip.open(f"{name}.npy") as file:
        header = {(1, 0): np.lib.format.read_array_header_1_0}.get(
            np.lib.format.read_magic(file), np.lib.format.read_array_header_2_0
        )
        return header(file)[0]


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


def _numpy(content: Any) -> Any:
    return np.load(content, mmap_mode="r" if isinstance(content, Path) else None, allow_pickle=False)


def _datasets(file: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def keep(name: str, node: Any) -> None:
        if hasattr(node, "shape") and node.dtype.kind in "fiubcSO":
            found[name] = node

    file.visititems(keep)
    return found


def _netcdf(content: Any, start: bytes, path: Path, stack: ExitStack) -> dict[str, Any]:
    """Variables of all groups, with scale, offset and missing values applied, and calendars as time stamps."""
    with extra("tables", f"{path} is NetCDF, which needs xarray, h5netcdf and scipy"):
        import h5netcdf
        import scipy.io
        import xarray
    del h5netcdf, scipy

    def groups(decode_times: bool) -> Mapping[str, Any]:
        options: Any = {"decode_times": decode_times, "decode_timedelta": False, "cache": False}
        if start.startswith(b"CDF"):
            return {"/": xarray.open_dataset(content, engine="scipy", **options)}
        return xarray.open_groups(content, engine="h5netcdf", **options)

    try:
        found = groups(True)
    except (ValueError, ImportError):
        # Times in words of its own, such as "seconds since start".
        found = groups(False)
    for group in found.values():
        stack.callback(group.close)
    return {
        f"{place.strip('/')}/{name}".lstrip("/"): variable
        for place, group in found.items()
        for name, variable in group.variables.items()
    }


def _matlab(content: Any, path: Path) -> dict[str, Any]:
    """Arrays of a file before version 7.3; one row, or one column, is an array with a single axis."""
    with extra("tables", f"{path} is MATLAB 5, which needs scipy"):
        from scipy.io import loadmat
    found = loadmat(content, squeeze_me=True)
    return {name: value for name, value in found.items() if isinstance(value, np.ndarray) and value.ndim}


def _shapes(source: Source) -> str:
    shapes = []
    for name in source.arrays:
        try:
            shapes.append(f"{name} {source.arrays[name].shape}")
        except (ValueError, OSError):
            # Python objects in an npz file: there, but not for us.
            shapes.append(name)
    return ", ".join(shapes)
