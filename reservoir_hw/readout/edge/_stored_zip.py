"""Zip files whose entries are stored, one after the other, with nothing between them.

`zipfile` reads the directory. What it takes and other programs take otherwise is refused here: names twice, entries
that overlap, bytes that belong to nothing, an entry that calls itself something else. What is read means the same to
every program, and lies in the file as it is, to be mapped.
"""

from __future__ import annotations

import os
import stat
import struct
import zipfile
from dataclasses import dataclass
from typing import BinaryIO

from reservoir_hw.readout.edge._refusal import Refused, check_name, shown

# Of a local header; the mark, the length of the name, that of the extra fields (APPNOTE 4.3.7).
_LOCAL = struct.Struct("<4s22x2H")
_EXTRA = struct.Struct("<2H")
_PADDING = 0xD935
_END = 22
_UTF8 = 1 << 11
# A directory may claim to be as long as it likes, and is read as a whole.
_DIRECTORY_LIMIT = 1 << 20

ALIGNMENT = 64
"""Bytes, of the data of each entry: a multiple of every number's size, and of a cache line."""


@dataclass(frozen=True)
class Entry:
    """A file in the zip. `start` is where its bytes begin."""

    name: str
    start: int
    size: int
    crc: int


class _Sparing:
    """A file of which no more is read at once than a directory may have."""

    def __init__(self, file: BinaryIO) -> None:
        self.seek, self.tell, self._read = file.seek, file.tell, file.read

    def read(self, size: int = -1) -> bytes:
        if size > _DIRECTORY_LIMIT:
            raise zipfile.BadZipFile(f"its directory says that it has {size} bytes")
        return self._read(size)


def entries_of(file: BinaryIO, limit: int) -> list[Entry]:
    """The entries of a zip file, at most `limit`. Raises `Refused` for anything but a stored zip."""
    length = file.seek(0, os.SEEK_END)
    file.seek(max(0, length - _END))
    end = file.read()
    if not end.startswith(b"PK\x05\x06") or not end.endswith(b"\0\0"):
        raise Refused("it is no zip file, has a comment or more behind its end, or is cut off: copy or export it again")
    try:
        with zipfile.ZipFile(_Sparing(file)) as opened:  # type: ignore[arg-type]
            found = sorted(opened.infolist(), key=lambda one: one.header_offset)
            directory = opened.start_dir
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
        raise Refused(f"its zip file is damaged: {error}") from error
    if len(found) > limit:
        raise Refused(f"holds more than {limit} files")
    entries: dict[str, Entry] = {}
    at = 0
    for info in found:
        entry = _entry(file, info, at)
        if entry.name in entries:
            raise Refused(f"holds {shown(entry.name)} twice")
        entries[entry.name] = entry
        at = entry.start + entry.size
    if at != directory:
        raise Refused("the zip file holds bytes that belong to no entry: export it again")
    return list(entries.values())


def _entry(file: BinaryIO, info: zipfile.ZipInfo, expected: int) -> Entry:
    """What the directory names, if it is what begins at `expected`."""
    name = info.orig_filename
    check_name(name)
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        # -D: without entries for folders.
        raise Refused(f"{shown(name)} is compressed: zip it without compression (zip -0 -D -r), or export again")
    if info.flag_bits & ~_UTF8:
        raise Refused(f"{shown(name)} is encrypted, or has its sizes behind its data: export again")
    if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG):
        raise Refused(f"{shown(name)} is a link, a folder or a device: a bundle holds files only")
    if info.header_offset != expected:
        raise Refused(f"{shown(name)} overlaps with another entry, or bytes that belong to no entry lie before it")
    file.seek(expected)
    header = file.read(_LOCAL.size)
    mark, name_size, extra_size = _LOCAL.unpack(header) if len(header) == _LOCAL.size else (b"", 0, 0)
    if mark != b"PK\x03\x04" or file.read(name_size) != name.encode():
        raise Refused(f"{shown(name)} has another name where its bytes begin: it is damaged or forged")
    return Entry(name, expected + _LOCAL.size + name_size + extra_size, info.file_size, info.CRC)


def new_entry(name: str, start: int) -> zipfile.ZipInfo:
    """An entry whose header is to be written at `start`, with 64-bit sizes, as they are not known yet.

    Its time is the first that a zip file can name: that of writing is not part of the content.
    """
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr = 3, (stat.S_IFREG | 0o644) << 16
    padding = -(start + _LOCAL.size + len(name) + 2 * _EXTRA.size + 16) % ALIGNMENT
    info.extra = _EXTRA.pack(_PADDING, padding) + bytes(padding)
    return info
