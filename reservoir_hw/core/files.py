"""Replacing a file: whatever happens, its path holds the old content or the new one, and never a part of it."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from reservoir_hw.core.errors import ConfigurationError

# What systems answer that open no folders, or have nothing to settle in them. A rename is whole there all the same.
_NOT_SETTLED = {errno.EACCES, errno.EPERM, errno.EINVAL, errno.EBADF, errno.EISDIR, errno.ENOTSUP}


def replace_file(path: str | os.PathLike[str], content: bytes | memoryview | str) -> None:
    """Put a file with this content (text as UTF-8) at `path`. Raises as `replacing`."""
    with replacing(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path beside `path` to write a file to; it takes the place of `path` at the end, or is removed after an error.

    The content is on the disk before the file takes its name, and the name is on the disk at the end. Errors of the
    system are raised as `OSError`s that name `path`.
    """
    path = Path(path)
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        yield partial
        with open(partial, "rb+") as file:
            os.fsync(file.fileno())
        partial.replace(path)
        settle_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, f"cannot write {path}: {error.strerror or error}") from error
        raise


def must_be_writable(path: str | os.PathLike[str], what: str) -> None:
    """Raise `ConfigurationError` unless a file can be written there. It is made if there is none."""
    try:
        Path(path).open("a").close()
    except OSError as error:
        raise ConfigurationError(f"{path}: {what} cannot be written there: {error.strerror}") from error


def make_folder(path: Path) -> None:
    """A folder for results, with those above it. Raises `ConfigurationError` where that is not possible."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be made: {error.strerror or error}; name another with -o") from error


def settle_folder(path: Path) -> None:
    """Wait until the entries of a folder are on the disk, where the system can say so."""
    try:
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        if error.errno not in _NOT_SETTLED:
            raise
