"""Zip files whose entries are stored, one after the other, with nothing between them.

A strict subset of PKWARE's APPNOTE 6.3.10 (sections 4.3 and 4.4): no compression, no encryption, no data descriptors,
no comments, one disk, and no bytes that belong to nothing. Other tools can read what is written here; what is read
here means the same to every tool.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass

from reservoir_hw.readout.edge._refusal import Refused, check_name, shown

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END_64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_EXTRA = struct.Struct("<2H")

_FULL_16, _FULL_32 = 0xFFFF, 0xFFFFFFFF
_ZIP64, _PADDING = 0x0001, 0xD935
_UTF8 = 1 << 11
_VERSION, _VERSION_64 = 20, 45
_UNIX = 3
# The first moment that a zip file can name: the time of writing is not part of the content.
_DATE = (1 << 5) | 1
_NAME_LIMIT, _EXTRA_LIMIT = 512, 512
# Without times and owners, which zip keeps in extra fields, and without entries for folders.
_ZIP_AGAIN = "zip -0 -X -D -r"

ALIGNMENT = 64
"""Bytes, of the data of each entry: a multiple of every number's size, and of a cache line."""

# From where on sizes and offsets need 64 bits; a module constant, so that a test need not write 4 GiB.
ZIP64_FROM = _FULL_32


@dataclass(frozen=True)
class Entry:
    """A file in the zip. `start` is where its bytes begin."""

    name: str
    start: int
    size: int
    crc: int


def entries_of(take: Callable[[int, int], bytes], size: int, limit: int) -> list[Entry]:
    """The entries of a zip of `size` bytes; `take` returns the bytes at (start, length).

    Raises `Refused` for anything but a stored zip.
    """
    if size < _END.size or take(0, 4) not in (b"PK\x03\x04", b"PK\x05\x06"):
        raise Refused("it is no zip file: a bundle is a folder, or a zip file whose entries are stored")
    count, directory_size, directory, end = _directory(take, size)
    if count > limit:
        raise Refused(f"holds more than {limit} files")
    if directory_size > count * (_CENTRAL.size + _NAME_LIMIT + _EXTRA_LIMIT) or directory + directory_size != end:
        raise Refused("the directory of the zip file is not where the end says: it is damaged")
    data = take(directory, directory_size)
    entries, at, expected = [], 0, 0
    names: set[str] = set()
    for _ in range(count):
        entry, at, expected = _entry(take, data, at, expected, directory)
        if entry.name in names:
            raise Refused(f"holds {shown(entry.name)} twice")
        names.add(entry.name)
        entries.append(entry)
    if at != len(data) or expected != directory:
        raise Refused("the zip file holds bytes that belong to no entry: export it again")
    return entries


def _directory(take: Callable[[int, int], bytes], size: int) -> tuple[int, int, int, int]:
    """Number of entries, size and place of the directory, and where it has to end."""
    at = size - _END.size
    mark, disk, first_disk, here, count, length, start, comment = _END.unpack(take(at, _END.size))
    if mark != b"PK\x05\x06" or comment:
        raise Refused("the zip file has a comment, or does not end as one: it is cut off or damaged")
    if disk or first_disk or here != count:
        raise Refused("the zip file is a part of several: a bundle is one file")
    if count != _FULL_16 and _FULL_32 not in (length, start):
        return count, length, start, at
    if at < _LOCATOR.size + _END_64.size:
        raise Refused("the zip file says that it is a large one, but it is not: it is damaged")
    end_64 = at - _LOCATOR.size - _END_64.size
    mark, disk, where, disks = _LOCATOR.unpack(take(at - _LOCATOR.size, _LOCATOR.size))
    found = _END_64.unpack(take(end_64, _END_64.size))
    mark_64, rest, _, _, disk_64, first_64, here_64, count_64, length_64, start_64 = found
    whole = mark == b"PK\x06\x07" and mark_64 == b"PK\x06\x06" and where == end_64 and rest == _END_64.size - 12
    same = (
        here_64 == count_64
        and count in (_FULL_16, count_64)
        and length in (_FULL_32, length_64)
        and start in (_FULL_32, start_64)
    )
    if not whole or not same or disk or disk_64 or first_64 or disks > 1:
        raise Refused("the two ends of the large zip file do not agree: it is damaged")
    return count_64, length_64, start_64, end_64


