"""Writing a bundle beside its target, as a folder or a stored zip, and putting it in its place when it is whole."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, BinaryIO, Self, TypeAlias

from reservoir_hw.core.files import settle_folder
from reservoir_hw.readout.edge._archive import PIECE, Archive, new_entry
from reservoir_hw.readout.edge.manifest import FORMAT, MANIFEST, Refused, shown

MANIFEST_LIMIT = 4 << 20
Content: TypeAlias = bytes | memoryview | os.PathLike[str] | Iterable[bytes | memoryview]


def is_zip(path: Path) -> bool:
    """By the name of a bundle, whether it is a zip file."""
    return path.suffix.lower() in (".rhw", ".zip")


class Packer(ABC):
    """Takes files one after the other; at the end of its context they are on the disk."""

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @abstractmethod
    def _opened(self, name: str) -> AbstractContextManager[IO[bytes]]: ...

    def add(self, name: str, content: Content) -> tuple[int, str]:
        """Write a file; returns its size in bytes and its SHA-256."""
        size, digest = 0, hashlib.sha256()
        with self._opened(name) as file:
            for piece in _pieces(content):
                file.write(piece)
                digest.update(piece)
                size += len(piece)
        return size, digest.hexdigest()


class FolderPacker(Packer):
    """Files in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for folder in (self._folder, *(path for path in self._folder.rglob("*") if path.is_dir())):
            settle_folder(folder)

    @contextmanager
    def _opened(self, name: str) -> Iterator[IO[bytes]]:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "xb") as file:
            yield file
            _flushed(file)


class ZipPacker(Packer):
    """Entries of a stored zip."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 - closed by __exit__
        self._zip = zipfile.ZipFile(self._file, "w")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            self._zip.close()
            _flushed(self._file)

    def _opened(self, name: str) -> AbstractContextManager[IO[bytes]]:
        return self._zip.open(new_entry(name, self._file.tell()), "w", force_zip64=True)


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Replacement:
    """A place beside the target that takes the target's name when it is kept, and is removed otherwise.

    Raises `Refused` if something is at the target that is not a whole bundle of the same form, and nothing else.
    """

    def __init__(self, target: Path) -> None:
        self._target = target

    def __enter__(self) -> Self:
        self._target.parent.mkdir(parents=True, exist_ok=True)
        _refuse_foreign(self._target)
        self._beside = Path(tempfile.mkdtemp(dir=self._target.parent, prefix=f".{self._target.name}."))
        self.path = self._beside / "new"
        if not is_zip(self._target):
            self.path.mkdir()
        return self

    def packer(self) -> Packer:
        """What writes into it."""
        return ZipPacker(self.path) if is_zip(self._target) else FolderPacker(self.path)

    def keep(self) -> None:
        """Put it in the place of the target."""
        _refuse_foreign(self._target)
        if self.path.is_dir() and self._target.exists():
            # No system call replaces a folder that is not empty: the old one goes aside first, and back on failure.
            old = self._beside / "old"
            os.rename(self._target, old)
            try:
                os.rename(self.path, self._target)
            except BaseException:
                os.rename(old, self._target)
                raise
        else:
            os.replace(self.path, self._target)
        settle_folder(self._target.parent)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._beside, ignore_errors=True)
        # That of a full disk does not know which file it is about.
        if isinstance(error, OSError) and error.errno in _FULL and error.filename is None:
            error.filename = str(self._target)


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
    try:
        listed = _listed(archive)
        if listed is None:
            raise Refused(f"what is there already is no bundle {advice}")
        foreign = sorted(archive.sizes.keys() - listed - {MANIFEST}) + archive.folders
        if foreign:
            raise Refused(f"what is there already holds {shown(foreign[0])}, which is not the bundle's, {advice}")
    finally:
        archive.close()


def _listed(archive: Archive) -> set[str] | None:
    size = archive.sizes.get(MANIFEST, MANIFEST_LIMIT + 1)
    if size > MANIFEST_LIMIT:
        return None
    try:
        found = json.loads(archive.read(MANIFEST, 0, size))
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("format") != FORMAT or not isinstance(found.get("files"), dict):
        return None
    return set(found["files"])


def _pieces(content: Content) -> Iterator[bytes | memoryview]:
    if isinstance(content, bytes | memoryview):
        yield memoryview(content).cast("B")
    elif isinstance(content, os.PathLike):
        with open(content, "rb") as file:
            while piece := file.read(PIECE):
                yield piece
    else:
        for piece in content:
            yield memoryview(piece).cast("B")


def _flushed(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
