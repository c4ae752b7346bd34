"""The files of a bundle, in a folder or a stored zip: read without ever going where a link points, written whole."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import IO, BinaryIO, TypeAlias

import numpy as np

from reservoir_hw.core.files import settle_folder
from reservoir_hw.readout.edge.manifest import FORMAT, MANIFEST, FileRecord, Refused, check_name, shown, strict_json

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
class Member:
    """A file of a bundle: `path` in a folder, or the bytes from `start` on in a zip, which has their CRC."""

    size: int
    path: Path | None = None
    start: int = 0
    crc: int | None = None


class _Sparing:
    """A file of which no more is read at once than a directory may have."""

    def __init__(self, file: BinaryIO) -> None:
        self.seek, self.tell, self._read = file.seek, file.tell, file.read

    def read(self, size: int = -1) -> bytes:
        if size > _DIRECTORY_LIMIT:
            raise zipfile.BadZipFile(f"its directory says that it has {size} bytes")
        return self._read(size)


def members_of(file: BinaryIO, limit: int) -> dict[str, Member]:
    """The files in a zip file, at most `limit`. Raises `Refused` for anything but a stored zip."""
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
    members: dict[str, Member] = {}
    at = 0
    for info in found:
        member = _member(file, info, at)
        if info.orig_filename in members:
            raise Refused(f"holds {shown(info.orig_filename)} twice")
        members[info.orig_filename] = member
        at = member.start + member.size
    if at != directory:
        raise Refused("the zip file holds bytes that belong to no entry: export it again")
    return members


def _member(file: BinaryIO, info: zipfile.ZipInfo, expected: int) -> Member:
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
    start = expected + _LOCAL.size + name_size + extra_size
    return Member(info.file_size, start=start, crc=info.CRC)


def new_entry(name: str, start: int) -> zipfile.ZipInfo:
    """An entry whose header is to be written at `start`, with 64-bit sizes, as they are not known yet.

    Its time is the first that a zip file can name: that of writing is not part of the content.
    """
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr = 3, (stat.S_IFREG | 0o644) << 16
    padding = -(start + _LOCAL.size + len(name) + 2 * _EXTRA.size + 16) % ALIGNMENT
    info.extra = _EXTRA.pack(_PADDING, padding) + bytes(padding)
    return info


PIECE = 1 << 20
FILES_LIMIT = 1000

# O_NONBLOCK: opening a FIFO would otherwise wait for whoever writes to it.
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_FLAGS |= getattr(os, "O_BINARY", 0)


class Archive:
    """What is in a bundle: names, sizes and bytes. Nothing is known yet about what the files mean.

    Raises `Refused` for what is neither a folder of regular files nor a zip of stored entries.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.folders: list[str] = []
        """Empty ones."""
        self._zip: BinaryIO | None = None
        self._lock = Lock()
        try:
            mode = os.stat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            raise Refused("there is nothing at this path") from None
        except ValueError as error:
            raise Refused(f"this is no path: {error}") from error
        if stat.S_ISDIR(mode):
            self._members = self._walk(Path(path))
        elif stat.S_ISREG(mode):
            self._zip = open(path, "rb")  # noqa: SIM115 - closed by close()
            try:
                self._members = members_of(self._zip, FILES_LIMIT)
            except BaseException:
                self._zip.close()
                raise
        else:
            raise Refused("it is neither a folder nor a file")
        self.sizes = {name: member.size for name, member in self._members.items()}

    def read(self, name: str, start: int, size: int) -> bytes:
        """A part of a file."""
        member = self._members[name]
        with self._opened(member) as file:
            file.seek(member.start + start)
            data = file.read(size)
        if len(data) != size:
            raise Refused("ends too early: it is damaged or was changed")
        return data

    def pieces(self, name: str) -> Iterator[bytes]:
        """A file from beginning to end; in a zip its CRC is compared on the way."""
        member, crc = self._members[name], 0
        for start in range(0, member.size, PIECE):
            piece = self.read(name, start, min(PIECE, member.size - start))
            crc = zlib.crc32(piece, crc)
            yield piece
        if member.crc not in (None, crc):
            raise Refused("does not have the CRC of its zip entry: it is damaged, copy it again")

    def map(self, name: str) -> np.ndarray:
        """A file as read-only bytes (size,) that are read from disk when they are used."""
        member = self._members[name]
        if member.size == 0:
            return np.frombuffer(b"", np.uint8)
        with self._opened(member) as file:
            return np.asarray(np.memmap(file, np.uint8, "r", member.start, (member.size,)))

    def close(self) -> None:
        """Close the zip; what is mapped stays."""
        if self._zip is not None:
            self._zip.close()

    @contextmanager
    def _opened(self, member: Member) -> Iterator[BinaryIO]:
        """The file that a member is in; the zip is that of one thread at a time."""
        if member.path is None:
            assert self._zip is not None
            with self._lock:
                yield self._zip
            return
        before = os.lstat(member.path)
        with os.fdopen(os.open(member.path, _FLAGS), "rb") as file:
            now = os.fstat(file.fileno())
            same = (before.st_dev, before.st_ino) == (now.st_dev, now.st_ino)
            if not same or not stat.S_ISREG(now.st_mode) or now.st_size != member.size:
                raise Refused("was replaced while the bundle was open: open it again")
            yield file

    def _walk(self, root: Path) -> dict[str, Member]:
        found: dict[str, Member] = {}
        pending, seen = [("", root)], 0
        while pending:
            prefix, folder = pending.pop()
            before = seen
            with os.scandir(folder) as inside:
                for entry in inside:
                    seen += 1
                    if seen > FILES_LIMIT:
                        raise Refused(f"holds more than {FILES_LIMIT} files")
                    name = prefix + entry.name
                    about = entry.stat(follow_symlinks=False)
                    if entry.is_symlink() or getattr(entry, "is_junction", bool)():
                        raise Refused(f"{shown(name)} is a link: a bundle holds files only, copy what it points to")
                    check_name(name)
                    if stat.S_ISDIR(about.st_mode):
                        pending.append((name + "/", Path(entry.path)))
                    elif stat.S_ISREG(about.st_mode):
                        found[name] = Member(about.st_size, Path(entry.path))
                    else:
                        raise Refused(f"{shown(name)} is neither a file nor a folder")
            if seen == before and prefix:
                self.folders.append(prefix[:-1])
        return found