def _entry(
    take: Callable[[int, int], bytes], data: bytes, at: int, expected: int, limit: int
) -> tuple[Entry, int, int]:
    """The entry at a place of the directory, and where the next one and its local header have to be."""
    if len(data) - at < _CENTRAL.size:
        raise Refused("the directory of the zip file is cut off: copy it again")
    central = _CENTRAL.unpack_from(data, at)
    mark, made, version, flags, method, time, date, crc, packed, size, name_size, extra_size = central[:12]
    comment_size, disk, _, attributes, start = central[12:]
    at += _CENTRAL.size
    name_bytes = data[at : at + name_size]
    extra = data[at + name_size : at + name_size + extra_size]
    at += name_size + extra_size
    if mark != b"PK\x01\x02" or at > len(data) or name_size > _NAME_LIMIT or extra_size > _EXTRA_LIMIT:
        raise Refused("the directory of the zip file is damaged: copy it again")
    name = _plain_name(name_bytes)
    if comment_size or disk:
        raise Refused(f"{shown(name)} has a comment, or lies in another file: export the bundle again")
    if flags & ~_UTF8:
        what = "is encrypted" if flags & 1 else "has sizes behind its data, or other features (flags {flags:#x})"
        raise Refused(f"{shown(name)} {what.format(flags=flags)}: a bundle has plain stored entries")
    if method:
        raise Refused(
            f"{shown(name)} is compressed (method {method}): zip it without compression ({_ZIP_AGAIN}) or export again"
        )
    if version & 0xFF > _VERSION_64:
        raise Refused(f"{shown(name)} needs version {version} of the zip format")
    kind = stat.S_IFMT(attributes >> 16) if made >> 8 == _UNIX else 0
    if kind not in (0, stat.S_IFREG) or attributes & 0x10:
        raise Refused(f"{shown(name)} is a link, a folder or a device: a bundle holds files only")
    size, packed, start = _large(name, extra, size, packed, start)
    if size != packed:
        raise Refused(f"{shown(name)} is stored, but its two sizes are {packed} and {size}: it is damaged")
    if start != expected:
        raise Refused(f"{shown(name)} overlaps with another entry, or does not follow the one before it")
    if start + _LOCAL.size + name_size > limit:
        raise Refused(f"{shown(name)} lies outside the zip file: it is damaged")
    local = _LOCAL.unpack(take(start, _LOCAL.size))
    local_mark, local_version, local_flags, local_method, local_time, local_date, local_crc = local[:7]
    local_packed, local_size, local_name_size, local_extra_size = local[7:]
    begin = start + _LOCAL.size + local_name_size + local_extra_size
    if local_mark != b"PK\x03\x04" or local_name_size != name_size or begin > limit:
        raise Refused(f"{shown(name)} is not where the directory of the zip file says")
    if local_extra_size > _EXTRA_LIMIT:
        raise Refused(f"{shown(name)} has {local_extra_size} bytes of extra fields, more than {_EXTRA_LIMIT}")
    behind = take(start + _LOCAL.size, local_name_size + local_extra_size)
    local_size, local_packed, _ = _large(name, behind[name_size:], local_size, local_packed, 0)
    facts = (name_bytes, version, flags, method, time, date, crc, packed, size)
    local_facts = (behind[:name_size], local_version, local_flags, local_method, local_time, local_date, local_crc)
    if facts != (*local_facts, local_packed, local_size):
        raise Refused(f"{shown(name)} is described in two ways by the zip file: it is damaged or forged")
    if begin + size > limit:
        raise Refused(f"{shown(name)} is longer than the zip file: it is cut off")
    return Entry(name, begin, size, crc), at, begin + size


def _plain_name(data: bytes) -> str:
    try:
        name = data.decode("ascii")
    except UnicodeDecodeError:
        name = data.decode("latin-1")
    check_name(name)
    return name


