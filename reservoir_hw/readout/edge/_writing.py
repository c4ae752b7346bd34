"""Writing a bundle beside its target, as a folder or a stored zip, and putting it in its place when it is whole."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, BinaryIO, TypeAlias

from reservoir_hw.core.files import settle_folder
from reservoir_hw.readout.edge._archive import Archive, new_entry
from reservoir_hw.readout.edge.manifest import FORMAT, MANIFEST, Refused, shown, strict_json

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


def add(opened: Opened, name: str, content: Content) -> tuple[int, str]:
    """Write a file; returns its size in bytes and its SHA-256."""
    size, digest = 0, hashlib.sha256()
    with opened(name) as file:
        for piece in [content] if isinstance(content, bytes) else content:
            file.write(piece)
            digest.update(piece)
            size += len(piece)
    return size, digest.hexdigest()


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