# ---- Writing a bundle beside its target, and putting it in its place when it is whole.


MANIFEST_LIMIT = 4 << 20
Content: TypeAlias = bytes | Iterable[bytes | memoryview]


def is_zip(path: Path) -> bool:
    """By the name of a bundle, whether it is a zip file."""
    return path.suffix.lower() in (".rhw", ".zip")


Opened: TypeAlias = Callable[[str], AbstractContextManager[IO[bytes]]]
"""Opens a new file of the bundle, by its name."""


@contextmanager
def packing(path: Path) -> Iterator[Opened]:
    """Opens the files of a new bundle: in the folder at `path`, or a stored zip. In the end they are on the disk."""
    if path.is_dir():
        yield partial(_new_file, path)
        for folder in (path, *(inside for inside in path.rglob("*") if inside.is_dir())):
            settle_folder(folder)
        return
    with open(path, "wb") as file:
        with zipfile.ZipFile(file, "w") as packed:
            yield lambda name: packed.open(new_entry(name, file.tell()), "w", force_zip64=True)
        _flush(file)


@contextmanager
def _new_file(folder: Path, name: str) -> Iterator[IO[bytes]]:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "xb") as file:
        yield file
        _flush(file)


def add(opened: Opened, name: str, content: Content) -> FileRecord:
    """Write a file; returns its size in bytes and its SHA-256."""
    size, digest = 0, hashlib.sha256()
    with opened(name) as file:
        for piece in [content] if isinstance(content, bytes) else content:
            file.write(piece)
            digest.update(piece)
            size += len(piece)
    return FileRecord(bytes=size, sha256=digest.hexdigest())


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A place beside the target that takes the target's name at the end, and is removed after an error.

    Raises `Refused` if something is at the target that is not a whole bundle of the same form, and nothing else.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _refuse_foreign(target)
    beside = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    new, old = beside / "new", beside / "old"
    try:
        if not is_zip(target):
            new.mkdir()
        yield new
        _refuse_foreign(target)
        if new.is_dir() and target.exists():
            # No system call replaces a folder that is not empty: the old one goes aside first, and back on failure.
            os.rename(target, old)
            try:
                os.rename(new, target)
            except BaseException:
                os.rename(old, target)
                raise
        else:
            os.replace(new, target)
        settle_folder(target.parent)
    except OSError as error:
        # That of a full disk does not know which file it is about.
        if error.errno in _FULL and error.filename is None:
            error.filename = str(target)
        raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _refuse_foreign(target: Path) -> None:
    """Refuse to replace anything but a bundle, as a folder with other files would lose them."""
    if not os.path.lexists(target) or (target.is_file() and target.stat().st_size == 0):
        return
    if target.is_dir() == is_zip(target):
        raise Refused(f"is there already as a {'folder' if target.is_dir() else 'file'}: choose another name")
    if target.is_dir() and not any(target.iterdir()):
        return
    advice = "and is not replaced: choose another name, or remove it"
    try:
        archive = Archive(target)
    except Refused as refused:
        raise Refused(f"what is there already is no bundle ({refused}) {advice}") from refused
    with closing(archive):
        listed = _listed(archive)
        if listed is None:
            raise Refused(f"what is there already is no bundle {advice}")
        foreign = sorted(archive.sizes.keys() - listed - {MANIFEST}) + archive.folders
        if foreign:
            raise Refused(f"what is there already holds {shown(foreign[0])}, which is not the bundle's, {advice}")


def _listed(archive: Archive) -> set[str] | None:
    size = archive.sizes.get(MANIFEST, MANIFEST_LIMIT + 1)
    if size > MANIFEST_LIMIT:
        return None
    try:
        found = strict_json(archive.read(MANIFEST, 0, size))
    except Refused:
        return None
    files = found.get("files")
    return set(files) if found.get("format") == FORMAT and isinstance(files, dict) else None


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
