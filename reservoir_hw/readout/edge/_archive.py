"""The files of a bundle, in a folder or in a stored zip, without ever going where a link points."""

from __future__ import annotations

import mmap
import os
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import BinaryIO

import numpy as np

from reservoir_hw.readout.edge._refusal import Refused, check_name, shown
from reservoir_hw.readout.edge._stored_zip import entries_of

PIECE = 1 << 20
FILES_LIMIT = 1000

# O_NONBLOCK: opening a FIFO would otherwise wait for whoever writes to it.
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_FLAGS |= getattr(os, "O_BINARY", 0)


@dataclass(frozen=True)
class _Member:
    """Where the bytes of a file lie: in a file of a folder (`path`), or in the zip itself."""

    path: Path | None
    start: int
    size: int
    crc: int | None = None


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
                self._members = {
                    entry.name: _Member(None, entry.start, entry.size, entry.crc)
                    for entry in entries_of(self._zip, FILES_LIMIT)
                }
            except BaseException:
                self._zip.close()
                raise
        else:
            raise Refused("it is neither a folder nor a file")
        self.sizes = {name: member.size for name, member in self._members.items()}

    def read(self, name: str, start: int, size: int) -> bytes:
        """A part of a file."""
        member = self._members[name]
        if member.path is None:
            return self._take(member.start + start, size)
        with self._open(member) as file:
            file.seek(start)
            return _exactly(file, size)

    def pieces(self, name: str) -> Iterator[bytes]:
        """A file from beginning to end; in a zip its CRC is compared on the way."""
        member = self._members[name]
        crc, done = 0, 0
        if member.path is not None:
            with self._open(member) as file:
                while done < member.size:
                    piece = _exactly(file, min(PIECE, member.size - done))
                    done += len(piece)
                    yield piece
            return
        while done < member.size:
            piece = self._take(member.start + done, min(PIECE, member.size - done))
            crc, done = zlib.crc32(piece, crc), done + len(piece)
            yield piece
        if crc != member.crc:
            raise Refused("does not have the CRC of its zip entry: it is damaged, copy it again")

    def map(self, name: str) -> np.ndarray:
        """A file as read-only bytes (size,) that are read from disk when they are used."""
        member = self._members[name]
        if member.size == 0:
            return np.frombuffer(b"", np.uint8)
        if member.path is None:
            assert self._zip is not None
            return _mapped(self._zip, member.start, member.size)
        with self._open(member) as file:
            return _mapped(file, 0, member.size)

    def close(self) -> None:
        """Close the zip; what is mapped stays."""
        if self._zip is not None:
            self._zip.close()

    def _take(self, start: int, size: int) -> bytes:
        assert self._zip is not None
        with self._lock:
            self._zip.seek(start)
            return _exactly(self._zip, size)

    def _open(self, member: _Member) -> BinaryIO:
        assert member.path is not None
        before = os.lstat(member.path)
        file = os.fdopen(os.open(member.path, _FLAGS), "rb")
        now = os.fstat(file.fileno())
        same = (before.st_dev, before.st_ino) == (now.st_dev, now.st_ino)
        if not same or not stat.S_ISREG(now.st_mode) or now.st_size != member.size:
            file.close()
            raise Refused("was replaced while the bundle was open: open it again")
        return file

    def _walk(self, root: Path) -> dict[str, _Member]:
        found: dict[str, _Member] = {}
        pending, seen = [("", root)], 0
        while pending:
            prefix, folder = pending.pop()
            empty = True
            with os.scandir(folder) as inside:
                for entry in inside:
                    empty = False
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
                        found[name] = _Member(Path(entry.path), 0, about.st_size)
                    else:
                        raise Refused(f"{shown(name)} is neither a file nor a folder")
            if empty and prefix:
                self.folders.append(prefix[:-1])
        return found


def _exactly(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise Refused("ends too early: it is damaged or was changed")
    return data


def _mapped(file: BinaryIO, start: int, size: int) -> np.ndarray:
    skipped = start % mmap.ALLOCATIONGRANULARITY
    region = mmap.mmap(file.fileno(), skipped + size, access=mmap.ACCESS_READ, offset=start - skipped)
    return np.frombuffer(region, np.uint8, size, skipped)