def _large(name: str, extra: bytes, size: int, packed: int, start: int) -> tuple[int, int, int]:
    """Sizes and offset with 64 bits, where the 32-bit fields are full; in the order of the format."""
    found, at = None, 0
    while at < len(extra):
        if len(extra) - at < _EXTRA.size:
            raise Refused(f"{shown(name)} has a damaged extra field")
        kind, length = _EXTRA.unpack_from(extra, at)
        body = extra[at + _EXTRA.size : at + _EXTRA.size + length]
        at += _EXTRA.size + length
        if len(body) != length or (kind == _ZIP64 and found is not None):
            raise Refused(f"{shown(name)} has a damaged extra field")
        if kind == _ZIP64:
            found = body
        elif kind != _PADDING:
            raise Refused(
                f"{shown(name)} has an extra field {kind:#06x}, not a bundle's: {_ZIP_AGAIN}, or export again"
            )
    full = [value == _FULL_32 for value in (size, packed, start)]
    if found is None:
        return size, packed, start
    if len(found) != 8 * sum(full):
        raise Refused(f"{shown(name)} has 64-bit sizes that do not belong to it")
    numbers = iter(struct.unpack(f"<{sum(full)}Q", found))
    large = [next(numbers) if wanted else value for wanted, value in zip(full, (size, packed, start), strict=True)]
    return large[0], large[1], large[2]


def header_size(name: str, start: int) -> int:
    """Bytes of a local header at `start`, so that what follows begins at a multiple of `ALIGNMENT`."""
    size = _LOCAL.size + len(name)
    # Room for 64-bit sizes and an empty padding field: sizes need not be known before the data is written.
    needed = 2 * _EXTRA.size + 16
    return size + needed + -(start + size + needed) % ALIGNMENT


def local_header(name: str, size: int, crc: int, start: int) -> bytes:
    """What stands before the bytes of an entry: `header_size` bytes, at `start`."""
    large = size >= ZIP64_FROM
    extra = _EXTRA.pack(_ZIP64, 16) + struct.pack("<2Q", size, size) if large else b""
    padding = header_size(name, start) - _LOCAL.size - len(name) - len(extra) - _EXTRA.size
    extra += _EXTRA.pack(_PADDING, padding) + bytes(padding)
    sizes = _FULL_32 if large else size
    fields = (_version(size, start), 0, 0, 0, _DATE, crc, sizes, sizes, len(name), len(extra))
    return _LOCAL.pack(b"PK\x03\x04", *fields) + name.encode() + extra


def directory(entries: list[tuple[str, int, int, int]], start: int) -> bytes:
    """What stands behind the last entry, at `start`. An entry is (name, place of its local header, size, CRC)."""
    data = b"".join(_central(*entry) for entry in entries)
    count, size, end = len(entries), len(data), start + len(data)
    if start >= ZIP64_FROM or count >= _FULL_16:
        versions = (_UNIX << 8 | _VERSION_64, _VERSION_64)
        data += _END_64.pack(b"PK\x06\x06", _END_64.size - 12, *versions, 0, 0, count, count, size, start)
        data += _LOCATOR.pack(b"PK\x06\x07", 0, end, 1)
        start = _FULL_32
    count = min(count, _FULL_16)
    return data + _END.pack(b"PK\x05\x06", 0, 0, count, count, size, start, 0)


def _central(name: str, start: int, size: int, crc: int) -> bytes:
    extra, sizes, where = b"", size, start
    if size >= ZIP64_FROM:
        extra, sizes = struct.pack("<2Q", size, size), _FULL_32
    if start >= ZIP64_FROM:
        extra, where = extra + struct.pack("<Q", start), _FULL_32
    if extra:
        extra = _EXTRA.pack(_ZIP64, len(extra)) + extra
    version, attributes = _version(size, start), (stat.S_IFREG | 0o644) << 16
    fields = (_UNIX << 8 | _VERSION_64, version, 0, 0, 0, _DATE, crc, sizes, sizes, len(name), len(extra))
    return _CENTRAL.pack(b"PK\x01\x02", *fields, 0, 0, 0, attributes, where) + name.encode() + extra


def _version(size: int, start: int) -> int:
    return _VERSION_64 if max(size, start) >= ZIP64_FROM else _VERSION
