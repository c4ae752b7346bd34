"""Where a store lies: a folder, or an address that fsspec knows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.files import settle_folder
from reservoir_hw.core.store._damage import leave, origin


class Home:
    """The root of a store and its journal, and what is done with its files beside Zarr."""

    def __init__(self, path: str, root: Any) -> None:
        self.path = path
        self.root = root
        self.journal: Any = root["journal"]
        self.folder = None if "://" in path else Path(path)
        """None at an address."""

    def remove(self, name: str) -> bool:
        """Remove a file of the store, if that is a folder and the file there; whether it was."""
        if self.folder is not None and (self.folder / name).exists():
            self.refuse_if_reading()
            (self.folder / name).unlink()
            settle_folder((self.folder / name).parent)
            return True
        return False

    def refuse_if_reading(self) -> None:
        """Raise `ConfigurationError` if the store was not opened to be written."""
        if self.root.store.read_only:
            raise ConfigurationError(f"{self.path} was opened to be read: open it with writable=True")

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Where something of the store is changed: errors of the disk name the store, and say what to do."""
        self.refuse_if_reading()
        try:
            yield
        except OSError as failed:
            error = origin(failed)
            where = f" ({error.filename})" if error.filename else ""
            said = f"{self.path} cannot be written: {error.strerror or error}{where}{leave(error)}"
            raise (OSError(said) if error.errno is None else OSError(error.errno, said)) from failed
